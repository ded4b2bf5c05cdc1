"""`autoconfig validate --rl`: every published step of post-training, predicted blind and after one measured step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from autoconfig.specs.errors import InputError
from autoconfig.specs.files import write_text
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.serve_plan import EnginePlan

from autoconfig.post_training.frameworks import STANDARD_90, load_algorithm, load_framework
from autoconfig.post_training.job import Placement, PostTrainingJob
from autoconfig.post_training.lengths import ResponseLengths
from autoconfig.post_training.ranking import price
from autoconfig.runs.predict_post_training import StepPrediction, predict_rows
from autoconfig.runs.table import Row, cell, number
from validation.fit.post_training_fit import MeasuredStep, errors, fit, hidden_rounds, samples_of, scatter
from validation.published import published_rows

TABLE = "post_training_measurements"
PHASE_NAMES = {"step_s": "step", "train_actor_s": "training", "logprob_s": "log-probabilities", "gen_s": "generation"}
"""Measured columns that have a line of their own."""
ENOUGH = 5
"""Steps from which a framework has a scatter of its own."""
DIFFERS = 1.15
"""Two placements count as a pair where their GPU-seconds a step are further apart."""


@dataclass(frozen=True, kw_only=True)
class AccuracyLine:
    """One figure: over how many runs, in percent, and the bar that it is held to (None: printed only)."""

    name: str
    rows: int
    value: float
    bar: float | None = None
    at_least: bool = False
    median: float | None = None

    @property
    def met(self) -> bool | None:
        if self.bar is None or not self.rows:
            return None
        return self.value >= self.bar if self.at_least else self.value <= self.bar


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A synchronous and an asynchronous run of the same job: ids, GPU-seconds a step measured, whether we say the same."""

    sync: str
    asynchronous: str
    measured: tuple[float, float]
    right: bool


@dataclass(frozen=True, kw_only=True)
class RlValidation:
    """Everything that `validate --rl` prints."""

    figures: tuple[AccuracyLine, ...]
    sources: tuple[AccuracyLine, ...]
    pairs: tuple[Pair, ...]
    engine_gain: tuple[float, float]
    """Of the step of Llama-2-70B PPO on 8 and on 64 nodes: without an inference engine in the loop, over with one."""
    misfits: tuple[str, ...]
    """Labelled or measured rows whose fit is called wrong, with the reason."""


def published() -> list[dict[str, str]]:
    """The runs of post-training that ship with the project."""
    return list(published_rows(TABLE))


@dataclass(frozen=True, kw_only=True)
class Blind:
    """Samples, the constants of all, and by model left out those that have not seen it, with the scatter of the others."""

    samples: tuple[MeasuredStep, ...]
    whole: dict[str, dict[str, float]]
    known: dict[str, dict[str, dict[str, float]]]

    def error(self, sample: MeasuredStep) -> dict[str, float]:
        """ln(measured / predicted) with constants that have not seen the model."""
        return errors(sample, sample.predicted(self.known[sample.model]))


def _frameworks(samples: Iterable[MeasuredStep], model: str) -> set[str]:
    return {sample.framework for sample in samples if sample.model == model}


@cache
def blind() -> Blind:
    """Fits once for each model of the table; deterministic."""
    samples = samples_of(published())
    models = sorted({sample.model for sample in samples})
    whole = fit(samples)
    known = {model: fit([s for s in samples if s.model != model], whole, of=_frameworks(samples, model)) for model in models}
    return Blind(samples=tuple(samples), whole=whole, known=known)


def fitted() -> dict[str, dict[str, float]]:
    """Constants of all rows, each framework with the scatter of its blind errors: what ships."""
    found, all_samples = {name: dict(numbers) for name, numbers in blind().whole.items()}, blind().samples
    for name, numbers in found.items():
        own = [(s, e["step_s"]) for s in all_samples if name in ("all", s.framework) and "step_s" in (e := blind().error(s))]
        for key, missing in (("scatter", False), ("scatter_assumed", True)):
            errors_there = [error for s, error in own if bool(s.missing) == missing]
            if len(errors_there) >= ENOUGH:
                numbers[key] = scatter(errors_there)
    lacking: dict[str, float] = {key: found["all"][key] for key in ("scatter", "scatter_assumed") if key in found["all"]}
    found = {name: {**lacking, **numbers} for name, numbers in found.items()}
    return {name: {key: round(value, 5) for key, value in numbers.items()} for name, numbers in found.items()}


