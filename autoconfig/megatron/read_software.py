"""The software stack that Megatron-LM's arguments show, with the kernels and overlaps that they switch on."""

from __future__ import annotations

from dataclasses import replace

from autoconfig.megatron.argument_list import Arguments
from autoconfig.megatron.write_run import overlap_arguments
from autoconfig.specs.errors import InputError
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.software import (
    DEFAULT_STACK,
    DISPATCHERS,
    GRAD_REDUCE,
    PARAM_GATHER,
    SoftwareStack,
    StackOptions,
    load_stack,
    with_options,
)

GATHER = "--overlap-param-gather"
OF_ITSELF = "priced as overlapped with or without it, FSDP overlaps by itself"
FIRST_CORE_YEAR = 2024
"""First year in which Megatron-LM builds its model from megatron-core with Transformer Engine unless told otherwise."""
OVERLAPS = (
    ("--overlap-grad-reduce", "overlap_grad_reduce"),
    ("--overlap-param-gather", "overlap_param_gather"),
    ("--tp-comm-overlap", "tp_overlap_share"),
)
"""Arguments that switch an overlap on, and the stack's field that says so."""


def is_modern(name: str) -> bool:
    """Stacks of today's Megatron-LM: overlaps are switched on by arguments."""
    return name in (DEFAULT_STACK, "megatron-local") or name.startswith("megatron-core")


def software_name(a: Arguments, assumed: list[str]) -> str:
    """The stack whose arguments these are, by the newest of them; says what decided it."""
    newest, year = a.newest()
    said = f"of the arguments the newest is {newest}, of {year}"
    if a.has("--deepspeed"):
        newer = a.has("--use-rotary-position-embeddings", "--use-flash-attn", "--use-flash-attn-v2")
        name, said = "megatron-deepspeed-2023" if newer else "megatron-deepspeed-2022", "because of --deepspeed"
    elif a.text("--transformer-impl") == "local" and year >= FIRST_CORE_YEAR:
        name, said = "megatron-local", "because of --transformer-impl local"
    elif year >= FIRST_CORE_YEAR or a.text("--transformer-impl"):
        name = DEFAULT_STACK
    else:
        old = year <= 2021 and not a.has("--sequence-parallel", "--recompute-activations")
        name = "megatron-lm-2021" if old else "megatron-lm-2022"
        said += f"; if today's Megatron-LM runs this file, it is --software {DEFAULT_STACK}"
    assumed.append(f"software {name} (--software names another): {said}")
    return name


def read_software(
    a: Arguments, scenario: Scenario, plan: TrainPlan, assumed: list[str], *, megatron_fsdp: bool = False
) -> SoftwareStack:
    """The scenario's stack with what the arguments switch on and off. Raises InputError for overlap without its condition."""
    name = scenario.software.name
    modern = is_modern(name)
    if a.has("--tp-comm-overlap") and not plan.sp:
        raise InputError(
            "--tp-comm-overlap needs --sequence-parallel and tensor parallelism above 1 (NV047); drop it or add them"
        )
    options = StackOptions(
        attention_kernel=_attention_kernel(a, modern),
        loss_fusion="native" if a.has("--cross-entropy-loss-fusion") else "",
        overlaps=_overlaps(a, scenario, plan, assumed, megatron_fsdp) if modern else None,
        cuda_graphs=a.has("--enable-cuda-graph", "--external-cuda-graph"),
    )
    stack = replace(with_options(load_stack(name), options), supports_fp8_param_gather_with_fsdp=megatron_fsdp)
    if plan.fsdp and scenario.numerics.fp8_param_gather and not megatron_fsdp:
        assumed.append("--fp8-param-gather is switched off by Megatron-LM under torch FSDP2: priced without it")
    dispatcher = a.text("--moe-token-dispatcher-type")
    if dispatcher is not None and modern:
        backend = a.text("--moe-flex-dispatcher-backend") or "deepep"
        named = backend if dispatcher == "flex" and backend in DISPATCHERS else "alltoall"
        named_once = {"moe_dispatcher": named, "moe_dispatcher_wide": "", "moe_dispatcher_dropless": ""}
        stack = replace(stack, time=replace(stack.time, **named_once))  # type: ignore[arg-type]
    return stack


def _overlaps(a: Arguments, scenario: Scenario, plan: TrainPlan, assumed: list[str], megatron_fsdp: bool) -> frozenset[str]:
    """The overlaps that are on.

    An argument that is missing switches its overlap off where the plan could have it. Where it could not (tensor-parallel
    overlap at tp 1), its absence says nothing of other plans: the stack's default stays. Weights are gathered beside the
    forward only where gradients are reduced beside the backward (Megatron's arguments.py asserts it). FSDP overlaps by itself:
    torch FSDP2 prefetches, Megatron-FSDP switches the reduction on where gradients are sharded and the gather where weights are
    (megatron_fsdp.py, MegatronFSDP.__init__), so that only stage 2 keeps a choice.
    """
    possible = {argument.flag for argument in overlap_arguments(scenario, plan)}
    found = set()
    for flag, field in OVERLAPS:
        usual = bool(getattr(scenario.software.time, field))
        chosen = megatron_fsdp and plan.fsdp == 2 and flag == GATHER
        if a.has(flag) or (usual and flag not in possible and not chosen):
            found.add(flag.removeprefix("--"))
        if a.has(flag) and usual and flag not in possible and not chosen:
            by_itself = plan.fsdp and flag != "--tp-comm-overlap"
            assumed.append(f"{flag}: {OF_ITSELF}" if by_itself else f"{flag} buys nothing here: priced without it")
    return frozenset(found if GRAD_REDUCE in found else found - {PARAM_GATHER})


def _attention_kernel(a: Arguments, modern: bool) -> str:
    backend = a.text("--attention-backend")
    if backend in ("unfused", "local"):
        return "unfused"
    if a.has("--use-flash-attn", "--use-flash-attn-v1", "--use-flash-attn-v2", "--use-flash-attn-triton"):
        return "" if modern else "flash_attention2"
    return ""
