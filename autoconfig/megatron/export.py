"""`search --export` and `export`: one plan, checked, predicted and written; `plan.json`, which `check` reads back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from autoconfig.planning.export_files import MADE_BY
from autoconfig.planning.schemas import schema, violations
from autoconfig.specs.errors import GIB, InputError
from autoconfig.specs.hardware.cluster import cluster_of
from autoconfig.specs.hardware.local_gpu import find_gpu
from autoconfig.specs.json_record import (
    AboveZero,
    Keywords,
    Natural,
    NotNegative,
    Positive,
    Share,
    json_text,
    record_of,
    to_json,
)
from autoconfig.specs.models.model import PER_LAYER, ModelSpec
from autoconfig.specs.models.model_numbers import numbers_of
from autoconfig.specs.plan import TrainPlan, parse_plan
from autoconfig.specs.plan_names import NamedPlan, named_plan
from autoconfig.specs.run_settings import GivenSettings
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack
from autoconfig.training.price import PlanReport

PLAN_SCHEMA_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class PlanClusterJson:
    """The hardware; links and network of one GPU, one direction."""

    gpu: str
    """GPU type of the catalogue."""
    num_gpus: Positive
    gpus_per_node: Positive
    link_domain_size: Positive
    link_bytes_per_s: AboveZero
    nic_bytes_per_s: AboveZero
    memory_bytes: AboveZero
    name: str
    hbm_bytes_per_s: AboveZero | None = None
    """Memory bandwidth of one GPU; null: the GPU type's."""
    power_limit_watts: AboveZero | None = None
    """Of one GPU; null: its own."""


@dataclass(frozen=True, kw_only=True)
class PredictedJson:
    """What was predicted when the file was written."""

    step_seconds: NotNegative
    step_seconds_p5: NotNegative
    """Lower end of the 90 % band."""
    step_seconds_p95: NotNegative
    tokens_per_second_per_gpu: NotNegative
    peak_gib: NotNegative
    """Of the worst stage."""
    limit_gib: NotNegative
    worst_stage: Natural
    fits: bool
    fit_probability: Share
    level: str
    """Class of runs that gave the band."""
    calibrated_on: str


@dataclass(frozen=True, kw_only=True)
class GivenJson:
    """What the run switches on beside its plan, where it was said."""

    dispatcher: str | None = None
    cuda_graphs: tuple[str, ...] | None = None
    ep_overlap: bool | None = None
    fused_experts: bool | None = None
    fp8_attention: bool | None = None
    fp8_output: bool | None = None
    offload_layers: int | None = None
    compile: bool | None = None
    loss: str | None = None
    async_tp: bool | None = None
    zero_bucket: int | None = None
    own_overlap: bool | None = None
    expandable_segments: bool | None = None


@dataclass(frozen=True, kw_only=True)
class PlanFileJson:
    """One plan with its whole question and what was predicted, as `autoconfig export` writes it.

    Sizes are GiB unless the name says bytes, times seconds, names Megatron's.
    """

    schema_version: Literal[2] = 2
    """Changes when a reader must change."""
    kind: Annotated[str, Keywords(const=MADE_BY)] = MADE_BY
    """Marks the file as ours."""
    short: str
    """The plan in its short form; the form that is read back."""
    plan: NamedPlan
    model: ModelSpec
    cluster: PlanClusterJson
    numerics: Numerics
    workload: Workload
    software: str
    """Software stack that the prediction is for."""
    given: GivenJson = GivenJson()
    """Switches that were given; null: the default of release, GPU and model."""
    predicted: PredictedJson | None
    """Null where nothing was asked."""


ADDED_LATER = frozenset(
    {
        "norm_epsilon",
        "frozen_dtype",
        "optimizer",
        "weights_are_masters",
        "optimizer_in_backward",
        "rotary_base",
        "rotary_percent",
        "rope_scaling",
        "router",
    }
)
"""Fields of the model and of numerics that older files do not have."""


def plan_file(scenario: Scenario, plan: TrainPlan, report: PlanReport | None) -> PlanFileJson:
    """Return the content of plan.json."""
    return PlanFileJson(
        short=str(plan),
        plan=named_plan(plan, scenario.workload.global_batch_size),
        model=scenario.model,
        cluster=record_of(PlanClusterJson, scenario.cluster, gpu=scenario.cluster.gpu.id),
        numerics=scenario.numerics,
        workload=scenario.workload,
        software=scenario.software.name,
        given=_given_json(scenario.given),
        predicted=None if report is None else _predicted(report),
    )


