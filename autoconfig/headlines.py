"""The field's headline results beside our figures. What was published, where, and why we differ is in `data/headlines.json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.calibration_file import calibrated
from autoconfig.evaluate import PlanReport, report_plan
from autoconfig.flops import flops_per_step
from autoconfig.measured import Case, published_rows, read_case
from autoconfig.question import Request, understand
from autoconfig.search import rank_plans
from autoconfig.validation_runs import Progress, predict_steps
from specs.plan import parse_plan
from specs.units import SECONDS_PER_DAY
from time_model.calibration import shipped

FAR = 0.10
"""Deviations beyond this need a stated cause."""
KORTHIKANTI = {"22B": (8, 1, 4, 4), "175B": (64, 8, 1, 64), "530B": (280, 35, 1, 280), "1T": (512, 64, 1, 512)}
"""Korthikanti et al. 2022, Table 3: GPUs, pp, micro-batch, global batch; tp 8."""
RELEASES = {
    "24.07, first": "nemo-24.07",
    "24.07, NeMo 2.1": "nemo-24.07",
    "24.07, NeMo 2.0": "nemo-24.07",
    "25.02": "nemo-25.02",
}
"""NVIDIA's performance summaries of 175B on 512 H100 -> software stack."""
SAVED = (
    "norm_inputs",
    "norm_outputs",
    "norm_statistics",
    "dropout_masks",
    "query_key_value",
    "attention_scores",
    "attention_output",
    "mlp_inside",
    "layer_input",
)
"""Parts of the memory model that grow with layers in flight (docs/memory_model.md, saved per layer)."""


@dataclass(frozen=True, kw_only=True)
class Headline:
    """One published figure beside ours."""

    title: str
    label: str
    unit: str
    published: float | None
    """None where the publication gives a direction only."""
    ours: float | None
    """None where we have no plan for it."""
    source: str
    cause: str
    """Why we differ; filled where the deviation is beyond FAR."""

    @property
    def deviation(self) -> float | None:
        """Ours over published, less 1; for overheads and gains (unit %) the difference of the resulting times."""
        if self.published is None or self.ours is None:
            return None
        if self.unit == "%":
            return (100 + self.ours) / (100 + self.published) - 1
        return self.ours / self.published - 1


def headlines(progress: Progress | None = None) -> list[Headline]:
    """Every line of data/headlines.json, with the shipped calibration and the software of the time."""
    found = []
    for entry in _entries():
        if progress is not None:
            progress(entry["title"][:60])
        ours = COMPUTE[entry["id"]]()
        for label, published in entry["points"].items():
            found.append(_line(entry, label, published, ours.get(label)))
    return found


def _line(entry: dict[str, Any], label: str, published: float | None, ours: float | None) -> Headline:
    texts = {key: entry[key] for key in ("title", "unit", "source")}
    line = Headline(label=label, published=published, ours=ours, cause="", **texts)
    near = line.deviation is not None and abs(line.deviation) <= FAR
    return line if near else Headline(label=label, published=published, ours=ours, cause=entry.get("cause", ""), **texts)


@cache
def _entries() -> list[dict[str, Any]]:
    text = (resources.files("autoconfig") / "data" / "headlines.json").read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = json.loads(text)["headlines"]
    return entries


def _report(request: Request, plan: str) -> PlanReport:
    setting = understand(request).setting
    return report_plan(setting, parse_plan(plan, setting.cluster.num_gpus))


def _best(request: Request) -> PlanReport | None:
    """Our first choice, None where nothing fits."""
    question = understand(request)
    ranking = rank_plans(question.setting, question.wish)
    return report_plan(question.setting, ranking.plan(0)) if len(ranking.best) else None


def _korthikanti(size: str, recompute: str, sp: int) -> PlanReport:
    gpus, pp, micro, batch = KORTHIKANTI[size]
    request = Request(
        model=size,
        gpus=gpus,
        gpu="a100-80gb",
        software="megatron-lm-2022",
        seq_length=2048,
        global_batch_size=batch,
        numerics={"precision": "fp16"},
    )
    vpp = 3 if size in ("175B", "530B") else 1
    return _report(request, f"tp=8,pp={pp},vpp={vpp},mbs={micro},sp={sp},recompute={recompute},dist_opt=0")


