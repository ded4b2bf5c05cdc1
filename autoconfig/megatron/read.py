"""From a list of Megatron-LM arguments to a question and a plan: what `autoconfig check` reads.

Every argument is used, listed as ignored (known, but it changes neither memory nor time nor legality: data, paths, logging), or
listed as unknown. Contradictory ones are InputErrors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoconfig.megatron.argument_list import Arguments, name_hint, refused_arguments, split_arguments
from autoconfig.megatron.read_model import read_decoder_length, read_model
from autoconfig.megatron.read_plan import PlanRead, read_numerics, read_plan, read_seq_length
from autoconfig.megatron.refusals import Refusal, fsdp_violations, refusals, refused_in, ring_violations
from autoconfig.megatron.shell.script import Unread
from autoconfig.megatron.switches import read_switches
from autoconfig.megatron.write import overlap_arguments
from autoconfig.specs.errors import InputError, UnsupportedError, option
from autoconfig.specs.hardware.cluster import ClusterSpec, GpuSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import resolve_model
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.remarks import Effect, Remark
from autoconfig.specs.scenario import Scenario, Workload
from autoconfig.specs.software.software import (
    DEFAULT_STACK,
    GRAD_REDUCE,
    PARAM_GATHER,
    SoftwareStack,
    StackOptions,
    load_stack,
    with_options,
)
from autoconfig.training.price import Violation
from autoconfig.training.question import raised_positions

GATHER = "--overlap-param-gather"
OF_ITSELF = "priced as overlapped with or without it, FSDP overlaps by itself"
ULYSSES = "--ds-sequence-parallel-size"
FIRST_CORE_YEAR = 2024
"""First year in which Megatron-LM builds its model from megatron-core with Transformer Engine unless told otherwise."""
OF_FP8 = ("--fp8-format", "--fp8-hybrid", "--fp8-e4m3", "--fp4-format")
OF_TRANSFORMER_ENGINE = ("--transformer-impl", *OF_FP8)
"""Arguments that only a model from Transformer Engine has."""
OVERLAPS = (
    ("--overlap-grad-reduce", "overlap_grad_reduce"),
    ("--overlap-param-gather", "overlap_param_gather"),
    ("--tp-comm-overlap", "tp_overlap_share"),
)
"""Arguments that switch an overlap on, and the stack's field that says so."""


def is_modern(name: str) -> bool:
    """Whether a stack is one of today's Megatron-LM, whose overlaps are switched on by arguments."""
    return name in (DEFAULT_STACK, "megatron-local") or name.startswith("megatron-core")


def software_name(a: Arguments, gpu: GpuSpec, assumed: list[Remark], release: str | None = None) -> str:
    """Return the stack whose arguments these are, by the newest of them, and say what decided it. On a GPU that computes fp8,
    which no Megatron-LM before 2023 knew, it is today's; so it is where a `release` of megatron-core is named."""
    recent, local = "fp8" in gpu.flops_per_s, False
    if a.has("--deepspeed"):
        newer = recent or a.has(
            "--use-rotary-position-embeddings", "--use-flash-attn", "--use-flash-attn-v2", "--sequence-parallel", ULYSSES
        )
        name, why = "megatron-deepspeed-2023" if newer else "megatron-deepspeed-2022", "because of --deepspeed"
    elif (local := a.text("--transformer-impl") == "local") and (recent or a.newest()[1] >= FIRST_CORE_YEAR):
        name, why = "megatron-local", "because of --transformer-impl local"
        if a.has("--context-parallel-algo") and (a.count("--context-parallel-size") or 1) > 1:
            name, why = DEFAULT_STACK, "because MindSpeed brings context parallelism of its own (--context-parallel-algo)"
    elif release is not None:
        name, why = DEFAULT_STACK, f"because of {option('core_release')}"
    else:
        name, why = _stack_of_year(a, gpu, OF_FP8 if local else OF_TRANSFORMER_ENGINE)
    assumed.append(Remark("software", name, why, Effect.EVERYTHING))
    return name


def _stack_of_year(a: Arguments, gpu: GpuSpec, modern: tuple[str, ...]) -> tuple[str, str]:
    """Return (stack, why) by the newest argument, or one of the `modern` ones."""
    newest, year = a.newest()
    why = f"as of the arguments the newest is {newest}, of {year}"
    if year >= FIRST_CORE_YEAR or a.has(*modern):
        return DEFAULT_STACK, why
    if "fp8" in gpu.flops_per_s:
        return DEFAULT_STACK, f"{why}, but {gpu.id} is newer than Megatron-LM of then"
    old = year <= 2021 and not a.has("--sequence-parallel", "--recompute-activations")
    name = "megatron-lm-2021" if old else "megatron-lm-2022"
    return name, f"{why}; if today's Megatron-LM runs this file, it is --software {DEFAULT_STACK}"


