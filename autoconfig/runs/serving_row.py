"""One row of a table of serving runs as a ServingCase: what ran, on what, under which load; measured columns and notes are
never read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoconfig.memory_model.engines.plan import BY_START, StartOptions
from autoconfig.runs.cells import RunRow, columns_never_read
from autoconfig.runs.table import NO, Row, names_of
from autoconfig.serving.closed_loop import RANGE_RATIO, REQUESTS_A_USER
from autoconfig.serving.space import expert_degrees, limit
from autoconfig.specs.engines.releases import check_release, first_release, newest_release
from autoconfig.specs.errors import InputError, UnknownNameError, UnsupportedError
from autoconfig.specs.hardware.cluster import GpuSpec, load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import resolve_model
from autoconfig.specs.remarks import Remark, note
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.checkpoint import Checkpoint, checkpoint_named
from autoconfig.specs.software.engine import EngineSpec, kv_format, load_engine, nearest_release, supports, weight_format
from autoconfig.time_model.serving.workload import DataSet, data_set, data_set_of_lengths, offline_requests

MEASURED = columns_never_read("serving")
"""Never read by a prediction (source and locator say where a row is from, nothing more)."""
NEEDED = ("model", "gpu", "n_gpus", "osl")
ENCODER_DECODERS = ("t5", "mt5")
OPEN_DEGREES = (1, 2, 4, 8)
"""Tried where the cell tp is empty."""
EIGHT_BIT_ACTIVATIONS = ("w4a8", "w4a8_awq")
"""Weights in 4 bits beside activations in 8, as TensorRT-LLM's QuantAlgo names them; no table has them."""


@dataclass(frozen=True, kw_only=True)
class ServingCase:
    """One run to predict."""

    model: ModelSpec
    gpu: GpuSpec
    engine: EngineSpec
    num_gpus: int
    plans: tuple[EnginePlan, ...]
    """The plan, or every plan that the open cells allow; the best one is meant."""
    load: str
    """offline: a queue that never empties; open: Poisson arrivals at `rate`; single: one request at a time; closed: a benchmark
    of `concurrency` users who ask `requests` times in all."""
    lengths: DataSet
    rate: float = 0.0
    """Requests per second of the whole deployment."""
    requests: int = 0
    """Requests of the run; 0: as many as a steady state takes."""
    max_batch: int | None = None
    """Sequences that one instance runs at once, all its attention ranks and pipeline stages together (EnginePlan.batch)."""
    concurrency: int | None = None
    """Requests under way in the whole deployment, each followed by the next."""
    limits: tuple[float, float] | None = None
    """99th percentiles of TTFT and TPOT in seconds that a published MLPerf Server rate is the largest within."""
    range_ratio: float = 1.0
    """Least length of a request over the longest, in a closed loop."""
    tokens: int | None = None
    """Of an iteration and attention rank, as the row says."""
    receive_every: int = 1
    adp_timeout_iters: int | None = None
    """Of prompts that wait for those of other attention ranks (PromptBalance); None: they do not. The next goes with it."""
    adp_batching_iters: int = 0
    kv_fraction: float | None = None
    drafted: int = 0
    acceptance: float = 0.0
    start: StartOptions = field(default_factory=StartOptions)
    """What the row says of the engine's start that its memory depends on: release, sequences of a rank, graphs, drafts."""
    checkpoint: Checkpoint | None = None
    assumed: tuple[Remark, ...] = field(default=())


