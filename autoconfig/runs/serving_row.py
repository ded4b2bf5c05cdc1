"""One row of a table of serving runs as a ServingCase: what ran, on what, under which load; measured columns and notes are
never read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from autoconfig.memory_model.engines.plan import BY_START, StartOptions
from autoconfig.runs.table import NO, Row, cell, columns_of, count_of, degree, flag, names_of, number
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

MEASURED = columns_of("serving_measured")
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
    """Of an iteration and attention rank, as the row says; so for the next four."""
    receive_every: int = 1
    kv_fraction: float | None = None
    drafted: int = 0
    acceptance: float = 0.0
    start: StartOptions = field(default_factory=StartOptions)
    """What the row says of the engine's start that its memory depends on: release, sequences of a rank, graphs, drafts."""
    checkpoint: Checkpoint | None = None
    assumed: tuple[Remark, ...] = field(default=())


def read_case(row: Row) -> ServingCase:
    """The case of a row. Raises InputError naming the cell that cannot be used."""
    for name in NEEDED:
        if not cell(row, name):
            raise InputError(f"cell {name} is empty")
    name = cell(row, "model")
    if name.lower().startswith(ENCODER_DECODERS):
        raise UnsupportedError(f"{name} is an encoder-decoder model; only decoders can be predicted")
    assumed: list[Remark] = []
    size = re.fullmatch(r"GPT-([0-9.]+[BMT])", name, re.IGNORECASE)  # of the GPT-3 family
    model, notes = resolve_model(size[1] if size else name)
    if model.is_hybrid:
        assumed.append(note("recurrent layers: their operators were not measured"))
    gpu = load_gpu(names_of("serving_gpus").get(cell(row, "gpu").lower(), cell(row, "gpu")))
    engine = read_engine(cell(row, "backend"), cell(row, "backend_version"), assumed)
    lengths = _lengths(row, model, assumed)
    gpus = degree(row, "n_gpus", None)
    load, at_once = _load(row, assumed), _at_once(row)
    rate = _rate(row) if load == "open" else 0.0
    requests = count_of(row, "requests") or _requests(row, load, lengths)
    batch, users = count_of(row, "max_batch") or count_of(row, "max_num_seqs"), None
    if at_once and load != "open":
        word, count = at_once
        batch, users = (batch, count) if word == "concurrency" else (min(count, batch or count), None)
    if load == "single":
        batch, users = 1, None
    stored = checkpoint_named(cell(row, "checkpoint")) if cell(row, "checkpoint") else None
    plans = _plans(row, model, gpu, engine, gpus, assumed)
    ratio, (drafted, acceptance) = 1.0, _drafts(row, assumed)
    start = _start(row, model, engine, drafted, assumed)
    if load == "closed":
        requests, ratio = _closed(row, users or 1, assumed)
    if users is not None:
        busy = tuple(plan for plan in plans if plan.replicas <= users)
        if not busy:
            raise InputError(f"concurrency {users} leaves instances idle: there are {plans[0].replicas}; give one's n_gpus")
        plans = busy
    return ServingCase(
        model=model,
        gpu=gpu,
        engine=replace(engine, eager_iterations="all") if start.eager else engine,
        num_gpus=gpus,
        plans=plans,
        load=load,
        lengths=lengths,
        rate=rate,
        requests=requests,
        max_batch=batch,
        concurrency=users,
        limits=_limits(row) if load == "open" else None,
        range_ratio=ratio,
        tokens=count_of(row, "max_num_batched_tokens"),
        receive_every=count_of(row, "recv_interval") or 1,
        kv_fraction=_share(row, "kv_fraction"),
        drafted=drafted,
        acceptance=acceptance,
        start=start,
        checkpoint=stored,
        assumed=(*notes, *assumed),
    )


ACCEPTANCE = 0.7
"""Of a draft token where the row does not say (assumed)."""
DRAFTS = re.compile(r"(?:[a-z][a-z0-9]*[ :=_-]+)?([0-9]{1,2})(?:[ @,:]+(0?\.[0-9]+|1(?:\.0*)?))?")
"""`3`, `mtp 3`, `eagle3-2`, `mtp 3 0.8`: drafts that a step checks, and the chance of each to be accepted."""