SELECTIVE = "selective:core_attn"


def activation_ratio() -> dict[str, float]:
    """Saved activations of the first stage, TP alone over SP with selective recomputation."""

    def saved(report: PlanReport) -> float:
        return sum(report.stages[0].parts.get(name, 0.0) for name in SAVED)

    return {size: saved(_korthikanti(size, "none", 0)) / saved(_korthikanti(size, SELECTIVE, 1)) for size in KORTHIKANTI}


def recompute_overhead() -> dict[str, float]:
    """Percent of the step without recomputation and SP."""
    found = {}
    for size in KORTHIKANTI:
        base = _korthikanti(size, "none", 0).step_seconds
        for name, recompute, sp in (("full", "full:uniform:1", 0), ("SP + selective", SELECTIVE, 1)):
            found[f"{name}, {size}"] = 100 * (_korthikanti(size, recompute, sp).step_seconds / base - 1)
    return found


def throughput_gain() -> dict[str, float]:
    """Percent more throughput, SP with selective recomputation over full recomputation."""
    return {
        size: 100 * (_korthikanti(size, "full:uniform:1", 0).step_seconds / _korthikanti(size, SELECTIVE, 1).step_seconds - 1)
        for size in KORTHIKANTI
    }


def days_of_175b() -> dict[str, float]:
    """Days for 300B tokens: the plan of Megatron-LM's README and our best with the software of 2021 (full recomputation,
    optimizer not sharded), our best with that of 2022."""
    old = _gpt3_on_a100(1024, 1536, "megatron-lm-2021", fix=("recompute=full", "dist_opt=0", "fsdp=0"))
    plans = {
        "full recompute, README's plan": _report(old, "tp=8,pp=16,mbs=1,recompute=full:uniform:1,dist_opt=0"),
        "full recompute, our best": _best(old),
        "SP + selective, our best": _best(_gpt3_on_a100(1024, 1536, "megatron-lm-2022", fix=("fsdp=0",))),
    }
    return {
        name: 300e9 / (plan.tokens_per_second_per_gpu * 1024) / SECONDS_PER_DAY
        for name, plan in plans.items()
        if plan is not None
    }


def _gpt3_on_a100(gpus: int, batch: int, software: str, fix: tuple[str, ...] = ()) -> Request:
    return Request(
        model="175b",
        gpus=gpus,
        gpu="a100-80gb",
        software=software,
        seq_length=2048,
        global_batch_size=batch,
        numerics={"precision": "fp16"},
        fix=fix,
    )


def mfu_of_1t() -> dict[str, float]:
    """MFU in percent of 1T on 512 A100, counting the whole attention matrix as the paper does."""
    case = _cases()["KO-0008"]
    return {"1T on 512 A100": 100 * _flops_per_gpu(case, "full") / case.setting.cluster.gpu.peak_flops_per_s("fp16")}


def interleaving_gain() -> dict[str, float]:
    """Percent more throughput of the interleaved schedule against batch size, 175B at (t, p) = (8, 12)."""
    found = {}
    for batch in (12, 24, 36, 48, 60):
        request = _gpt3_on_a100(96, batch, "megatron-lm-2021")
        plain, interleaved = (
            _report(request, f"tp=8,pp=12,vpp={vpp},mbs=1,recompute=full:uniform:1,dist_opt=0").step_seconds for vpp in (1, 2)
        )
        found[f"batch {batch}"] = 100 * (plain / interleaved - 1)
    return found


def weak_scaling() -> dict[str, float]:
    """TFLOPS per GPU of Narayanan et al. 2021, Table 1, counting recomputation as the paper does."""
    sizes = next(entry["points"] for entry in _entries() if entry["id"] == "weak_scaling")
    cases = [case for case in _cases().values() if case.source == "Narayanan2021-Table1"]
    by_gpus = {case.setting.cluster.num_gpus: _flops_per_gpu(case, "full+recompute") / 1e12 for case in cases}
    return {label: by_gpus[int(label.split()[-1])] for label in sizes}


