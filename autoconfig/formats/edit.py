"""`check --apply-to` on files of other launchers: values are replaced where they stand, in YAML, TOML, JSON and overrides.

What is to be written is read again first; where it does not give the wanted plan, with the same model, workload, cluster and
software, nothing is written and the changes are listed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import yaml

from autoconfig.formats.check import read_any
from autoconfig.formats.recognise import FACTORY, SWIFT
from autoconfig.formats.writers.trl import LAUNCH
from autoconfig.maps.spans import replaced
from autoconfig.megatron.check import CheckAnswer, FlagChange, changes_from, plan_flags, target
from autoconfig.megatron.check_input import CheckInput, CheckRequest
from autoconfig.megatron.edit import improved_text as improved_script
from autoconfig.megatron.edit import place_of, refusal, slip_of
from autoconfig.specs.errors import InputError
from autoconfig.specs.scenario import Scenario
from autoconfig.training.price import Violation
from autoconfig.training.rules import RULES

ANCHORS = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "micro_batch_size",
    "num_layers",
    "model_parallel_size",
    "pipe_parallel_size",
    "per_device_train_batch_size",
)
"""Beside these a setting goes that the file does not have."""
CHECKPOINTING = "gradient checkpointing"
Entry = tuple[yaml.Node, yaml.Node]
"""Key and value of a mapping, with the places where they stand."""


def improved_text(answer: CheckAnswer, request: CheckRequest) -> str:
    """Return the file's text with the better plan in it. Raises InputError listing the changes where it cannot be edited."""
    source = answer.source
    if source.kind in ("script", "arguments", "plan"):
        return improved_script(answer, request)
    plan, scenario = target(answer)
    changes = changes_from(source, plan, scenario)
    if source.kind == "torchtitan" and "local_batch_size" in source.text and "global_batch_size" not in source.text:
        batch = (str(scenario.workload.global_batch_size),)  # else it would follow from what is changed
        changes = (*changes, FlagChange(flag="training.global_batch_size", old=None, new=batch))
    if elsewhere := _elsewhere(source, scenario, changes):
        raise refusal(elsewhere, changes)
    try:
        text = changed(source.text, [_in_its_words(change, source.kind) for change in changes])
    except (InputError, yaml.YAMLError, ValueError) as error:
        raise refusal(str(error).partition("\n")[0], changes) from None
    touched = {_plain(change.flag.rpartition(".")[2]) for change in changes}
    settings = {name: value for name, value in request.settings.items() if _plain(name.rpartition(".")[2]) not in touched}
    try:
        again = read_any(text, replace(request, settings=settings))
    except InputError as error:
        raise refusal(f"with the changes the file is not read: {error}", changes) from None
    if reason := slip_of(again, plan, scenario):
        raise refusal(reason, changes)
    return text


def _elsewhere(source: CheckInput, scenario: Scenario, changes: Iterable[FlagChange]) -> str:
    """Return where the changes belong, if that is not the file; else empty."""
    flags = [change.flag for change in changes]
    if source.kind == "megatron-log":
        return "it is the log of a run that was; the changes belong into its launch script"
    if any(flag.startswith("ZeRO stage") for flag in flags):
        return "the stage of ZeRO stands in the DeepSpeed file that it names"
    if any(flag.startswith(LAUNCH) for flag in flags):
        return f"the sharding stands in {LAUNCH}; `{_written_anew(scenario)}` writes both files"
    return ""


def line_of(source: CheckInput, flag: str) -> int | None:
    """Return the line of a file, from 1, in which an argument or a key stands, of a script the one of its value; None where it
    does not stand there."""
    if source.script is not None and source.kind in ("script", "arguments"):
        place = place_of(source, flag)
        return None if place is None else source.text.count("\n", 0, place) + 1
    return line_in(source.text, flag)