def _closed(row: Row, users: int, assumed: list[Remark]) -> tuple[int, float]:
    """(requests, least length over the longest) of a closed loop."""
    requests, ratio = count_of(row, "requests"), _share(row, "range_ratio")
    said = []
    if requests is None:
        requests = REQUESTS_A_USER * users
        said.append(f"{requests:,} requests")
    if ratio is None:
        ratio = RANGE_RATIO
        said.append(f"lengths from {ratio:g} of isl and osl to all of them")
    if said:
        assumed.append(note(f"a benchmark of {' with '.join(said)}"))
    return requests, ratio


def _share(row: Row, key: str) -> float | None:
    """A share above 0 and up to 1; None for an empty cell."""
    value = number(row, key)
    if value is not None and not 0.0 < value <= 1.0:
        raise InputError(f"cell {key}={cell(row, key)[:40]!r}: a number above 0 and at most 1")
    return value


def _drafts(row: Row, assumed: list[Remark]) -> tuple[int, float]:
    """(drafts that a step checks, chance of each to be accepted); (0, 0) without speculation."""
    text = cell(row, "speculative").lower()
    if text in ("", *NO, "none"):
        return 0, 0.0
    found = DRAFTS.fullmatch(text)
    if found is None:
        raise InputError(f"cell speculative={text[:40]!r}: drafts of a step and their acceptance, such as mtp 3 0.8, or none")
    if found[2] is None:
        assumed.append(note(f"draft tokens are accepted with a chance of {ACCEPTANCE:g}"))
    return int(found[1]), float(found[2] or ACCEPTANCE)


def _start(row: Row, model: ModelSpec, engine: EngineSpec, drafted: int, assumed: list[Remark]) -> StartOptions:
    """What the row says of the engine's start. `max_num_seqs` counts an instance (_plans knows its ranks)."""
    drafts = "ngram" if cell(row, "speculative").lower().startswith("ngram") else "mtp" if model.mtp_num_layers else ""
    return StartOptions(
        release=_release(engine, cell(row, "backend_version"), assumed),
        max_num_seqs=count_of(row, "max_num_seqs"),
        eager=bool(flag(row, "enforce_eager")),
        draft_method=drafts if drafted else "",
        draft_tokens=drafted if drafts else 0,
    )


