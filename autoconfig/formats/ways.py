"""`autoconfig search --format` of Hugging Face's Trainer: beside fp32 copies of all weights, what else trains them there in
less memory, with what each costs. Where the copies do not fit, the first way that fits is answered, or one that loses no update
and is as fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoconfig.formats.narrow import EXPORTED, ZERO, search_sayable
from autoconfig.formats.writers.table import WRITERS
from autoconfig.specs.errors import GIB, InputError
from autoconfig.training.answer import SearchAnswer


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to train all weights in less memory than with fp32 copies and moments."""

    name: str
    options: str
    given: Mapping[str, Any] = field(default_factory=dict)
    """What is asked of a search for it."""
    costs: str


_ROUNDING = "updates below half a step of bf16 are lost (2^-9 of a weight)"
WAYS = (
    Way(
        name="pure bf16",
        options="--weights-are-masters",
        given={"weights_are_masters": True},
        costs=f"8 bytes a parameter for 16; {_ROUNDING}",
    ),
    Way(
        name="pure bf16 and Adam's moments in 8 bits",
        options="--weights-are-masters --optimizer adam8bit",
        given={"weights_are_masters": True, "optimizer": "adam8bit"},
        costs=f"6 bytes a parameter for 16; {_ROUNDING}, moments are rounded in blocks of 256",
    ),
    Way(
        name="Adam's moments in 8 bits",
        options="--optimizer adam8bit",
        given={"optimizer": "adam8bit"},
        costs="10 bytes a parameter for 16; moments are rounded in blocks of 256",
    ),
    Way(
        name="optimizer state in CPU memory (DeepSpeed)",
        options="--fix offload=1",
        given={"fix": ("offload=1",)},
        costs="no rounding; gradients and weights pass the host link in each step, and Adam runs on the CPU",
    ),
)
ORDINARY = (
    "weights_are_masters",
    "optimizer",
    "main_params_dtype",
    "exp_avg_dtype",
    "exp_avg_sq_dtype",
    "software",
    "packed_length",
)
"""Fields of which one that is given says how the weights are kept, so that nothing else is looked for."""


def search_format(
    given: Mapping[str, Any], form: str, progress: Callable[[str], None] | None = None, *, whole: bool = False
) -> tuple[SearchAnswer, list[str]]:
    """The plans that a format can say, and sentences: what it leaves out, which other ways there are to train all weights.
    Raises InputError."""
    ordinary = _ordinary(given, form)
    refused: InputError | None = None
    answer: SearchAnswer | None = None
    lines: list[str] = []
    try:
        answer, lines = search_sayable(given, form, progress, whole=whole)
    except InputError as error:
        if not ordinary or given.get("weights_are_masters"):
            raise
        refused = error
    if answer is not None and not ordinary:
        return answer, lines
    tried = ((way, _tried(way, given, form)) for way in WAYS)
    fits = [(way, other) for way, other in tried if other is not None and other.plans]
    if answer is not None and answer.plans:
        return answer, lines + [f"other ways to train all weights: {_line(way, other)}" for way, other in fits]
    if not fits:
        if refused is not None:
            raise refused
        assert answer is not None
        return answer, lines
    way = _best(fits)
    best, lines = search_sayable({**given, **_merged(way, given)}, form, progress, whole=whole)
    why = f"does not fit with fp32 copies of the weights{_short(answer)}"
    lines.append(f"{why}: answered is {way.name} ({way.options}), {way.costs}")
    return best, lines + [f"another way: {_line(other, found)}" for other, found in fits if other is not way]


def _best(fits: Sequence[tuple[Way, SearchAnswer]]) -> Way:
    """Return the first way that fits, or the fastest of those that lose no update and are as fast."""
    seconds = {way.name: answer.plans[0].report.step_seconds for way, answer in fits}
    exact = [way for way, _ in fits if _ROUNDING not in way.costs and seconds[way.name] <= seconds[fits[0][0].name]]
    return min(exact, key=lambda one: seconds[one.name], default=fits[0][0])


def _ordinary(given: Mapping[str, Any], form: str) -> bool:
    """Whether all weights are trained and nothing is said of how they are kept."""
    named = any(given.get(name) is not None for name in ORDINARY)
    fixed = any(key in text for text in given.get("fix") or () for key in ("offload", "fsdp", "dist_opt"))
    full = given.get("peft") in (None, "none") and given.get("precision") in (None, "bf16")
    return form in EXPORTED and full and not named and not fixed


def _merged(way: Way, given: Mapping[str, Any]) -> dict[str, Any]:
    return {**way.given, "fix": (*given["fix"], *way.given.get("fix", ()))}


def _tried(way: Way, given: Mapping[str, Any], form: str) -> SearchAnswer | None:
    """The answer for a way; None where the format, the GPU or the model has it not."""
    if "fix" in way.given and form != "trl" and WRITERS[form].software != ZERO:
        return None
    try:
        return search_sayable({**given, **_merged(way, given), "top": 1}, form)[0]
    except InputError:
        return None


def _line(way: Way, answer: SearchAnswer) -> str:
    report = answer.plans[0].report
    return (
        f"{way.name} ({way.options}), {way.costs}: {report.step_seconds:,.3g} s a step, {report.peak_bytes / GIB:.1f} of "
        f"{report.limit_bytes / GIB:.1f} GiB"
    )


def _short(answer: SearchAnswer | None) -> str:
    miss = None if answer is None else answer.ranking.closest
    return "" if miss is None else f" ({miss.excess_bytes / GIB:,.1f} GiB too much)"
