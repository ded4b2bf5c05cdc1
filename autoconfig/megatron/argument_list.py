"""An argument list of Megatron-LM, split into names and values by the table of public argument names.

`autoconfig/data/megatron_arguments.csv` holds the names that Megatron-LM's parser knew in any year from 2020 to 2026, and those
of Megatron-DeepSpeed, BigScience, Pai-Megatron-Patch and others: name, how many values it takes (argparse's nargs: 0, 1, 2, ?,
*, +), their type, the parser's group, the software and the first year in which it was seen. `_` and `-` are the same.
"""

from __future__ import annotations

import csv
import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from autoconfig.maps.table import SLIP
from autoconfig.megatron.shell.launch import Program
from autoconfig.megatron.shell.script import Unread
from autoconfig.planning.work import spend
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.remarks import Effect, Remark
from autoconfig.specs.software.optimizers import other_state

_BARE = re.compile(r"\$(\w+|\{\w+\}|@)")
MAX_ARGUMENTS = 20_000
LONGEST = 60
"""Characters of a name that is looked up: the table's longest has 50."""
SHORTEST = 7
"""Characters with the dashes: shorter beginnings are names of a fork's own rather than abbreviations."""
DECISIVE = frozenset(
    {f"--{kind}-model-parallel-size" for kind in ("tensor", "pipeline", "expert")}
    | {f"--{what}" for what in ("num-layers", "hidden-size", "num-attention-heads", "num-experts", "context-parallel-size",
       "use-distributed-optimizer", "data-parallel-sharding-strategy", "recompute-granularity", "zero-stage")}
)  # fmt: skip
"""Arguments that no beginning of a name may stand for unnoticed."""
STATE_TYPES = {
    **{"fp32": "fp32", "float32": "fp32", "bf16": "bf16", "bfloat16": "bf16"},
    **{"fp16": "fp16", "float16": "fp16", "fp8": "fp8"},
}


@dataclass(frozen=True, kw_only=True)
class KnownArgument:
    """One row of the table."""

    name: str
    values: str
    type: str
    group: str
    software: str
    first_year: int


