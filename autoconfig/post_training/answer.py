"""`autoconfig rl`: from what was asked to ranked placements of a step of post-training."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoconfig.planning.prices import parse_prices, price_for
from autoconfig.planning.request_fields import POST_TRAINING
from autoconfig.planning.resolve import read_model
from autoconfig.post_training.agents.rollout import MOST_TURNS, Agents
from autoconfig.post_training.calibration import read_calibration
from autoconfig.post_training.frameworks import (
    OTHER_FRAMEWORK,
    Algorithm,
    Framework,
    asked_version,
    load_algorithm,
    load_framework,
    section,
)
from autoconfig.post_training.job import RECURRENT, USUAL_HOST_BYTES, PostTrainingJob, prompt_room, require_decoder
from autoconfig.post_training.lengths import MAX_TOKENS, ResponseLengths
from autoconfig.post_training.questions.fewest import Deadline, Tried, fewest
from autoconfig.post_training.questions.remedies import MAX_GPUS, one_more_node, remedy, spread_prompts, with_prompts
from autoconfig.post_training.questions.unknowns import Unknown, unknowns, widened
from autoconfig.post_training.ranking import FIT_CHANCE, PricedPlacement, Prices, alike, price
from autoconfig.specs.errors import InputError, UnsupportedError, option, parse_size
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.layouts import divisors
from autoconfig.specs.models.model_catalogue import config_file_of
from autoconfig.specs.remarks import Effect, Remark, note
from autoconfig.training.rank import RESOLUTION

USUAL_TOKENS_PER_GPU = 8192
USUAL_GROUP = 8
"""Of algorithms that compare, where a framework's own default is one (TRL 1.16.0: num_generations 8)."""
COMPARING = ("grpo", "dapo", "rloo")
"""Algorithms whose advantage is that over other responses of the prompt."""
GOALS = ("step", "gpus")
"""The quickest step, or the fewest GPUs that do so many steps in so many hours."""
MOST_HOURS = 1e6
MOST_CHANCE = 0.9999
MOST_STALENESS = 8


@dataclass(frozen=True, kw_only=True)
class RlAnswer:
    """Placements that fit, quickest first: of those with a chance of `fit_chance` where any has it. Within RESOLUTION of the
    quickest those on-policy come first."""

    job: PostTrainingJob
    gpus: int
    assumed: tuple[Remark, ...]
    ranked: tuple[PricedPlacement, ...]
    considered: int
    nearest: PricedPlacement | None = None
    """Where none fits: the one that lacks least; where there is no placement at all, the first with the remedy, which fits."""
    notes: tuple[Remark, ...] = ()
    """What is assumed of the placements that are named."""
    remedy: str = ""
    """Where none fits, or none with `fit_chance`: a change that was tried."""
    fit_chance: float = FIT_CHANCE
    riskier: PricedPlacement | None = None
    """The quickest of those that fit with less than `fit_chance`, where it is quicker than the first."""
    one_more_node: float | None = None
    """Seconds of the best step of as many samples with one more node."""
    deadline: Deadline | None = None
    """That the fewest GPUs were asked for."""
    fewer: Tried | None = None
    """Of a deadline: the quickest on fewer GPUs, which misses it."""
    unknowns: tuple[Unknown, ...] = ()
    """What was not said and widens the band, the one that does most first."""

    price: float | None = None
    """Money for one GPU and hour."""

    def cost_of(self, one: PricedPlacement) -> float | None:
        """Money for a step of a placement, which has all the GPUs; None without a price."""
        return None if self.price is None else self.price * self.gpus * one.seconds / 3600

    @property
    def fit_chance_met(self) -> bool:
        """Whether any placement has the asked chance to fit."""
        return bool(self.ranked) and self.ranked[0].memory.chance >= self.fit_chance

    @property
    def ties(self) -> int:
        """Of the ranked ones those within RESOLUTION of the first, as of plans of training."""
        quickest = min((one.seconds for one in self.ranked), default=0.0)
        return sum(one.seconds <= quickest * (1.0 + RESOLUTION) for one in self.ranked)


