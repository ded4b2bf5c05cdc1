"""The field's headline results beside our figures. What was published, where, and why we differ is in `data/headlines.json`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from autoconfig.specs.errors import SECONDS_PER_DAY
from autoconfig.specs.plan import parse_plan

from autoconfig.planning.calibration_file import shipped
from autoconfig.planning.progress import Progress
from autoconfig.runs.training_row import Case
from autoconfig.training.price import PlanReport, flops_per_step, report_plan
from autoconfig.training.question import Request, understand
from autoconfig.training.rank import rank_plans
from validation.published import published_runs
from validation.sheets.groups import predict_steps

FAR = 0.10


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

    @property
    def deviation(self) -> float | None:
        """Ours over published, less 1: of the figure itself, overheads and gains of a few percent too."""
        if self.published is None or self.ours is None:
            return None
        return self.ours / self.published - 1


def headlines(progress: Progress | None = None) -> list[Headline]:
    """Every line of data/headlines.json, with the shipped calibration and the software of the time."""
    found = []
    for entry in _data()["headlines"]:
        if progress is not None:
            progress(entry["title"][:60])
        ours = COMPUTE[entry["id"]]()
        for label, published in entry["points"].items():
            texts = {key: entry[key] for key in ("title", "unit", "source")}
            line = Headline(label=label, published=published, ours=ours.get(label), cause=entry.get("cause", ""), **texts)
            near = line.deviation is not None and abs(line.deviation) <= FAR
            found.append(replace(line, cause="") if near else line)
    return found


@cache
def _data() -> dict[str, Any]:
    text = Path(__file__).parents[1].joinpath("headlines.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def _sizes() -> dict[str, list[int]]:
    sizes: dict[str, list[int]] = _data()["korthikanti"]["sizes"]
    return sizes


def _request(
    model: str, gpus: int, gpu: str, software: str, batch: int, *, precision: str, seq: int = 2048, fix: tuple[str, ...] = ()
) -> Request:
    work: dict[str, Any] = {"seq_length": seq, "global_batch_size": batch}
    return Request(model=model, gpus=gpus, gpu=gpu, software=software, numerics={"precision": precision}, fix=fix, **work)


def _report(request: Request, plan: str) -> PlanReport:
    scenario = understand(request).scenario
    return report_plan(scenario, parse_plan(plan, scenario.cluster.num_gpus))


def _best(request: Request) -> PlanReport | None:
    question = understand(request)
    ranking = rank_plans(question.scenario, question.constraints)
    return report_plan(question.scenario, ranking.plan(0)) if len(ranking.best) else None


def _korthikanti(size: str, recompute: str, sp: int) -> tuple[Request, str]:
    gpus, pp, micro, batch = _sizes()[size]
    request = _request(size, gpus, "a100-80gb", "megatron-lm-2022", batch, precision="fp16")
    vpp = 3 if size in ("175B", "530B") else 1
    return request, f"tp=8,pp={pp},vpp={vpp},mbs={micro},sp={sp},recompute={recompute},dist_opt=0"


SELECTIVE = "selective:core_attn"


def activation_ratio() -> dict[str, float]:
    """Saved activations of the first stage, TP alone over SP with selective recomputation."""

    def saved(size: str, recompute: str, sp: int) -> float:
        stage = _report(*_korthikanti(size, recompute, sp)).stages[0]
        return sum(stage.parts.get(name, 0.0) for name in _data()["saved"]["parts"])

    return {size: saved(size, "none", 0) / saved(size, SELECTIVE, 1) for size in _sizes()}


def recompute_overhead() -> dict[str, float]:
    """Percent of one layer's forward and backward without recomputation and SP, as the paper's figure 8 counts it."""
    found = {}
    for size in _sizes():
        base = _layer_seconds(size, "none", 0)
        for name, recompute, sp in (("full", "full:uniform:1", 0), ("SP + selective", SELECTIVE, 1)):
            found[f"{name}, {size}"] = 100 * (_layer_seconds(size, recompute, sp) / base - 1)
    return found


def _layer_seconds(size: str, recompute: str, sp: int) -> float:
    """What as many layers again add to the step: layers alone, without embedding, loss, sends and optimizer's fixed part."""
    request, plan = _korthikanti(size, recompute, sp)
    scenario = understand(request).scenario
    deeper = scenario.model.replace(num_layers=2 * scenario.model.num_layers, published_parameters=None)
    parsed = parse_plan(plan, scenario.cluster.num_gpus)
    twice, once = predict_steps([(replace(scenario, model=deeper), parsed), (scenario, parsed)])
    return twice - once


def throughput_gain() -> dict[str, float]:
    """Percent more throughput, SP with selective recomputation over full recomputation."""

    def step(size: str, recompute: str, sp: int) -> float:
        return _report(*_korthikanti(size, recompute, sp)).step_seconds

    return {size: 100 * (step(size, "full:uniform:1", 0) / step(size, SELECTIVE, 1) - 1) for size in _sizes()}