def _given_json(settings: GivenSettings) -> GivenJson:
    graphs = None if settings.cuda_graphs is None else tuple(sorted(settings.cuda_graphs))
    return record_of(GivenJson, settings, cuda_graphs=graphs)


def _predicted(report: PlanReport) -> PredictedJson:
    return record_of(
        PredictedJson,
        report.confidence,
        step_seconds=report.step_seconds,
        tokens_per_second_per_gpu=report.tokens_per_second_per_gpu,
        peak_gib=report.peak_bytes / GIB,
        limit_gib=report.limit_bytes / GIB,
        worst_stage=report.worst_stage.stage,
        fits=report.fits,
    )


def plan_text(scenario: Scenario, plan: TrainPlan, report: PlanReport | None) -> str:
    """Return plan.json as text."""
    return json_text(plan_file(scenario, plan, report)) + "\n"


def read_plan_text(text: str) -> tuple[Scenario, TrainPlan]:
    """Return what plan.json says, as written by `plan_text`. Raises InputError, naming the field, for anything else."""
    try:
        body = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InputError(f"plan file: this is not JSON: {str(error)[:200]}") from None
    if not isinstance(body, dict) or body.get("kind") != MADE_BY:
        raise InputError(f'this JSON is not a plan file: it needs "kind": "{MADE_BY}", as `autoconfig export` writes it')
    if body.get("schema_version") == 1:
        body = _of_version_2(body)
    if body.get("schema_version") != PLAN_SCHEMA_VERSION:
        raise InputError(
            f"plan file: schema_version {str(body.get('schema_version'))[:40]}: this autoconfig reads {PLAN_SCHEMA_VERSION}; "
            "write it again"
        )
    check_schema(body)
    try:
        scenario = _scenario(body)
        plan = parse_plan(body["short"], scenario.cluster.num_gpus)
    except InputError as error:
        raise InputError(f"plan file: {error}") from None
    _check_agreement(body["plan"], to_json(named_plan(plan, scenario.workload.global_batch_size)))
    return scenario, plan


def _of_version_2(body: dict[str, Any]) -> dict[str, Any]:
    """Return a file of version 1, in which an imbalance of 1 meant that nothing was said, as one of version 2."""
    numerics = body.get("numerics")
    if isinstance(numerics, dict) and numerics.get("moe_imbalance") == 1.0:
        numerics = {**numerics, "moe_imbalance": None}
    return {**body, "numerics": numerics, "schema_version": 2}


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def check_schema(body: Mapping[str, Any]) -> None:
    """Raises InputError naming the field that breaks `autoconfig/schemas/plan.schema.json`."""
    rule = schema("plan")
    for where, wrong in violations(body, rule, rule):
        again = "write it again with `autoconfig export`, or put it right"
        raise InputError(f"plan file: {where[:200] or 'the file'}: {wrong[:200]}; {again}")


def _check_agreement(long: Mapping[str, Any], short: Mapping[str, Any]) -> None:
    """Raises InputError where the two forms of the plan in a plan file differ."""
    for name, value in short.items():
        if long.get(name) != value:
            raise InputError(
                f"plan file: plan.{name} is {json.dumps(long.get(name))}, and the plan in `short` says {json.dumps(value)}; "
                "the plan stands there twice: change both, or write the file again with `autoconfig export`"
            )


def _scenario(body: Mapping[str, Any]) -> Scenario:
    model = dict(body["model"])
    model |= {key: tuple(model[key]) for key in PER_LAYER if isinstance(model.get(key), list)}
    model |= numbers_of(model)
    numerics = dict(body["numerics"])
    numerics["lora_target_modules"] = tuple(numerics["lora_target_modules"])
    cluster, switches = dict(body["cluster"]), dict(body.get("given", {}))
    if switches.get("cuda_graphs") is not None:
        switches["cuda_graphs"] = frozenset(switches["cuda_graphs"])
    return Scenario(
        model=ModelSpec(**model),
        cluster=cluster_of(**{**cluster, "gpu": find_gpu(cluster["gpu"])}),
        numerics=Numerics(**numerics),
        software=load_stack(body["software"]),
        workload=Workload(**body["workload"]),
        given=GivenSettings(**switches),
    )