def _release(engine: EngineSpec, version: str, assumed: list[Remark]) -> str:
    """The release whose memory a row's is: its backend_version, the first that is modelled where it is older; empty, the
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


def _lengths(row: Row, model: ModelSpec, assumed: list[Remark]) -> DataSet:
    if cell(row, "isl"):
        isl, osl = _length(row, "isl"), _length(row, "osl")
        drawn = cell(row, "data_set").lower()
        return replace(data_set(drawn), isl=isl, osl=osl) if drawn else data_set_of_lengths(isl, osl)
    if cell(row, "kind") != "mlperf":
        raise InputError("cell isl is empty: how many input tokens does a request have on average?")
    try:
        lengths = replace(data_set(f"mlperf-{model.name}"), osl=_length(row, "osl"))
    except UnknownNameError as error:
        known = ", ".join(name.removeprefix("mlperf-") for name in error.known if name.startswith("mlperf-"))
        raise InputError(f"cell isl is empty, and MLPerf's input lengths are known for {known} only") from None
    assumed.append(note(f"input lengths of {lengths.name}"))
    return lengths


def _length(row: Row, key: str) -> float:
    value = number(row, key)
    if value is None or not 1 <= value <= 10_000_000:
        raise InputError(f"cell {key}={cell(row, key)[:40]!r}: tokens are from 1 to 10,000,000")
    return value


def read_engine(backend: str, version: str, assumed: list[Remark]) -> EngineSpec:
    """The engine of `backend` and `backend_version`; the nearest generation, said in `assumed`, where there is none."""
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


def _at_once(row: Row) -> tuple[str, int] | None:
    """(`batch` or `concurrency`, its number) where scenario or kind says so."""
    for key in ("scenario", "kind"):
        found = AT_ONCE.search(cell(row, key).lower())
        if found:
            if not int(found[2]):
                raise InputError(f"cell {key}={cell(row, key)[:40]!r}: at least 1 request at once")
            return "concurrency" if found[1] == "concurrency" else "batch", int(found[2])
    return None


def _load(row: Row, assumed: list[Remark]) -> str:
    kind, scenario = cell(row, "kind"), cell(row, "scenario").lower()
    at_once = _at_once(row)
    if (at_once and at_once[1] == 1) or scenario.startswith(ONE_AT_A_TIME):
        return "single"
    if at_once and at_once[0] == "concurrency" and not cell(row, "offered_qps"):
        return "closed"
    if scenario.startswith("offline") or kind == "max_throughput" or at_once:
        return "offline"
    if not cell(row, "offered_qps"):
        assumed.append(note("offered_qps is empty: a queue that never empties"))
        return "offline"
    return "open"


def _rate(row: Row) -> float:
    text = cell(row, "offered_qps").lower()
    if text in ("inf", "infinity"):
        return float("inf")
    value = number(row, "offered_qps")
    if value is None or value <= 0:
        raise InputError(f"cell offered_qps={text[:40]!r}: a positive number of requests per second, or inf")
    return value


def _limits(row: Row) -> tuple[float, float] | None:
    """Limits of an MLPerf Server run, whose metric is the "maximum Poisson throughput parameter supported" while the 99th
    percentiles of TTFT and TPOT keep them.

    Source: mlcommons/inference_policies, inference_rules.adoc (scenarios); mlcommons/inference, loadgen/results.cc.
    """
    first, between = number(row, "ttft_limit_ms"), number(row, "tpot_limit_ms")
    if cell(row, "kind") != "mlperf" or not first or not between or min(first, between) <= 0:
        return None
    return first / 1e3, between / 1e3


def _requests(row: Row, load: str, lengths: DataSet) -> int:
    first = cell(row, "scenario").split(" ")[0]
    if re.fullmatch(r"[0-9]{1,7}", first):
        return max(int(first), 1)
    return offline_requests(lengths.isl, lengths.osl) if load == "offline" and cell(row, "kind") != "mlperf" else 0


def _plans(
    row: Row, model: ModelSpec, gpu: GpuSpec, engine: EngineSpec, gpus: int, assumed: list[Remark]
) -> tuple[EnginePlan, ...]:
    weights, kv = _formats(row, model, gpu, engine, assumed)
    pp, heads = degree(row, "pp"), model.num_attention_heads
    if pp > model.num_layers:
        raise InputError(f"pp {pp} is more than the {model.num_layers} layers of {model.name}")
    given = count_of(row, "tp")
    if given is None:
        found = _open_degrees(row, model, pp, gpus, assumed)
    else:
        tp, adp = _given_degrees(given, pp, degree(row, "attn_dp"), gpus, assumed)
        if heads % tp:
            raise InputError(f"tp {tp} does not divide the {heads} attention heads of {model.name}")
        found = _expert_layouts(row, model, engine, tp, adp, assumed)
    plans = tuple(
        EnginePlan(tp=tp, pp=pp, ep=ep, adp=adp, weights=weights, kv=kv, replicas=gpus // (tp * pp * adp))
        for tp, adp, ep in found
    )
    if given is not None and len(plans) == 1:
        return plans
    runs = tuple(plan for plan in plans if not limit(engine, plan))
    if not runs:
        open_cells = "tp is" if given is None else "attn_dp or ep is"
        raise InputError(f"cell {open_cells} empty, and {plans[0]}: {limit(engine, plans[0])}")
    return runs


def _given_degrees(tp: int, pp: int, adp: int, gpus: int, assumed: list[Remark]) -> tuple[int, int]:
    """(tp, adp) of a row; TensorRT-LLM and SGLang count attention data parallelism inside of tensor_parallel_size."""
    if gpus % (tp * pp * adp) and gpus % (tp * pp) == 0 and tp % adp == 0:
        assumed.append(note(f"tp {tp} holds attn_dp {adp}: tp {tp // adp} x attn_dp {adp}"))
        tp //= adp
    if gpus % (tp * pp * adp):
        raise InputError(f"tp {tp} x pp {pp} x attn_dp {adp} does not divide n_gpus {gpus}")
    return tp, adp


def _expert_layouts(
    row: Row, model: ModelSpec, engine: EngineSpec, tp: int, adp: int, assumed: list[Remark]
) -> list[tuple[int, int, int]]:
    """Every (tp, adp, ep) of a row whose tp is given: of a mixture of experts whatever the cells attn_dp and ep leave open.
    Attention data parallelism that is not named takes all of tp (TensorRT-LLM's enable_attention_dp)."""
    if not model.is_moe or _at_once(row) is not None:  # a benchmark's row says what its start command said
        return [(tp, adp, degree(row, "ep"))]
    stages = [(tp, adp)] if cell(row, "attn_dp") or tp == 1 or not engine.attention_dp else [(tp, 1), (1, tp)]
    found = [
        (one, ranks, ep)
        for one, ranks in stages
        for ep in ([degree(row, "ep")] if cell(row, "ep") else expert_degrees(model, one, ranks))
    ]
    for name, at in (("attn_dp", 1), ("ep", 2)):
        if len(values := sorted({one[at] for one in found})) > 1:
            assumed.append(Remark(name, None, f"the best of {', '.join(map(str, values))}"))
    return found or [(tp, adp, degree(row, "ep"))]


def _open_degrees(row: Row, model: ModelSpec, pp: int, gpus: int, assumed: list[Remark]) -> list[tuple[int, int, int]]:
    """Every (tp, adp, ep) of a row whose tp is open; of a mixture of experts also adp and ep where their cells are empty."""
    ranks = OPEN_DEGREES if model.is_moe and not cell(row, "attn_dp") else (degree(row, "attn_dp"),)
    found = [
        (tp, adp, ep)
        for tp in OPEN_DEGREES
        for adp in ranks
        if gpus % (tp * pp * adp) == 0 and model.num_attention_heads % tp == 0
        if len(ranks) == 1 or tp * adp <= max(OPEN_DEGREES)
        for ep in ([degree(row, "ep")] if cell(row, "ep") else expert_degrees(model, tp, adp))
        if tp * adp % ep == 0
    ]
    if not found:
        asked = f"pp {pp} x attn_dp {degree(row, 'attn_dp')}" + (f" and ep {ep}" if (ep := degree(row, "ep")) > 1 else "")
        raise InputError(f"cell tp is empty, and none of 1, 2, 4, 8 with {asked} divides n_gpus {gpus}")
    for name, at in (("tp", 0), ("attn_dp", 1), ("ep", 2)):
        values = sorted({one[at] for one in found})
        if not cell(row, name) and (len(values) > 1 or name == "tp"):
            assumed.append(Remark(name, None, f"the best of {', '.join(map(str, values))}"))
    return found


def _usual_cache(model: ModelSpec, weights: str, engine: EngineSpec) -> str:
    """16 bits beside 16-bit weights, and where vLLM or SGLang serve mixtures of experts whose checkpoint has no scales of the
    cache (`auto`): all but ModelOpt's in NVFP4."""
    auto = engine.framework in ("vllm", "sglang") and model.is_moe and weights != "nvfp4"
    return "bf16" if weights == "bf16" or auto else "fp8"


def _formats(row: Row, model: ModelSpec, gpu: GpuSpec, engine: EngineSpec, assumed: list[Remark]) -> tuple[str, str]:
    text, cache = cell(row, "weights"), cell(row, "kv")
    if not text:
        text = "fp8" if supports(gpu, "fp8") else "bf16"
        assumed.append(note(f"weights {text}"))
    weights = weight_format(text)
    if text.lower().replace("-", "_") in EIGHT_BIT_ACTIVATIONS:
        assumed.append(note(f"weights {text} priced as {weights}: weights only, products in 16 bits"))
    elif not supports(gpu, weights):
        assumed.append(note(f"{gpu.id} does not multiply in {weights}: weights stored in it, products at its 16-bit rate"))
    if not cache:
        cache = _usual_cache(model, weights, engine)
        assumed.append(note(f"KV cache {cache}"))
    return weights, kv_format(cache)