@cache
def known_arguments() -> dict[str, KnownArgument]:
    """Return the table, by name with `-` for `_`."""
    text = (resources.files("autoconfig") / "data" / "megatron_arguments.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {row["name"]: KnownArgument(**{**row, "first_year": int(row["first_year"])}) for row in rows}  # type: ignore[arg-type]


OPTIMIZER = "--optimizer"


def _of_optimizer(name: str, *, sharded: bool) -> Remark:
    """Return what an optimizer other than Adam changes. Others than SGD are sharded by whole parameters, each of which one rank
    has (megatron-core 0.19.2, training/arguments.py: use_layer_wise_distributed_optimizer): the rank with the embedding holds
    more than the even share that is priced."""
    word = name.lower()
    if word != "sgd" and (word.startswith("dist_") or sharded):
        why = "its state is dealt out by whole parameters over data parallelism, and what the fullest rank has is not priced"
        return Remark(OPTIMIZER, name[:40], why, Effect.MEMORY_AND_TIME)
    return other_state(OPTIMIZER, name)


@cache
def _not_read() -> dict[str, Any]:
    return tomllib.loads((resources.files("autoconfig") / "data" / "megatron_not_modelled.toml").read_text(encoding="utf-8"))


@cache
def not_modelled_arguments() -> dict[str, tuple[Remark, frozenset[str]]]:
    """Return name -> (what it changes, values with which it changes nothing)."""
    rows = {f"--{name}": row for part, table in _not_read().items() if part != "refused" for name, row in table.items()}
    return {
        name: (Remark(name, None, row["says"], Effect[row["effect"].upper()]), frozenset(row.get("usual", ())))
        for name, row in rows.items()
    }


@cache
def refused_arguments(kind: str) -> dict[str, str]:
    """Return name -> what a run is that has it and cannot be read: another `job`, or a `model` of another kind."""
    return {f"--{name}": what for what, names in _not_read()["refused"][kind].items() for name in names}


@cache
def megatron_program() -> Program:
    """Return Megatron-LM's training program, as launches of it are recognised in a script."""
    decisive = frozenset({"--num-layers", "--encoder-num-layers", "--hybrid-layer-pattern"})
    return Program(name="Megatron-LM", arguments=known_arguments().keys(), decisive=decisive, refuse=_refuse_others)


def _refuse_others(program: str, line: int) -> None:
    """Raises UnsupportedError for a program whose path says that it trains no language model."""
    path = program.lower()
    name = path.rsplit("/", 1)[-1]
    if name in ("pretrain_t5.py", "pretrain_bert.py"):
        return
    whole = name if name.startswith("pretrain_") else path  # what folder a pretrain_gpt.py lies in says nothing
    words = _not_read()["refused"]["program"]
    if word := _word_of(whole, words["job"]):
        raise UnsupportedError(
            f"line {line} starts {program[-80:]}: this is no pre-training of a language model ({word}); only the "
            "training of decoder-only transformers (pretrain_gpt.py and the like) can be checked"
        )
    if word := _word_of(path, words["model"]):
        raise UnsupportedError(
            f"line {line} starts {program[:80]}: {word} models cannot be checked; only the training of decoder-only "
            "transformers (pretrain_gpt.py and the like) can"
        )


def _word_of(path: str, words: Iterable[str]) -> str | None:
    """Return the first of these words that stands by itself in a path, between `_` or `/` and these or a dot."""
    text = f"_{path.replace('/', '_')}_"
    places = {place: word for word in words for end in "_." if (place := text.find(f"_{word}{end}")) >= 0}
    return places[min(places)] if places else None


def is_option(word: str) -> bool:
    """Whether a word names an argument: one dash or two before a letter."""
    letter = word[2:3] if word.startswith("--") else word[1:2]
    return word.startswith("-") and letter.isascii() and letter.isalpha()


def _is_joined(word: str) -> bool:
    """Whether a word is a whole name with its value behind `=`."""
    name, equals, _ = word.partition("=")
    return bool(equals) and is_option(name) and name.replace("-", "_").isidentifier()


@dataclass(frozen=True, kw_only=True)
class Given:
    """One argument as it was given: the positions of its words in the list."""

    name: str
    values: tuple[str, ...]
    position: int
    value_positions: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """A whole list. Every reading of a value is recorded, so that what nobody read can be listed."""

    given: Mapping[str, Given]
    """The last occurrence of each known argument, as argparse counts it."""
    unknown: tuple[Remark, ...]
    """Arguments that the table does not hold, and words that belong to none."""
    repeated: tuple[str, ...]
    unread: Mapping[int, Unread]
    """Positions of words whose text is not known."""
    undecided: Mapping[str, str] = field(default_factory=dict)
    """Known arguments that are given in some branch of a condition that is not known, and why it is not."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What the variables of the script hold whose list this is."""
    used: set[str] = field(default_factory=set)

    def has(self, *names: str) -> bool:
        return any(self._find(name) for name in names)

    def text(self, *names: str) -> str | None:
        """Return the value of the first of these that was given. Raises InputError where it has none or it is not known."""
        for name in names:
            if argument := self._find(name):
                return self._value(argument)
        return None

    def texts(self, name: str) -> tuple[str, ...]:
        argument = self._find(name)
        if argument is None:
            return ()
        for position in argument.value_positions:
            self._known(argument, position)
        return argument.values

    def whole(self, *names: str) -> int | None:
        text = self.text(*names)
        if text is None:
            return None
        try:
            return int(text if len(text) < 20 else "")
        except ValueError:
            name = next(n for n in names if n in self.given)
            raise InputError(f"{name} {text[:40]!r} is not a whole number; write the number in the file") from None

    def count(self, *names: str) -> int | None:
        number = self.whole(*names)
        if number is not None and number < 1:
            raise InputError(f"{next(n for n in names if n in self.given)} {number} must be at least 1")
        return number

    def number(self, *names: str) -> float | None:
        text = self.text(*names)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not abs(value) < 1e18:
            raise InputError(f"{next(n for n in names if n in self.given)} {text[:40]!r} is not a number")
        return value

    def state(self, *names: str) -> str | None:
        """Return the type of optimizer state that the first of these that was given names. Raises InputError for another
        one."""
        text = self.text(*names)
        if text and text not in STATE_TYPES:
            raise InputError(f"{names[0]} {text[:40]!r}: use one of {', '.join(dict.fromkeys(STATE_TYPES.values()))}")
        return STATE_TYPES[text] if text else None

    def not_used(self) -> tuple[str, ...]:
        """Return known arguments that nothing read: data, paths, logging, learning rate, ..."""
        return tuple(name for name in (*self.given, *self.undecided) if name not in self.used)

    def not_modelled(self) -> tuple[Remark, ...]:
        """Return arguments that matter and that no formula reads, with what they change."""
        remarks = []
        for name, (remark, usual) in not_modelled_arguments().items():
            if name in self.given and not set(self.given[name].values) & usual:
                self.used.add(name)
                values = self.given[name].values
                sharded = "--use-distributed-optimizer" in self.given
                remarks.append(_of_optimizer(values[0], sharded=sharded) if name == OPTIMIZER and values else remark)
        return tuple(remarks)

    def depends(self) -> tuple[Remark, ...]:
        """Return arguments that matter and that a condition decides, with the condition."""
        return tuple(Remark(name, None, why) for name, why in self.undecided.items() if name in self.used)

    def refuse_undecided(self) -> None:
        """Raises InputError where a condition decides whether an argument is given that was read so far."""
        for one in self.depends():
            raise InputError(
                f"whether the run has {one.field} ({one.why}); no verdict is given on a plan that is not fully read"
            )

    def newest(self) -> tuple[str, int]:
        """Return the newest of the given arguments and the year in which it was first seen; ("none", 0) where there is none."""
        names = known_arguments()
        return max(((name, names[name].first_year) for name in self.given), key=lambda pair: pair[1], default=("none", 0))

    def _find(self, name: str) -> Given | None:
        self.used.add(name)
        return self.given.get(name)

    def _value(self, argument: Given) -> str:
        if not argument.values:
            raise InputError(f"{argument.name} has no value; write {argument.name} VALUE")
        self._known(argument, argument.value_positions[0])
        return argument.values[0]

    def _known(self, argument: Given, position: int) -> None:
        if position in self.unread:
            raise InputError(
                f"the value of {argument.name} is not known: {self.unread[position].reason}; write the value in the file, "
                f"or pass it to `autoconfig check` where it has an option for it (--model, --gpus, --seq-length, ...)"
            )


def split_arguments(argv: Sequence[str], unread: Mapping[int, Unread] | None = None) -> Arguments:
    """Return names and values of an argument list; `unread`: words that are not known. Raises InputError when too long, and for
    words that may be any arguments."""
    if len(argv) > MAX_ARGUMENTS:
        raise InputError(f"{len(argv):,} arguments are more than {MAX_ARGUMENTS:,}; this is no launch of one training job")
    spend(10 * len(argv))
    unread = unread or {}
    undecided: dict[str, str] = {}
    empty = "'' (an empty word)"
    arguments: dict[str, Given] = {}
    unknown: list[Remark] = []
    repeated: list[str] = []
    position = 0
    while position < len(argv):
        word = argv[position]
        if (odd := unread.get(position)) and not _is_joined(word):
            names, others = _undecided(word, odd)
            undecided |= dict.fromkeys(names, odd.reason)
            unknown += [_unknown(name, None, odd.reason) for name in others]
            position += 1
            continue
        if not is_option(word):
            unknown.append(_unknown(word or empty))
            position += 1
            continue
        argument, position, is_known = _one(argv, position, unread)
        if not is_known:
            unknown.append(_unknown(argument.name, " ".join(argument.values) or None))
            continue
        before = arguments.get(argument.name)
        if before is not None and before.values != argument.values:
            repeated.append(argument.name)
        arguments.pop(argument.name, None)
        arguments[argument.name] = argument
    return Arguments(
        given=arguments,
        unknown=tuple(unknown),
        repeated=tuple(dict.fromkeys(repeated)),
        unread=dict(unread),
        undecided=undecided,
    )


def _unknown(name: str, value: str | None = None, why: str = "") -> Remark:
    """Return the remark on an argument that the table does not hold, or on a word that belongs to none."""
    return Remark(name, value, why, Effect.MEMORY_AND_TIME if is_option(name) else Effect.NOTHING)


def _undecided(word: str, odd: Unread) -> tuple[list[str], list[str]]:
    """Return (known arguments, other words) that a word may be whose text is not known; a variable that nothing sets is
    nothing. Raises InputError where it may be anything."""
    if odd.unset:
        return [], [word]
    if not odd.choices:
        raise InputError(f"which arguments {word[:60]} adds is not known: {odd.reason}; write them in the file")
    names: list[str] = []
    others: list[str] = []
    for words in odd.choices:
        arguments = split_arguments(words)
        names += arguments.given
        others += [f"{one.field} {one.value or ''}".strip() for one in arguments.unknown]
    return names, list(dict.fromkeys(others))


def _one(argv: Sequence[str], start: int, unread: Mapping[int, Unread]) -> tuple[Given, int, bool]:
    """Return the argument at `start`, the position behind it, and whether the table holds it."""
    raw, equals, joined = argv[start].partition("=")
    spend(2 if argv[start] in known_arguments() else 100)  # an unknown name is compared with all
    name = _whole_name("--" + raw.lstrip("-").replace("_", "-"))
    row = known_arguments().get(name)
    if equals:
        return Given(name=name, values=(joined,), position=start, value_positions=(start,)), start + 1, row is not None
    most = {"0": 0, "1": 1, "2": 2, "?": 1}.get(row.values if row else "*", len(argv))
    end = start + 1
    while end < len(argv) and end - start <= most and (end in unread or not is_option(argv[end])):
        if end in unread and end > start + 1 and _BARE.fullmatch(argv[end]):
            break  # a variable of its own: other arguments may stand in it
        end += 1
    argument = Given(
        name=name if row else raw,
        values=tuple(argv[start + 1 : end]),
        position=start,
        value_positions=tuple(range(start + 1, end)),
    )
    return argument, end, row is not None


@lru_cache(maxsize=4096)
def _whole_name(name: str) -> str:
    """Return the argument that a name stands for: argparse takes the beginning of one for it (`allow_abbrev`). Of several
    arguments Megatron-LM's own counts; a name that begins none stays as it is. Raises InputError where it may be one that
    decides."""
    if name in known_arguments() or len(name) < SHORTEST:
        return name
    begun = [row for row in known_arguments().values() if row.name.startswith(name)]
    own = [row for row in begun if row.software == "megatron-lm"] or begun
    if len(own) > 1 and (decisive := [row.name for row in own if row.name in DECISIVE]):
        raise InputError(
            f"{name} is no argument, and as the beginning of one it may be {', '.join(row.name for row in own[:6])}, which "
            f"argparse refuses as ambiguous; write {decisive[0]}"
        )
    return own[0].name if len(own) == 1 else name


def name_hint(unknown: str) -> str:
    """Return the known name that an unknown one is a slip of; empty when none is that near."""
    word = unknown.split()[0].lstrip("-").replace("_", "-").lower() if unknown.strip() else ""
    if len(word) > LONGEST:
        return ""
    spend(2_000)
    close = difflib.get_close_matches(word, [name[2:] for name in known_arguments()], n=1, cutoff=SLIP)
    return f"--{close[0]}" if close else ""
