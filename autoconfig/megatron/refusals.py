"""What megatron-core refuses of an argument list at its start: pairs of arguments, by the table of them, and what
Megatron-FSDP, windows and sinks need."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from autoconfig.megatron.argument_list import Arguments
from autoconfig.specs.errors import InputError
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.remarks import Effect, Remark, note
from autoconfig.specs.scenario import Scenario
from autoconfig.training.price import Violation

RELEASES = tuple(f"0.{minor}" for minor in range(4, 20))
"""Of megatron-core, oldest first; the last is the one that judges."""
OF_THE_MODEL = frozenset(
    f"--{name}" for name in ("position-embedding-type", "num-experts", "multi-latent-attention", "moe-router-score-function")
)
"""Arguments that a model which is named elsewhere brings."""
REFUSED_PAIR = "AC034"
"""The rule of pairs that no other rule is about."""
CHECKPOINT = "NV102"
ONE_CONNECTION = "CUDA_DEVICE_MAX_CONNECTIONS"
OPTIMIZERS = ("adam", "sgd")


@dataclass(frozen=True, kw_only=True)
class ArgumentPair:
    """One row of `autoconfig/data/megatron_pairs.csv`: `argument`, with one of `values` where there are any (`>0`: a number
    above 0), needs or excludes one of the `other` ones, with one of `other_values`, where `usual` is what an absent one has;
    not beside `unless`. `rule` is a legality rule where there is one, `source` of megatron-core 0.19.2,
    `since` the first release of megatron-core (its tags from core_v0.4.0 on) whose source refuses it; until the end of the year
    `until` it was taken (--recompute-num-layers is 1 by default in tag 23.06, not in 23.08, of October 2023)."""

    rule: str
    argument: str
    values: str
    relation: str
    other: str
    other_values: str
    usual: str
    unless: str
    since: str
    source: str
    until: str


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """What megatron-core refuses at its start, from release `since` on."""

    rule: str
    text: str
    change: str
    since: str


def release_of(text: str) -> str:
    """Return the release that `0.14`, `0.14.1` or `core_v0.14.0` names. Raises InputError."""
    match = re.fullmatch(r"(?:megatron[-_])?(?:core[-_]?)?v?(0\.[0-9]+)(?:\.[0-9a-z]+)?", text.strip().lower())
    if match is None or match[1] not in RELEASES:
        raise InputError(f"megatron-core {text[:40]!r}: use a release from {RELEASES[0]} to {RELEASES[-1]}, like 0.14")
    return match[1]


@cache
def pairs(year: int = 9999) -> tuple[ArgumentPair, ...]:
    """Return the table, without the pairs that a Megatron-LM of this year took."""
    text = (resources.files("autoconfig") / "data" / "megatron_pairs.csv").read_text(encoding="utf-8")
    rows = (ArgumentPair(**row) for row in csv.DictReader(text.splitlines()))
    return tuple(row for row in rows if year > int(row.until or 0))


def refusals(a: Arguments, *, as_long: bool, whole: bool, year: int = 9999) -> tuple[Refusal, ...]:
    """Return what the newest megatron-core, or that of `year`, refuses. `as_long`: sequences are as long as they say;
    `whole`: the model is theirs, so that what they do not say of it has Megatron's default."""
    rows: dict[tuple[str, str], Refusal] = {}
    for pair in pairs(year):
        if refusal := _pair_refusal(a, pair, whole):
            rows.setdefault((pair.argument, pair.other), refusal)
    return (*rows.values(), *_size_refusals(a, as_long))


def _pair_refusal(a: Arguments, pair: ArgumentPair, whole: bool) -> Refusal | None:
    """Return what is refused of a pair. Nothing is where a condition that is not known decides one of them."""
    others = pair.other.split("|")
    if any(name in a.undecided for name in (pair.argument, *others)) or pair.unless in a.given:
        return None
    if not _holds(a, pair.argument, pair.values) or not (whole or OF_THE_MODEL.isdisjoint({*others} - set(a.given))):
        return None
    a.used.update({pair.argument, *others} & set(a.given))
    there = any(_holds(a, name, pair.other_values, pair.usual) for name in others)
    if there != (pair.relation == "excludes"):
        return None
    first = " ".join(filter(None, (pair.argument, pair.values and _value(a, pair.argument))))
    wanted = " ".join(filter(None, (" or ".join(others), pair.other_values.replace("|", " or "))))
    change = "drop one of them" if there else "add it, or drop the first"
    text = f"{first} {pair.relation} {wanted}"
    return Refusal(rule=pair.rule or REFUSED_PAIR, text=text, change=change, since=pair.since)


def _size_refusals(a: Arguments, as_long: bool) -> Iterator[Refusal]:
    """Return sizes that do not go together."""
    experts, groups = _number(a, "--num-experts"), _number(a, "--moe-router-num-groups")
    if "--moe-router-group-topk" in a.given and experts and groups and experts % groups:
        text = f"--moe-router-num-groups {groups} does not divide --num-experts {experts}"
        yield Refusal(rule="NV063", text=text, change="change one", since="0.11")
    length, most = _number(a, "--seq-length") if as_long else None, _number(a, "--max-position-embeddings")
    if length and most and length > most:
        text = f"--seq-length {length} is above --max-position-embeddings {most}"
        yield Refusal(rule="NV016", text=text, change="raise the second", since=RELEASES[0])


