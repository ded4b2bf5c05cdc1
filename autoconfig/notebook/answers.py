"""What the functions of `import autoconfig` return: the fields of the JSON as attributes, its tables as pandas frames.

    found = autoconfig.search(model="175b", gpus=1024)
    found.plans            a frame in the order of `plans` of the JSON; its columns are the fields, `memory.peak_gib`
    found.best             its first entry: found.best.memory.peak_gib
    found.funnel.fit       every other field of the JSON
    found.record           the typed record of them all; found.to_dict() is the object that `--json` prints

A frame is built, and pandas loaded, when it is asked for. `print` shows the screen of the command, a notebook the HTML of it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from autoconfig.diagnosis.answer import Diagnosis
from autoconfig.engines.check import StartAnswer
from autoconfig.megatron.check import CheckAnswer
from autoconfig.notebook import html
from autoconfig.post_training.answer import RlAnswer
from autoconfig.post_training.answer_json import PlacementJson, RlJson
from autoconfig.post_training.answer_json import answer_json as rl_json
from autoconfig.render.check import CheckJson, check_json
from autoconfig.render.diagnosis.record import DiagnosisJson, diagnosis_json
from autoconfig.render.sizing.budget import BudgetChoiceJson, BudgetJson, budget_json
from autoconfig.render.sizing.scaling import ScalingJson, ScalingPointJson, scaling_json
from autoconfig.render.start_json import StartJson, start_json
from autoconfig.render.training_json import ExplanationJson, RankedPlanJson, SearchJson, explain_json, search_json
from autoconfig.runs.table import Cells
from autoconfig.serving.answer import ServeAnswer
from autoconfig.serving.deployment_json import DeploymentJson, ServeJson, serve_json
from autoconfig.sizing.budget import BudgetAnswer
from autoconfig.sizing.sizing import ScalingAnswer
from autoconfig.specs.extras import missing_package
from autoconfig.specs.json_record import to_json
from autoconfig.training.answer import Explanation, SearchAnswer

if TYPE_CHECKING:
    import pandas as pd

Record = TypeVar("Record")
WIDTH = 120
"""Characters of a printed answer."""


class Answered(Generic[Record]):
    """An answer: `record` holds every field of the command's JSON, and the answer has them as attributes."""

    def __init__(self, record: Record, show: Callable[[Any], None]) -> None:
        """`show` prints the screen of the command on a rich console."""
        self.record = record
        self.show = show
        """Prints the screen of the command on a rich console."""

    def __getattr__(self, name: str) -> Any:
        """A field of the JSON that is no frame. Raises AttributeError."""
        record = vars(self).get("record")  # not there yet while an answer is copied
        if not name.startswith("_") and hasattr(record, name):
            return getattr(record, name)
        raise AttributeError(f"{type(self).__name__} has no {name!r}; it has {', '.join(self._names())}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._names()})

    def _names(self) -> list[str]:
        return [name for name in vars(vars(self).get("record", self)) if not name.startswith("_")]

    def __repr__(self) -> str:
        from autoconfig.render.screen import Screen

        text = io.StringIO()
        self.show(Screen(file=text, width=WIDTH))
        return text.getvalue().rstrip()

    def to_dict(self) -> dict[str, Any]:
        """The object that the command prints with `--json`."""
        values: dict[str, Any] = to_json(self.record)
        return values

    def _repr_html_(self) -> str:
        return html.screen(repr(self))


def pandas() -> Any:
    """Return pandas, which a plain install leaves out. Raises InputError naming the extra."""
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise missing_package(error, "a frame") from None
    return pd


def frame(records: Sequence[Any]) -> pd.DataFrame:
    """A row for each record, a column for each field; those of a record in it as `memory.peak_gib`."""
    return pandas().json_normalize([to_json(record) for record in records])


class SearchFound(Answered[SearchJson]):
    """The plans that fit, best first: what `autoconfig search --json` prints."""

    def __init__(self, answer: SearchAnswer) -> None:
        from autoconfig.render.first.search import show

        super().__init__(search_json(answer), lambda console: show(console, answer))

    @cached_property
    def plans(self) -> pd.DataFrame:
        """The top plans, one per layout, in the order asked for."""
        return frame(self.record.plans)

    @property
    def best(self) -> RankedPlanJson | None:
        """The first plan; None where nothing fits."""
        return next(iter(self.record.plans), None)

    def _repr_html_(self) -> str:
        return html.search(self.record) if self.record.plans else super()._repr_html_()


class ComparedFound(Answered[SimpleNamespace]):
    """One search for each GPU and precision: what `search` prints for a repeated `--gpu` or `--precision`."""

    def __init__(self, answers: Sequence[SearchAnswer], left_out: Sequence[Exception]) -> None:
        from autoconfig.render.first.search import show_comparison

        record = SimpleNamespace(schema_version=2, compared=tuple(map(search_json, answers)))
        super().__init__(record, lambda console: show_comparison(console, answers))
        self.searches = tuple(map(SearchFound, answers))
        self.left_out = tuple(map(str, left_out))
        """Why the others have no answer."""

    @cached_property
    def plans(self) -> pd.DataFrame:
        """The best plan of each search, with its GPU and precision in front; searches where nothing fits have none."""
        pd = pandas()
        fitting = [found.record for found in self.searches if found.record.plans]
        asked = [{"gpu": r.cluster.gpu, "num_gpus": r.cluster.num_gpus, "precision": r.numerics.precision} for r in fitting]
        return pd.concat([pd.DataFrame(asked), frame([record.plans[0] for record in fitting])], axis=1)

    @property
    def best(self) -> RankedPlanJson | None:
        """Of the best plans that with the most tokens per second and GPU; None where nothing fits."""
        plans = [found.record.plans[0] for found in self.searches if found.record.plans]
        return max(plans, key=lambda plan: plan.tokens_per_second_per_gpu, default=None)

    def to_dict(self) -> dict[str, Any]:
        """The object that the command prints with `--json`."""
        return {"schema_version": 2, "compared": [to_json(one) for one in self.record.compared]}


class ExplainFound(Answered[ExplanationJson]):
    """Memory and time of one plan: what `autoconfig explain --json` prints."""

    def __init__(self, explanation: Explanation) -> None:
        from autoconfig.render.training import show_explain

        super().__init__(explain_json(explanation), lambda console: show_explain(console, explanation))

    @cached_property
    def stages(self) -> pd.DataFrame:
        """Memory of each pipeline stage, GiB."""
        return frame(self.record.stages)

    @cached_property
    def operators(self) -> pd.DataFrame:
        """Every operator of a layer, the head and the embedding."""
        return frame(self.record.operators)

    def _repr_html_(self) -> str:
        return html.explanation(self.record) if self.record.legal else super()._repr_html_()


class BudgetFound(Answered[BudgetJson]):
    """What money and days train: what `autoconfig budget --json` prints."""

    def __init__(self, answer: BudgetAnswer) -> None:
        from autoconfig.render.sizing.budget import show_budget

        super().__init__(budget_json(answer), lambda console: show_budget(console, answer))

    @cached_property
    def choices(self) -> pd.DataFrame:
        """Of the best size the cheapest of each GPU type, cheapest first."""
        return frame(self.record.choices)

    @property
    def best(self) -> BudgetChoiceJson | None:
        """The largest size on the cheapest GPUs; None where nothing is possible."""
        return self.record.best


class DeploymentsFound(Answered[ServeJson]):
    """The deployments that meet the limits, best first: what `autoconfig deployments --json` prints."""

    def __init__(self, answer: ServeAnswer) -> None:
        from autoconfig.render.first.deployments import show

        super().__init__(serve_json(answer), lambda console: show(console, answer))

    @cached_property
    def deployments(self) -> pd.DataFrame:
        """The best deployment of each layout, best first."""
        return frame(self.record.deployments)

    @property
    def best(self) -> DeploymentJson | None:
        """The first deployment; None where none meets the limits."""
        return next(iter(self.record.deployments), None)

    def _repr_html_(self) -> str:
        return html.deployments(self.record) if self.record.deployments else super()._repr_html_()


class ScalingFound(Answered[ScalingJson]):
    """The best plan over GPU counts and types: what `autoconfig scaling --json` prints."""

    def __init__(self, answer: ScalingAnswer) -> None:
        from autoconfig.render.first.scaling import show

        super().__init__(scaling_json(answer), lambda console: show(console, answer))

    @cached_property
    def points(self) -> pd.DataFrame:
        """One GPU type and count a row."""
        return frame(self.record.points)

    @property
    def best(self) -> ScalingPointJson | None:
        """The fewest GPUs that meet the deadline; without a deadline the point with the most tokens per second."""
        if self.record.deadline_days is not None:
            return self.record.fewest
        return max((p for p in self.record.points if p.best), key=lambda p: p.tokens_per_second or 0.0, default=None)

    def _repr_html_(self) -> str:
        return html.scaling(self.record)


class RlFound(Answered[RlJson]):
    """The placements of a step of post-training: what `autoconfig rl --json` prints."""

    def __init__(self, answer: RlAnswer) -> None:
        from autoconfig.render.first.rl import show

        super().__init__(rl_json(answer), lambda console: show(console, answer))

    @cached_property
    def placements(self) -> pd.DataFrame:
        """The placements that fit, quickest first."""
        return frame(self.record.placements)

    @property
    def best(self) -> PlacementJson | None:
        """The first placement; None where none fits."""
        return next(iter(self.record.placements), None)


class CheckFound(Answered[CheckJson]):
    """What became of a file: what `autoconfig check --json` prints."""

    def __init__(self, answer: CheckAnswer) -> None:
        from autoconfig.render.check import show_check

        super().__init__(check_json(answer), lambda console: show_check(console, answer))


class DiagnosisFound(Answered[DiagnosisJson]):
    """Why a run is slow: what `autoconfig diagnose --json` prints."""

    def __init__(self, answer: Diagnosis) -> None:
        from autoconfig.render.diagnosis.screen import show_diagnosis

        super().__init__(diagnosis_json(answer), lambda console: show_diagnosis(console, answer))

    @cached_property
    def phases(self) -> pd.DataFrame:
        """Expected and measured seconds of each phase."""
        return frame(self.record.phases)

    @cached_property
    def causes(self) -> pd.DataFrame:
        """The named causes, most likely first; empty for a healthy run."""
        return frame(self.record.causes)


class StartFound(Answered[StartJson]):
    """What became of a serving start: what `autoconfig check --json` prints."""

    def __init__(self, answer: StartAnswer) -> None:
        from autoconfig.render.serving import show_start

        super().__init__(start_json(answer), lambda console: show_start(console, answer))


class PredictedFound:
    """A prediction for every row of a table: what `autoconfig predict` writes."""

    def __init__(self, rows: Sequence[Cells]) -> None:
        self.predictions = tuple(rows)
        """The typed predictions."""

    @cached_property
    def rows(self) -> pd.DataFrame:
        """A row for each of the table, with the columns that the command writes; NaN where there is no prediction."""
        pd = pandas()
        rows = pd.DataFrame([one.cells() for one in self.predictions])
        texts = {"id", "pred_note", *(name for name in rows if not _is_number(rows[name]))}
        return rows.assign(**{name: pd.to_numeric(rows[name]) for name in rows if name not in texts})

    def __len__(self) -> int:
        return len(self.predictions)

    def __repr__(self) -> str:
        return repr(self.rows)

    def _repr_html_(self) -> str:
        shown: str = self.rows._repr_html_()
        return shown


@contextmanager
def table_file(table: str | Path | pd.DataFrame) -> Iterator[Path]:
    """The file of a table; of a frame one that is gone afterwards."""
    if isinstance(table, str | Path):
        yield Path(table)
        return
    with TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        table.to_csv(path, index=False)
        yield path


def _is_number(cells: Any) -> bool:
    """Whether every cell of a column is empty or a number."""
    return bool(pandas().to_numeric(cells.replace("", "0"), errors="coerce").notna().all())