def answer(given: Mapping[str, Any], *, local_files: bool = True) -> RlAnswer:
    """The answer to a question of `autoconfig rl`; `local_files`: the model may be the name of a file. Raises InputError naming
    what cannot be used and what is allowed."""
    assumed: list[Remark] = []
    top = _whole({"top": given.get("top", 5)}, "top", None, assumed, 1000)
    job, gpus, tokens, staleness = _understand(given, assumed, local_files)
    own, chance = given.get("calibration"), fit_chance_of(given)
    known = read_calibration(own).applied() if own else None
    price = None if given.get("price") is None else price_for(parse_prices(given["price"]), job.gpu.id)
    prices, fewer = Prices(job, tokens, staleness, known, chance), None
    if deadline := _deadline(given):
        enough, below = fewest(prices, gpus, deadline)
        if enough is None:
            return replace(_missed(job, gpus, tuple(assumed), deadline, below, chance), price=price)
        gpus, fewer = enough.gpus, below
    found = prices.bounds(gpus)
    considered = len({alike(one.placement) for one in found})
    said = RlAnswer(
        job=job, gpus=gpus, assumed=tuple(assumed), ranked=(), considered=considered, fit_chance=chance, price=price
    )
    if not any(one.memory.fits for one in found):
        words, changed = remedy(job, gpus, tokens, staleness)
        least = min(found, key=lambda one: one.memory.lacking, default=None)
        nearest = prices.price(least.placement) if least else changed
        return replace(said, nearest=nearest, remedy=words, notes=spanning_engines(job, [nearest] if nearest else []))
    likely = any(prices.likely(one) for one in found)
    shown = on_policy_first(_first_ones(prices.ordered(gpus, prices.likely if likely else _fits), top))
    if deadline:
        shown = sorted(shown, key=lambda one: one.seconds > deadline.step_seconds)
    quickest = shown[0].seconds
    risky = prices.first(gpus, lambda one: one.memory.fits and not prices.likely(one) and one.seconds < quickest)
    missing = tuple(unknowns(job, shown[0], _unsaid(given, job), known))
    return replace(
        said,
        ranked=tuple(widened(one, missing) for one in shown[:top]),
        unknowns=missing,
        deadline=deadline,
        fewer=fewer,
        notes=(*spanning_engines(job, shown[:top]), *_off_policy(prices, gpus, shown[0]), *_few_sandboxes(prices, shown[0])),
        remedy="" if likely else remedy(job, gpus, tokens, staleness, chance)[0],
        riskier=widened(risky, missing) if likely and risky and risky.seconds < quickest else None,
        one_more_node=one_more_node(prices, gpus),
    )


def _deadline(given: Mapping[str, Any]) -> Deadline | None:
    """Of `--goal gpus`; None where the quickest step is asked for. Raises InputError for what does not go together."""
    goal, hours = given.get("goal") or "step", given.get("hours")
    if goal not in GOALS:
        raise InputError(f"{option('goal')} {str(goal)[:40]!r}: use {' or '.join(GOALS)}", field="goal")
    said = [name for name in ("hours", "steps") if given.get(name) is not None]
    if goal == "step":
        if said:
            raise InputError(f"{option(said[0])} is of {option('goal')} gpus, the fewest GPUs that meet it", field=said[0])
        return None
    if len(said) < 2:
        lacking = "hours" if hours is None else "steps"
        raise InputError(f"{option('goal')} gpus: say {option(lacking)}, like --steps 200 --hours 12", field=lacking)
    if isinstance(hours, bool) or not isinstance(hours, int | float) or not 0 < hours <= MOST_HOURS:
        raise InputError(f"{option('hours')} {str(hours)[:40]}: use a number above 0, at most {MOST_HOURS:,}", field="hours")
    return Deadline(hours=float(hours), steps=_whole(given, "steps", None, []))


