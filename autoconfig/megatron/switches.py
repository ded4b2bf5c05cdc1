"""A run's switches as Megatron's arguments, both ways: dispatcher, CUDA graphs, overlap of the experts' communication."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from autoconfig.megatron.argument_list import Arguments
from autoconfig.megatron.flag_table import Argument, Facts, read_fields, written
from autoconfig.specs.errors import InputError
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.remarks import Remark
from autoconfig.specs.run_settings import FLEXIBLE, FULL, FULL_ITERATION, GRAPH_SCOPES, GivenSettings, RunSettings
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.software import DISPATCHERS

OFF: dict[str, Any] = {f.name: f.default for f in fields(RunSettings)} | {"cuda_graphs": frozenset()}
"""What an argument that is absent means."""


def switch_arguments(scenario: Scenario, plan: TrainPlan) -> list[Argument]:
    """Return the arguments of megatron-core 0.19.2, whose parser knows the parts of CUDA graphs as --cuda-graph-modules
    (--cuda-graph-scope until 0.16, which it still reads)."""
    model, settings = scenario.model, scenario.settings(plan)
    local, flexible = scenario.software.name == "megatron-local", settings.dispatcher in FLEXIBLE
    biased = "attn" in settings.cuda_graphs and (model.add_bias_linear or model.add_qkv_bias)
    facts = {
        "is_moe": model.is_moe,
        "dispatcher_type": "flex" if flexible else settings.dispatcher,
        "dispatcher_why": "a token is sent once to a link domain" if flexible else "",
        "flexible": settings.dispatcher if flexible else None,
        "delayed_gradients": settings.ep_overlap and not local and not biased,
        "core_in_fp8": settings.fp8_attention and scenario.numerics.format.quantised,
        **_graph_facts(settings, local),
    }
    return written("switches", Facts(facts, settings))


def _graph_facts(settings: RunSettings, local: bool) -> dict[str, Any]:
    """Return by what parts of a layer are graphed, and which; the whole iteration has flags of its own."""
    graphed = frozenset() if settings.full_iteration else settings.cuda_graphs
    return {
        "graphs_by": ("local" if local else "transformer_engine") if graphed else None,
        "graphed": tuple(part for part in GRAPH_SCOPES if part in graphed - {FULL}) or None,
    }


def read_switches(a: Arguments, scenario: Scenario, assumed: list[Remark], *, modern: bool) -> GivenSettings:
    """Return what the arguments say; of today's Megatron-LM (`modern`) an absent one is Megatron's default, of other software
    the stack's. Raises InputError for values that Megatron does not know."""
    off = OFF if modern else dict.fromkeys(OFF)
    dispatcher = _dispatcher(a, scenario.model.is_moe and modern, assumed)
    of_experts, graphs = read_fields(a, "expert_switches"), _graphs(a)
    a.has("--moe-permute-fusion", "--delay-wgrad-compute", "--no-check-for-nan-in-loss-and-grad")
    texts = {**of_experts, **read_fields(a, "switches"), "cuda_graphs": graphs, "dispatcher": dispatcher}
    values: dict[str, Any] = {
        name: off.get(name) if value is None or value is False else value for name, value in texts.items()
    }
    if not scenario.model.is_moe:
        values |= dict.fromkeys((*of_experts, "dispatcher"))
    return GivenSettings(**values)


def _dispatcher(a: Arguments, needed: bool, assumed: list[Remark]) -> str | None:
    """Return how tokens go to experts; where it is `needed`, Megatron's default. Raises InputError for another word."""
    dispatcher = a.text("--moe-token-dispatcher-type")
    if dispatcher == "flex" or a.has("--moe-enable-deepep"):
        dispatcher = a.text("--moe-flex-dispatcher-backend") or "deepep"
    if dispatcher == "alltoall_seq":
        dispatcher = "alltoall"
        assumed.append(Remark("dispatcher", "alltoall", "for alltoall_seq (MindSpeed: the same exchange in another order)"))
    if needed and dispatcher is None:
        dispatcher = "allgather"
        assumed.append(Remark("dispatcher", dispatcher, "Megatron's default: --moe-token-dispatcher-type is not given"))
    if dispatcher is not None and dispatcher not in DISPATCHERS:
        raise InputError(f"dispatcher {dispatcher[:40]!r}: priced are {', '.join(DISPATCHERS)}")
    return dispatcher


def _graphs(a: Arguments) -> frozenset[str] | None:
    scopes = frozenset(a.texts("--cuda-graph-modules") or a.texts("--cuda-graph-scope"))
    if a.has("--enable-cuda-graph", "--external-cuda-graph"):
        implementation = "local"
    else:
        implementation = a.text("--cuda-graph-impl") or ""
    if not implementation:
        return None
    if implementation == "none":
        return frozenset()
    if FULL_ITERATION in scopes or implementation == FULL_ITERATION:
        return frozenset({FULL_ITERATION})
    return scopes - {FULL} or frozenset({FULL})