def line_in(text: str, flag: str) -> int | None:
    """Return the line, from 1, in which a key of YAML, JSON or TOML, an override or an option stands in a text; None where it
    does not."""
    *parents, last = _keys(flag)
    try:
        root = yaml.compose(text, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        root = None
    if isinstance(root, yaml.MappingNode):
        section, missing = _section(root, parents)
        entry = None if missing else _entry(section, last)
        with suppress(InputError):  # it stands there more than once
            entry = entry or _entry_below(root, last)
        if entry is not None:
            return int(entry[0].start_mark.line) + 1
    name = "[-_]".join(map(re.escape, re.split("[-_]", last)))
    table = re.search(rf"^[ \t]*+\[{re.escape('.'.join(parents))}\]", text, re.MULTILINE) if parents else None
    there = re.compile(rf"^(?!\s*(?:#|//)).*?(?<![\w-])(?:--)?{name}(?![\w-])", re.MULTILINE)
    match = there.search(text, table.end() if table else 0)
    return None if match is None else text.count("\n", 0, match.end()) + 1


def words_of(source: CheckInput, key: str) -> tuple[str, ...]:
    """Return the arguments or keys that say one key of a plan (tp, mbs, sp, ...) in the file's own words."""
    scenario, plan = source.question.scenario, source.plan
    value = getattr(plan, key, None)
    if not isinstance(value, int):
        return ()
    spelled = source.spelled or plan_flags
    changed_key: dict[str, Any] = {key: not value if isinstance(value, bool) else value + 1}
    other = replace(plan, **changed_key)
    try:
        before, after = spelled(scenario, plan), spelled(scenario, other)
    except (InputError, ArithmeticError, ValueError):  # no words for a plan that cannot be
        return ()
    return tuple(name for name in {**before, **after} if before.get(name) != after.get(name))


def line_of_rule(source: CheckInput, violation: Violation, fixes: Iterable[FlagChange]) -> int | None:
    """Return the line of a file that breaks a rule: of the first argument that its text names, or that says a key which it
    looks at, or that the nearest legal plan changes; None where none of them stands in the file."""
    keys = next((rule.needs for rule in RULES if rule.id == violation.rule), ())
    named = (name.rstrip("-") for name in re.findall(r"(?<![\w-])--[a-z][\w-]*", violation.text))
    spelled = (word for key in keys for word in words_of(source, key))
    words = (*named, *spelled, *(fix.flag for fix in fixes if fix.old is not None))
    return next((line for word in words if (line := line_of(source, word)) is not None), None)


def _written_anew(scenario: Scenario) -> str:
    """Return the search that writes the files of the better plan of TRL."""
    work, adapters = scenario.workload, " --peft lora" * (scenario.numerics.peft != "none")
    return (
        f"autoconfig search --model {scenario.model.name} --gpus {scenario.cluster.num_gpus} --gpu {scenario.cluster.gpu.id} "
        f"--seq-length {work.seq_length} --global-batch-size {work.global_batch_size}{adapters} --format trl --export DIR"
    )


def _in_its_words(change: FlagChange, kind: str) -> FlagChange:
    """Return a change of checkpointing by the program's key, which LLaMA-Factory has the other way round."""
    if change.flag != CHECKPOINTING:
        return change
    if kind != "llama-factory":
        return FlagChange(flag=CHECKPOINTING.replace(" ", "_"), old=None, new=change.new)
    return FlagChange(flag="disable_gradient_checkpointing", old=None, new=("true" if change.new == ("false",) else "false",))


def changed(text: str, changes: Iterable[FlagChange]) -> str:
    """Return the text with these changes, in the syntax that it has. Raises InputError."""
    changes = list(changes)
    if text.lstrip().startswith("{"):
        try:
            return _json(text, changes)
        except json.JSONDecodeError:
            pass  # with comments, or commas at ends: YAML
    command = SWIFT if SWIFT.search(text) else FACTORY if "--model_name_or_path" in text else None
    for change in changes:
        if command is not None and command.search(text):
            text = _option(text, change, command)
        elif _OVERRIDE.search(text):
            text = _override(text, change)
        elif re.search(r"^[^\S\n]*+\[[\w.]++\][^\S\n]*+(?:#.*)?$", text, re.MULTILINE):
            text = _toml(text, change)
        else:
            text = _yaml(text, change)
    return text


def _option(text: str, change: FlagChange, command: re.Pattern[str]) -> str:
    """Return the text with another `--name VALUES` behind a command."""
    name = re.sub("[-_]", "[-_]", _plain(change.flag))
    before, values = r"^(?P<before>[ \t]*(?!#)(?:[^#\n]*?\s)?)", r"(?:[= \t]+[^\\\n]*?)?(?=\s+--|[ \t]*\\?[ \t]*$)"
    there = re.compile(f"{before}--{name}{values}", re.MULTILINE)
    spans = [(match.end("before"), match.end()) for match in there.finditer(text)]
    if len(spans) > 1:
        raise InputError(f"{change.flag} stands in the file more than once")
    words = "" if change.new is None else f"--{_plain(change.flag)} {' '.join(change.new)}".rstrip()
    if spans or not words:
        return replaced(text, [(span, words) for span in spans])
    return command.sub(lambda match: f"{match[0]} {words}", text, count=1)


_OVERRIDE = re.compile(r"(?<!\S)(?:model|train|trainer|data)\.[\w.]+=\S")


def _override(text: str, change: FlagChange) -> str:
    """Return the text with another `key=value` behind a command, or in a file."""
    names, words = _names_of_nemo(change.flag), list(re.finditer(r"\S+", text))
    of_nemo = any(word[0].startswith("trainer.strategy.") for word in words)
    there = {name: [word.span() for word in words if word[0].startswith(f"{name}=")] for name in names}
    flag = next((name for name in names if there[name]), names[-1] if of_nemo else change.flag)
    if len(there[flag]) > 1 or (change.new is None and there[flag]):
        raise InputError(f"{change.flag} is not changed in place")
    if change.new is None:
        return text
    value = f"{flag}={','.join(change.new) or 'true'}"
    if there[flag]:
        return replaced(text, [(there[flag][0], value)])
    return _OVERRIDE.sub(lambda match: f"{value} {match[0]}", text, count=1)


def _names_of_nemo(flag: str) -> list[str]:
    """Return the name of a setting of Megatron-Bridge, and those that NeMo 2 has for it."""
    holder, _, key = flag.rpartition(".")
    others = {"train": ["data."], "dataset": ["data."], "model": ["trainer.strategy.", "model.config."]}
    others["ddp"] = ["trainer.strategy.ddp."]
    return [flag, *(other + key for other in others.get(holder, []))]


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _keys(flag: str) -> list[str]:
    return [_plain(key) for key in flag.split(".")]


def _json(text: str, changes: Iterable[FlagChange]) -> str:
    tree = json.loads(text)
    for change in changes:
        *parents, last = _keys(change.flag)
        section: Any = tree
        for key in parents:
            if change.new is None and key not in section:
                break
            section = section.setdefault(key, {})
            if not isinstance(section, dict):
                raise InputError(f"{key} is no section")
        else:
            if change.new is None:
                section.pop(last, None)
            else:
                section[last] = _typed(change.new)
    keys = (line for line in text.splitlines()[1:] if line[:1] in (" ", "\t") and line.lstrip().startswith('"'))
    indent = next((line[: -len(line.lstrip())] for line in keys), None)
    return json.dumps(tree, indent=indent, ensure_ascii=False) + "\n" * text.endswith("\n")


def _typed(values: Sequence[str]) -> Any:
    """Return texts as numbers and switches, where they are such; of none, a switch that is on."""
    typed = [yaml.safe_load(value) if re.fullmatch(r"-?[0-9.]+|true|false", value) else value for value in values]
    return True if not typed else typed[0] if len(typed) == 1 else typed


def _toml(text: str, change: FlagChange) -> str:
    section, _, key = change.flag.rpartition(".")
    lines = text.splitlines(keepends=True)
    start = next((at for at, line in enumerate(lines) if line.partition("#")[0].strip() == f"[{section}]"), None)
    value = None if change.new is None else json.dumps(_typed(change.new))
    if start is None:
        return text if value is None else f"{text.rstrip()}\n\n[{section}]\n{key} = {value}\n"
    end = next((at for at in range(start + 1, len(lines)) if lines[at].lstrip().startswith("[")), len(lines))
    of_key = re.compile(rf"(\s*{re.escape(key)}\s*=\s*)(?:\"[^\"]*\"|'[^']*'|\[[^\]\n]*\]|[^#\s]+)(\s*(?:#.*)?\n?)")
    for at in range(start + 1, end):
        if match := of_key.fullmatch(lines[at]):
            lines[at] = "" if value is None else f"{match[1]}{value}{match[2]}"
            return "".join(lines)
    if value is not None:
        last = max(at for at in range(start, end) if lines[at].strip())
        lines[last] = f"{lines[last].rstrip()}\n{key} = {value}\n"
    return "".join(lines)


def _yaml(text: str, change: FlagChange) -> str:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise InputError("the file is no mapping")
    *parents, last = _keys(change.flag)
    section, missing = _section(root, parents)
    entry = _entry_below(root, last) if section is root else None if missing else _entry(section, last)
    if change.new is None:
        return text if entry is None else _without(text, *entry, change.flag)
    new = json.dumps(_typed(change.new)).replace('"', "")
    if entry is None:
        return _inserted(text, section if parents else _beside(root), [*missing, last], new)
    return f"{text[: entry[1].start_mark.index]}{new}{text[entry[1].end_mark.index :]}"


def _without(text: str, key: yaml.Node, value: yaml.Node, flag: str) -> str:
    """Return the text without the line of an entry. Raises InputError where something else stands there."""
    first = text.rfind("\n", 0, key.start_mark.index) + 1
    after, _, rest = text[value.end_mark.index :].partition("\n")
    alone = after.partition("#")[0].strip() in ("", ",") and not text[first : key.start_mark.index].strip()
    if not alone or isinstance(value, yaml.CollectionNode):
        raise InputError(f"{flag} stands among others")
    return text[:first] + rest


def _section(root: yaml.MappingNode, path: Sequence[str]) -> tuple[yaml.MappingNode, Sequence[str]]:
    """Return the section at a path, as far as there is one, and the rest of the path."""
    if path and (entry := _entry(root, path[0])) is not None and isinstance(entry[1], yaml.MappingNode):
        return _section(entry[1], path[1:])
    return root, path


def _sections(root: yaml.MappingNode) -> list[yaml.MappingNode]:
    """Return a section and all below it, the outer ones first."""
    sections = [root]
    for section in sections:
        sections += [value for _, value in section.value if isinstance(value, yaml.MappingNode)]
    return sections


def _entry(section: yaml.MappingNode, name: str) -> Entry | None:
    return next((entry for entry in section.value if _plain(str(entry[0].value)) == name), None)


def _entry_below(root: yaml.MappingNode, name: str) -> Entry | None:
    """Return the entry of this name in a section or below it. Raises InputError where there are several."""
    entries = [entry for section in _sections(root) for entry in section.value if _plain(str(entry[0].value)) == name]
    if len({id(value) for _, value in entries}) > 1:
        raise InputError(f"{name} stands in the file more than once")
    return entries[0] if entries else None


def _beside(root: yaml.MappingNode) -> yaml.MappingNode:
    """Return the section that holds the settings of the plan."""
    return next((one for one in _sections(root) if any(_entry(one, name) for name in ANCHORS)), root)


def _inserted(text: str, section: yaml.MappingNode, path: list[str], value: str) -> str:
    """Return the text with a new entry in front of the section's first one."""
    first = section.value[0][0]
    start = text.rfind("\n", 0, first.start_mark.index) + 1
    before = text[start : first.start_mark.index]
    if section.flow_style and not before.strip() and len(path) == 1:
        return f'{text[:start]}{before}"{path[0]}": {value},\n{text[start:]}'
    if section.flow_style or before.strip():
        raise InputError("a section that is written in one line takes no new setting")
    if str(first.value).startswith("--"):
        path = [f"--{name.replace('_', '-')}" for name in path]
    lines = [f"{before}{'  ' * depth}{name}:" for depth, name in enumerate(path)]
    return f"{text[:start]}{chr(10).join(lines)} {value}\n{text[start:]}"