def _missed(
    job: PostTrainingJob, gpus: int, assumed: tuple[Remark, ...], deadline: Deadline, nearest: Tried | None, chance: float
) -> RlAnswer:
    """The answer where no number of GPUs meets the deadline."""
    words = f"no number of GPUs up to {gpus:,} does {deadline.steps:,} steps in {deadline.hours:g} hours"
    if nearest is None:
        words += f"; none of them fits with a chance of {chance * 100:.6g}%"
        return RlAnswer(job=job, gpus=gpus, assumed=assumed, ranked=(), considered=0, remedy=words, deadline=deadline)
    words += f"; {nearest.gpus:,} take {deadline.hours_of(nearest.seconds):.3g} hours (--hours {_up(deadline, nearest):g})"
    return RlAnswer(
        job=job,
        gpus=nearest.gpus,
        assumed=assumed,
        ranked=(),
        considered=nearest.considered,
        nearest=nearest.first,
        remedy=words,
        deadline=deadline,
        fewer=nearest,
        fit_chance=chance,
    )


def _up(deadline: Deadline, one: Tried) -> float:
    """Hours that are enough, with three digits."""
    hours = deadline.hours_of(one.seconds)
    digits = 10.0 ** (math.floor(math.log10(hours)) - 2)
    return round(math.ceil(hours / digits) * digits, 9)


def _unsaid(given: Mapping[str, Any], job: PostTrainingJob) -> list[str]:
    """Fields that were not said and move a step of generation."""
    if not job.algorithm.generates:
        return []
    names = [name for name in ("response_length", "max_response_length") if given.get(name) is None]
    return names + ["tool_time"] * (job.agents.turns > 1 and given.get("tool_time") is None)


def fit_chance_of(given: Mapping[str, Any]) -> float:
    """Raises InputError for what is no chance."""
    field = next(field for field in POST_TRAINING if field.name == "fit_chance")
    value = given.get("fit_chance")
    try:
        chance = FIT_CHANCE if value is None else float((field.parse or float)(value))
    except (TypeError, ValueError) as error:
        raise InputError(f"{option('fit_chance')}: {error}") from error
    if not 0.0 <= chance <= MOST_CHANCE:
        raise InputError(f"{option('fit_chance')} {chance:g}: give a chance from 0 to {MOST_CHANCE}, like 0.9 or 90%")
    return chance


def host_memory_of(given: Mapping[str, Any]) -> float:
    """Bytes of a node's host. Raises InputError for what is no size."""
    value = given.get("host_memory")
    try:
        return USUAL_HOST_BYTES if value is None else float(parse_size(value))
    except InputError as error:
        raise InputError(f"{option('host_memory')}: {error.message}") from error


def spanning_engines(job: PostTrainingJob, shown: Iterable[PricedPlacement]) -> tuple[Remark, ...]:
    """What is assumed of engines that are larger than a link domain, which no published run was."""
    domain = job.gpu.link_domain_size
    sizes = sorted({one.placement.engine.tp for one in shown if one.phases.generation and one.placement.engine.tp > domain})
    if not sizes:
        return ()
    why = (
        f"engines of tp={', '.join(map(str, sizes))} are larger than a node: their all-reduces are priced as NCCL's over the "
        "network, and that the framework starts an engine over nodes is assumed; no run of such engines was measured"
    )
    return (note(why, Effect.TIME),)


def on_policy_first(found: Sequence[PricedPlacement]) -> list[PricedPlacement]:
    """The same, of those within RESOLUTION of the first those of fewer steps off before the others, the quickest first of
    each."""
    if not found:
        return []
    tied = [one for one in found if one.seconds <= found[0].seconds * (1.0 + RESOLUTION)]
    others = [one for one in found if one not in tied]
    return [*sorted(tied, key=lambda one: one.placement.staleness), *others]


def _fits(one: PricedPlacement) -> bool:
    return one.memory.fits


def _first_ones(found: Iterable[PricedPlacement], top: int) -> list[PricedPlacement]:
    """The first `top`, and all within RESOLUTION of the first."""
    kept: list[PricedPlacement] = []
    for one in found:
        if len(kept) >= top and one.seconds > kept[0].seconds * (1.0 + RESOLUTION):
            break
        kept.append(one)
    return kept