def _value(a: Arguments, name: str) -> str | None:
    """Return the value of an argument; None where it is not given, has none or it is not known."""
    argument = a.given.get(name)
    return argument.values[0] if argument and argument.values and argument.value_positions[0] not in a.unread else None


def _number(a: Arguments, name: str) -> int | None:
    text = None if name in a.undecided else _value(a, name)
    return int(text) if text is not None and text.isdecimal() and len(text) < 16 else None


def _holds(a: Arguments, name: str, values: str, usual: str = "") -> bool:
    """Whether the argument is given, with one of the values where there are any."""
    if not values:
        return name in a.given
    if values == ">0":
        return (_number(a, name) or 0) > 0
    return (_value(a, name) if name in a.given else usual) in values.split("|")


def refused_in(refused: Sequence[Refusal], release: str | None, pinned: bool, assumed: list[Remark]) -> tuple[Violation, ...]:
    """Return what of it megatron-core refuses in a release, the newest unless named or `pinned`; what only newer ones refuse is
    said as assumed."""
    last = release_of(release) if release is not None else RELEASES[0] if pinned else RELEASES[-1]
    runs = last if release is not None else "the launcher's own Megatron-LM"
    broken = []
    for refusal in refused:
        at = RELEASES.index(refusal.since)
        if at > RELEASES.index(last):
            assumed.append(note(f"refused since core {refusal.since}, and this is {runs}: {refusal.text}", Effect.NOTHING))
            continue
        since = f"refused since core {refusal.since}; --core-release {RELEASES[at - 1]} is before" if at else "always refused"
        broken.append(Violation(rule=refusal.rule, text=f"{refusal.text} ({since}); {refusal.change}"))
    return tuple(broken)


def fsdp_violations(a: Arguments) -> list[Violation]:
    """Return rules that the arguments break; none without `--use-megatron-fsdp` (its older name, `--use-custom-fsdp`, had
    none)."""
    if not a.has("--use-megatron-fsdp"):
        return []
    strategy, form = a.text("--data-parallel-sharding-strategy") or "no_shard", a.text("--ckpt-format") or "torch_dist"
    optimizer = a.text("--optimizer") or "adam"
    interval = "--check-weight-hash-across-dp-replicas-interval"
    checks_weights = a.has(interval) and strategy == "optim_grads_params"
    grouped = a.has("--moe-single-grouped-weight", "--moe-single-grouped-bias")
    meta = a.has("--init-model-with-meta-device") and strategy == "no_shard"
    registers = a.has("--fsdp-manual-registration") and not a.has("--use-nccl-ub")
    sharding = "with --data-parallel-sharding-strategy"
    broken = [
        (CHECKPOINT, form != "fsdp_dtensor", f"needs --ckpt-format fsdp_dtensor, and this is {form}"),
        (CHECKPOINT, optimizer not in OPTIMIZERS, f"needs --optimizer adam or sgd, and this is {optimizer}"),
        (CHECKPOINT, grouped, "excludes --moe-single-grouped-weight and --moe-single-grouped-bias"),
        (CHECKPOINT, checks_weights, f"{sharding} optim_grads_params excludes {interval}"),
        ("NV105", meta, f"{sharding} no_shard excludes --init-model-with-meta-device"),
        ("NV108", registers, "takes --fsdp-manual-registration with --use-nccl-ub only"),
        (CHECKPOINT, a.has("--hybrid-context-parallel"), "excludes --hybrid-context-parallel"),
    ]
    return [Violation(rule=rule, text=f"Megatron-FSDP {text}") for rule, is_broken, text in broken if is_broken]


def ring_violations(a: Arguments, scenario: Scenario, plan: TrainPlan) -> list[Violation]:
    """Return the broken rule where keys go around in a ring, Megatron's default, that Transformer Engine does not have for
    windows and sinks."""
    kinds, model = a.texts("--cp-comm-type") or ("p2p",), scenario.model
    if plan.cp == 1 or not (model.window_size or model.attention_sinks):
        return []
    possible = ("a2a",) if model.attention_sinks else ("a2a", "all_gather")
    what = "attention with sinks" if model.attention_sinks else "windows"
    text = f"context parallelism of {what} needs --cp-comm-type {' or '.join(possible)}, and this is {kinds[0]}"
    return [] if set(kinds) <= set(possible) else [Violation(rule="AC024", text=text)]


def connections_violation(value: str) -> list[Violation]:
    """Return the broken rule of the environment; `value` is what the script sets CUDA_DEVICE_MAX_CONNECTIONS to, empty where it
    does not."""
    if value != "1":
        return []
    return [Violation(rule=CHECKPOINT, text=f"Megatron-FSDP needs {ONE_CONNECTION} unset or above 1; the file sets it to 1")]
