"""Switches of a run beside its plan: dispatcher, CUDA graphs, overlap and fusion of experts, fp8 beside the layers, offload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from autoconfig.planning.request_fields import SWITCHES
from autoconfig.planning.resolve import field_names
from autoconfig.specs.errors import InputError, option, refuse
from autoconfig.specs.json_record import Keywords, Natural, record_of
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.remarks import Effect, Remark
from autoconfig.specs.run_settings import (
    FULL,
    FULL_ITERATION,
    FUSED,
    GRAPH_SCOPES,
    GivenSettings,
    RunSettings,
    formula_only,
    given_way,
    read_graphs,
)
from autoconfig.specs.scenario import Numerics, Scenario
from autoconfig.specs.software.software import DISPATCHERS

SWITCH_NAMES = field_names(SWITCHES)
OF_EXPERTS = ("dispatcher", "ep_overlap", "fused_experts")


def read_switches(given: Mapping[str, Any], model: ModelSpec, numerics: Numerics) -> GivenSettings:
    """The switches of a question. Raises InputError for what megatron-core 0.19.2 has not for this model
    (transformer_config.py)."""
    values = {name: value for name, value in given.items() if value is not None}
    if (offloads := values.pop("activation_offload", None)) is not None:
        if values.get("offload_layers") not in (None, 0) and not offloads:
            raise InputError(
                f"{option('activation_offload')} is off, and {option('offload_layers')} is given: drop one of them"
            )
        values.setdefault("offload_layers", model.num_layers - 1 if offloads else 0)
    if not model.is_moe and (odd := [name for name in OF_EXPERTS if name in values]):
        raise InputError(f"{option(odd[0])} is for mixtures of experts, and {model.name} is dense: leave it out")
    if "cuda_graphs" in values:
        values["cuda_graphs"] = read_graphs(str(values["cuda_graphs"]))
    switches = GivenSettings(**values)
    _check_switches(switches, model, numerics)
    if broken := odd_graphs(switches.cuda_graphs or frozenset(), model, numerics):
        raise InputError(f"{option('cuda_graphs')} {given['cuda_graphs']}: {broken}")
    return switches


def _check_switches(switches: GivenSettings, model: ModelSpec, numerics: Numerics) -> None:
    fused, layers = numerics.format.recipe == FUSED, switches.offload_layers or 0
    most = model.num_layers - 1
    refuse(
        (switches.fused_experts and not fused, f"{option('fused_experts')} needs {option('precision')} {FUSED}"),
        (
            switches.fp8_attention and not numerics.format.quantised,
            f"{option('fp8_attention')} needs {option('precision')} fp8, mxfp8 or nvfp4",
        ),
        (switches.fp8_output and not fused, f"{option('fp8_output')} needs {option('precision')} {FUSED} (NV135)"),
        (
            not 0 <= layers <= most,
            f"{option('offload_layers')} {switches.offload_layers}: give 0 to {most} of {model.name}'s {model.num_layers} "
            "layers (NV123)",
        ),
        (
            layers and (switches.cuda_graphs or frozenset()) - {FULL_ITERATION},
            f"{option('offload_layers')} excludes {option('cuda_graphs')} of parts of a layer (NV145)",
        ),
        (
            switches.ep_overlap and model.mtp_num_layers > 1,
            f"{option('ep_overlap')} takes at most one layer of multi-token prediction (NV082)",
        ),
    )


def odd_graphs(scope: frozenset[str], model: ModelSpec, numerics: Numerics) -> str:
    """Why Megatron has no such CUDA graphs for the model; empty where it has (rules of megatron_constraints.csv)."""
    whole = model.is_moe and scope & {"moe", FULL} and numerics.moe_capacity_factor is None
    reasons = {
        f"{FULL} and {FULL_ITERATION} stand alone": len(scope) > 1 and scope & {FULL, FULL_ITERATION},
        f"{model.name} has no experts (NV150)": not model.is_moe and any(part.startswith("moe") for part in scope),
        "mlp needs a layer with a dense MLP (NV150)": "mlp" in scope and 0 not in model.moe_pattern,
        "moe holds moe_router already (NV147)": {"moe", "moe_router"} <= scope,
        "moe_preprocess needs moe_router (NV148)": "moe_preprocess" in scope and "moe_router" not in scope,
        f"graphs of whole expert layers need {option('moe_capacity_factor')} (NV149)": whole,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def assumed_switches(scenario: Scenario) -> list[Remark]:
    """The switches of a mixture of experts that were not given, with the options that change them."""
    given, found = scenario.given, scenario.settings()
    if not scenario.model.is_moe:
        return []
    values = {
        "dispatcher": found.dispatcher,
        "cuda_graphs": graphs_text(found),
        "ep_overlap": found.ep_overlap,
        "fused_experts": found.fused_experts,
    }
    if scenario.numerics.format.quantised:
        values |= {"fp8_attention": found.fp8_attention, "fp8_output": found.fp8_output}
    usual = [Remark(name, value, "") for name, value in values.items() if getattr(given, name) is None]
    why = f"as {scenario.software.name} runs mixtures of experts"
    usual[-1:] = [replace(last, why=why) for last in usual[-1:]]
    routing = real_routing(scenario)
    return formula_only(scenario.model, scenario.cluster) + routing + given_way(given.dispatcher, found) + usual


def check_static_sizes(scenario: Scenario) -> None:
    """Raises InputError for given graphs of the full iteration where the host has to wait for the experts' rows."""
    settings, given = scenario.settings(), scenario.given.cuda_graphs or frozenset()
    dropless = scenario.model.is_moe and scenario.numerics.moe_capacity_factor is None
    if FULL_ITERATION in given and dropless and not settings.static_sizes:
        raise InputError(
            f"{option('cuda_graphs')} {FULL_ITERATION}: with dispatcher {settings.dispatcher} and no dropped tokens the host "
            f"waits for the rows of each expert, whose sizes are not static; use {option('dispatcher')} hybridep or "
            f"{option('moe_capacity_factor')}, or graphs of parts (attn,moe_router)",
            field="cuda_graphs",
        )