def _off_policy(prices: Prices, gpus: int, first: PricedPlacement) -> tuple[Remark, ...]:
    """Where the first trains on samples of older weights: that it does, and the quickest that does not, or why none does."""
    if not (steps := first.placement.staleness):
        return ()
    same = prices.first(gpus, lambda one: one.memory.fits and not one.placement.staleness)
    said = f"the first is off-policy: its samples are of weights up to {steps} step{'s'[: steps > 1]} old"
    if same is not None:
        return (note(f"{said}; on-policy a step takes {same.seconds:,.1f} s (--staleness 0)"),)
    job, even = prices.job, spread_prompts(prices.job.prompts, gpus)
    why = "no placement that fits is on-policy"
    if even != job.prompts and Prices(with_prompts(job, even), prices.tokens, 0).bounds(gpus):
        samples = f"{job.samples:,} samples do not divide over all {gpus:,} GPUs"
        why = f"on-policy {samples}, those of {even:,} prompts do (--prompts {even})"
    return (note(f"{said}; {why}"),)


ENOUGH = 1.02
"""Of a step without a limit of sandboxes, within which a limit does not bind."""


def _few_sandboxes(prices: Prices, first: PricedPlacement) -> tuple[Remark, ...]:
    """Where sandboxes bind: how many would not, to the next of twice as many, and the step with them."""
    job, boxes = prices.job, prices.job.agents.sandboxes
    if not boxes:
        return ()

    def step(sandboxes: int) -> float:
        return price(replace(job, agents=replace(job.agents, sandboxes=sandboxes)), first.placement, prices.known).seconds

    free = step(0)
    if first.seconds <= free * ENOUGH:
        return ()
    enough = boxes
    while enough < job.samples and step(enough) > free * ENOUGH:
        enough = min(2 * enough, job.samples)
    return (note(f"{boxes:,} sandboxes bind: with {enough:,} a step takes {step(enough):,.1f} s", Effect.TIME),)


def _whole(
    given: Mapping[str, Any], name: str, default: int | None, assumed: list[Remark], most: int = 2**24, of: str = ""
) -> int:
    """A whole number; `of`: the framework whose default it is, where frameworks differ. Raises InputError."""
    value = given.get(name)
    if value is None:
        if default is None:
            raise InputError(f"Missing option '{option(name)}'")
        assumed.append(Remark(name, default, f"as published runs of {of} have it" if of else ""))
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InputError(f"{option(name)} {value!r}: use a whole number from 1 to {most:,}")
    return value