def llama2() -> dict[str, float]:
    """Tokens/s/GPU at our best plan: H200 with NeMo 24.03 in FP8, A100 with NeMo 23.08 in BF16."""
    found = {}
    runs = [("h200", "nemo-24.03", "fp8", size, gpus) for size, gpus in (("7b", 8), ("13b", 8), ("70b", 8), ("70b", 16))]
    runs += [("a100-80gb", "nemo-23.08", "bf16", size, gpus) for size, gpus in (("7b", 8), ("13b", 8), ("70b", 32))]
    for gpu, software, precision, size, gpus in runs:
        request = Request(
            model=f"llama2-{size}",
            gpus=gpus,
            gpu=gpu,
            software=software,
            seq_length=4096,
            global_batch_size=128,
            numerics={"precision": precision},
        )
        best = _best(request)
        if best is not None:
            found[f"{size.upper()} on {gpus} {gpu.split('-')[0].upper()}"] = best.tokens_per_second_per_gpu
    return found


def fsdp_against_3d() -> dict[str, float]:
    """Throughput of our best FSDP plan over our best 3D-parallel plan, GPT-20B in BF16, global batch 256."""
    found = {}
    for gpus in (8, 16, 32, 64, 128):
        steps = []
        for fix in (("fsdp=3", "tp=1"), ("fsdp=0",)):
            request = Request(
                model="gpt3-20b",
                gpus=gpus,
                gpu="h100",
                software="nemo-24.03",
                seq_length=2048,
                global_batch_size=256,
                numerics={"precision": "bf16"},
                fix=fix,
            )
            best = _best(request)
            steps.append(best.step_seconds if best is not None else None)
        if steps[0] is not None and steps[1] is not None:
            found[f"{gpus} H100"] = steps[1] / steps[0]
    return found


def fp8_175b() -> dict[str, float]:
    """TFLOPS and tokens/s per H100 of NVIDIA's plan for 175B on 512 GPUs, by release."""
    found = {}
    for release, software in RELEASES.items():
        request = Request(
            model="175b",
            gpus=512,
            gpu="h100",
            software=software,
            seq_length=2048,
            global_batch_size=2048,
            numerics={"precision": "fp8"},
        )
        report = _report(request, "tp=4,pp=8,vpp=6,mbs=2,sp=1")
        flops = flops_per_step(understand(request).setting, "full")
        found[f"{release}, tokens/s"] = report.tokens_per_second_per_gpu
        found[f"{release}, TFLOPS"] = flops / report.step_seconds / 512 / 1e12
    found["announced, TFLOPS"] = found["24.07, first, TFLOPS"]
    return found


@cache
def _cases() -> dict[str, Case]:
    return {case.id: case for case in _read()}


def _read() -> Iterator[Case]:
    for row in published_rows():
        if row["source"].startswith(("Narayanan2021-Table1", "Korthikanti2022-Table5")):
            yield read_case(row)


def _flops_per_gpu(case: Case, convention: str) -> float:
    setting = calibrated(case.setting, shipped())
    step = predict_steps([(setting, case.plan)])[0]
    return flops_per_step(setting, convention) / step / setting.cluster.num_gpus


COMPUTE: dict[str, Callable[[], dict[str, float]]] = {
    "activation_ratio": activation_ratio,
    "recompute_overhead": recompute_overhead,
    "throughput_gain": throughput_gain,
    "days_of_175b": days_of_175b,
    "mfu_of_1t": mfu_of_1t,
    "interleaving_gain": interleaving_gain,
    "weak_scaling": weak_scaling,
    "llama2": llama2,
    "fsdp_against_3d": fsdp_against_3d,
    "fp8_175b": fp8_175b,
}
"""Entry of data/headlines.json -> our figures by label."""
