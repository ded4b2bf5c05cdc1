"""Which format a file has, by its content."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.formats.hooks.table import MAPPED
from autoconfig.formats.readers import megatron_log
from autoconfig.formats.readers.bridge import is_list
from autoconfig.formats.readers.hugging_face.preferences import not_supervised
from autoconfig.maps.tree import load_json, load_toml, load_yaml
from autoconfig.planning.work import bounded, require_short, spend
from autoconfig.specs.errors import InputError, UnsupportedError

MEGATRON = ("script", "arguments", "plan")
"""What `autoconfig.megatron` reads."""
SWIFT = re.compile(
    r"(?:^|[\s/;&])(?:megatron|swift)\s++(?:sft|pt|rlhf)\b|swift/cli/(?:_megatron/)?(?:sft|pt|rlhf)\.py", re.MULTILINE
)
FACTORY = re.compile(r"(?:^|[\s/;&])(?:llamafactory-cli|lmf)\s++train\b|^(?![^\S\n]*+#).*\btrain(?:_bash)?\.py\b", re.MULTILINE)
_KEY = re.compile(r"^[^\S\n]*+[\"'][\w-]++[\"'][^\S\n]*+:", re.MULTILINE)
"""A line that is a key of JSON and its value."""
_FACTORYS = re.compile(r"--(?:finetuning_type|cutoff_len|template)[ =]")
_TRL = re.compile(
    r"(?:^|[\s/;&])(?:trl|trl/cli\.py|trl\.cli)\s++(sft|dpo|kto|orpo|cpo|reward|grpo|rloo|gkd|online_dpo)\b", re.MULTILINE
)
_PROGRAM = re.compile(r"^(?![^\S\n]*+#)[^\n]*(?:\.py\b|\s-m\s)", re.MULTILINE)
_TABLE = re.compile(r"\[\[?[A-Za-z_][\w.-]*\]\]?\s*(#.*)?")
_PYTHON = re.compile(r"(?:from\s+[\w.]+\s+import|import\s+[\w.]+|@|def |class |\"\"\")")
_ENTRY = re.compile(r"(?:---\s*$|[\"']?--?[\w-]++[\"']?\s*+:|[\"']?[A-Za-z_][\w .-]*+[\"']?\s*+:(?:\s|$))")
_PRIMUS = re.compile(r"^[^#\n]*(?:\bprimus-cli\b|\bprimus/cli/main\.py)", re.MULTILINE)
_MODEL = re.compile(r"--model[-_]name[-_]or[-_]path[ =]")
_TRAINERS = re.compile(r"--(?:per_device_train|use_peft|max_(?:seq_)?length|gradient_|dataset_name|torch_dtype)")
POST_TRAINING = re.compile(
    r"^[^#\n]*\b(verl\.trainer\.main_ppo|verl\.trainer\.main|openrlhf\.cli\.train_\w{1,80}|run_(?:async_)?grpo\w{0,80}\.py)\b"
    r"|^[^#\n]*(--rollout-batch-size)\b",
    re.MULTILINE,
)
"""Programs of reinforcement learning: verl's, OpenRLHF's, NeMo-RL's, slime's."""
_RECIPE = re.compile(r"(?:^|\s)(?:model|trainer\.strategy)\.tensor_model_parallel_size=|--(?:recipe|factory)[= ]\S+")
_RL = "autoconfig rl check reads files of verl, OpenRLHF, NeMo-RL and TRL"


class UnknownFormat(UnsupportedError):
    """A text that nothing says a format of."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Keys by which a mapping is known: data/format_marks.toml."""

    format: str = ""
    refused: str = ""
    unknown: bool = False
    of: str = ""
    all: tuple[str, ...] = ()
    any: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    a_section: tuple[str, ...] = ()
    holds: str = ""

    def is_on(self, values: Mapping[Any, Any], keys: set[str], syntax: str) -> bool:
        """Whether a file of this syntax bears the mark."""
        return (
            self.of in ("", syntax)
            and set(self.all) <= keys
            and (not self.any or bool(keys & set(self.any)))
            and all(isinstance(_at(values, path), dict) for path in self.sections)
            and (not self.a_section or any(isinstance(values.get(key), dict) for key in self.a_section))
            and (not self.holds or isinstance(values.get(self.holds), dict | list))
        )