def read_case(row: Row) -> ServingCase:
    """Return the case of a row. Raises InputError naming the cell that cannot be used."""
    cells = RunRow("serving", row)
    for name in NEEDED:
        if not cells.text(name):
            raise InputError(f"cell {name} is empty")
    model, notes = _model(cells.text("model"))
    if model.is_hybrid:
        cells.assume("recurrent layers: their operators were not measured")
    gpu = load_gpu(names_of("serving_gpus").get(cells.text("gpu").lower(), cells.text("gpu")))
    engine = read_engine(cells.text("backend"), cells.text("backend_version"), cells.assumed)
    lengths = _lengths(cells, model)
    gpus = cells.degree("n_gpus")
    load = _load(cells)
    batch, users = _at_once(cells, load)
    plans = _busy(_plans(cells, model, gpu, engine, gpus), users)
    drafted, acceptance = _drafts(cells)
    start = _start(cells, model, engine, drafted)
    fields = {"requests": _requests(cells, load, lengths), **cells.fields("case")}
    if load == "closed":
        fields |= _closed(cells, users or 1)
    if load == "open":
        fields |= {"rate": _rate(cells), "limits": _limits(cells)}
    return ServingCase(
        model=model,
        gpu=gpu,
        engine=replace(engine, eager_iterations="all") if start.eager else engine,
        num_gpus=gpus,
        plans=plans,
        load=load,
        lengths=lengths,
        max_batch=batch,
        concurrency=users,
        drafted=drafted,
        acceptance=acceptance,
        start=start,
        checkpoint=checkpoint_named(cells.text("checkpoint")) if cells.text("checkpoint") else None,
        assumed=(*notes, *cells.assumed),
        **fields,
    )


def _model(name: str) -> tuple[ModelSpec, Sequence[Remark]]:
    """Return the decoder of a name, also of the GPT-3 family (GPT-175B), and what it was read as. Raises InputError."""
    if name.lower().startswith(ENCODER_DECODERS):
        raise UnsupportedError(f"{name} is an encoder-decoder model; only decoders can be predicted")
    size = re.fullmatch(r"GPT-([0-9.]+[BMT])", name, re.IGNORECASE)
    return resolve_model(size[1] if size else name)


def _busy(plans: tuple[EnginePlan, ...], users: int | None) -> tuple[EnginePlan, ...]:
    """Return the plans whose instances all have a user. Raises InputError where there is none."""
    busy = tuple(plan for plan in plans if users is None or plan.replicas <= users)
    if not busy:
        raise InputError(f"concurrency {users} leaves instances idle: there are {plans[0].replicas}; give one's n_gpus")
    return busy


ACCEPTANCE = 0.7
"""Of a draft token where the row does not say (assumed)."""
DRAFTS = re.compile(r"(?:[a-z][a-z0-9]*[ :=_-]+)?([0-9]{1,2})(?:[ @,:]+(0?\.[0-9]+|1(?:\.0*)?))?")
"""`3`, `mtp 3`, `eagle3-2`, `mtp 3 0.8`: drafts that a step checks, and the chance of each to be accepted."""


def _closed(row: RunRow, users: int) -> dict[str, Any]:
    """Return the requests and the least length over the longest of a closed loop."""
    requests, ratio = row.count("requests"), row.number("range_ratio")
    taken = []
    if requests is None:
        requests = REQUESTS_A_USER * users
        taken.append(f"{requests:,} requests")
    if ratio is None:
        ratio = RANGE_RATIO
        taken.append(f"lengths from {ratio:g} of isl and osl to all of them")
    if taken:
        row.assume(f"a benchmark of {' with '.join(taken)}")
    return {"requests": requests, "range_ratio": ratio}


def _drafts(row: RunRow) -> tuple[int, float]:
    """Return (drafts that a step checks, chance of each to be accepted); (0, 0) without speculation."""
    text = row.text("speculative")
    if text in ("", *NO, "none"):
        return 0, 0.0
    drafts = DRAFTS.fullmatch(text)
    if drafts is None:
        raise InputError(f"cell speculative={text[:40]!r}: drafts of a step and their acceptance, such as mtp 3 0.8, or none")
    if drafts[2] is None:
        row.assume(f"draft tokens are accepted with a chance of {ACCEPTANCE:g}")
    return int(drafts[1]), float(drafts[2] or ACCEPTANCE)


def _start(row: RunRow, model: ModelSpec, engine: EngineSpec, drafted: int) -> StartOptions:
    """Return what the row says of the engine's start. `max_num_seqs` counts an instance (_plans knows its ranks)."""
    drafts = "ngram" if row.text("speculative").startswith("ngram") else "mtp" if model.mtp_num_layers else ""
    return StartOptions(
        release=_release(engine, row.text("backend_version"), row.assumed),
        draft_method=drafts if drafted else "",
        draft_tokens=drafted if drafts else 0,
        **row.fields("start"),
    )