def after_one(column: str, sample: MeasuredStep) -> list[float]:
    """Errors of a run where one other run of the same model, GPU and framework has been measured, each of these in turn: what
    was measured over what was predicted there scales the prediction here, as `rl calibrate` does."""
    mine = blind().error(sample)
    if column not in mine:
        return []
    return [
        mine[column] - other
        for s in blind().samples
        if s is not sample and _job(s) == _job(sample) and (other := blind().error(s).get(column)) is not None
    ]


def _job(sample: MeasuredStep) -> tuple[str, str, str, bool]:
    """Runs that say of each other how far off they are: a step of dynamic sampling says nothing of one without."""
    return sample.framework, sample.model, sample.gpu, hidden_rounds(sample)


def validate_rl() -> RlValidation:
    """Predict every row of the published table blind and after one measured step."""
    rows = published()
    pairs = tuple(_pairs(rows))
    far = [pair for pair in pairs if max(pair.measured) > DIFFERS * min(pair.measured)]
    answered = tuple(zip(rows, predict_rows(rows), strict=True))
    misfits, labels = _fits(answered)
    figures = [*_errors("nemo-rl"), *_errors("verl"), *_bands(), *labels]
    figures.append(_share("synchronous or asynchronous, right", [pair.right for pair in far], 85.0))
    figures.append(_bounds(answered))
    figures.append(_predicted(answered))
    return RlValidation(
        figures=tuple(figures),
        sources=tuple(_sources(rows)),
        pairs=pairs,
        engine_gain=(engine_gain(8), engine_gain(64)),
        misfits=tuple(misfits),
    )


PUBLISHED_GAIN = 5.6
"""Llama-2-70B PPO on H100 with TensorRT-LLM in the loop: up to so many times as quick (NeMo's announcement of accelerated
RLHF: global batch 64, 512 rollouts, up to 1,024 tokens, half of the nodes actor, half critic; how many is not said)."""


