"""`autoconfig search --format`: the space narrowed to the plans that a trainer's format can say, and what that leaves out; of
Hugging Face's Trainer, beside fp32 copies of all weights, what else trains them there in less memory, with what each costs.
Where the copies do not fit, the first way that fits is answered, or one that loses no update and is as fast."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoconfig.formats.hooks.deepspeed import DEEPSPEED
from autoconfig.formats.writers import trl
from autoconfig.formats.writers.table import WRITERS
from autoconfig.formats.writers.trainers import AXOLOTL, FACTORY
from autoconfig.formats.writers.trl import unsharded
from autoconfig.specs.errors import GIB, InputError, option
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.software import DEFAULT_STACK, OWN_BUCKET, load_stack
from autoconfig.training.answer import SearchAnswer
from autoconfig.training.answer import answer as search
from autoconfig.training.question import Request, request_of, understand
from autoconfig.training.space import Constraints

EXPORTED = ("trl", FACTORY, AXOLOTL)
"""Formats that a search can export itself, of Hugging Face's Trainer."""
ZERO = "deepspeed"
"""As which TRL is priced where accelerate starts DeepSpeed: state that waits in CPU memory is DeepSpeed's."""


def narrowed(given: Mapping[str, Any], form: str) -> dict[str, Any]:
    """Return the fields of a search with --fix and --exclude of what the format says. Raises InputError where --fix asks for
    more, and beside --export."""
    _require_exported(given, form)
    fixed = _fixed(given["fix"])
    software = given.get("software") or WRITERS[form].software
    if form == "trl" and given.get("software") is None and fixed.get("offload", set()) - {"0", "0.0"}:
        software = ZERO
    wish = _wish(given, form, software)
    fix = list(given["fix"])
    for key, allowed in wish.fixed.items():
        words = {str(int(value)) if isinstance(value, bool) else str(value) for value in allowed}
        if other := fixed.get(key, set()) - words:
            raise InputError(
                f"{option('format')} {form} says {key}={' or '.join(sorted(words))}, and {option('fix')} asks for "
                f"{key}={', '.join(sorted(other))}; leave one of them out"
            )
        fix += [f"{key}={word}" for word in sorted(words)] if key not in fixed else []
    more = [f"{key}={value}" for key, values in wish.excluded.items() for value in sorted(map(str, values))]
    loss = {"loss": given.get("loss") or trl.LOSS} if form == "trl" else {}
    return {**given, **loss, "fix": tuple(fix), "exclude": (*given["exclude"], *more), "software": software}


def _require_exported(given: Mapping[str, Any], form: str) -> None:
    """Raises InputError where --export writes another format."""
    fine_tunes = given.get("peft") not in (None, "none") or given.get("packed_length") is not None
    if given.get("export") is None or form in EXPORTED or (fine_tunes and form == "bridge"):
        return
    written = "Megatron-Bridge's overrides for adapters and packed samples" if fine_tunes else "Megatron-LM scripts"
    raise InputError(
        f"{option('export')} writes {written}; leave {option('format')} out, or take the plan to another format "
        "with autoconfig export PLAN and autoconfig convert plan.json --format NAME"
    )


def _fixed(texts: Iterable[str]) -> dict[str, set[str]]:
    """Return the values of each key of a plan that --fix asks for."""
    fixed: dict[str, set[str]] = {}
    for part in ",".join(texts).split(","):
        key, _, value = part.partition("=")
        fixed.setdefault(key.strip(), set()).add(value.strip())
    return fixed


def _wish(numerics: Mapping[str, object], form: str, software: str | None) -> Constraints:
    """Return what the format's plans are held to, with these numerics."""
    wish = DEEPSPEED.wish if form == "trl" and software == ZERO else WRITERS[form].wish
    if form not in EXPORTED:
        return wish
    if unsharded(numerics):
        return replace(wish, fixed={**wish.fixed, "fsdp": frozenset({0}), "dist_opt": frozenset({False})})
    if form == AXOLOTL and numerics.get("peft") in (None, "none") and numerics.get("precision") != "fp32":
        return replace(wish, fixed={**wish.fixed, "fsdp": frozenset({2, 3})})  # whose shards are made fp32
    return wish