@cache
def _marks() -> tuple[Mark, ...]:
    text = (resources.files("autoconfig") / "data" / "format_marks.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)["marks"]
    return tuple(map(_mark, rows))


@cache
def _own_marks() -> tuple[Mark, ...]:
    """Return those that stand in the tables of formats, which are asked first."""
    rows = ((name, row) for name, one in MAPPED.items() for row in one.table.more.get("marks", ()))
    return tuple(_mark({"format": name, **row}) for name, row in rows)


def _mark(row: Mapping[str, Any]) -> Mark:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return Mark(**fields)


def _at(values: Mapping[Any, Any], path: str) -> Any:
    """Return the value at a dotted path; None where there is none."""
    found: Any = values
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found


@bounded()
def recognise(text: str) -> tuple[str, Any]:
    """Return the name of the format and its values, None for scripts. Raises InputError or UnsupportedError naming what else
    it is."""
    require_short(text)
    spend(len(text) / 8)
    first = next((line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")), "")
    if first.startswith("{") and (re.match(r"\{\s*[\"'}]", first) or _KEY.search(text)):
        return _of_json(text)
    if re.match(r"\[\s*[\"\]]", text.lstrip()):
        return "arguments", None
    if (printed := megatron_log.in_log(text)) is not None:
        return megatron_log.FORMAT, printed
    if first.startswith("--"):
        return "arguments", None
    if is_list(text):
        return "bridge", None
    if _TABLE.fullmatch(first):
        return _of_mapping(load_toml(text), "toml")
    if _PYTHON.match(first):
        raise UnsupportedError(
            "this is Python: a recipe or config registry is not run; give its key=value overrides "
            "(model.tensor_model_parallel_size=8), or the launch script"
        )
    if _ENTRY.match(first) and not text.lstrip().startswith("#!"):
        return _of_mapping(load_yaml(text), "yaml")
    return _of_script(text), None


def _of_script(text: str) -> str:
    """Return the format of a script, by the program that it starts. Raises UnsupportedError."""
    if _PRIMUS.search(text):
        raise UnsupportedError("this starts Primus, whose settings stand in the YAML that --config names: check that file")
    if program := POST_TRAINING.search(text):
        raise UnsupportedError(f"this is post-training ({program[1] or program[2]}): {_RL}")
    if SWIFT.search(text):
        return "ms-swift"
    return _of_trainer(text) or ("bridge" if _RECIPE.search(text) and "pretrain_gpt" not in text else "script")


def _of_trainer(text: str) -> str:
    """The format of a script that starts LLaMA-Factory or TRL; empty for any other. Raises UnsupportedError."""
    program, factorys = FACTORY.search(text), _FACTORYS.search(text)
    if program and (factorys or not program[0].endswith(".py")):
        return "llama-factory"
    program = _TRL.search(text)
    if program and program[1] != "sft":
        raise UnsupportedError(not_supervised(f"trl {program[1]}", program[1]))
    if program or (_PROGRAM.search(text) and _MODEL.search(text) and _TRAINERS.search(text)):
        return "llama-factory" if factorys else "trl"
    return ""


def _of_json(text: str) -> tuple[str, Any]:
    if re.match(r"\s*\{\s*(?:[\"}]\s*kind\b|\})", text) or '"kind"' in text[:400]:
        return "plan", None
    try:
        values = load_json(text)
    except InputError:
        values = load_yaml(text)  # GPT-NeoX's files look like JSON with comments
    name, values = _of_mapping(values, "json")
    return name, None if name == "plan" else values


def _of_mapping(values: Any, syntax: str) -> tuple[str, Any]:
    """Return the format that the first mark says. Raises UnsupportedError where it says that the file is another's."""
    if not isinstance(values, dict):
        what = "file" if syntax == "json" else syntax.upper()
        raise InputError(f"this {what} holds no mapping; give a launch script or a trainer's configuration")
    keys = {str(key).replace("-", "_") for key in values}
    mark = next((mark for mark in (*_own_marks(), *_marks()) if mark.is_on(values, keys, syntax)), None)
    if mark is None:
        raise UnknownFormat(
            f"no configuration that is known has the keys {', '.join(sorted(keys)[:8])}; docs/check.md lists the formats"
        )
    if mark.refused:
        text = mark.refused.replace("{named}", _named_by(values) if "{named}" in mark.refused else "")
        raise (UnknownFormat if mark.unknown else UnsupportedError)(text)
    return mark.format, values


def _named_by(values: Mapping[Any, Any]) -> str:
    """Return the files that Hydra's `defaults` name: `train: 7b` is train/7b.yaml beside the file."""
    entries = values["defaults"] if isinstance(values["defaults"], list) else []
    pairs = [pair for entry in entries if isinstance(entry, dict) for pair in entry.items() if isinstance(pair[1], str)]
    files = [f"{str(group).split()[-1].split('@')[0]}/{name}.yaml" for group, name in pairs if str(group).strip()]
    files += [f"{entry}.yaml" for entry in entries if isinstance(entry, str) and entry != "_self_"]
    return f" (it names {', '.join(file[:60] for file in files[:4])} beside itself)" if files else ""
