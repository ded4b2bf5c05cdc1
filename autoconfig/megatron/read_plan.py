"""The plan in the arguments of any year: degrees, stages, batch, recomputation, sharding; also numerics and lengths."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from autoconfig.megatron.argument_list import Arguments
from autoconfig.megatron.flag_table import read_fields
from autoconfig.megatron.read_model import PATTERNS, idle_layers
from autoconfig.specs.errors import InputError, PlanError, UnsupportedError
from autoconfig.specs.layouts import layout_text
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.pattern import parse_pattern
from autoconfig.specs.plan import NONE, Recompute, TrainPlan
from autoconfig.specs.remarks import Remark, note
from autoconfig.specs.scenario import FORMATS, FP8_RECIPES, Numerics
from autoconfig.training.plan_rules import PipelineSplit, layout_chunks, split_by_accounting, split_of_layout, spread_layers

_SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
LAYERS_PER_CHUNK = "--num-layers-per-virtual-pipeline-stage"
_QUANTISED = {
    precision: name.removesuffix("-format")
    for (precision, _), form in FORMATS.items()
    for name, _ in form.flags
    if name.endswith("-format")
}
"""Precision -> what Megatron's arguments call it: --fp8-format, --fp8-recipe, --fp8-param-gather."""
_OLDER_FLAGS = {"fp8": ("--fp8-hybrid", "--fp8-e4m3")}


def _precision(a: Arguments, assumed: list[Remark]) -> tuple[str, str]:
    """Return (precision, recipe of fp8) by the arguments that FORMATS names. Raises InputError."""
    forms = [(p, name) for p, name in _QUANTISED.items() if a.has(f"--{name}-format", *_OLDER_FLAGS.get(name, ()))]
    if len(forms) > 1:
        both = " and ".join(f"--{name}-format" for _, name in forms)
        raise InputError(f"{both} are given together (NV129); drop one of them")
    for precision, name in forms:
        recipe = a.text(f"--{name}-recipe")
        if precision != "fp8":
            only = FORMATS[precision, ""].recipe
            if (recipe or only) != only:
                raise UnsupportedError(f"--{name}-recipe: only {only} can be priced")
            return precision, "delayed"
        if recipe and recipe not in FP8_RECIPES:
            raise InputError(f"--fp8-recipe {recipe[:40]!r}: use one of {', '.join(FP8_RECIPES)}")
        return precision, recipe or "delayed"
    plain = next((name for name in ("bf16", "fp16") if a.has(f"--{name}")), "fp32")
    if plain == "fp32":
        assumed.append(Remark("precision", "fp32", "neither --bf16 nor --fp16 is given"))
    return plain, "delayed"


CHUNKS_PER_RANK = "--num-virtual-stages-per-pipeline-rank"
MEGATRON_FSDP = ("--use-megatron-fsdp", "--use-custom-fsdp")
LAYOUT = "--pipeline-model-parallel-layout"
FIRST, LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
FOR_EMBEDDING, FOR_LOSS = "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"
SCHEDULE = "--step-batch-size-schedule"
_SUFFIXES = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


@dataclass(frozen=True, kw_only=True)
class PlanRead:
    """The plan and the batch."""

    plan: TrainPlan
    global_batch_size: int
    split: PipelineSplit | None
    """Where the file places the layers itself (a layout or the account-for flags)."""
    megatron_fsdp: bool
    """Sharded by Megatron-FSDP, which plans have no word of their own for: read as fsdp of the same stage."""