def days_of_175b() -> dict[str, float]:
    """Days for 300B tokens: the plan of Megatron-LM's README and our best with the software of 2021 (full recomputation,
    optimizer not sharded); Korthikanti's plan and our best with that of 2022."""
    old = _gpt3_on_a100(1024, 1536, "megatron-lm-2021", fix=("recompute=full", "dist_opt=0", "fsdp=0"))
    new = _gpt3_on_a100(1024, 1536, "megatron-lm-2022", fix=("fsdp=0",))
    plans = {
        "full recompute, README's plan": _report(old, "tp=8,pp=16,mbs=1,recompute=full:uniform:1,dist_opt=0"),
        "full recompute, our best": _best(old),
        "SP + selective, plan of 2022": _report(new, f"tp=8,pp=8,vpp=3,mbs=1,sp=1,recompute={SELECTIVE}"),
        "SP + selective, our best": _best(new),
    }
    rates = {name: plan.tokens_per_second_per_gpu * 1024 for name, plan in plans.items() if plan is not None}
    return {name: 300e9 / rate / SECONDS_PER_DAY for name, rate in rates.items()}


def _gpt3_on_a100(gpus: int, batch: int, software: str, fix: tuple[str, ...] = ()) -> Request:
    return _request("175b", gpus, "a100-80gb", software, batch, precision="fp16", fix=fix)


def mfu_of_1t() -> dict[str, float]:
    """MFU in percent of 1T on 512 A100, counting the whole attention matrix as the paper does."""
    case = _cases()["KO-0008"]
    return {"1T on 512 A100": 100 * _flops_per_gpu(case, "full") / case.scenario.cluster.gpu.peak_flops_per_s("fp16")}


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
    sizes = next(entry["points"] for entry in _data()["headlines"] if entry["id"] == "weak_scaling")
    cases = [case for case in _cases().values() if case.source == "Narayanan2021-Table1"]
    by_gpus = {case.scenario.cluster.num_gpus: _flops_per_gpu(case, "full+recompute") / 1e12 for case in cases}
    return {label: by_gpus[int(label.split()[-1])] for label in sizes}


def llama2() -> dict[str, float]:
    """Tokens/s/GPU at our best plan: H200 with NeMo 24.03 in FP8, A100 with NeMo 23.08 in BF16."""
    found = {}
    runs = [("h200", "nemo-24.03", "fp8", size, gpus) for size, gpus in (("7b", 8), ("13b", 8), ("70b", 8), ("70b", 16))]
    runs += [("a100-80gb", "nemo-23.08", "bf16", size, gpus) for size, gpus in (("7b", 8), ("13b", 8), ("70b", 32))]
    for gpu, software, precision, size, gpus in runs:
        request = _request(f"llama2-{size}", gpus, gpu, software, 128, precision=precision, seq=4096)
        best = _best(request)
        if best is not None:
            found[f"{size.upper()} on {gpus} {gpu.split('-')[0].upper()}"] = best.tokens_per_second_per_gpu
    return found


def fsdp_against_3d() -> dict[str, float]:
    """Throughput of our best FSDP plan over our best 3D-parallel plan, GPT-20B in BF16, global batch 256; output layer of its
    own in both, because FSDP of this software does not take tied ones (rule NV100)."""
    found = {}
    for gpus in (8, 16, 32, 64, 128):
        steps = []
        for fix in (("fsdp=3", "tp=1"), ("fsdp=0",)):
            request = _request("gpt3-20b", gpus, "h100", "nemo-24.03", 256, precision="bf16", fix=fix)
            question = understand(request)
            model = question.scenario.model.replace(untie_embeddings_and_output_weights=True, published_parameters=None)
            ranking = rank_plans(replace(question.scenario, model=model), question.constraints)
            steps.append(float(ranking.step_seconds[ranking.best[0]]) if len(ranking.best) else None)
        if steps[0] is not None and steps[1] is not None:
            found[f"{gpus} H100"] = steps[1] / steps[0]
    return found


def fp8_175b() -> dict[str, float]:
    """TFLOPS and tokens/s per H100 of NVIDIA's plan for 175B on 512 GPUs, by release."""
    found = {}
    for release, software in _data()["releases"]["stacks"].items():
        request = _request("175b", 512, "h100", software, 2048, precision="fp8")
        report = _report(request, "tp=4,pp=8,vpp=6,mbs=2,sp=1")
        flops = flops_per_step(understand(request).scenario, "full")
        found[f"{release}, tokens/s"] = report.tokens_per_second_per_gpu
        found[f"{release}, TFLOPS"] = flops / report.step_seconds / 512 / 1e12
    found["announced, TFLOPS"] = found["24.07, first, TFLOPS"]
    return found


@cache
def _cases() -> dict[str, Case]:
    return {run.case.id: run.case for run in published_runs().runs}


def _flops_per_gpu(case: Case, convention: str) -> float:
    scenario = replace(case.scenario, calibration=shipped())
    step = predict_steps([(scenario, case.plan)])[0]
    return flops_per_step(scenario, convention, case.plan.recompute) / step / scenario.cluster.num_gpus


_FIGURES = (
    *(activation_ratio, recompute_overhead, throughput_gain, days_of_175b, mfu_of_1t),
    *(interleaving_gain, weak_scaling, llama2, fsdp_against_3d, fp8_175b),
)
COMPUTE: dict[str, Callable[[], dict[str, float]]] = {figure.__name__: figure for figure in _FIGURES}
