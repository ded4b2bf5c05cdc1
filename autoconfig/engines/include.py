"""`deployments --include FILE`: the plan of a start command, as one to report beside the search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autoconfig.engines.check import WANTED, is_start
from autoconfig.engines.fields import fill
from autoconfig.engines.flags import NAMES
from autoconfig.engines.load import running_plan
from autoconfig.engines.reading import file_beside, read_start
from autoconfig.megatron.shell.launch import sbatch_words
from autoconfig.memory_model.engines.memory import engine_memory
from autoconfig.serving.deployment import decode_memory
from autoconfig.serving.question import ServeQuestion, understand
from autoconfig.serving.request import ServeRequest
from autoconfig.specs.errors import InputError, option
from autoconfig.specs.files import read_text
from autoconfig.specs.serve_plan import EnginePlan


def with_start_files(request: ServeRequest) -> tuple[ServeRequest, tuple[str, ...]]:
    """(the request with plans in place of the files that --include names, what is said of it). Raises InputError for a file
    that starts another model or engine, or none."""
    files = [text for text in request.include if "=" not in text and Path(text).is_file()]
    if not files or not request.local_files:
        return request, ()
    question, plans, notes = understand(request), dict[str, str](), list[str]()
    for name in files:
        plans[name] = _plan_text(Path(name), request, question, notes)
    return replace(request, include=tuple(plans.get(text, text) for text in request.include)), tuple(notes)


def _plan_text(path: Path, request: ServeRequest, question: ServeQuestion, notes: list[str]) -> str:
    text = read_text(path, WANTED)
    if not is_start(text):
        raise InputError(
            f"{option('include')} {path}: the file starts no server of vLLM, SGLang or TensorRT-LLM", field="include"
        )
    read = read_start(text, beside=file_beside(path))
    if read.engine != question.engine.framework:
        says = f"{option('include')} {path} starts {NAMES[read.engine]}: say {option('engine')} {_ENGINES[read.engine]}"
        raise InputError(says, field="include")
    named = read.said.get("model-path" if read.engine == "sglang" else "model")
    model = request.model if named is None or named.unset or not isinstance(request.model, str) else None
    gpu = request.gpu or question.gpu.id
    start = fill(read, model=model, gpu=gpu, gpus_per_node=request.gpus_per_node, sbatch=list(sbatch_words(text))).start
    if start.model.name != question.model.name:
        raise InputError(f"{option('include')} {path} serves {start.model.name}, and the question is of {question.model.name}")
    memory = engine_memory(start)
    if start.memory_fraction is not None and start.memory_fraction != question.kv_memory_ratio:
        notes.append(
            f"{path} has a memory share of {start.memory_fraction:g}: {option('kv_memory_ratio')} says it of the question"
        )
    return str(_fitting(question, running_plan(start, memory)))


_ENGINES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm-1.2"}


def _fitting(question: ServeQuestion, plan: EnginePlan) -> EnginePlan:
    """The plan with the sequences that run at once: those of --fix batch, else as many as the engine seats and memory holds."""
    fixed = question.constraints.get("batch", frozenset())
    if len(fixed) == 1:
        return plan.replace(batch=int(str(next(iter(fixed)))))
    own = plan.replace(replicas=max(question.num_gpus // (plan.tp * plan.pp * plan.adp), 1))
    held = int(decode_memory(question, own).max_concurrency) * plan.adp
    return plan.replace(batch=max(min(plan.batch, held), plan.adp * plan.pp))