def engine_gain(nodes: int = 32) -> float:
    """The same ratio as predicted: the training modules generate on their own layout without CUDA graphs, against engines of
    tensor parallelism alone; both in NeMo-Aligner's rollout micro-batches, on these nodes."""
    model, gpus = load_model("llama2-70b"), nodes // 2 * 8
    job = PostTrainingJob(
        policy=model,
        algorithm=load_algorithm("ppo"),
        framework=load_framework("nemo-aligner"),
        gpu=load_gpu("h100"),
        prompts=512,
        prompt_tokens=256.0,
        responses=ResponseLengths(mean=512.0, cap=1024),
        minibatch=64,
        critic=model,
    )
    plan = TrainPlan(tp=8, pp=4, dp=gpus // 32, mbs=1, sp=True)
    engine = Placement(train=plan, engine=EnginePlan(tp=8, replicas=gpus // 8), critic_gpus=gpus, offload=False)
    without = replace(engine, engine=EnginePlan(tp=8, pp=4, replicas=gpus // 32), cuda_graphs=False)
    return price(job, without).seconds / price(job, engine).seconds


BARS = {
    ("nemo-rl", "step_s"): (22.0, 15.0),
    ("verl", "train_actor_s"): (12.0, 8.0),
    ("verl", "logprob_s"): (20.0, 10.0),
    ("verl", "gen_s"): (30.0, 20.0),
}
"""(framework, column) -> mean error in percent that is held to: blind, after one measured step."""


def _errors(framework: str) -> Iterable[AccuracyLine]:
    """By phase: runs that say all that decides it, then the others; blind, and after one measured step."""
    for column, name in PHASE_NAMES.items():
        own = [s for s in blind().samples if s.framework == framework and column in s.measured]
        bars = BARS.get((framework, column), (None, None))
        hidden = [s for s in own if hidden_rounds(s) and column in ("step_s", "gen_s") and not s.missing]
        engine = [s for s in own if s.engine_assumed and column == "gen_s" and not s.missing and s not in hidden]
        said = [s for s in own if not s.missing and s not in hidden and s not in engine]
        for kind, chosen, bar in (
            ("", said, bars[0]),
            (" (rounds of dynamic sampling not said)", hidden, None),
            (" (plan and mode of the engines not said)", engine, None),
            (" (GPU, batch or lengths not said)", [s for s in own if s.missing], None),
        ):
            found = [e[column] for s in chosen if column in (e := blind().error(s))]
            if found:
                yield _line(f"{framework}, {name}, model left out{kind}", found, bar)
            elif bar is not None:
                yield AccuracyLine(
                    name=f"{framework}, {name}, model left out: no row says all of it", rows=0, value=0.0, bar=bar
                )
        again = [float(np.mean(np.abs(_relative(logs)))) for s in own if not s.missing and (logs := after_one(column, s))]
        if again:
            yield AccuracyLine(
                name=f"{framework}, {name}, after one measured step",
                rows=len(again),
                value=100.0 * float(np.mean(again)),
                median=100.0 * float(np.median(again)),
                bar=bars[1],
            )


def _relative(logs: Sequence[float]) -> Any:
    """Predicted over measured, less 1."""
    return np.exp(-np.array(logs)) - 1.0


def _line(name: str, logs: Sequence[float], bar: float | None = None) -> AccuracyLine:
    wrong = np.abs(_relative(logs))
    return AccuracyLine(
        name=name, rows=len(logs), value=100.0 * float(wrong.mean()), median=100.0 * float(np.median(wrong)), bar=bar
    )


def _share(name: str, right: Sequence[bool], bar: float) -> AccuracyLine:
    return AccuracyLine(
        name=name, rows=len(right), value=100.0 * float(np.mean(right)) if right else 0.0, bar=bar, at_least=True
    )


def _bands() -> Iterable[AccuracyLine]:
    """Steps inside the 90 % band of constants and scatter that have not seen the model."""
    for framework in ("nemo-rl", "verl"):
        own = [(s, e["step_s"]) for s in blind().samples if s.framework == framework and "step_s" in (e := blind().error(s))]
        inside = []
        for sample, error in own:
            unseen = [(s, e) for s, e in own if s.model != sample.model]
            alike = [e for s, e in unseen if bool(s.missing) == bool(sample.missing)]
            others = alike if len(alike) >= ENOUGH else [e for _, e in unseen]
            inside.append(abs(error) <= STANDARD_90 * scatter(others))
        yield AccuracyLine(
            name=f"{framework}, steps inside the 90 % band", rows=len(inside), value=100.0 * float(np.mean(inside)), bar=None
        )


def _sources(rows: Sequence[Row]) -> Iterable[AccuracyLine]:
    groups: dict[str, list[float]] = {}
    for sample in blind().samples:
        error = blind().error(sample).get("step_s")
        if error is not None:
            groups.setdefault(cell(rows[sample.row], "source"), []).append(error)
    for name, found in sorted(groups.items()):
        yield _line(name, found)


ALIKE = ("source", "policy_model", "gpu", "prompts_per_step", "group_size", "precision_train", "response_len_max")


def _pairs(rows: Sequence[Row]) -> Iterable[Pair]:
    """Runs of the same source, model, GPU and batch, one synchronous and one not; of several the first of each."""
    groups: dict[tuple[str, ...], dict[bool, MeasuredStep]] = {}
    for sample in blind().samples:
        row = rows[sample.row]
        if "step_s" in sample.measured and cell(row, "sync_mode"):
            key = tuple(cell(row, name) for name in ALIKE)
            key += (cell(row, "gpus") if cell(row, "framework").startswith("verl") else "",)
            groups.setdefault(key, {}).setdefault(sample.placement.staleness > 0, sample)
    for both in groups.values():
        if len(both) == 2:
            measured = tuple(both[kind].measured["step_s"] * both[kind].placement.gpus for kind in (False, True))
            told = [
                both[kind].predicted(blind().known[both[kind].model]).total * both[kind].placement.gpus
                for kind in (False, True)
            ]
            yield Pair(
                sync=cell(rows[both[False].row], "id"),
                asynchronous=cell(rows[both[True].row], "id"),
                measured=(measured[0], measured[1]),
                right=(measured[0] < measured[1]) == (told[0] < told[1]),
            )


Answered = Sequence[tuple[Row, StepPrediction]]


def _fits(answered: Answered) -> tuple[list[str], list[AccuracyLine]]:
    wrong: list[str] = []
    verdicts: dict[str, list[bool]] = {"oom": [], "oom with its flags": [], "fits": [], "measured": []}
    for row, predicted in answered:
        kind = cell(row, "kind")
        if predicted.fits is None or kind not in ("oom", "fits", "measured", "log_step"):
            continue
        right = predicted.fits != (kind == "oom")
        flags = cell(row, "offload") and cell(row, "gpu_mem_util")
        name = "measured" if kind in ("measured", "log_step") else "oom with its flags" if kind == "oom" and flags else kind
        verdicts[name].append(right)
        if not right:
            wrong.append(f"{cell(row, 'id')} ({kind}): {predicted.note.partition('; ')[0] or 'called fit'}")
    lines = [_share("out-of-memory rows with offload and memory share given, called so", verdicts["oom with its flags"], 100.0)]
    lines.append(_share("other labelled rows right", verdicts["oom"] + verdicts["fits"], 80.0))
    lines.append(_share("measured rows called fit", verdicts["measured"], 100.0))
    return wrong, lines


def _bounds(answered: Answered) -> AccuracyLine:
    """Upper bounds that continuous integration asserts, above the prediction."""
    right = []
    for row, predicted in answered:
        if cell(row, "kind") == "ci_bound" and cell(row, "step_s") and predicted.step is not None:
            right.append(predicted.step.seconds <= (number(row, "step_s") or 0.0))
    return _share("upper bounds of continuous integration above the prediction", right, 90.0)


def _predicted(answered: Answered) -> AccuracyLine:
    kinds = ("measured", "log_step", "ci_bound")
    timed = [not p.failed for row, p in answered if cell(row, "step_s") and cell(row, "kind") in kinds]
    return _share("timed rows with a prediction", timed, 90.0)


MARKS = "<!-- accuracy: written by make accuracy -->", "<!-- end of accuracy -->"


def write_page(page: Path, found: RlValidation) -> None:
    """Put the tables between the marks of a page. Raises InputError where it has none."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    first, last = MARKS
    if first not in text or last not in text:
        raise InputError(f"{page} has no lines {first} and {last} to write between")
    before, after = text.partition(first)[0], text.partition(last)[2]
    write_text(page, f"{before}{first}\n{report(found)}\n{last}{after}")


def report(found: RlValidation) -> str:
    """The tables as Markdown, what docs/post_training.md holds between its marks."""
    out = ["| figure | rows | value | median | bar |", "|---|---|---|---|---|"]
    for one in found.figures:
        median = "" if one.median is None else f"{one.median:.1f} %"
        sign = "at least" if one.at_least else "at most"
        bar = "" if one.bar is None else f"{sign} {one.bar:g} %" + ("" if one.met or one.met is None else " (not met)")
        value = f"{one.value:.1f} %" if one.rows else ""
        out.append(f"| {one.name} | {one.rows} | {value} | {median} | {bar} |")
    out += ["", "| source (step, model left out) | rows | mean error | median |", "|---|---|---|---|"]
    out += [f"| {one.name} | {one.rows} | {one.value:.1f} % | {one.median:.1f} % |" for one in found.sources]
    out += ["", "| synchronous | asynchronous | GPU-seconds a step, measured | ours says the same |", "|---|---|---|---|"]
    for pair in found.pairs:
        seconds = " and ".join(f"{value:,.0f}" for value in pair.measured)
        out.append(f"| {pair.sync} | {pair.asynchronous} | {seconds} | {'yes' if pair.right else 'no'} |")
    few, many = found.engine_gain
    out += ["", f"Llama-2-70B PPO with an inference engine in the loop, half of the nodes critic: {few:.1f} times as quick as"]
    out += [
        f"without one on 8 nodes, {many:.1f} times on 64; published: up to {PUBLISHED_GAIN:g} times, nodes not said, and 6.96"
    ]
    out += ["times in the ablation of NeMo-Aligner v0.3.0.trtllm on 16 to 64 nodes."]
    out += ["", "Rows whose fit is called wrong:", ""]
    out += [f"- {text}" for text in found.misfits] or ["- none"]
    return "\n".join(out)


if __name__ == "__main__":
    write_page(Path(__file__).parents[2] / "docs" / "post_training.md", validate_rl())