def _understand(given: Mapping[str, Any], assumed: list[Remark], local_files: bool) -> tuple[PostTrainingJob, int, int, int]:
    """(job, GPUs, tokens of a packed micro-batch, most staleness)."""
    if given.get("model") is None:
        raise InputError(f"Missing option '{option('model')}': say {option('model')} qwen2.5-7b (autoconfig models lists them)")
    policy, notes = read_model(
        given["model"], local_files=local_files, like=given.get("like"), download=bool(given.get("download"))
    )
    assumed += notes
    require_decoder(policy)
    gpus, gpu = _whole(given, "gpus", None, assumed, MAX_GPUS), load_gpu(str(given.get("gpu") or "h100"))
    if gpus > (node := gpu.gpus_per_node) and gpus % node and given.get("goal") == "gpus":
        gpus = gpus // node * node  # at most so many: those of whole nodes
    if gpus > node and gpus % node:
        near = f"{gpus // node * node} or {(gpus // node + 1) * node}"
        raise InputError(f"{option('gpus')} {gpus}: {gpu.name} come in nodes of {node}; use {near}", field="gpus")
    algorithm = load_algorithm(str(given.get("algorithm") or "grpo"))
    framework = _framework(str(given.get("framework") or "verl"), assumed)
    if policy.is_hybrid:
        assumed.append(note(RECURRENT))
    if policy.is_moe and gpus > 1 and "megatron" not in framework.back_ends:
        raise UnsupportedError(
            f"{policy.name} has experts: {framework.name} shards over all GPUs, which is not priced for experts; use "
            f"{option('framework')} verl or nemo-rl"
        )
    usual = section("lengths")
    even = spread_prompts(framework.prompts, gpus)
    theirs = framework.name if even == framework.prompts else ""
    prompts = _whole(given, "prompts", even, assumed, of=theirs)
    if not theirs and given.get("prompts") is None:
        of_runs = f"the {framework.prompts:,} of {framework.name}'s published runs"
        assumed[-1] = replace(assumed[-1], why=f"{of_runs}, and more until they divide over {gpus:,} GPUs")
    group = _group(given, algorithm, framework, assumed)
    prompt = _whole(given, "prompt_length", usual["prompt_tokens"], assumed)
    responses = _responses(given, assumed, algorithm.response_tokens)
    staleness = given.get("staleness")
    if staleness is not None and (not isinstance(staleness, int) or not 0 <= staleness <= MOST_STALENESS):
        raise InputError(f"{option('staleness')} {staleness!r}: use 0 (synchronous) to {MOST_STALENESS} steps")
    job = PostTrainingJob(
        policy=policy,
        checkpoint=_checkpoint(given["model"], local_files),
        algorithm=algorithm,
        framework=framework,
        gpu=gpu,
        prompts=prompts,
        group=group,
        prompt_tokens=float(prompt),
        longest_prompt=prompt_room(prompt),
        responses=responses,
        minibatch=_minibatch(given, prompts, group, framework, assumed),
        logprob_micro_batch=0 if given.get("logprob_micro_batch") is None else _whole(given, "logprob_micro_batch", None, []),
        critic=policy if algorithm.critic else None,
        agents=agents_of(given, algorithm, assumed),
        host_memory_bytes=host_memory_of(given),
    )
    tokens = _packed(given, job, assumed)
    if job.longest > policy.max_position_embeddings:
        most = policy.max_position_embeddings
        why = f"{job.longest:,} tokens in a sample, beyond the {most:,} positions of {policy.name}"
        assumed.append(note(why, Effect.NOTHING))
    return job, gpus, tokens, 0 if staleness is None else staleness


AGENT_FIELDS = ("tool_time", "tool_spread", "tool_tokens", "sandboxes", "drop_prefix")


def agents_of(given: Mapping[str, Any], algorithm: Algorithm, assumed: list[Remark]) -> Agents:
    """What samples do between their turns. Raises InputError for what has no turns, or is no such number."""
    turns = 1 if given.get("turns") is None else _whole(given, "turns", None, assumed, MOST_TURNS)
    said = [name for name in AGENT_FIELDS if given.get(name)]
    if said and turns == 1:
        raise InputError(f"{option(said[0])} is of samples with several turns: say {option('turns')}, from 2 on", field=said[0])
    if turns > 1 and not algorithm.generates:
        raise InputError(f"{option('turns')} {turns}: {algorithm.name} generates nothing; leave it out", field="turns")
    own = {"tool_seconds": given.get("tool_time"), "tool_spread": given.get("tool_spread")}
    for name, value in own.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise InputError(f"{name.replace('_', ' ')} {str(value)[:40]!r}: use a number")
    tokens, boxes = (
        0
        if (value := given.get(name)) is None or (name == "tool_tokens" and value == 0)
        else _whole(given, name, None, assumed)
        for name in ("tool_tokens", "sandboxes")
    )
    if turns > 1 and own["tool_seconds"] is None:
        assumed.append(note("tools that answer at once (--tool-time is not said)", Effect.TIME))
    numbers = {name: float(value) for name, value in own.items() if value is not None}
    kept = not given.get("drop_prefix")
    return Agents(turns=turns, tool_tokens=tokens, sandboxes=boxes, keeps_prefix=kept, **numbers)


def _packed(given: Mapping[str, Any], job: PostTrainingJob, assumed: list[Remark]) -> int:
    """Tokens of a packed micro-batch; 0 where the framework pads samples. Raises InputError where they are asked for there."""
    if not job.framework.packs:
        if given.get("tokens_per_gpu") is not None:
            raise InputError(
                f"{option('tokens_per_gpu')}: {job.framework.name} packs no samples, it pads them; leave it out (it finds the "
                f"samples of a device batch), or use {option('framework')} verl"
            )
        assumed.append(note(f"every sample padded to the longest, {job.longest:,} tokens"))
        return 0
    tokens = max(_whole(given, "tokens_per_gpu", USUAL_TOKENS_PER_GPU, assumed), round(job.tokens))
    if tokens < job.longest:
        why = f"micro-batches that hold the longest sample, {job.longest:,} tokens over context-parallel GPUs"
        assumed.append(note(why))
    return tokens


