"""Deployments that a study of serving may measure: tensor-parallel sizes by batches, priced before the first job.

One instance of a deployment is measured; replicas do the same beside it, so that what counts is per GPU of the instance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoconfig.serving.question import ServeQuestion
from autoconfig.serving.space import layouts, loads
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.gpu import CPU_ARCHITECTURE, GpuSpec
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.study.candidates import Choices, Floats
from autoconfig.study.serving.rounds import Round, RoundFigures, link_tables, predicted, refined
from autoconfig.study.session import NothingFitsError
from autoconfig.time_model.serving.calibration import EngineConstants
from autoconfig.time_model.serving.costs import ServingJob

MAX_BATCH_ON_CPU = 64
"""Jobs of seconds."""
FORM = "bf16"
"""Of weights and cache: what both engines run from random weights. On a CPU both run in fp32."""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A row: an instance's plan, what is asked of it, and the plan as something that can be priced."""

    plan: EnginePlan
    asked: Round
    job: ServingJob


@dataclass(frozen=True, kw_only=True)
class DeploymentChoices(Choices):
    """n deployments by tp and batch, with the prediction before any measurement."""

    rows: tuple[Deployment, ...]
    forecast: tuple[RoundFigures, ...]

    def values(self, figures: Sequence[RoundFigures]) -> Floats:
        """[n, 2]: output tokens/s/GPU, TPOT in seconds."""
        return np.array(
            [[f.tokens_per_s / row.plan.tp, f.tpot_s] for f, row in zip(figures, self.rows, strict=True)], dtype=np.float64
        )

    def learned(self, measured: dict[int, RoundFigures]) -> EngineConstants:
        """Constants that the measured rows give (`rounds.refined`)."""
        seen = [(self.rows[row].job, self.rows[row].asked, figures) for row, figures in sorted(measured.items())]
        return refined(self.rows[0].job, seen)

    def again(self, constants: EngineConstants) -> tuple[RoundFigures, ...]:
        """Every row priced with other constants."""
        return tuple(predicted(replace(row.job, constants=constants), row.asked) for row in self.rows)


def candidates_of(question: ServeQuestion) -> DeploymentChoices:
    """Every layout that one instance of the engine runs here, by batches that memory holds, each twice the one before (those
    of --fix where given). Raises InputError where nothing is left."""
    on_cpu = question.gpu.architecture == CPU_ARCHITECTURE
    server = question.engine.framework == "vllm"
    engine = replace(question.engine, runtime_bytes=0) if on_cpu else question.engine
    gpu = fp32_device(question.gpu) if on_cpu else question.gpu
    tables = link_tables(gpu) if on_cpu else None
    constants = EngineConstants(sampler_bytes=0.0) if on_cpu else question.calibration.constants(engine, gpu)
    asked = replace(question, gpu=gpu, engine=engine)
    elsewhere = ("weights", "kv", "batch", "tokens", "replicas")
    fixed = {key: values for key, values in question.constraints.items() if key not in elsewhere}
    rows: list[Deployment] = []
    for layout in layouts(question.model, gpu, engine, question.num_gpus, question.gpus_per_node, {**fixed, **_form(question)}):
        if layout.pp * layout.adp * layout.ep > 1 or (server and on_cpu and layout.tp > 1):
            continue
        if not loads(question.model, gpu, engine, layout):
            continue
        job = replace(asked.job(layout), constants=constants, measured=tables)
        for batch in _batches(question, on_cpu=on_cpu):
            prompt, new = int(question.lengths.isl), int(question.lengths.osl)
            tokens = max(engine.max_num_tokens, prompt) if server else batch * prompt
            if float(asked.memory(job, float(batch), float(tokens)).max_concurrency) < batch:
                break
            plan = layout.replace(batch=batch, tokens=tokens, replicas=1)
            each = Round(batch=batch, prompt=prompt, new=new, tokens=tokens if server else None)
            rows.append(Deployment(plan=plan, asked=each, job=job))
    if not rows:
        raise NothingFitsError(
            "no deployment that the engine can run here holds a single request (pp, adp and ep are 1, weights and kv bf16): "
            "more GPUs, shorter requests, or see what autoconfig search --inference says"
        )
    return DeploymentChoices(
        params=tuple({"tp": row.plan.tp, "batch": row.plan.batch} for row in rows),
        rows=tuple(rows),
        forecast=tuple(predicted(row.job, row.asked) for row in rows),
    )


def fp32_device(gpu: GpuSpec) -> GpuSpec:
    """A CPU that computes in fp32, as a device of 16-bit elements: its fp32 rate, half of the bytes."""
    rate = gpu.flops_per_s["fp32"]
    return replace(
        gpu,
        flops_per_s={**gpu.flops_per_s, "bf16": rate, "fp16": rate},
        hbm_bytes_per_s=gpu.hbm_bytes_per_s / 2,
        link_bytes_per_s=gpu.link_bytes_per_s / 2,
        nic_bytes_per_s=gpu.nic_bytes_per_s / 2,
        memory_bytes=gpu.memory_bytes // 2,
    )


def _form(question: ServeQuestion) -> dict[str, frozenset[object]]:
    for key in ("weights", "kv"):
        if other := question.constraints.get(key, frozenset()) - {FORM}:
            raise InputError(f"--fix {key}={sorted(map(str, other))[0]}: --profile measures {key}={FORM}")
    return {"weights": frozenset({FORM}), "kv": frozenset({FORM})}


def _batches(question: ServeQuestion, *, on_cpu: bool) -> list[int]:
    if "batch" in question.constraints:
        return sorted(int(str(batch)) for batch in question.constraints["batch"])
    most = min(question.engine.max_batch_size, MAX_BATCH_ON_CPU) if on_cpu else question.engine.max_batch_size
    return [2**power for power in range(most.bit_length()) if 2**power <= most]