def real_routing(scenario: Scenario) -> list[Remark]:
    """That the busiest rank of experts has more than its share, where nothing is said and no token is dropped."""
    numerics = scenario.numerics
    if not scenario.model.is_moe or numerics.moe_capacity_factor is not None or numerics.moe_imbalance is not None:
        return []
    return [Remark("moe_imbalance", scenario.software.time.moe_imbalance, "real routing; 1 as recipes force it", Effect.TIME)]


@dataclass(frozen=True, kw_only=True)
class RunSettingsJson:
    """What the run switches on beside its plan."""

    dispatcher: Annotated[str, Keywords(enum=DISPATCHERS)] | None
    """How tokens reach their experts; null for dense models."""
    cuda_graphs: tuple[Annotated[str, Keywords(enum=GRAPH_SCOPES)], ...]
    """What is replayed as CUDA graphs."""
    ep_overlap: bool
    """Dispatch and combine run beside the compute of another micro-batch."""
    fused_experts: bool
    """One kernel for the experts' GEMM, activation and quantisation."""
    fp8_attention: bool
    """Attention's core is quantised."""
    fp8_output: bool
    """The output layer's GEMM is quantised like those of the layers."""
    offload_layers: Natural
    """Layers whose saved activations wait in host memory."""
    given: tuple[str, ...]
    """Those that were given; the others are defaults of release, GPU and model."""
    priced_as: str
    """The release whose constants are taken, where the asked one has none of its own; else empty."""


def run_settings(scenario: Scenario) -> RunSettingsJson:
    """The switches that a scenario is priced with."""
    found, given = scenario.settings(), scenario.given
    return record_of(
        RunSettingsJson,
        found,
        dispatcher=found.dispatcher if scenario.model.is_moe else None,
        cuda_graphs=tuple(sorted(found.cuda_graphs)),
        given=tuple(name for name in SWITCH_NAMES if getattr(given, name, None) is not None),
        priced_as=scenario.software.priced_as,
    )


def graphs_text(settings: RunSettings) -> str:
    """The scope of CUDA graphs in words."""
    return "+".join(sorted(settings.cuda_graphs)) or "none"