PLAIN = re.compile(r"[\w./@+=-]+")
"""What stands in a script without quotes."""


def _checkpoint(model: Any, local_files: bool) -> str:
    """The folder whose config.json was given, or the hub's id; empty for names of the catalogue and for sizes."""
    if not (local_files and isinstance(model, str)):
        return ""
    file = config_file_of(model)
    given = "" if file is None or file.name != "config.json" else str(file.resolve().parent)
    return given if PLAIN.fullmatch(given) else ""


def _framework(name: str, assumed: list[Remark]) -> Framework:
    """The framework; of another release than files are written for that is said."""
    framework = load_framework(name)
    if framework.name == OTHER_FRAMEWORK:
        why = "of which no run is known here, priced as any other framework"
        assumed.append(Remark("framework", name, why, Effect.EVERYTHING))
    version = asked_version(name, framework)
    if version not in ("", framework.version):
        why = f"priced as its other releases; files are written for {framework.version}"
        assumed.append(Remark("framework", f"{framework.name} {version}", why))
    return framework


def _group(given: Mapping[str, Any], algorithm: Algorithm, framework: Framework, assumed: list[Remark]) -> int:
    """Responses of a prompt. Raises InputError for a single one where an algorithm compares those of a prompt."""
    usual = 1 if algorithm.critic or not algorithm.generates else framework.group
    compares = algorithm.name in COMPARING and not re.match("reinforce|remax", str(given.get("algorithm") or "").lower())
    compared = compares and usual < 2
    own = "" if compared or algorithm.critic or not algorithm.generates else framework.name
    found = _whole(given, "group_size", max(usual, USUAL_GROUP) if compared else usual, assumed, of=own)
    if compares and found < 2:
        raise InputError(f"{option('group_size')} {found}: {algorithm.name} compares responses of one prompt; use 2 or more")
    return found


def _minibatch(given: Mapping[str, Any], prompts: int, group: int, framework: Framework, assumed: list[Remark]) -> int:
    """Samples of an optimizer step, which divide those of a step. Raises InputError for others."""
    samples = prompts * group
    found = _whole(given, "minibatch", samples, assumed)
    if found > samples:
        raise InputError(f"{option('minibatch')} {found:,} is above the {samples:,} samples of a step (prompts x group)")
    unit = group if framework.minibatch_in_prompts else 1
    if samples % found or found % unit:
        sizes = [size * unit for size in divisors(samples // unit)]
        near = [max((s for s in sizes if s < found), default=sizes[0]), min(s for s in sizes if s > found)]
        prompted = f", in whole prompts of {group}" if unit > 1 else ""
        raise InputError(
            f"{option('minibatch')} {found:,} does not divide the {samples:,} samples of a step{prompted}: use "
            f"{' or '.join(f'{s:,}' for s in sorted(set(near)))}"
        )
    return found


def _responses(given: Mapping[str, Any], assumed: list[Remark], usual_tokens: int) -> ResponseLengths:
    """Lengths of responses; what is not said of mean and cap follows from the other."""
    usual = section("lengths")
    mean, cap = (
        None if given.get(name) is None else _whole(given, name, None, assumed)
        for name in ("response_length", "max_response_length")
    )
    if cap is None:
        cap = 4 * (mean or usual_tokens or usual["response_tokens"])
        assumed.append(Remark("max_response_length", cap, ""))
    if mean is None:
        mean = min(max(1, round(usual["response_share_of_cap"] * cap)), usual["response_tokens_at_most"])
        assumed.append(Remark("response_length", mean, ""))
    if mean > cap:
        raise InputError(f"{option('response_length')} {mean:,} is above the cap of {cap:,} ({option('max_response_length')})")
    return ResponseLengths(mean=float(mean), cap=min(cap, MAX_TOKENS), sigma=1.0 if cap >= 16_384 else 0.6)