def _release(engine: EngineSpec, version: str, assumed: list[Remark]) -> str:
    """Return the release whose memory a row's is: its backend_version, the first that is modelled where it is older; empty, the
    newest, where it says none, or where the engine's releases are generations of its own."""
    if engine.framework not in BY_START or not version:
        return ""
    try:
        check_release(engine.framework, version)
    except UnsupportedError:
        first = first_release(engine.framework)
        assumed.append(note(f"memory as of {engine.framework} {first}: that of {version[:40]} is not modelled"))
        return first
    except InputError:
        newest = newest_release(engine.framework)
        assumed.append(note(f"memory as of {engine.framework} {newest}: backend_version {version[:40]} is no release"))
        return ""
    return version


def _lengths(row: RunRow, model: ModelSpec) -> DataSet:
    isl, osl = row.number("isl"), row.number("osl")
    assert osl is not None, "NEEDED"
    if isl is not None:
        drawn = row.text("data_set")
        return replace(data_set(drawn), isl=isl, osl=osl) if drawn else data_set_of_lengths(isl, osl)
    if row.text("kind") != "mlperf":
        raise InputError("cell isl is empty: how many input tokens does a request have on average?")
    try:
        lengths = replace(data_set(f"mlperf-{model.name}"), osl=osl)
    except UnknownNameError as error:
        names = ", ".join(name.removeprefix("mlperf-") for name in error.known if name.startswith("mlperf-"))
        raise InputError(f"cell isl is empty, and MLPerf's input lengths are known for {names} only") from None
    row.assume(f"input lengths of {lengths.name}")
    return lengths


def read_engine(backend: str, version: str, assumed: list[Remark]) -> EngineSpec:
    """Return the engine of `backend` and `backend_version`; the nearest generation, said in `assumed`, where there is none."""
    try:
        return load_engine(f"{backend} {version}".strip())
    except UnknownNameError:
        pass
    engine = nearest_release(backend, version)
    if engine is None:
        engine = load_engine("trtllm-0.14" if backend.lower() == "fastertransformer" else "trtllm-1.2")
        assumed.append(note(f"engine {f'{backend} {version}'.strip() or '(none)'} priced as {engine.name}"))
    elif engine.between:
        older, share = engine.between
        way = f"between {older} and {engine.name} by date, {1 - share:.2f} of the way"
        assumed.append(note(f"backend_version {version} priced {way}"))
    elif not engine.is_release(version):
        assumed.append(note(f"backend_version {version} priced as {engine.name} ({engine.description})"))
    return engine


AT_ONCE = re.compile(r"(?<![a-z])(batch(?:[ _-]?size)?|bs|concurrency)[ =:_-]*([0-9]{1,7})(?![0-9])")
"""`batch 8`, `batch size 32`, `concurrency 16`, `latency_bs1`: how many requests are under way."""
ONE_AT_A_TIME = ("singlestream", "single stream", "single_stream", "single-stream")
"""MLPerf's scenario: the next query is sent when the last is answered (mlcommons/inference_policies, inference_rules.adoc)."""


def _under_way(row: RunRow) -> tuple[str, int] | None:
    """Return (`batch` or `concurrency`, its number) where scenario or kind says so."""
    for name in ("scenario", "kind"):
        words = AT_ONCE.search(row.text(name).lower())
        if words:
            if not int(words[2]):
                raise InputError(f"cell {name}={row.text(name)[:40]!r}: at least 1 request at once")
            return "concurrency" if words[1] == "concurrency" else "batch", int(words[2])
    return None


def _at_once(row: RunRow, load: str) -> tuple[int | None, int | None]:
    """Return (sequences that one instance runs at once, users of the deployment); None: the engine's own, and no users."""
    batch, under_way = row.count("max_batch") or row.count("max_num_seqs"), _under_way(row)
    if load == "single":
        return 1, None
    if under_way is None or load == "open":
        return batch, None
    word, count = under_way
    return (batch, count) if word == "concurrency" else (min(count, batch or count), None)