def read_plan(a: Arguments, model: ModelSpec, num_gpus: int, assumed: list[Remark]) -> PlanRead:
    """Return the plan on so many GPUs. Raises InputError for contradictory arguments; what breaks a rule is no error here."""
    degrees, of_experts = read_fields(a, "degrees"), read_fields(a, "of_experts")
    tp, pp = degrees["tp"], degrees["pp"]
    if a.has("--no-pipeline-parallel") and pp > 1:
        raise InputError(f"--no-pipeline-parallel contradicts --pipeline-model-parallel-size {pp}; drop one of them")
    dp = max(1, num_gpus // (tp * pp * degrees["cp"]))
    split, vpp, first, last = _stages(a, model, pp, assumed)
    mbs, batch = read_batch(a, dp, assumed)
    dist_opt, fsdp = _sharding(a, assumed)
    share = a.number("--optimizer-offload-fraction")
    plan = TrainPlan(
        **degrees,
        dp=dp,
        mbs=mbs,
        vpp=vpp,
        ep=_experts_over(a, model, dp, of_experts["ep"], assumed),
        etp=_expert_tensor(a, model, tp, of_experts["etp"], assumed),
        sp=_sequence_parallel(a, tp, assumed),
        recompute=read_recompute(a, assumed),
        first=first,
        last=last,
        dist_opt=dist_opt,
        fsdp=fsdp,
        offload=0.0 if not a.has("--optimizer-cpu-offload") else 1.0 if share is None else share,
    )
    if split is not None and split.text and not split.broken and _says(model, plan, split):
        split = None
    return PlanRead(plan=plan, global_batch_size=batch, split=split, megatron_fsdp=a.has(*MEGATRON_FSDP))


def _says(model: ModelSpec, plan: TrainPlan, split: PipelineSplit) -> bool:
    """Whether the plan says every chunk of the layout."""
    try:
        text = layout_text(model, plan)
    except PlanError:
        return False
    return bool(text) and layout_chunks(text) == layout_chunks(split.text)


def _stages(
    a: Arguments, model: ModelSpec, pp: int, assumed: list[Remark]
) -> tuple[PipelineSplit | None, int, int | None, int | None]:
    """Return (split, vpp, first, last); the ways of saying them exclude each other."""
    pattern = a.text(*PATTERNS)
    if pattern is not None and "|" in pattern:
        split, vpp, first, last = _with_ends(_split_of_pattern(a, pattern, pp), model, assumed)
        halves = any(layers % (vpp * model.sublayers_per_layer) for layers in split.layers)
        return None if split.even_inside and not halves else split, vpp, first, last
    accounts = _accounts(a)
    if (placed := _placed(a, model, pp)) is not None:
        return _with_ends(placed, model, assumed)
    vpp = a.count(CHUNKS_PER_RANK, "--virtual-pipeline-model-parallel-size") or 1
    chunk = a.count(LAYERS_PER_CHUNK)
    if chunk is not None:
        vpp = _chunks(model.num_layers + len(accounts), pp, chunk)
    if accounts:
        split = split_by_accounting(model.num_layers, pp, vpp, embedding=FOR_EMBEDDING in accounts, loss=FOR_LOSS in accounts)
        return _with_ends(split, model, assumed)
    return None, vpp, a.count(FIRST), a.count(LAST)


def _accounts(a: Arguments) -> list[str]:
    """Return the ends of the model that count as layers. Raises InputError for ways to place layers that exclude each other."""
    ways = [name for name in (LAYERS_PER_CHUNK, CHUNKS_PER_RANK, LAYOUT) if a.has(name)]
    if len(ways) > 1:
        raise InputError(f"contradictory: {' and '.join(ways)} are given together (NV038); Megatron-LM takes one of them")
    ends = [name for name in (FIRST, LAST) if a.has(name)]
    accounts = [name for name in (FOR_EMBEDDING, FOR_LOSS) if a.has(name)]
    if ends and accounts:
        raise InputError(f"contradictory: {ends[0]} and {accounts[0]} exclude each other (NV028); drop one of them")
    if LAYOUT in ways and (ends or accounts):
        raise InputError(f"contradictory: {LAYOUT} excludes {(ends + accounts)[0]} (NV029); drop one of them")
    if LAYERS_PER_CHUNK in ways and ends:
        raise InputError(f"contradictory: {LAYERS_PER_CHUNK} with {ends[0]}; use {CHUNKS_PER_RANK} with uneven stages")
    return accounts


def _placed(a: Arguments, model: ModelSpec, pp: int) -> PipelineSplit | None:
    """Return the split of a file that places every layer: by a layout, DeepSpeed's own or MindSpeed's lists."""
    layout = a.text(LAYOUT)
    if layout is not None:
        return split_of_layout(layout, pp, model.num_layers, model.mtp_num_layers)
    if a.has("--deepspeed") and pp > 1:
        return _deepspeed_split(a, model.num_layers, pp)
    return _mindspeed_split(a, model, pp)


def _chunks(layers: int, pp: int, chunk: int) -> int:
    """Return the chunks of a stage in which so many layers each lie. Raises InputError where they do not divide."""
    if layers % pp:
        raise InputError(f"{layers} layers do not divide over --pipeline-model-parallel-size {pp} (NV024)")
    if layers % (pp * chunk):
        raise InputError(
            f"{LAYERS_PER_CHUNK} {chunk}: {layers} layers over {pp} stages are no multiple of {chunk} layers (NV044); "
            f"use a divisor of {layers // pp}"
        )
    return layers // pp // chunk


def _mindspeed_split(a: Arguments, model: ModelSpec, pp: int) -> PipelineSplit | None:
    """Return the split that MindSpeed's --num-layer-list (Yuan's blocks) gives, or its --noop-layers, which fill stages."""
    idle, text = idle_layers(a), a.text("--num-layer-list", "--pipeline-model-parallel-blocks")
    total = model.num_layers + len(idle)
    if text is not None:
        vpp, chunks = 1, _listed_chunks(text, pp, model.num_layers, total)
    elif idle and pp > 1:
        each = a.count(LAYERS_PER_CHUNK) or total // pp // (a.count(CHUNKS_PER_RANK) or 1)
        if not each or total % (pp * each):
            raise InputError(f"{total} layers, --noop-layers among them, are no multiple of {pp} stages x {each} (NV044)")
        vpp = total // pp // each
        chunks = [range(at * each, (at + 1) * each) for at in range(pp * vpp)]
    else:
        return None
    held = [sum(layer not in idle for chunk in chunks[rank::pp] for layer in chunk) for rank in range(pp)]
    return PipelineSplit(vpp=vpp, layers=tuple(held))


def _listed_chunks(text: str, pp: int, layers: int, total: int) -> list[range]:
    """Return the layers of each stage by a list of their numbers. Raises InputError for another list."""
    words = text.replace(" ", "").split(",")
    if not all(word.isdigit() and len(word) < 7 for word in words) or len(words) != pp:
        raise InputError(f"--num-layer-list {text[:40]!r}: write the layers of each of the {pp} stages, with commas")
    sizes = [int(word) for word in words]
    if sum(sizes) != total:
        raise InputError(f"--num-layer-list {text[:40]!r} adds to {sum(sizes)}, not to the {layers} layers")
    return [range(end - size, end) for size, end in zip(sizes, itertools.accumulate(sizes), strict=True)]


def _split_of_pattern(a: Arguments, text: str, pp: int) -> PipelineSplit:
    """Return the split that the segments of a hybrid's pattern give (NV023)."""
    for name in (LAYERS_PER_CHUNK, CHUNKS_PER_RANK, LAYOUT, FOR_EMBEDDING, FOR_LOSS, FIRST, LAST):
        if a.has(name):
            raise InputError(f"contradictory: | in --hybrid-layer-pattern excludes {name} (NV023); drop one of them")
    segments = parse_pattern(text).segments
    if len(segments) % pp:
        raise InputError(f"--hybrid-layer-pattern has {len(segments)} segments, no multiple of pp {pp} (NV023)")
    ranks = [segments[rank::pp] for rank in range(pp)]
    if any(len({len(chunk) for chunk in rank}) > 1 for rank in ranks):
        raise UnsupportedError("--hybrid-layer-pattern: chunks of one stage with different numbers of layers are not priced")
    return PipelineSplit(vpp=len(segments) // pp, layers=tuple(sum(map(len, rank)) for rank in ranks))


def _deepspeed_split(a: Arguments, layers: int, pp: int) -> PipelineSplit:
    """Return DeepSpeed's split of any number of layers; `type:transformer|embedding` counts both ends as layers, too."""
    if "embedding" in (a.text("--pp-partition-method") or ""):
        return split_by_accounting(layers, pp, 1, embedding=True, loss=True)
    return spread_layers(layers, pp)


def _with_ends(
    split: PipelineSplit, model: ModelSpec, assumed: list[Remark]
) -> tuple[PipelineSplit, int, int | None, int | None]:
    first, last = split.ends(model.num_layers)
    if not split.even_inside and not split.broken:
        priced = f"first {first}, last {last}" if first else f"{model.num_layers // len(split.layers)} each"
        assumed.append(note(f"stages of {', '.join(map(str, split.layers))} layers are priced as {priced}"))
    return split, split.vpp, first, last


def _experts_over(a: Arguments, model: ModelSpec, dp: int, ep: int | None, assumed: list[Remark]) -> int:
    """Return the ranks that the experts are spread over. Raises InputError for several of a model without experts."""
    if ep is not None and not model.is_moe:
        if ep > 1:
            raise InputError(f"--expert-model-parallel-size {ep} without --num-experts; drop it or give the experts")
        return 1
    if ep is None and model.is_moe and a.has("--moe-expert-model-parallelism"):
        ep = min(dp, model.num_moe_experts or 1)
        assumed.append(Remark("expert parallelism", ep, "--expert-parallel spreads the experts over data parallelism"))
    return ep or 1


def _expert_tensor(a: Arguments, model: ModelSpec, tp: int, etp: int | None, assumed: list[Remark]) -> int:
    """Return the tensor parallelism of the experts."""
    if not model.is_moe:
        return 1
    if etp is not None:
        return etp
    if a.has("--deepspeed") and not a.has("--enable-expert-tensor-parallelism"):
        return 1
    if tp > 1:
        assumed.append(Remark("--expert-tensor-parallel-size", tp, "the tensor parallelism, its default"))
    return tp


def _sequence_parallel(a: Arguments, tp: int, assumed: list[Remark]) -> bool:
    if not a.has("--sequence-parallel"):
        return False
    if tp == 1:
        assumed.append(Remark("--sequence-parallel", None, "no effect at tensor parallelism 1: Megatron-LM turns it off"))
    return tp > 1


def _sharding(a: Arguments, assumed: list[Remark]) -> tuple[bool, int]:
    """Return (distributed optimizer, fsdp stage)."""
    dist_opt = a.has("--use-distributed-optimizer")
    torch, megatron = a.has("--use-torch-fsdp2"), a.has(*MEGATRON_FSDP)
    if torch and megatron:
        raise InputError("contradictory: --use-torch-fsdp2 and --use-megatron-fsdp (NV109); drop one of them")
    if torch:
        return False, 2 if a.has("--torch-fsdp2-no-reshard-after-forward") else 3
    if not megatron and not a.has("--deepspeed"):
        return dist_opt, 0
    stage = _megatron_stage(a, assumed) if megatron else _zero_stage(a, assumed)
    return (False, stage) if stage > 1 else (stage == 1, 0)


def _megatron_stage(a: Arguments, assumed: list[Remark]) -> int:
    """Return the ZeRO stage of Megatron-FSDP. Raises InputError for another word."""
    strategy = a.text("--data-parallel-sharding-strategy") or "no_shard"
    if strategy not in _SHARDING:
        raise InputError(f"--data-parallel-sharding-strategy {strategy[:40]!r}: use one of {', '.join(_SHARDING)}")
    stage = _SHARDING[strategy]
    priced = f"torch FSDP2 of ZeRO stage {stage}" if stage > 1 else ("plain data parallelism", "a sharded optimizer")[stage]
    assumed.append(note(f"read as Megatron-FSDP, {strategy}: legality as Megatron has it, priced as {priced}"))
    return stage


def _zero_stage(a: Arguments, assumed: list[Remark]) -> int:
    """Return DeepSpeed's stage. Raises InputError for one that there is not."""
    stage = a.whole("--zero-stage")
    if stage is None:
        assumed.append(Remark("--zero-stage", 1, "the DeepSpeed configuration file is not read"))
        return 1
    if not 0 <= stage <= 3:
        raise InputError(f"--zero-stage {stage}: use 0 to 3")
    return stage


def read_recompute(a: Arguments, assumed: list[Remark]) -> Recompute:
    """Return recomputation in the words of 2020 to today. Raises InputError for what excludes itself."""
    granularity, short = a.text("--recompute-granularity"), a.has("--recompute-activations")
    old_method = a.text("--activations-checkpoint-method")
    old = a.has("--checkpoint-activations") or old_method is not None
    if short and granularity == "full":
        raise InputError("--recompute-activations (selective) contradicts --recompute-granularity full; drop one of them")
    if old and (short or granularity not in (None, "full")):
        raise InputError("--checkpoint-activations is an older spelling of --recompute-granularity full; give one of them")
    if old or granularity == "full":
        return _full(a, old_method, old)
    _layers_again(a)
    if granularity == "selective" or short:
        return _selective(a)
    if granularity not in (None, "none"):
        raise InputError(f"--recompute-granularity {granularity[:40]!r}: use full or selective")
    if a.has("--recompute-modules"):
        assumed.append(Remark("--recompute-modules", None, "no effect without --recompute-granularity selective"))
    return NONE


def _layers_again(a: Arguments) -> int:
    """Return the layers that are computed again: of a group, or of a stage."""
    return a.count("--recompute-num-layers", "--activations-checkpoint-num-layers", "--checkpoint-num-layers") or 1


def _full(a: Arguments, old_method: str | None, old: bool) -> Recompute:
    """Return recomputation of whole layers, in older words where `old`. Raises InputError without a method that there is."""
    method, whole = a.text("--recompute-method"), a.text("--recompute-granularity") == "full"
    if whole and method == "block" and a.text("--recompute-num-layers") == "0":
        return NONE  # the first 0 layers of a stage (transformer_block.py)
    count = _layers_again(a)
    if old:
        return Recompute("full", (), _method(old_method or method or "uniform", "--activations-checkpoint-method"), count)
    if method is None:
        raise InputError("--recompute-granularity full needs --recompute-method uniform or block (NV111)")
    return Recompute("full", (), _method(method, "--recompute-method"), count)


def _selective(a: Arguments) -> Recompute:
    """Return recomputation by modules. Raises InputError beside a method of full recomputation."""
    if a.has("--recompute-method"):
        raise InputError("--recompute-method contradicts selective recomputation (NV110); drop it")
    modules = tuple(word for text in a.texts("--recompute-modules") for word in text.replace(",", " ").split())
    if not modules and a.has("--recompute-modules"):
        return NONE
    return Recompute("selective", modules or ("core_attn",))


def _method(text: str, name: str) -> str:
    if text not in ("uniform", "block"):
        raise InputError(f"{name} {text[:40]!r}: use uniform or block")
    return text


def read_batch(a: Arguments, dp: int, assumed: list[Remark]) -> tuple[int, int]:
    """Return (micro-batch, global batch) in samples. Raises InputError where there is no micro-batch, or two global batches.
    The size of a schedule is its last one, as `_parse_schedule` of megatron-core 0.19.2 (num_microbatches_calculator.py) reads
    it; its arguments.py refuses a schedule beside --global-batch-size."""
    mbs, batch = read_fields(a, "batch").values()
    if mbs is None:
        raise InputError("--micro-batch-size is not in the file; add it")
    if a.has(SCHEDULE):
        if batch is not None:
            raise InputError(f"{SCHEDULE} and --global-batch-size are given together, which Megatron-LM refuses; drop one")
        batch = _last_of_schedule(a.texts(SCHEDULE))
        assumed.append(Remark("global_batch_size", batch, f"the last of {SCHEDULE}: checked at this size only"))
    elif batch is None:
        batch = mbs * dp
        assumed.append(Remark("global_batch_size", batch, "micro-batch x data parallelism, Megatron's default"))
    if a.has("--rampup-batch-size"):
        why = f"megatron-core 0.19 ignores it ({SCHEDULE} took its place), older Megatron-LM ramps the batch up"
        assumed.append(Remark("--rampup-batch-size", None, f"{why}; checked at global batch {batch}"))
    return mbs, batch


def _last_of_schedule(texts: tuple[str, ...]) -> int:
    entries: dict[float, int] = {}
    words = " ".join(texts).replace("'", " ").replace('"', " ").replace(",", " ").split()
    for word in words:
        threshold, colon, size = word.partition(":")
        start, samples = _amount(threshold), _amount(size)
        if not colon or start is None or samples is None or not 1 <= samples < 1e12:
            raise InputError(f'{SCHEDULE} {word[:40]!r}: write THRESHOLD:SIZE pairs, "0:768 250B:1536"')
        entries[start] = int(samples)
    if 0 not in entries or len(entries) != len(words):
        raise InputError(f'{SCHEDULE}: the thresholds start at 0 and differ, "0:768 250B:1536"')
    return entries[max(entries)]


def _amount(text: str) -> float | None:
    """Return the number of `768` or `250B`; None for other text."""
    suffix = text[-1:].upper() if text[-1:].isalpha() else ""
    digits = text.removesuffix(text[-1:]) if suffix else text
    if suffix not in _SUFFIXES or not digits.isascii() or not digits.replace(".", "", 1).isdecimal():
        return None
    return float(digits) * _SUFFIXES[suffix]


def read_seq_length(a: Arguments) -> int:
    """Return tokens of one sample. Raises InputError where the file does not say it."""
    seq = a.count("--seq-length", "--encoder-seq-length")
    if seq is None:
        raise InputError("--seq-length is not in the file; add it, or say --seq-length N")
    return seq


def read_numerics(a: Arguments, model: ModelSpec, assumed: list[Remark]) -> Numerics:
    """Return types and dropout, with Megatron's defaults. Raises InputError for types that contradict each other."""
    if a.has("--fp16") and a.has("--bf16"):
        raise InputError("--fp16 and --bf16 are given together; drop one of them")
    precision, recipe = _precision(a, assumed)
    capacity = a.number("--moe-expert-capacity-factor", "--moe-train-capacity-factor")
    if capacity is None and a.has("--topk", "--expert-interval") and model.is_moe:
        capacity = 1.0  # Megatron-DeepSpeed's default
    return Numerics(
        **read_fields(a, "numerics"),
        precision=precision,
        fp8_recipe=recipe,
        fp8_param_gather=precision in _QUANTISED and a.has(f"--{_QUANTISED[precision]}-param-gather"),
        grad_reduce_dtype=_gradients(a, precision),
        moe_capacity_factor=capacity if capacity and capacity > 0 else None,
        moe_imbalance=1.0 if model.is_moe and a.has("--moe-router-force-load-balancing") else None,
    )


def _gradients(a: Arguments, precision: str) -> str:
    """Return the type in which gradients are added up: bf16 runs have fp32 unless told otherwise, fp16 runs 16 bits unless told
    otherwise. Of --grad-reduce-in-bf16 and --accumulate-allreduce-grads-in-fp32 the first wins, as in Megatron-LM's
    `validate_args`, which asserts fp32 main gradients beside the second. Raises InputError there."""
    whole = a.has("--accumulate-allreduce-grads-in-fp32")
    halved = a.has("--grad-reduce-in-bf16")
    narrow = (a.text("--main-grads-dtype") or "") in ("bf16", "bfloat16")
    if whole and narrow:
        raise InputError("--main-grads-dtype bf16 contradicts --accumulate-allreduce-grads-in-fp32; drop one of them")
    if halved or narrow:
        return "bf16"
    return "bf16" if precision == "fp16" and not whole and not a.has("--main-grads-dtype") else "fp32"
