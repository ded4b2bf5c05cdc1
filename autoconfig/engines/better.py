"""The better start of the same GPUs at a load: other layouts, then the flags that move scheduler and pool, each tried by the
same simulation; and hints at what is not for nothing: a cache in 8 bits, drafts, a quantised checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from autoconfig.engines.load import BetterStart, Load, LoadAnswer, StartHint, by_means, case_of, row_of, simulated
from autoconfig.engines.refusals import refusal
from autoconfig.engines.written import changed_flags, with_plan
from autoconfig.memory_model.engines.memory import engine_memory
from autoconfig.runs.predict_serving import Figures
from autoconfig.runs.serving_row import ACCEPTANCE
from autoconfig.serving.space import expert_degrees
from autoconfig.specs.engines.start import EngineMemory, EngineStart
from autoconfig.specs.errors import AutoconfigError
from autoconfig.specs.layouts import divisors
from autoconfig.specs.software.checkpoint import checkpoint_named
from autoconfig.specs.software.engine import loads_checkpoint

BETTER = 1.03
"""Times as much from which on another start is called better."""
WORTH = 1.01
"""Times as much that a flag must bring to be changed, too."""
TOKENS = (2048, 8192, 16384)
"""Tokens of a step that are tried."""
SHARES = (0.9, 0.92, 0.95)
FEWER = 4
"""Requests a user of a benchmark by which starts are compared; the figures that are said are of all."""
FULL = 0.9
"""Share of a pool from which on more memory, or fewer seats, may help."""
SUFFIXES = ("-FP8", "-AWQ")
"""Of quantised checkpoints that a model's own publisher has, where the table knows such an id."""


@dataclass(frozen=True, kw_only=True)
class _Tried:
    """A start with what it does."""

    start: EngineStart
    memory: EngineMemory
    figures: Figures


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """Prices starts at one load."""

    load: Load
    receive_every: int
    named: str
    """The model as the command names it."""

    def of(self, start: EngineStart, named: str | None = None, *, whole: bool = False) -> _Tried | None:
        """None where the engine refuses it, it does not surely start or cannot be priced. A benchmark is cut to FEWER requests
        a user unless it is to be `whole`."""
        try:
            if refusal(start):
                return None
            memory = engine_memory(start)
            longest = (self.load.isl or 0) + (self.load.osl or 0)
            if memory.starts != "yes" or memory.max_model_len < longest:
                return None
            row = row_of(start, memory, self.load, self.receive_every, self.named if named is None else named)
            fewer = {} if whole or not self.load.concurrency else {"requests": str(FEWER * self.load.concurrency)}
            found = simulated(case_of(start, {**row, **fewer}))
        except AutoconfigError:
            return None
        return None if isinstance(found, str) else _Tried(start=start, memory=memory, figures=found)

    def gain(self, other: Figures, here: Figures) -> float:
        """Times as many tokens a second; at a rate, which decides those, the time of a request here over there."""
        if not self.load.rate:
            return other.tokens_per_s / here.tokens_per_s

        def request_s(one: Figures) -> float:
            return one.ttft_s + ((self.load.osl or 1) - 1) * one.tpot_s

        return request_s(here) / request_s(other)


def with_better(
    answer: LoadAnswer, start: EngineStart, memory: EngineMemory, load: Load, receive_every: int = 1, named: str = ""
) -> LoadAnswer:
    """The answer with the better start and the hints, where figures of a load are known."""
    if answer.ttft_ms is None or answer.tpot_ms is None or answer.tokens_per_s is None:
        return answer
    here = Figures(ttft_s=answer.ttft_ms / 1e3, tpot_s=answer.tpot_ms / 1e3, tokens_per_s=answer.tokens_per_s)
    trial = _Trial(load=by_means(load)[0], receive_every=receive_every, named=named)
    first = trial.of(start)
    if first is None:  # at the edge of its memory
        first = _Tried(start=start, memory=memory, figures=here)
    found = trial.of(_by_flags(trial, _by_layout(trial, first)).start, whole=True)
    better = found if found is not None and trial.gain(found.figures, here) > BETTER else None
    base = better or _Tried(start=start, memory=memory, figures=here)
    hints = tuple(sorted(_hints(trial, base), key=lambda one: -one.tokens_per_s))
    return replace(answer, better=None if better is None else _better_start(start, better), hints=hints)


def _better_start(start: EngineStart, kept: _Tried) -> BetterStart:
    return BetterStart(
        start=kept.start,
        changes=changed_flags(start, kept.start),
        ttft_ms=kept.figures.ttft_s * 1e3,
        tpot_ms=kept.figures.tpot_s * 1e3,
        tokens_per_s=kept.figures.tokens_per_s,
        kv_tokens=kept.memory.kv_tokens,
    )


def _by_layout(trial: _Trial, first: _Tried) -> _Tried:
    """The best of the same start in every layout of its GPUs; the first where no other is BETTER times as good."""
    best, most = first, BETTER
    for other in _layouts(first.start):
        found = trial.of(other)
        if found is not None and (gain := trial.gain(found.figures, first.figures)) > most:
            best, most = found, gain
    return best


