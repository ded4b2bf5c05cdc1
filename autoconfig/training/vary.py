"""The search with the run's switches varied, where it is asked (`--vary`): which of them make the first plan fastest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autoconfig.planning.request_fields import SWITCHES
from autoconfig.planning.resolve import field_names
from autoconfig.specs.errors import InputError, option
from autoconfig.specs.software.software import DISPATCHERS
from autoconfig.training.question import Question, understand
from autoconfig.training.rank import Ranking

VALUES: dict[str, tuple[str | bool, ...]] = {
    "dispatcher": DISPATCHERS,
    "cuda_graphs": ("none", "attn,moe_router,moe_preprocess", "full_iteration"),
    "ep_overlap": (True, False),
    "fused_experts": (True, False),
}
"""What each switch is tried with, in this order."""
MAX_ROUNDS = 3


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
    its values and the best of the others, until none changes. The question says what was tried and its step. Raises InputError
    where no value of a switch is of use to the model."""
    names, tried = names_to_vary(question.request.vary), dict[str, str]()
    given = [name for name in names if question.request.switches.get(name) is not None]
    if given:
        name = given[0].replace("_", "-")
        raise InputError(f"give either {option(given[0])} or {option('vary')} {name}, not both", field="vary")
    best, ranking = question, ranked(question)
    least = _first_step(ranking)
    tried["as the software has them"] = f"{least:.4g} s" if ranking.best.size else "nothing fits"
    for turn in range(MAX_ROUNDS):
        before = least
        for name in names:
            refused: list[InputError] = []
            for value in VALUES[name]:
                switches = {**best.request.switches, name: value}
                try:
                    other = understand(replace(best.request, switches=switches))
                except InputError as error:
                    refused.append(error)
                    continue
                if other.scenario.settings() == best.scenario.settings():
                    continue
                if progress is not None:
                    progress(_said(switches, names))
                found = ranked(other)
                step = _first_step(found)
                tried[_said(switches, names)] = "nothing fits" if step == float("inf") else f"{step:.4g} s"
                if step < least:
                    best, ranking, least = other, found, step
            if len(refused) == len(VALUES[name]):
                raise refused[-1]
        if (turn and least == before) or len(names) == 1:
            break
    return _told(best, question, names, tried), ranking


def _first_step(ranking: Ranking) -> float:
    return float(ranking.step_seconds[int(ranking.best[0])]) if len(ranking.best) else float("inf")


def _said(switches: Mapping[str, object], names: Sequence[str]) -> str:
    given = [(name.replace("_", "-"), switches[name]) for name in names if switches.get(name) is not None]
    words = ((name, ("off", "on")[value] if isinstance(value, bool) else value) for name, value in given)
    return " with ".join(f"{name} {word}" for name, word in words)


def _told(best: Question, asked: Question, names: Sequence[str], tried: dict[str, str]) -> Question:
    """The question with the switches found, and a sentence about what was tried."""
    chosen = _said(best.request.switches, names) or "as the software has them"
    steps = "; ".join(f"{words}: {step}" for words, step in tried.items())
    said = f"switches varied (--vary): {chosen} {'is' if len(names) == 1 else 'are'} the fastest. First plans: {steps}"
    request = replace(asked.request, switches=best.request.switches)
    return replace(best, request=request, assumed=(said, *best.assumed))
