"""The best way to train or serve a large language model on given GPUs: the Python API.

    import autoconfig

    found = autoconfig.search(model="175b", gpus=1024, gpu="h100")
    found.plans                                  # a pandas frame
    autoconfig.export(found.best, model="175b", gpus=1024, gpu="h100", output="run")

Keywords are the command line's long options with `_` for `-`; answers have the fields of the command's JSON as
attributes (docs/python.md). Bad input raises `autoconfig.specs.errors.InputError`. Nothing is loaded before the first question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack

if TYPE_CHECKING:
    import pandas as pd

    from autoconfig.engines.convert import ConvertedStartJson
    from autoconfig.formats.convert import Converted
    from autoconfig.formats.export import Export
    from autoconfig.keywords import (
        BudgetKeywords,
        CheckKeywords,
        ConvertKeywords,
        DeploymentsKeywords,
        DiagnoseKeywords,
        PredictKeywords,
        QuestionKeywords,
        RlKeywords,
        ScalingKeywords,
        SearchKeywords,
    )
    from autoconfig.notebook.answers import (
        BudgetFound,
        CheckFound,
        ComparedFound,
        DeploymentsFound,
        DiagnosisFound,
        ExplainFound,
        PredictedFound,
        RlFound,
        ScalingFound,
        SearchFound,
        StartFound,
    )
    from autoconfig.render.listings import ModelCountJson
    from autoconfig.render.validation import ValidationJson
    from autoconfig.specs.scenario import Calibration

Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")


def _question(*groups: str, but: tuple[str, ...] = ()) -> Callable[[Callable[Asked, Answer]], Callable[Asked, Answer]]:
    """Messages name keywords, not options: `seq_length`, not `--seq-length`. With `groups` of fields (`request_fields`) the
    function takes those alone, and its own keywords."""

    def decorate(function: Callable[Asked, Answer]) -> Callable[Asked, Answer]:
        @wraps(function)
        def asked(*arguments: Asked.args, **keywords: Asked.kwargs) -> Answer:
            from inspect import signature

            from autoconfig.planning import request_fields
            from autoconfig.planning.resolve import check_names
            from autoconfig.specs.errors import InputError
            from autoconfig.specs.extras import missing_package

            known = (field for group in groups for field in getattr(request_fields, group) if field.name not in but)
            own = {
                name for name, parameter in signature(function).parameters.items() if parameter.kind != parameter.VAR_KEYWORD
            }
            try:
                if groups:
                    check_names([name for name in keywords if name not in own], tuple(known))
                return function(*arguments, **keywords)
            except InputError as error:
                error.args = (error.text,)
                raise
            except ModuleNotFoundError as error:
                raise missing_package(error) from None

        return asked

    return decorate


def __dir__() -> list[str]:
    """The functions of the API."""
    return [
        name
        for name, value in globals().items()
        if isinstance(value, FunctionType) and value.__module__ == __name__ and name[0] != "_"
    ]


def __getattr__(name: str) -> Any:
    """`__version__`, looked up when it is asked for. Raises AttributeError."""
    if name != "__version__":
        now = "; validate() has the summary, of serving too" if name == "validate_serving" else ""
        raise AttributeError(f"module 'autoconfig' has no attribute {name!r}{now}")
    from importlib.metadata import version

    return version("megatron-autoconfig")


def _plan_text(plan: object) -> str:
    """The short form of a plan, or of an entry of an answer."""
    return str(getattr(plan, "short", plan))


@_question("QUESTION", "SEARCH")
def search(**question: Unpack[SearchKeywords]) -> SearchFound | ComparedFound:
    """The plans that fit, fastest first: `autoconfig search`, by formula. Where `gpu` or `precision` is a list, the best plan
    of each."""
    from autoconfig.notebook.answers import ComparedFound, SearchFound
    from autoconfig.planning.request_fields import several
    from autoconfig.training import answer
    from autoconfig.training.question import request_of

    if (include := question.get("include")) is not None:
        question["include"] = [_plan_text(one) for one in (include if isinstance(include, (list, tuple)) else [include])]
    asked = several(question)
    return ComparedFound(*answer.compare(asked)) if len(asked) > 1 else SearchFound(answer.answer(request_of(asked[0])))


@_question("SERVING")
def deployments(**question: Unpack[DeploymentsKeywords]) -> DeploymentsFound:
    """The deployments that fit and meet the limits, best first: `autoconfig deployments`."""
    from autoconfig.engines.include import request_with_starts
    from autoconfig.notebook.answers import DeploymentsFound
    from autoconfig.serving.answer import answer

    return DeploymentsFound(answer(request_with_starts(question)[0]))


@_question("POST_TRAINING")
def rl(**question: Unpack[RlKeywords]) -> RlFound:
    """The placements of a step of post-training that fit, quickest first: `autoconfig rl`."""
    from autoconfig.notebook.answers import RlFound
    from autoconfig.post_training.answer import answer
    from autoconfig.post_training.question import request_of

    return RlFound(answer(request_of(question)))


@_question("QUESTION")
def explain(plan: object, *, binds: bool = True, **question: Unpack[QuestionKeywords]) -> ExplainFound:
    """Memory and time of one plan, part by part: `autoconfig explain`.

    `plan` is its short form, or an entry of an answer such as `found.best`."""
    from autoconfig.notebook.answers import ExplainFound
    from autoconfig.training import answer
    from autoconfig.training.question import request_of

    return ExplainFound(answer.explain(request_of(question), _plan_text(plan), binds=binds))


@_question("QUESTION")
def export(
    plan: object,
    *,
    output: str | Path,
    format: str = "megatron",
    force: bool = False,
    even_if_too_large: bool = False,
    image: str | None = None,
    queue: str | None = None,
    **question: Unpack[QuestionKeywords],
) -> Export:
    """Launch scripts and plan.json of one plan, written into a folder: `autoconfig export`."""
    from autoconfig.formats.export import export_named, place_of
    from autoconfig.training.question import request_of

    asked, place = request_of(question), place_of(format, image, queue)
    return export_named(asked, _plan_text(plan), str(output), format, force=force, too_large=even_if_too_large, place=place)


@_question("CHECK", "CHECK_SERVING", but=("apply_to", "force"))
def check(file: str | Path, **said: Unpack[CheckKeywords]) -> CheckFound | StartFound:
    """A launch script, an argument list or a plan.json: legal, fits, how fast, and the better plan: `autoconfig check`.

    `set` is a mapping of variables that the script does not set, or texts like NNODES=4. Of the start of a server of vLLM,
    SGLang or TensorRT-LLM: whether it starts, tokens of its KV cache, and what it does at a load (`isl`, `osl`, `concurrency`).
    """
    from autoconfig.engines.check import check_start_file, is_start, refuse_serving_fields, start_request
    from autoconfig.formats.check import WANTED, check_file
    from autoconfig.megatron.check_input import check_request
    from autoconfig.notebook.answers import CheckFound, StartFound
    from autoconfig.specs.files import read_text

    if is_start(read_text(Path(file), WANTED)):
        return StartFound(check_start_file(Path(file), start_request(said)))
    refuse_serving_fields(said)
    return CheckFound(check_file(Path(file), check_request(said)))


@_question("QUESTION", "DIAGNOSE", but=("calibrate",))
def diagnose(
    *files: str | Path, plan: object | None = None, calibrate: str | Path | None = None, **said: Unpack[DiagnoseKeywords]
) -> DiagnosisFound:
    """Why a run is slower than it should be: `autoconfig diagnose`.

    `files` in any order: launch file, logs, traces; `plan`: its short form, or an entry of an answer such as `found.best`,
    where no file says it. `calibrate`: a file that a calibration from this run is written to, where the run is healthy."""
    from autoconfig.diagnosis.calibration import calibration_of
    from autoconfig.diagnosis.files import diagnose_files
    from autoconfig.notebook.answers import DiagnosisFound
    from autoconfig.planning.calibration_file import named_calibration, write_calibration
    from autoconfig.specs.files import check_output_path

    words = [str(file) for file in files] + ([] if plan is None else [_plan_text(plan)])
    found = diagnose_files(words, said)
    if calibrate is not None:
        check_output_path(Path(calibrate), (".json",))
        write_calibration(calibration_of(found, named_calibration(said.get("calibration"))), Path(calibrate))
    return DiagnosisFound(found)


@_question("CONVERT", but=("output", "force"))
def convert(file: str | Path, *, format: str, **said: Unpack[ConvertKeywords]) -> Converted | ConvertedStartJson:
    """The plan of a file as a file of another launcher: `autoconfig convert`, without writing it (`written.text`); the start of
    a server as that of another engine (`text`).

    `unsaid` lists what the format leaves to other places; what it has no words for is an InputError.
    """
    from autoconfig.engines.check import is_start, start_request
    from autoconfig.engines.convert import convert_start
    from autoconfig.formats.check import WANTED
    from autoconfig.formats.convert import convert_file
    from autoconfig.megatron.check_input import check_request
    from autoconfig.specs.files import read_text

    text = read_text(Path(file), WANTED)
    if is_start(text):
        return convert_start(text, start_request(said), format, Path(file))
    return convert_file(Path(file), check_request(said), format)


@_question("SCALING", but=("plot",))
def scaling(**question: Unpack[ScalingKeywords]) -> ScalingFound:
    """The best plan, throughput, days and cost over GPU counts and types: `autoconfig scaling`.

    `gpus` and `gpu` are texts as on the command line, or lists.
    """
    from autoconfig.notebook.answers import ScalingFound
    from autoconfig.sizing.sizing import scale, scaling_request

    return ScalingFound(scale(scaling_request(question)))


@_question("BUDGET")
def budget(**question: Unpack[BudgetKeywords]) -> BudgetFound:
    """What money and days train: the largest size, its tokens, the cheapest GPUs, count and plan: `autoconfig budget`.

    `money` and `days` are numbers or texts ("3M", "8 weeks"); `gpu` is {"h100": 2.2, "b200": 4.5}, or texts like h100=2.2.
    """
    from autoconfig.notebook.answers import BudgetFound
    from autoconfig.sizing.budget import budget, budget_request

    return BudgetFound(budget(budget_request(question)))


@_question()
def model(model: str | Path | Mapping[str, Any], *, like: str | None = None, download: bool = False) -> ModelCountJson:
    """Family, exact parameters and what they leave out, of a name, a size, a config.json or its content: `autoconfig model`."""
    from autoconfig.render.listings import describe

    return describe(model if isinstance(model, Mapping) else str(model), like=like, download=download)


@_question()
def models() -> pd.DataFrame:
    """The models of the catalogue, a row each: `autoconfig models`."""
    from autoconfig.render.listings import model_rows

    return _frame(model_rows())


@_question()
def gpus() -> pd.DataFrame:
    """The GPU types of the catalogue, a row each: `autoconfig gpus`."""
    from autoconfig.render.listings import gpu_rows

    return _frame(gpu_rows())


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    from autoconfig.notebook.answers import pandas

    return pandas().DataFrame(rows)


@_question("PREDICT")
def predict(
    table: str | Path | pd.DataFrame, *, calibration: str | None = None, **said: Unpack[PredictKeywords]
) -> PredictedFound:
    """A prediction for every run of a CSV table or a frame, or for the run of a file that `check` reads: `autoconfig predict`,
    without writing a file (`.rows`, a frame)."""
    from autoconfig.formats.check import read_file
    from autoconfig.megatron.check_input import check_request
    from autoconfig.notebook.answers import PredictedFound, table_file
    from autoconfig.planning.calibration_file import named_calibration
    from autoconfig.runs.predict import predict_plan, predict_rows, read_table
    from autoconfig.runs.table import is_table
    from autoconfig.specs.errors import InputError

    constants = named_calibration(calibration)
    with table_file(table) as path:
        if not is_table(path):
            return PredictedFound([predict_plan(read_file(path, check_request(said)), path.name, constants)])
        if said:
            raise InputError(f"{next(iter(said))} is for a launch script or a configuration: a table says it in a column")
        return PredictedFound(predict_rows(read_table(path), constants))


@_question()
def predict_serving(table: str | Path | pd.DataFrame) -> PredictedFound:
    """A prediction for every serving run of a CSV table or a frame (`.rows`): `autoconfig predict --inference`."""
    from autoconfig.notebook.answers import PredictedFound, table_file
    from autoconfig.runs.predict_serving import predict_rows, read_table

    with table_file(table) as path:
        return PredictedFound(predict_rows(read_table(path)))


@_question()
def validate(*, gpu_runs: str | Path | None = None) -> ValidationJson:
    """How far off we are on published runs, and beside the results of `make gpu`: `autoconfig validate`."""
    from autoconfig.calibration import gpu_runs as own
    from autoconfig.render.validation import validation

    return validation(own.gpu_runs(Path(gpu_runs) if gpu_runs else None))


@_question()
def calibrate(measurements: str | Path, *, output: str | Path | None = None, calibration: str | None = None) -> Calibration:
    """A calibration from a table of your own runs, written to `output` (.json) where given: `autoconfig calibrate`."""
    from autoconfig.calibration.calibrate import calibrate_file
    from autoconfig.planning.calibration_file import named_calibration, write_calibration
    from autoconfig.specs.files import check_output_path

    if output is not None:
        check_output_path(Path(output), (".json",))
    found, _ = calibrate_file(Path(measurements), named_calibration(calibration))
    if output is not None:
        write_calibration(found, Path(output))
    return found