def _load(row: RunRow) -> str:
    """Return the load's kind (ServingCase.load); a queue that never empties where the row says no rate."""
    scenario, under_way, rated = row.text("scenario"), _under_way(row), bool(row.text("offered_qps"))
    if (under_way and under_way[1] == 1) or scenario.startswith(ONE_AT_A_TIME):
        return "single"
    if under_way and under_way[0] == "concurrency" and not rated:
        return "closed"
    if scenario.startswith("offline") or row.text("kind") == "max_throughput" or under_way:
        return "offline"
    if not rated:
        row.assume("offered_qps is empty: a queue that never empties")
    return "open" if rated else "offline"


def _rate(row: RunRow) -> float:
    text = row.text("offered_qps")
    if text in ("inf", "infinity"):
        return float("inf")
    value = row.number("offered_qps")
    if value is None or value <= 0:
        raise InputError(f"cell offered_qps={text[:40]!r}: a positive number of requests per second, or inf")
    return value


def _limits(row: RunRow) -> tuple[float, float] | None:
    """Return the limits of an MLPerf Server run, whose metric is the "maximum Poisson throughput parameter supported" while the
    99th percentiles of TTFT and TPOT keep them.

    Source: mlcommons/inference_policies, inference_rules.adoc (scenarios); mlcommons/inference, loadgen/results.cc.
    """
    first, between = row.number("ttft_limit_ms"), row.number("tpot_limit_ms")
    if row.text("kind") != "mlperf" or not first or not between or min(first, between) <= 0:
        return None
    return first / 1e3, between / 1e3


def _requests(row: RunRow, load: str, lengths: DataSet) -> int:
    """Return how many requests the scenario counts (`40 requests`), or an offline run of the engine's benchmark; 0: it goes
    on."""
    first = row.text("scenario").partition(" ")[0]
    if first.isascii() and first.isdigit() and len(first) < 8:
        return max(int(first), 1)
    return offline_requests(lengths.isl, lengths.osl) if load == "offline" and row.text("kind") != "mlperf" else 0


_Degrees = tuple[int, int, int]
"""(tp, attn_dp, ep)."""


