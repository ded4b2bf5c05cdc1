"""`deployments --include FILE`: the plan of a start command, as one to report beside the search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoconfig.engines.check import WANTED, is_start
from autoconfig.engines.fields import fill
from autoconfig.engines.flags import NAMES
from autoconfig.engines.load import running_plan
from autoconfig.engines.reading import MODEL_SETTINGS, ReadStart, file_beside, read_start
from autoconfig.engines.refusals import asserted, refusal
from autoconfig.megatron.shell.launch import sbatch_words
from autoconfig.memory_model.engines.memory import engine_memory
from autoconfig.memory_model.engines.plan import BY_START
from autoconfig.runs.serving_row import ACCEPTANCE
from autoconfig.serving.question import ServeQuestion, understand
from autoconfig.serving.request import ServeRequest, request_of
from autoconfig.specs.engines.start import EngineStart
from autoconfig.specs.errors import InputError, option, option_name
from autoconfig.specs.files import read_text
from autoconfig.specs.hardware.cluster import DEFAULT_GPU
from autoconfig.specs.serve_plan import EnginePlan


def request_with_starts(given: Mapping[str, Any]) -> tuple[ServeRequest, tuple[str, ...]]:
    """(the request, with the plans of the start files that --include names and what they say where the caller says nothing:
    model, GPUs, engine, release, memory share, graphs; what is said of it). Raises as `request_of`, and InputError for a file
    that starts another model or engine, or none."""
    starts = {name: _start_of(Path(name), given) for name in _files(given)}
    if not starts:
        return request_of(given), ()
    asked, notes = dict(given), list[str]()
    for name, (read, start) in starts.items():
        taken = {key: value for key, value in _said_by(read, start).items() if value is not None and not asked.get(key)}
        asked |= taken
        if shown := ", ".join(f"{option_name(key)} {value}" for key, value in taken.items()):
            notes.append(f"as {name} says: {shown}")
    if asked.get("draft_tokens") and not given.get("draft_tokens") and asked.get("acceptance") is None:
        asked["acceptance"] = ACCEPTANCE
        notes.append(f"draft tokens are accepted with a chance of {ACCEPTANCE:g} ({option_name('acceptance')})")
    request = request_of(asked)
    question = understand(request)
    plans = {name: _plan_text(Path(name), read, start, question) for name, (read, start) in starts.items()}
    return replace(request, include=tuple(plans.get(text, text) for text in request.include)), tuple(notes)


def _files(given: Mapping[str, Any]) -> list[str]:
    """The files among what --include names."""
    include = given.get("include") or ()
    texts = [include] if isinstance(include, str) else [str(text) for text in include]
    return [text for text in texts if "=" not in text and Path(text).is_file()] if given.get("local_files", True) else []


def _start_of(path: Path, given: Mapping[str, Any]) -> tuple[ReadStart, EngineStart]:
    text = read_text(path, WANTED)
    if not is_start(text):
        raise InputError(
            f"{option('include')} {path}: the file starts no server of vLLM, SGLang or TensorRT-LLM", field="include"
        )
    read = read_start(text, beside=file_beside(path))
    asked, model, gpu = given.get("model"), None, given.get("gpu")
    named = read.said.get(MODEL_SETTINGS[read.engine])
    if asked is not None and (named is None or named.unset or not isinstance(asked, str)):
        model = asked  # the file's own is a variable, or stands in a config.json
    words = list(sbatch_words(text))

    def filled(gpu: str | None) -> EngineStart:
        return fill(read, model=model, gpu=gpu, gpus_per_node=given.get("gpus_per_node"), sbatch=words).start

    try:
        start = filled(gpu)
    except InputError as error:
        if error.field != "gpu" or gpu is not None:
            raise
        return read, filled(DEFAULT_GPU)
    return replace(read, gpu=start.gpu.id), start  # as #SBATCH says it, too


def _said_by(read: ReadStart, start: EngineStart) -> dict[str, Any]:
    """Fields of a request that a file decides; None where it does not."""
    of_release = start.engine in BY_START
    return {
        "model": read.model,
        "gpus": start.gpus,
        "gpu": start.gpu.id if read.gpu else None,
        "engine": _ENGINES[start.engine],
        "release": read.release or None if of_release else None,
        "kv_memory_ratio": start.memory_fraction,
        "enforce_eager": start.eager if of_release else None,
        "draft_tokens": start.draft_tokens or None,
        "draft_method": start.draft_method if of_release and start.draft_method in ("mtp", "ngram") else None,
    }


def _plan_text(path: Path, read: ReadStart, start: EngineStart, question: ServeQuestion) -> str:
    if read.engine != question.engine.framework:
        says = f"{option('include')} {path} starts {NAMES[read.engine]}: say {option('engine')} {_ENGINES[read.engine]}"
        raise InputError(says, field="include")
    if start.model.name != question.model.name:
        raise InputError(f"{option('include')} {path} serves {start.model.name}, and the question is of {question.model.name}")
    if why := refusal(start) or asserted(read, start)[0]:
        raise InputError(f"{option('include')} {path}: {NAMES[read.engine]} refuses this start: {why}", field="include")
    return str(_fitting(question, running_plan(start, engine_memory(start))))


_ENGINES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm-1.2"}


def _fitting(question: ServeQuestion, plan: EnginePlan) -> EnginePlan:
    """The plan with the sequences that run at once: those of --fix batch, else as many as the engine seats and memory holds."""
    fixed = question.constraints.get("batch", frozenset())
    if len(fixed) == 1:
        return plan.replace(batch=int(str(next(iter(fixed)))))
    own = plan.replace(replicas=max(question.num_gpus // plan.size, 1))
    held = int(question.decode_memory(own).max_concurrency) * plan.adp
    return plan.replace(batch=max(min(plan.batch, held), plan.adp * plan.pp))
