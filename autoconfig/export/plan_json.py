"""`plan.json`: the whole setting, the plan and what was predicted; written by the export, read back by `check`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from autoconfig.answer_json import plan_json
from autoconfig.evaluate import PlanReport
from autoconfig.rules import Setting
from specs.cluster import ClusterSpec
from specs.errors import InputError
from specs.local_gpu import find_gpu
from specs.model import ModelSpec
from specs.numerics import Numerics, Workload
from specs.plan import TrainPlan, parse_plan
from specs.software_catalogue import load_stack
from specs.units import GIB

PLAN_SCHEMA_VERSION = 1
KIND = "megatron-autoconfig plan"


def plan_file(setting: Setting, plan: TrainPlan, report: PlanReport | None) -> dict[str, Any]:
    """The content of plan.json. Names are Megatron's; sizes GiB, times seconds."""
    cluster = setting.cluster
    model = {f.name: getattr(setting.model, f.name) for f in dataclasses.fields(ModelSpec) if f.name != "sources"}
    return {
        "schema_version": PLAN_SCHEMA_VERSION,
        "kind": KIND,
        "short": str(plan),
        "plan": plan_json(plan, setting.workload.global_batch_size),
        "model": {name: list(value) if isinstance(value, tuple) else value for name, value in model.items()},
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
        "numerics": {**dataclasses.asdict(setting.numerics), "lora_target_modules": list(setting.numerics.lora_target_modules)},
        "workload": dataclasses.asdict(setting.workload),
        "software": setting.stack.name,
        "predicted": None if report is None else _predicted(report),
    }


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


def plan_text(setting: Setting, plan: TrainPlan, report: PlanReport | None) -> str:
    """plan.json as text."""
    return json.dumps(plan_file(setting, plan, report), indent=2, allow_nan=False) + "\n"


def read_plan_text(text: str) -> tuple[Setting, TrainPlan]:
    """What plan.json says, as written by `plan_text`. Raises InputError for anything else."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"this is not JSON: {error}") from None
    if not isinstance(body, dict) or body.get("kind") != KIND:
        raise InputError(f'this JSON is not a plan file: it needs "kind": "{KIND}", as `autoconfig export` writes it')
    if body.get("schema_version") != PLAN_SCHEMA_VERSION:
        raise InputError(
            f"schema_version {body.get('schema_version')!r}: this autoconfig reads {PLAN_SCHEMA_VERSION}; write it again"
        )
    try:
        setting = _setting(body)
        return setting, parse_plan(body["short"], setting.cluster.num_gpus)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"plan file: a field is missing or of the wrong kind: {error}") from None


def _setting(body: Mapping[str, Any]) -> Setting:
    model = dict(body["model"])
    if isinstance(model.get("moe_layer_freq"), list):
        model["moe_layer_freq"] = tuple(model["moe_layer_freq"])
    numerics = dict(body["numerics"])
    numerics["lora_target_modules"] = tuple(numerics["lora_target_modules"])
    cluster = dict(body["cluster"])
    return Setting(
        model=ModelSpec(**model),
        cluster=ClusterSpec(**{**cluster, "gpu": find_gpu(cluster["gpu"])}),
        numerics=Numerics(**numerics),
        stack=load_stack(body["software"]),
        workload=Workload(**body["workload"]),
    )