def _plans(row: RunRow, model: ModelSpec, gpu: GpuSpec, engine: EngineSpec, gpus: int) -> tuple[EnginePlan, ...]:
    """Return the plans that the row allows and the engine runs. Raises InputError where there is none."""
    weights, kv = _formats(row, model, gpu, engine)
    pp, tp = row.degree("pp"), row.count("tp")
    if pp > model.num_layers:
        raise InputError(f"pp {pp} is more than the {model.num_layers} layers of {model.name}")
    if tp is None:
        degrees = _open_degrees(row, model, pp, gpus)
    else:
        degrees = _expert_layouts(row, model, engine, *_stated_degrees(row, model, tp, pp, gpus))
    plans = tuple(
        EnginePlan(tp=tp, pp=pp, ep=ep, adp=adp, weights=weights, kv=kv, replicas=gpus // (tp * pp * adp))
        for tp, adp, ep in degrees
    )
    if row.text("tp") and len(plans) == 1:
        return plans
    runs = tuple(plan for plan in plans if not limit(engine, plan))
    if not runs:
        open_cells = "attn_dp or ep is" if row.text("tp") else "tp is"
        raise InputError(f"cell {open_cells} empty, and {plans[0]}: {limit(engine, plans[0])}")
    return runs


def _stated_degrees(row: RunRow, model: ModelSpec, tp: int, pp: int, gpus: int) -> tuple[int, int]:
    """Return (tp, attn_dp); TensorRT-LLM and SGLang count attention data parallelism inside of tensor_parallel_size. Raises
    InputError where they do not divide GPUs or heads."""
    adp = row.degree("attn_dp")
    if gpus % (tp * pp * adp) and gpus % (tp * pp) == 0 and tp % adp == 0:
        row.assume(f"tp {tp} holds attn_dp {adp}: tp {tp // adp} x attn_dp {adp}")
        tp //= adp
    if gpus % (tp * pp * adp):
        raise InputError(f"tp {tp} x pp {pp} x attn_dp {adp} does not divide n_gpus {gpus}")
    if model.num_attention_heads % tp:
        raise InputError(f"tp {tp} does not divide the {model.num_attention_heads} attention heads of {model.name}")
    return tp, adp


def _expert_degrees(row: RunRow, model: ModelSpec, tp: int, adp: int) -> Sequence[int]:
    return [row.degree("ep")] if row.text("ep") else expert_degrees(model, tp, adp)


def _expert_layouts(row: RunRow, model: ModelSpec, engine: EngineSpec, tp: int, adp: int) -> list[_Degrees]:
    """Return the degrees of a row whose tp is said: of a mixture of experts whatever the cells attn_dp and ep leave open.
    Attention data parallelism that is not named takes all of tp (TensorRT-LLM's enable_attention_dp)."""
    if not model.is_moe or _under_way(row) is not None:  # a benchmark's row says what its start command said
        return [(tp, adp, row.degree("ep"))]
    stages = [(tp, adp)] if row.text("attn_dp") or tp == 1 or not engine.attention_dp else [(tp, 1), (1, tp)]
    layouts = [(one, ranks, ep) for one, ranks in stages for ep in _expert_degrees(row, model, one, ranks)]
    _assume_best(row, layouts)
    return layouts or [(tp, adp, row.degree("ep"))]


def _open_degrees(row: RunRow, model: ModelSpec, pp: int, gpus: int) -> list[_Degrees]:
    """Return the degrees of a row whose tp is open; of a mixture of experts also attn_dp and ep where their cells are empty."""
    ranks = OPEN_DEGREES if model.is_moe and not row.text("attn_dp") else (row.degree("attn_dp"),)
    pairs = [(tp, adp) for tp in OPEN_DEGREES for adp in ranks if len(ranks) == 1 or tp * adp <= max(OPEN_DEGREES)]
    layouts = [
        (tp, adp, ep)
        for tp, adp in pairs
        if gpus % (tp * pp * adp) == 0 and model.num_attention_heads % tp == 0
        for ep in _expert_degrees(row, model, tp, adp)
        if tp * adp % ep == 0
    ]
    if not layouts:
        asked = f"pp {pp} x attn_dp {row.degree('attn_dp')}" + (f" and ep {ep}" if (ep := row.degree("ep")) > 1 else "")
        raise InputError(f"cell tp is empty, and none of 1, 2, 4, 8 with {asked} divides n_gpus {gpus}")
    _assume_best(row, layouts)
    return layouts


def _assume_best(row: RunRow, layouts: Sequence[_Degrees]) -> None:
    """Say between which values of the cells that are empty the best is taken."""
    for name, values in zip(("tp", "attn_dp", "ep"), zip(*layouts, strict=True), strict=False):
        if not row.text(name) and (len(set(values)) > 1 or name == "tp"):
            row.assumed.append(Remark(name, None, f"the best of {', '.join(map(str, sorted(set(values))))}"))


def _usual_cache(model: ModelSpec, weights: str, engine: EngineSpec) -> str:
    """Return the format of a cache that is not said: 16 bits beside 16-bit weights, and where vLLM or SGLang serve mixtures of
    experts whose checkpoint has no scales of the cache (`auto`): all but ModelOpt's in NVFP4."""
    auto = engine.framework in ("vllm", "sglang") and model.is_moe and weights != "nvfp4"
    return "bf16" if weights == "bf16" or auto else "fp8"


def _formats(row: RunRow, model: ModelSpec, gpu: GpuSpec, engine: EngineSpec) -> tuple[str, str]:
    """Return the formats of weights and cache."""
    text, cache = row.text("weights"), row.text("kv")
    if not text:
        text = "fp8" if supports(gpu, "fp8") else "bf16"
        row.assume(f"weights {text}")
    weights = weight_format(text)
    if text.lower().replace("-", "_") in EIGHT_BIT_ACTIVATIONS:
        row.assume(f"weights {text} priced as {weights}: weights only, products in 16 bits")
    elif not supports(gpu, weights):
        row.assume(f"{gpu.id} does not multiply in {weights}: weights stored in it, products at its 16-bit rate")
    if not cache:
        cache = _usual_cache(model, weights, engine)
        row.assume(f"KV cache {cache}")
    return weights, kv_format(cache)