def _with_buckets(request: Request, form: str) -> Request:
    """Return the request with sizes of DeepSpeed's buckets that the file has: where it says them and nobody asked for others,
    those that transformers' Trainer fills in for `auto` (integrations/deepspeed.py: the hidden size squared); DeepSpeed's own
    of a file of accelerate, which has no words for them."""
    if request.switches.get("zero_bucket") is not None or load_stack(request.software or DEFAULT_STACK).sharding != "deepspeed":
        return request
    if form not in OF_ACCELERATE:
        size = {"zero_bucket": understand(request).scenario.model.hidden_size ** 2}
    else:
        size = {"zero_bucket": OWN_BUCKET, "own_overlap": True}
    return replace(request, switches={**request.switches, **size})


OF_ACCELERATE = ("trl", "accelerate", AXOLOTL)
"""Formats whose DeepSpeed is started by accelerate's file."""


@dataclass
class Sayable:
    """Which plans a format can say, for a search; what it left out."""

    form: str
    refused: dict[str, list[str]] = field(default_factory=dict)
    """What the format has no words for -> the plans with it, fastest first."""

    def __call__(self, scenario: Scenario, plan: TrainPlan) -> bool:
        words = WRITERS[self.form].refused(scenario, plan)
        if words:
            self.refused.setdefault("; ".join(words), []).append(str(plan))
        return not words

    def lines(self) -> list[str]:
        """Return sentences of what is left out, the fastest first."""
        texts = []
        for words, plans in list(self.refused.items())[:LEFT_OUT]:
            more = f" and {len(plans) - 1:,} more" if len(plans) > 1 else ""
            texts.append(f"left out: {plans[0]}{more}: {self.form} cannot say {words}")
        others = sum(map(len, list(self.refused.values())[LEFT_OUT:]))
        return [*texts, *([f"left out: {others:,} others that {self.form} cannot say"] if others else [])]


LEFT_OUT = 4
"""Kinds of plans that are named of those that a format cannot say."""


def search_sayable(
    given: Mapping[str, Any], form: str, progress: Callable[[str], None] | None = None, *, whole: bool = False
) -> tuple[SearchAnswer, list[str]]:
    """Return the best plans that the format can say, and what it leaves out, as sentences. Raises InputError."""
    says, writer = Sayable(form), WRITERS[form]
    answer = search(_with_buckets(request_of(narrowed(given, form)), form), progress, whole=whole, says=says)
    scenario = answer.question.scenario
    wish = _wish(vars(scenario.numerics), form, scenario.software.name)
    keys = [f"{key}={'|'.join(sorted(map(str, values)))}" for key, values in wish.fixed.items()]
    keys += [f"no {key}={'|'.join(sorted(map(str, values)))}" for key, values in wish.excluded.items()]
    lines = [f"format {form}: searched are plans with {', '.join(keys)}" if keys else f"format {form} says every plan's keys"]
    if scenario.software.name in (writer.software, ZERO):
        lines.append(f"priced as software {scenario.software.name}, as {form} runs its layers (--software names another)")
    lines += says.lines()
    if answer.plans and (unsaid := writer.write(scenario, answer.plans[0].report.plan).unsaid):
        lines.append(f"not in the {form} file: {'; '.join(unsaid)}")
    return answer, lines


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to train all weights in less memory than with fp32 copies and moments."""

    name: str
    options: str
    costs: str
    asks: Mapping[str, Any]
    """Fields of a search for it."""

    def asked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a search that this way changes."""
        return {**given, **self.asks, "fix": (*given["fix"], *self.asks.get("fix", ()))}

    def line(self, answer: SearchAnswer) -> str:
        """Return what the way costs, and what its first plan takes."""
        report = answer.plans[0].report
        gib = f"{report.peak_bytes / GIB:.1f} of {report.limit_bytes / GIB:.1f} GiB"
        return f"{self.name} ({self.options}), {self.costs}: {report.step_seconds:,.3g} s a step, {gib}"