def read_software(
    a: Arguments, scenario: Scenario, plan: TrainPlan, assumed: list[Remark], *, modern: bool, megatron_fsdp: bool = False
) -> SoftwareStack:
    """Return the scenario's stack with what the arguments switch on and, of today's Megatron-LM (`modern`), off. Raises
    InputError for overlap without its condition."""
    name = scenario.software.name
    if a.has("--tp-comm-overlap") and not plan.sp:
        raise InputError(
            "--tp-comm-overlap needs --sequence-parallel and tensor parallelism above 1 (NV047); drop it or add them"
        )
    options = StackOptions(
        attention_kernel=_attention_kernel(a, modern),
        loss_fusion="native" if a.has("--cross-entropy-loss-fusion") else "",
        overlaps=_overlaps(a, scenario, plan, assumed, megatron_fsdp) if modern else None,
    )
    stack = with_options(load_stack(name), options)
    stack = replace(stack, supports_fp8_param_gather_with_fsdp=megatron_fsdp) if plan.fsdp or megatron_fsdp else stack
    if plan.fsdp and scenario.numerics.fp8_param_gather and not megatron_fsdp:
        assumed.append(Remark("--fp8-param-gather", None, "switched off by Megatron-LM under torch FSDP2: priced without it"))
    return stack


def _overlaps(a: Arguments, scenario: Scenario, plan: TrainPlan, assumed: list[Remark], megatron_fsdp: bool) -> frozenset[str]:
    """Return the overlaps that are on. An argument that is missing switches its overlap off where the plan could have it. Where
    it could not (tensor-parallel overlap at tp 1), its absence says nothing of other plans: the stack's default stays. Weights
    are gathered beside the forward only where gradients are reduced beside the backward (Megatron's arguments.py asserts it).
    FSDP overlaps by itself: torch FSDP2 prefetches, Megatron-FSDP switches the reduction on where gradients are sharded and the
    gather where weights are (megatron_fsdp.py, MegatronFSDP.__init__), so that only stage 2 keeps a choice."""
    possible = {argument.flag for argument in overlap_arguments(scenario, plan)}
    overlaps = set()
    for flag, field in OVERLAPS:
        usual = bool(getattr(scenario.software.time, field))
        chosen = megatron_fsdp and plan.fsdp == 2 and flag == GATHER
        by_default = usual and flag not in possible and not chosen
        if a.has(flag) or by_default:
            overlaps.add(flag.removeprefix("--"))
        if a.has(flag) and by_default:
            by_itself = plan.fsdp and flag != "--tp-comm-overlap"
            assumed.append(Remark(flag, None, OF_ITSELF if by_itself else "buys nothing here: priced without it", Effect.TIME))
    return frozenset(overlaps if GRAD_REDUCE in overlaps else overlaps - {PARAM_GATHER})


def _attention_kernel(a: Arguments, modern: bool) -> str:
    backend = a.text("--attention-backend")
    if backend in ("unfused", "local"):
        return "unfused"
    if a.has("--use-flash-attn", "--use-flash-attn-v1", "--use-flash-attn-v2", "--use-flash-attn-triton"):
        return "" if modern else "flash_attention2"
    return ""


_READ_ELSEWHERE = ("--local-rank", "--deepspeed-config")

_PARALLELISM = re.compile(
    r"-{1,2}(?!-|(?:rollout|inference|sglang|vllm|eval)-)[a-z0-9-]*-parallel(?:ism)?-(?:size|degree)[ =](?P<size>[^ ]+)"
)
"""An argument with a degree of parallelism in training."""


@dataclass(frozen=True, kw_only=True)
class ArgumentsRead(PlanRead):
    """What an argument list says."""

    scenario: Scenario
    also_broken: tuple[Violation, ...]
    refused: tuple[Violation, ...]
    """Arguments that megatron-core refuses, whatever the plan."""
    unknown: tuple[Remark, ...]
    not_modelled: tuple[Remark, ...]
    ignored: tuple[str, ...]
    assumed: tuple[Remark, ...]


