"""Answers as JSON. Names are Megatron's long ones; sizes GiB, times seconds. Schemas: `autoconfig/schemas/`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from autoconfig.core.timeline import timeline
from autoconfig.memory_model.predict import allocator_bytes, cuda_context_bytes
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.plan_names import plan_json
from autoconfig.specs.units import GIB
from autoconfig.training.answer import Explanation, IncludedPlan, SearchAnswer
from autoconfig.training.price import FLOPS_CONVENTION, PlanReport
from autoconfig.training.question import Question
from autoconfig.training.rank import Funnel

SCHEMA_VERSION = 1


def report_json(report: PlanReport, question: Question) -> dict[str, Any]:
    """Everything predicted for a plan."""
    worst = report.worst_stage
    device = question.scenario.cluster.memory_bytes
    return {
        "plan": plan_json(report.plan, question.scenario.workload.global_batch_size),
        "short": str(report.plan),
        "step_seconds": report.step_seconds,
        "tokens_per_second_per_gpu": report.tokens_per_second_per_gpu,
        "model_tflops_per_gpu": report.model_flops_per_second_per_gpu / 1e12,
        "mfu": report.mfu,
        "flops_convention": FLOPS_CONVENTION,
        "memory": {
            "peak_gib": report.peak_bytes / GIB,
            "limit_gib": report.limit_bytes / GIB,
            "worst_stage": worst.stage,
            "moment": worst.moment,
            "per_stage_gib": [stage.peak_bytes / GIB for stage in report.stages],
            "breakdown_gib": {name: value / GIB for name, value in worst.parts.items()},
            "outside_tensors_gib": {
                "cuda_context_bytes": cuda_context_bytes() / GIB,
                "nccl_bytes": report.nccl_bytes / GIB,
                "allocator_bytes": allocator_bytes(report.peak_bytes) / GIB,
            },
            "device_gib": device / GIB,
        },
        "time": {"breakdown_seconds": report.time_parts},
        "days_to_train": report.days_to_train,
        "cost": report.cost,
        "origin": report.origin,
        "confidence": asdict(report.confidence),
    }


def included_json(included: IncludedPlan, question: Question) -> dict[str, Any]:
    """A plan that the caller named: as a ranked plan, plus what became of it."""
    base = (
        report_json(included.report, question)
        if included.report
        else {"plan": plan_json(included.plan, question.scenario.workload.global_batch_size), "short": str(included.plan)}
    )
    return {
        **base,
        "legal": included.legal,
        "fits": bool(included.report and included.report.fits),
        "rejected_by": [{"rule": v.rule, "text": v.text} for v in included.violations],
        "shortfall_gib": included.shortfall_gib,
        "layout_rank": included.layout_rank,
        "layout_percentile": included.layout_percentile,
        "step_ratio_to_first": included.step_ratio_to_first,
    }


def setting_json(question: Question) -> dict[str, Any]:
    """The question as understood."""
    scenario = question.scenario
    model, cluster = scenario.model, scenario.cluster
    return {
        "model": {
            "name": model.name,
            "num_layers": model.num_layers,
            "hidden_size": model.hidden_size,
            "ffn_hidden_size": model.ffn_hidden_size,
            "num_attention_heads": model.num_attention_heads,
            "num_query_groups": model.num_query_groups,
            "vocab_size": model.vocab_size,
            "num_moe_experts": model.num_moe_experts,
            "parameters": total_parameters(model),
        },
        "cluster": {
            "gpu": cluster.gpu.id,
            "num_gpus": cluster.num_gpus,
            "gpus_per_node": cluster.gpus_per_node,
            "link_domain_size": cluster.link_domain_size,
            "link_bytes_per_s": cluster.link_bytes_per_s,
            "nic_bytes_per_s": cluster.nic_bytes_per_s,
            "memory_gib": cluster.memory_bytes / GIB,
        },
        "workload": asdict(scenario.workload),
        "numerics": {**asdict(scenario.numerics), "lora_target_modules": list(scenario.numerics.lora_target_modules)},
        "software": scenario.software.name,
        "calibration": question.scenario.calibration.version,
        "assumed": list(question.assumed),
    }


def funnel_json(funnel: Funnel) -> dict[str, Any]:
    """The funnel; `seconds` is wall time, the phases are added up over threads."""
    return asdict(funnel)


def search_json(answer: SearchAnswer) -> dict[str, Any]:
    """The whole answer of `search`."""
    question = answer.question
    body: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        **setting_json(question),
        "funnel": funnel_json(answer.ranking.funnel),
    }
    body["plans"] = [
        {"rank": p.rank, "tie_group": p.tie_group, **report_json(p.report, question), "why": p.why} for p in answer.plans
    ]
    body["pareto"] = [report_json(report, question) for report in answer.pareto]
    body["included"] = [included_json(included, question) for included in answer.included]
    miss = answer.nearest_miss
    body["nearest_miss"] = (
        None
        if miss is None
        else {
            **report_json(miss, question),
            "shortfall_gib": (miss.peak_bytes - miss.limit_bytes) / GIB,
            "try": [str(remedy) for remedy in answer.remedies],
        }
    )
    body["gpus_tried"] = [{"num_gpus": gpus, "step_seconds": step} for gpus, step in answer.gpus_tried]
    return body


def explain_json(explanation: Explanation) -> dict[str, Any]:
    """The whole answer of `explain`: every stage with its parts, every operator, what binds."""
    question, included = explanation.question, explanation.included
    body = {"schema_version": SCHEMA_VERSION, **setting_json(question), **included_json(included, question)}
    body["stages"] = [
        {
            "stage": s.stage,
            "peak_gib": s.peak_bytes / GIB,
            "moment": s.moment,
            "breakdown_gib": {name: value / GIB for name, value in s.parts.items()},
        }
        for s in (included.report.stages if included.report else ())
    ]
    body["nearest_legal"] = None if explanation.nearest_legal is None else str(explanation.nearest_legal)
    body["operators"] = [asdict(row) for row in explanation.operators]
    body["what_binds_note"] = explanation.gains_note
    body["what_binds"] = [
        {
            "change": gain.change,
            "same_plan_ratio": gain.same_plan,
            "best_plan_ratio": gain.best_plan,
            "best_plan": None if gain.best is None else str(gain.best),
        }
        for gain in explanation.gains
    ]
    return body


def timeline_json(explanation: Explanation) -> dict[str, Any]:
    """The pipeline timeline of an explained plan. Raises InputError where the plan is not legal."""
    included, scenario = explanation.included, explanation.question.scenario
    if included.report is None:
        raise not_legal(explanation)
    drawn = timeline(scenario, included.plan, explanation.operators)
    stages = []
    for stage, (seconds, waiting) in enumerate(zip(drawn.seconds, drawn.communication, strict=True)):
        chunks = [
            {
                "forward_seconds": forward,
                "backward_seconds": backward,
                "forward_communication_seconds": forward_waiting,
                "backward_communication_seconds": backward_waiting,
            }
            for (forward, backward), (forward_waiting, backward_waiting) in zip(seconds, waiting, strict=True)
        ]
        work = [[int(w.forward), w.chunk, w.microbatch, round(w.start, 7)] for w in drawn.work if w.stage == stage]
        stages.append({"stage": stage, "chunks": chunks, "work": work})
    return {
        "schema_version": SCHEMA_VERSION,
        "calibration": explanation.question.scenario.calibration.version,
        "short": str(included.plan),
        "num_microbatches": drawn.num_microbatches,
        "shown_microbatches": drawn.shown_microbatches,
        "bubble_share": drawn.bubble_share,
        "stages": stages,
    }


def not_legal(explanation: Explanation) -> InputError:
    """Why a plan is not legal, and the nearest that is."""
    rules = "; ".join(f"{violation.rule} {violation.text}" for violation in explanation.included.violations)
    near = f"; the nearest legal plan is {explanation.nearest_legal}" if explanation.nearest_legal else ""
    return InputError(f"{explanation.included.plan} is not legal: {rules}{near}")
