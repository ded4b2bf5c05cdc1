"""`plan.json`: the whole scenario, the plan and what was predicted; written by the export, read back by `check`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from autoconfig.planning.export_files import MADE_BY
from autoconfig.planning.schemas import schema
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import ClusterSpec
from autoconfig.specs.hardware.local_gpu import find_gpu
from autoconfig.specs.models.model import ModelSpec, RopeScaling, RouterNumbers, rope_scaling_of, router_of
from autoconfig.specs.numerics import Numerics, Workload
from autoconfig.specs.plan import TrainPlan, parse_plan
from autoconfig.specs.plan_names import plan_json
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.software import load_stack
from autoconfig.specs.units import GIB
from autoconfig.training.price import PlanReport

PLAN_SCHEMA_VERSION = 1


def plan_file(scenario: Scenario, plan: TrainPlan, report: PlanReport | None) -> dict[str, Any]:
    """The content of plan.json. Names are Megatron's; sizes GiB, times seconds."""
    cluster = scenario.cluster
    model = {f.name: getattr(scenario.model, f.name) for f in dataclasses.fields(ModelSpec) if f.name != "sources"}
    return {
        "schema_version": PLAN_SCHEMA_VERSION,
        "kind": MADE_BY,
        "short": str(plan),
        "plan": plan_json(plan, scenario.workload.global_batch_size),
        "model": {name: _plain(value) for name, value in model.items()},
        "cluster": {
            "gpu": cluster.gpu.id,
            "num_gpus": cluster.num_gpus,
            "gpus_per_node": cluster.gpus_per_node,
            "link_domain_size": cluster.link_domain_size,
            "link_bytes_per_s": cluster.link_bytes_per_s,
            "nic_bytes_per_s": cluster.nic_bytes_per_s,
            "memory_bytes": cluster.memory_bytes,
            "name": cluster.name,
        },
        "numerics": {
            **dataclasses.asdict(scenario.numerics),
            "lora_target_modules": list(scenario.numerics.lora_target_modules),
        },
        "workload": dataclasses.asdict(scenario.workload),
        "software": scenario.software.name,
        "predicted": None if report is None else _predicted(report),
    }


def _plain(value: object) -> object:
    if isinstance(value, RopeScaling | RouterNumbers):
        return dataclasses.asdict(value)
    return list(value) if isinstance(value, tuple) else value


def _predicted(report: PlanReport) -> dict[str, Any]:
    return {
        "step_seconds": report.step_seconds,
        "step_seconds_p5": report.confidence.step_seconds_p5,
        "step_seconds_p95": report.confidence.step_seconds_p95,
        "tokens_per_second_per_gpu": report.tokens_per_second_per_gpu,
        "peak_gib": report.peak_bytes / GIB,
        "limit_gib": report.limit_bytes / GIB,
        "worst_stage": report.worst_stage.stage,
        "fits": report.fits,
        "fit_probability": report.confidence.fit_probability,
        "level": report.confidence.level,
        "calibrated_on": report.confidence.calibrated_on,
    }


def plan_text(scenario: Scenario, plan: TrainPlan, report: PlanReport | None) -> str:
    """plan.json as text."""
    return json.dumps(plan_file(scenario, plan, report), indent=2, allow_nan=False) + "\n"


def read_plan_text(text: str) -> tuple[Scenario, TrainPlan]:
    """What plan.json says, as written by `plan_text`. Raises InputError, naming the field, for anything else."""
    try:
        body = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InputError(f"plan file: this is not JSON: {str(error)[:200]}") from None
    if not isinstance(body, dict) or body.get("kind") != MADE_BY:
        raise InputError(f'this JSON is not a plan file: it needs "kind": "{MADE_BY}", as `autoconfig export` writes it')
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
    _check_agreement(body["plan"], plan_json(plan, scenario.workload.global_batch_size))
    return scenario, plan


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def check_schema(body: Mapping[str, Any]) -> None:
    """Raises InputError naming the field that breaks `autoconfig/schemas/plan.schema.json`."""
    import jsonschema  # a tenth of a second: only where a plan file is read

    checker = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, type_checker=checker)(schema("plan"))
    error = jsonschema.exceptions.best_match(validator.iter_errors(body))
    if error is not None:
        where = ".".join(map(str, error.absolute_path)) or "the file"
        raise InputError(f"plan file: {where}: {error.message[:200]}; write it again with `autoconfig export`, or put it right")


def _check_agreement(given: Mapping[str, Any], short: Mapping[str, Any]) -> None:
    """The plan stands in a plan file twice. Raises InputError where the two differ."""
    for name, value in short.items():
        if given.get(name) != value:
            raise InputError(
                f"plan file: plan.{name} is {json.dumps(given.get(name))}, and the plan in `short` says {json.dumps(value)}; "
                "the plan stands there twice: change both, or write the file again with `autoconfig export`"
            )


def _scenario(body: Mapping[str, Any]) -> Scenario:
    model = dict(body["model"])
    if isinstance(model.get("moe_layer_freq"), list):
        model["moe_layer_freq"] = tuple(model["moe_layer_freq"])
    model["rope_scaling"] = rope_scaling_of(model.get("rope_scaling"))
    model["router"] = router_of(model.get("router"))
    numerics = dict(body["numerics"])
    numerics["lora_target_modules"] = tuple(numerics["lora_target_modules"])
    cluster = dict(body["cluster"])
    return Scenario(
        model=ModelSpec(**model),
        cluster=ClusterSpec(**{**cluster, "gpu": find_gpu(cluster["gpu"])}),
        numerics=Numerics(**numerics),
        software=load_stack(body["software"]),
        workload=Workload(**body["workload"]),
    )