def read_arguments(
    argv: Sequence[str],
    cluster: ClusterSpec,
    unread: Mapping[int, Unread] | None = None,
    *,
    model_name: str | None = None,
    like: str | None = None,
    model: ModelSpec | None = None,
    software: str | None = None,
    exported: str | None = None,
    core_release: str | None = None,
    pinned: bool = False,
    seq_length: int | None = None,
    global_batch_size: int | None = None,
    program: str = "",
    variables: Mapping[str, str] | None = None,
) -> ArgumentsRead:
    """Return scenario and plan of an argument list on a cluster; what is named is said instead of the list. Raises InputError.
    `program`: the file that is started with it; `pinned`: a Megatron-LM of an unknown release runs it; `exported`: the software
    that `export` priced it as, which says every switch."""
    arguments = replace(split_arguments(argv, unread), variables=variables or {})
    _require_training(arguments)
    assumed = [Remark(name, None, "given more than once: the last one counts") for name in arguments.repeated]
    whole = model is None and model_name is None
    model = _model_of(arguments, model, model_name, like, program, assumed)
    seq = seq_length or read_seq_length(arguments)
    arguments.has("--seq-length")
    plan_read = read_plan(arguments, model, cluster.num_gpus, assumed)
    model = with_positions(model, seq, assumed)
    numerics = read_numerics(arguments, model, assumed)
    arguments.refuse_undecided()
    batch = global_batch_size or plan_read.global_batch_size
    workload = Workload(seq_length=seq, global_batch_size=batch, decoder_seq_length=read_decoder_length(arguments, model))
    if software is None and core_release is None and exported is not None:
        assumed.append(Remark("software", exported, "from the header that export wrote", Effect.EVERYTHING))
        software = exported
    stack = load_stack(software or software_name(arguments, cluster.gpu, assumed, core_release))
    modern = exported is not None or is_modern(stack.name)
    plain = Scenario(model=model, cluster=cluster, numerics=numerics, software=stack, workload=workload)
    year = arguments.newest()[1] if software is None and core_release is None else 9999
    refused = refusals(arguments, as_long=seq_length is None, whole=whole, year=year)
    broken = _broken(refused, stack.name, core_release, pinned, assumed)
    stack = read_software(arguments, plain, plan_read.plan, assumed, modern=modern, megatron_fsdp=plan_read.megatron_fsdp)
    if software is None and plan_read.plan.sp:  # what the file gives, the software that its arguments say has
        stack = replace(stack, supports_sequence_parallel=True)
    settings = read_switches(arguments, plain, assumed, modern=modern)
    arguments.used.update(_READ_ELSEWHERE)
    return ArgumentsRead(
        **vars(plan_read),
        scenario=replace(plain, software=stack, given=settings),
        also_broken=(*fsdp_violations(arguments), *ring_violations(arguments, plain, plan_read.plan)),
        refused=broken,
        unknown=(*arguments.unknown, *arguments.depends()),
        not_modelled=arguments.not_modelled(),
        ignored=arguments.not_used(),
        assumed=tuple(assumed),
    )


def _broken(
    refused: Sequence[Refusal], software: str, release: str | None, pinned: bool, assumed: list[Remark]
) -> tuple[Violation, ...]:
    """Return what megatron-core refuses; nothing of software of other years. Raises InputError for a release of such."""
    if is_modern(software):
        return refused_in(refused, release, pinned, assumed)
    if release is not None:
        raise InputError(f"{option('core_release')} is for megatron-core, and the software is {software}; drop one of them")
    return ()


def _model_of(
    a: Arguments, model: ModelSpec | None, name: str | None, like: str | None, program: str, assumed: list[Remark]
) -> ModelSpec:
    """Return the model that is named, or the one that is given, or the one of the arguments. Raises InputError."""
    if name is None:
        if like is not None:
            raise InputError(f"{option('like')} is for a config.json: say {option('model')} config.json, too")
        return model or read_model(a, assumed, program)
    model, notes = resolve_model(name, like=like)
    assumed += [*notes, Remark("model", model.name, "instead of the file's", Effect.EVERYTHING)]
    return model


def _require_training(a: Arguments) -> None:
    """Raises UnsupportedError for other programs, and for an unknown argument with a degree of parallelism: the plan is then
    another one than is read."""
    for name, other in refused_arguments("job").items():
        if a.has(name):
            raise UnsupportedError(f"{name}: this is {other}; only that of decoder-only transformers can be checked")
    for text in (f"{one.field} {one.value or ''}".strip() for one in a.unknown):
        match = _PARALLELISM.fullmatch(text.replace("_", "-"))
        if match is not None and match["size"] not in ("0", "1"):
            slip = f"; if it is a slip of {hint}, write that" if (hint := name_hint(text)) else ""
            raise UnsupportedError(
                f"{text[:80]}: a kind of parallelism that Megatron-LM does not know, and which plans cannot say{slip}; drop it "
                "to check the rest"
            )


def with_positions(model: ModelSpec, seq_length: int, assumed: list[Remark]) -> ModelSpec:
    """Return the model with as many positions as tokens of a sample, at least."""
    if seq_length <= model.max_position_embeddings:
        return model
    assumed.append(raised_positions(model, seq_length))
    return model.replace(max_position_embeddings=seq_length)


def as_megatron_takes_it(plan: TrainPlan) -> TrainPlan:
    """Return the plan whose rules hold for Megatron-FSDP: the distributed optimizer is forced on (NV103), and torch FSDP2's
    rules are not its."""
    return replace(plan, fsdp=0, dist_opt=True)