def _layouts(start: EngineStart) -> Iterator[EngineStart]:
    """The same start in every other layout of its GPUs on one node."""
    model, gpus, plan = start.model, start.gpus, start.plan
    for tp in divisors(gpus):
        for adp in divisors(gpus // tp) if model.is_moe else [1]:
            for ep in {1, tp * adp} & set(expert_degrees(model, tp, adp)):
                other = plan.replace(tp=tp, pp=1, adp=adp, ep=ep, replicas=gpus // (tp * adp))
                if gpus % (tp * adp) or (adp > 1 and other.replicas > 1) or str(other) == str(plan):
                    continue
                try:
                    yield with_plan(start, other)
                except AutoconfigError:
                    continue


def _by_flags(trial: _Trial, best: _Tried) -> _Tried:
    """The best by one flag after the other, each kept where it alone brings WORTH."""
    for values in (_graphs, _seats, _steps, _shares, _seats):
        tried = [found for other in values(trial, best) if (found := trial.of(other)) is not None]
        better = max(tried, key=lambda one: trial.gain(one.figures, best.figures), default=best)
        if trial.gain(better.figures, best.figures) > WORTH:
            best = better
    return best


def _graphs(trial: _Trial, best: _Tried) -> Iterator[EngineStart]:
    if best.start.eager:
        yield best.start.replace(eager=None)


def _users(trial: _Trial, best: _Tried) -> int:
    """Users of one rank; at a rate more than any server seats, where requests wait for a seat."""
    if trial.load.concurrency:
        return math.ceil(trial.load.concurrency / best.start.attention_ranks)
    return 4 * best.memory.max_num_seqs if best.figures.ttft_s > 1.0 else 0


def _seats(trial: _Trial, best: _Tried) -> Iterator[EngineStart]:
    """As many sequences as there are users, and where the pool is full about as many as it holds."""
    start, memory, users = best.start, best.memory, _users(trial, best)
    ranks = start.dp if start.engine == "sglang" and start.attention_dp else 1
    wanted = {2 ** math.ceil(math.log2(users))} if users > memory.max_num_seqs else set[int]()
    if _full(trial, best) and users:
        held = int(memory.kv_tokens / start.attention_ranks / _length(trial))
        wanted |= {2 ** int(math.log2(max(held, 1))), 2 ** math.ceil(math.log2(max(min(users, held), 1)))}
    for seats in sorted(wanted - {memory.max_num_seqs}):
        yield start.replace(max_num_seqs=min(seats, 4096) * ranks)


def _length(trial: _Trial) -> int:
    return (trial.load.isl or 1) + (trial.load.osl or 1)


def _full(trial: _Trial, best: _Tried) -> bool:
    """Whether the sequences at once fill the pool."""
    at_once = min(_users(trial, best) or best.memory.max_num_seqs, best.memory.max_num_seqs)
    return at_once * _length(trial) * best.start.attention_ranks > FULL * best.memory.kv_tokens


def _steps(trial: _Trial, best: _Tried) -> Iterator[EngineStart]:
    """Tokens of a step, prompts in more or fewer pieces; TensorRT-LLM takes whole prompts."""
    whole = trial.load.isl or 1 if best.start.engine == "tensorrt-llm" else 1
    for tokens in TOKENS:
        if tokens != best.memory.max_num_batched_tokens and tokens >= max(whole, best.memory.max_num_seqs):
            yield best.start.replace(max_num_batched_tokens=tokens)


def _shares(trial: _Trial, best: _Tried) -> Iterator[EngineStart]:
    """A larger share, of the engines whose law says what must be left: graphs and activations of SGLang live in the rest."""
    if best.start.engine != "sglang" and _full(trial, best) and best.start.kv_cache_bytes is None:
        for share in SHARES:
            if share > best.memory.memory_fraction:
                yield best.start.replace(memory_fraction=share)


def _hints(trial: _Trial, base: _Tried) -> Iterator[StartHint]:
    """What does more and is not for nothing, each alone."""
    start = base.start
    tried: list[tuple[EngineStart, str | None, str, str]] = []
    if start.plan.kv == "bf16":
        tried.append((start.replace(kv="fp8"), None, "", "the cache is rounded to 8 bits: measure the quality"))
    if start.model.mtp_num_layers and not start.draft_method:
        why = f"where a draft token is accepted with a chance of {ACCEPTANCE:g} (assumed: measure it)"
        tried += [(start.replace(draft_method="mtp", draft_tokens=drafts), None, "", why) for drafts in (1, 3)]
    for name in _quantised(start, trial):
        other = start.replace(checkpoint=checkpoint_named(name))
        tried.append(
            (other, name, f"a checkpoint like {name}", "weights in fewer bits: where it is published; measure the quality")
        )
    for other, named, change, why in tried:
        found = trial.of(other, named, whole=True)
        if found is not None and trial.gain(found.figures, base.figures) > BETTER:
            flags = ", ".join(f"{flag} {new}" for flag, _, new in changed_flags(start, other) if new)
            yield StartHint(
                change=change or flags,
                why=why,
                ttft_ms=found.figures.ttft_s * 1e3,
                tpot_ms=found.figures.tpot_s * 1e3,
                tokens_per_s=found.figures.tokens_per_s,
            )


def _quantised(start: EngineStart, trial: _Trial) -> Iterator[str]:
    """Ids of quantised checkpoints beside one in 16 bits that the engine loads on this GPU."""
    if start.checkpoint is not None or "/" not in trial.named or start.formats.mlp != "bf16":
        return
    for suffix in SUFFIXES:
        found = checkpoint_named(trial.named + suffix)
        if found is not None and not loads_checkpoint(start.engine, found.kind, start.gpu):
            yield trial.named + suffix
