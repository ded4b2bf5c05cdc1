"""The search with the run's switches varied, where it is asked (`--vary`): which of them make the first plan fastest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from autoconfig.planning.request_fields import SWITCHES
from autoconfig.planning.resolve import field_names
from autoconfig.specs.errors import InputError, option
from autoconfig.specs.remarks import Effect, Remark
from autoconfig.specs.software.software import DISPATCHERS
from autoconfig.training.question import Question, Variant, understand
from autoconfig.training.rank import Ranking
from autoconfig.training.rules import RULE_TEXT

VALUES: dict[str, tuple[str | bool, ...]] = {
    "dispatcher": DISPATCHERS,
    "cuda_graphs": ("none", "attn,moe_router,moe_preprocess", "full_iteration"),
    "ep_overlap": (True, False),
    "fused_experts": (True, False),
    "fp8_attention": (True, False),
    "fp8_output": (True, False),
}
"""What each switch is tried with, in this order."""
MAX_ROUNDS = 3
FEW = 8
"""So many settings of the switches are all tried: the one that is best alone may exclude the best pair."""
UNCHANGED = "as the software has them"


def names_to_vary(texts: Sequence[str]) -> tuple[str, ...]:
    """Fields of SWITCHES, in their order, of words with commas between them. Raises InputError."""
    words = [word.strip().lower().replace("-", "_") for text in texts for word in text.split(",") if word.strip()]
    if odd := [word for word in words if word not in VALUES]:
        known = ", ".join(name.replace("_", "-") for name in VALUES)
        raise InputError(f"{option('vary')} {odd[0][:40]!r}: use {known}, with commas between them", field="vary")
    if not words:
        raise InputError(f"{option('vary')}: name the switches to try, like dispatcher,ep-overlap", field="vary")
    return tuple(name for name in field_names(SWITCHES) if name in words)


def varied(
    question: Question, ranked: Callable[[Question], Ranking], progress: Callable[[str], None] | None = None
) -> tuple[Question, Ranking]:
    """The question with those switches whose first plan is fastest, and its ranking: one switch after the other, each with all
    its values and the best of the others, until none changes; of few settings all. The question holds what was tried. Raises
    InputError where no value of a switch is of use to the model."""
    names = names_to_vary(question.request.vary)
    given = [name for name in names if question.request.switches.get(name) is not None]
    if given:
        name = given[0].replace("_", "-")
        raise InputError(f"give either {option(given[0])} or {option('vary')} {name}, not both", field="vary")
    if progress is not None:
        progress(UNCHANGED)
    best, ranking = question, ranked(question)
    first = ranking
    least = _first_step(ranking)
    tried = {UNCHANGED: Variant(UNCHANGED, least, _why_none(ranking, first))}

    def attempt(**changes: str | bool) -> InputError | None:
        """Search with the best switches and these changes; the reason where they cannot be."""
        nonlocal best, ranking, least
        switches = {**best.request.switches, **changes}
        words = _said(switches, names)
        try:
            other = understand(replace(best.request, switches=switches))
            same = other.scenario.settings() == best.scenario.settings()
        except InputError as error:
            tried[words] = Variant(words, math.inf, str(error))
            return error
        if same or words in tried:
            return None
        if progress is not None:
            progress(words)
        found = ranked(other)
        step = _first_step(found)
        tried[words] = Variant(words, step, _why_none(found, first))
        if step < least:
            best, ranking, least = other, found, step
        return None

    for turn in range(MAX_ROUNDS):
        before = least
        for name in names:
            refused = [error for value in VALUES[name] if (error := attempt(**{name: value})) is not None]
            if len(refused) == len(VALUES[name]):
                raise refused[-1]
        if (turn and least == before) or len(names) == 1:
            break
    if 1 < math.prod(len(VALUES[name]) for name in names) <= FEW:
        for values in product(*(VALUES[name] for name in names)):
            attempt(**dict(zip(names, values, strict=True)))
    chosen = _said(best.request.switches, names) or UNCHANGED
    variants = sorted(tried.values(), key=lambda one: (one.step_seconds, one.words != chosen))
    request = replace(question.request, switches=best.request.switches)
    return replace(best, request=request, varied=tuple(variants)), ranking


def _first_step(ranking: Ranking) -> float:
    return float(ranking.step_seconds[int(ranking.best[0])]) if len(ranking.best) else math.inf


def _why_none(ranking: Ranking, first: Ranking) -> str:
    """Why a setting of the switches has no plan: too large, or the rule that forbids most of what is legal without it; empty
    where it has one."""
    if len(ranking.best):
        return ""
    if ranking.funnel.legal:
        return "no plan fits"
    before = first.funnel.rejected_by_rule
    more = {rule: count - before.get(rule, 0) for rule, count in ranking.funnel.rejected_by_rule.items()}
    rule = max(more, key=lambda rule: more[rule])
    return f"no legal plan ({rule}: {RULE_TEXT[rule]})" if rule in RULE_TEXT else "no legal plan"


def _said(switches: Mapping[str, object], names: Sequence[str]) -> str:
    given = [(name.replace("_", "-"), switches[name]) for name in names if switches.get(name) is not None]
    words = ((name, ("off", "on")[value] if isinstance(value, bool) else value) for name, value in given)
    return ", ".join(f"{name} {word}" for name, word in words)


def varied_remarks(question: Question) -> tuple[Remark, ...]:
    """What was tried; nothing where nothing was asked."""
    if not question.varied:
        return ()
    chosen = "none is possible" if math.isinf(question.varied[0].step_seconds) else f"fastest with {question.varied[0].words}"
    why = f"{chosen}. First plans: {'; '.join(map(str, question.varied))}"
    return (Remark("vary", question.varied[0].words, why, Effect.EVERYTHING),)