_ROUNDING = "updates below half a step of bf16 are lost (2^-9 of a weight)"
WAYS = (
    Way(
        name="pure bf16",
        options="--weights-are-masters",
        asks={"weights_are_masters": True},
        costs=f"8 bytes a parameter for 16; {_ROUNDING}",
    ),
    Way(
        name="pure bf16 and Adam's moments in 8 bits",
        options="--weights-are-masters --optimizer adam8bit",
        asks={"weights_are_masters": True, "optimizer": "adam8bit"},
        costs=f"6 bytes a parameter for 16; {_ROUNDING}, moments are rounded in blocks of 256",
    ),
    Way(
        name="Adam's moments in 8 bits",
        options="--optimizer adam8bit",
        asks={"optimizer": "adam8bit"},
        costs="10 bytes a parameter for 16; moments are rounded in blocks of 256",
    ),
    Way(
        name="optimizer state in CPU memory (DeepSpeed)",
        options="--fix offload=1",
        asks={"fix": ("offload=1",)},
        costs="no rounding; gradients and weights pass the host link in each step, and Adam runs on the CPU",
    ),
)
KEEPS_WEIGHTS = (
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
    """Return the plans that a format can say, and sentences: what it leaves out, which other ways there are to train all
    weights. Raises InputError."""
    if not _is_ordinary(given, form):
        return search_sayable(given, form, progress, whole=whole)
    answer, lines = None, list[str]()
    fits = [(way, other) for way in WAYS if (other := _tried(way, given, form)) is not None]
    try:
        answer, lines = search_sayable(given, form, progress, whole=whole)
    except InputError:
        if not fits:
            raise
    if answer is not None and (answer.plans or not fits):
        return answer, lines + [f"other ways to train all weights: {way.line(other)}" for way, other in fits]
    best = _best(fits)
    why = "does not fit with fp32 copies of the weights"
    if answer is not None and (miss := answer.ranking.closest) is not None:
        why += f" ({miss.excess_bytes / GIB:,.1f} GiB too much)"
    answer, lines = search_sayable(best.asked(given), form, progress, whole=whole)
    lines.append(f"{why}: answered is {best.name} ({best.options}), {best.costs}")
    return answer, lines + [f"another way: {way.line(other)}" for way, other in fits if way is not best]


def _best(fits: Sequence[tuple[Way, SearchAnswer]]) -> Way:
    """Return the first way that fits, or the fastest of those that lose no update and are as fast."""
    seconds = {way.name: answer.plans[0].report.step_seconds for way, answer in fits}
    exact = [way for way, _ in fits if _ROUNDING not in way.costs and seconds[way.name] <= seconds[fits[0][0].name]]
    return min(exact, key=lambda one: seconds[one.name], default=fits[0][0])


def _is_ordinary(given: Mapping[str, Any], form: str) -> bool:
    """Return whether all weights are trained and nothing is said of how they are kept."""
    named = any(given.get(name) is not None for name in KEEPS_WEIGHTS)
    fixed = any(key in text for text in given.get("fix") or () for key in ("offload", "fsdp", "dist_opt"))
    full = given.get("peft") in (None, "none") and given.get("precision") in (None, "bf16")
    return form in EXPORTED and full and not named and not fixed


def _tried(way: Way, given: Mapping[str, Any], form: str) -> SearchAnswer | None:
    """Return the answer for a way; None where the format, the GPU or the model has it not, or nothing fits."""
    if "fix" in way.asks and form != "trl" and WRITERS[form].software != ZERO:
        return None
    try:
        answer = search_sayable({**way.asked(given), "top": 1}, form)[0]
    except InputError:
        return None
    return answer if answer.plans else None
