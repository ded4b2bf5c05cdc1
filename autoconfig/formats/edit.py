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
from autoconfig.megatron.check import CheckAnswer, FlagChange, changes_from, plan_flags, target
from autoconfig.megatron.check_input import CheckInput, CheckRequest
from autoconfig.megatron.edit import improved_text as improved_script
from autoconfig.megatron.edit import place_of, refusal, same_software
from autoconfig.specs.errors import InputError
from autoconfig.specs.plan import TrainPlan
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


def improved_text(answer: CheckAnswer, request: CheckRequest) -> str:
    """The file's text with the better plan in it. Raises InputError listing the changes where it cannot be edited."""
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
    if reason := _other(again, plan, scenario):
        raise refusal(reason, changes)
    return text


def _elsewhere(source: CheckInput, scenario: Scenario, changes: Iterable[FlagChange]) -> str:
    """Where the changes belong, if that is not the file; else empty."""
    flags = [change.flag for change in changes]
    if source.kind == "megatron-log":
        return "it is the log of a run that was; the changes belong into its launch script"
    if any(flag.startswith("ZeRO stage") for flag in flags):
        return "the stage of ZeRO stands in the DeepSpeed file that it names"
    if any(flag.startswith(LAUNCH) for flag in flags):
        return f"the sharding stands in {LAUNCH}; `{_written_anew(scenario)}` writes both files"
    return ""


def line_of(source: CheckInput, flag: str) -> int | None:
    """The line of a file, from 1, in which an argument or a key stands, of a script the one of its value; None where it
    does not stand there."""
    if source.script is not None and source.kind in ("script", "arguments"):
        place = place_of(source, flag)
        return None if place is None else source.text.count("\n", 0, place) + 1
    return line_in(source.text, flag)


def line_in(text: str, flag: str) -> int | None:
    """Likewise in a text of overrides, YAML, JSON or TOML, or behind a command."""
    *parents, last = [_plain(key) for key in flag.split(".")]
    try:
        root = yaml.compose(text, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        root = None
    if isinstance(root, yaml.MappingNode):
        section: yaml.Node | None = root
        for parent in parents:
            section = _entry(section, parent)[1] if isinstance(section, yaml.MappingNode) else None
        found = _entry(section, last)[0] if isinstance(section, yaml.MappingNode) else None
        with suppress(InputError):  # it stands there more than once
            found = found or _entry_below(root, last)[0]
        if found is not None:
            return int(found.start_mark.line) + 1
    name = "[-_]".join(map(re.escape, re.split("[-_]", last)))
    table = re.search(rf"^[ \t]*+\[{re.escape('.'.join(parents))}\]", text, re.MULTILINE) if parents else None
    there = re.compile(rf"^(?!\s*(?:#|//)).*?(?<![\w-])(?:--)?{name}(?![\w-])", re.MULTILINE)
    match = there.search(text, table.end() if table else 0)
    return None if match is None else text.count("\n", 0, match.end()) + 1


def words_of(source: CheckInput, key: str) -> tuple[str, ...]:
    """The arguments or keys that say one key of a plan (tp, mbs, sp, ...) in the file's own words."""
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
    """The line of a file that breaks a rule: of the first argument that its text names, or that says a key which it looks at,
    or that the nearest legal plan changes; None where none of them stands in the file."""
    keys = next((rule.needs for rule in RULES if rule.id == violation.rule), ())
    named = (name.rstrip("-") for name in re.findall(r"(?<![\w-])--[a-z][\w-]*", violation.text))
    said = (word for key in keys for word in words_of(source, key))
    words = (*named, *said, *(fix.flag for fix in fixes if fix.old is not None))
    return next((line for word in words if (line := line_of(source, word)) is not None), None)


def _other(again: CheckInput, plan: TrainPlan, scenario: Scenario) -> str:
    """What the edited file says that was not asked for; empty where it is right."""
    found = again.question.scenario
    if again.plan != plan:
        return f"with the changes the file reads as {again.plan}, not as {plan}"
    if found.workload != scenario.workload:
        return "the file works out its batch or sequence from what is changed"
    if found.model != scenario.model or found.cluster != scenario.cluster or found.numerics != scenario.numerics:
        return "with the changes the file reads as another model, cluster or precision"
    return "" if same_software(found, scenario, plan) else "with the changes the file reads as other software"


def _written_anew(scenario: Scenario) -> str:
    """The search that writes the files of the better plan of TRL."""
    work, adapters = scenario.workload, " --peft lora" * (scenario.numerics.peft != "none")
    return (
        f"autoconfig search --model {scenario.model.name} --gpus {scenario.cluster.num_gpus} --gpu {scenario.cluster.gpu.id} "
        f"--seq-length {work.seq_length} --global-batch-size {work.global_batch_size}{adapters} --format trl --export DIR"
    )


def _in_its_words(change: FlagChange, kind: str) -> FlagChange:
    """LLaMA-Factory has the switch the other way round."""
    if change.flag != CHECKPOINTING:
        return change
    if kind != "llama-factory":
        return FlagChange(flag=CHECKPOINTING.replace(" ", "_"), old=None, new=change.new)
    return FlagChange(flag="disable_gradient_checkpointing", old=None, new=("true" if change.new == ("false",) else "false",))


def changed(text: str, changes: Iterable[FlagChange]) -> str:
    """The text with these changes, in the syntax that it has. Raises InputError."""
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
    """`--name VALUES` behind a command."""
    name = re.sub("[-_]", "[-_]", _plain(change.flag))
    before, values = r"^(?P<before>[ \t]*(?!#)(?:[^#\n]*?\s)?)", r"(?:[= \t]+[^\\\n]*?)?(?=\s+--|[ \t]*\\?[ \t]*$)"
    there = re.compile(f"{before}--{name}{values}", re.MULTILINE)
    found = list(there.finditer(text))
    if len(found) > 1:
        raise InputError(f"{change.flag} stands in the file more than once")
    said = f"--{_plain(change.flag)} {' '.join(change.new or ())}".rstrip()
    if found and change.new is not None:
        return f"{text[: found[0].end('before')]}{said}{text[found[0].end() :]}"
    if found:
        left, right = text[: found[0].end("before")], text[found[0].end() :]
        alone = re.match(r"[ \t]*+\\?[ \t]*+\n", right) if not found[0]["before"].strip() else None
        return left.rstrip(" \t") + right[alone.end() :] if alone else left + right.lstrip(" \t")
    if change.new is None:
        return text
    return command.sub(lambda match: f"{match[0]} {said}", text, count=1)


_OVERRIDE = re.compile(r"(?<!\S)(?:model|train|trainer|data)\.[\w.]+=\S")


def _override(text: str, change: FlagChange) -> str:
    """`key=value` behind a command, or in a file."""
    flag = next((name for name in _names_of_nemo(change.flag) if re.search(rf"(?<!\S){re.escape(name)}=", text)), None)
    if flag is None:
        flag = _names_of_nemo(change.flag)[-1] if re.search(r"(?<!\S)trainer\.strategy\.\w", text) else change.flag
    there = re.compile(rf"(?<!\S){re.escape(flag)}=(\S+)")
    found = there.findall(text)
    if len(found) > 1 or (change.new is None and found):
        raise InputError(f"{change.flag} is not changed in place")
    if change.new is None:
        return text
    value = f"{flag}={','.join(change.new) or 'true'}"
    if found:
        return there.sub(value, text)
    return _OVERRIDE.sub(lambda match: f"{value} {match[0]}", text, count=1)


def _names_of_nemo(flag: str) -> list[str]:
    """A setting of Megatron-Bridge, and where NeMo 2 has it."""
    holder, _, key = flag.rpartition(".")
    others = {"train": ["data."], "dataset": ["data."], "model": ["trainer.strategy.", "model.config."]}
    others["ddp"] = ["trainer.strategy.ddp."]
    return [flag, *(other + key for other in others.get(holder, []))]


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _keys(change: FlagChange) -> list[str]:
    return [_plain(key) for key in change.flag.split(".")]


def _json(text: str, changes: Iterable[FlagChange]) -> str:
    tree = json.loads(text)
    for change in changes:
        *parents, last = _keys(change)
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
    indent = re.search(r"\n([ \t]+)\"", text)
    return json.dumps(tree, indent=indent[1] if indent else None, ensure_ascii=False) + "\n" * text.endswith("\n")


def _typed(values: Sequence[str]) -> Any:
    found = [yaml.safe_load(value) if re.fullmatch(r"-?[0-9.]+|true|false", value) else value for value in values]
    return True if not found else found[0] if len(found) == 1 else found


def _toml(text: str, change: FlagChange) -> str:
    section, _, key = change.flag.rpartition(".")
    lines = text.splitlines(keepends=True)
    start = next((at for at, line in enumerate(lines) if re.match(rf"\s*\[{re.escape(section)}\]\s*(#|$)", line)), None)
    value = None if change.new is None else json.dumps(_typed(change.new))
    if start is None:
        return text if value is None else f"{text.rstrip()}\n\n[{section}]\n{key} = {value}\n"
    end = next((at for at in range(start + 1, len(lines)) if re.match(r"\s*\[", lines[at])), len(lines))
    for at in range(start + 1, end):
        value_there = r"(\"[^\"]*\"|'[^']*'|\[[^\]\n]*\]|[^#\s]+)"
        match = re.fullmatch(rf"(\s*{re.escape(key)}\s*=\s*){value_there}(\s*(?:#.*)?\n?)", lines[at])
        if match:
            lines[at] = "" if value is None else f"{match[1]}{value}{match[3]}"
            return "".join(lines)
    if value is not None:
        last = max(at for at in range(start, end) if lines[at].strip())
        lines[last] = f"{lines[last].rstrip()}\n{key} = {value}\n"
    return "".join(lines)


def _yaml(text: str, change: FlagChange) -> str:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise InputError("the file is no mapping")
    *parents, last = _keys(change)
    section, missing = root, list(parents)
    while missing and isinstance(found := _entry(section, missing[0])[1], yaml.MappingNode):
        section, missing = found, missing[1:]
    if missing and section is root and (found := _entry_below(root, last))[0] is not None:
        key, value = found
    else:
        key, value = (None, None) if missing else _entry(section, last) if parents else _entry_below(root, last)
    new = None if change.new is None else json.dumps(_typed(change.new)).replace('"', "")
    if key is not None and value is not None:
        if new is None:
            return _without(text, key, value, change.flag)
        return f"{text[: value.start_mark.index]}{new}{text[value.end_mark.index :]}"
    if new is None:
        return text
    return _inserted(text, _beside(root) if not parents else section, [*missing, last], new)


def _without(text: str, key: yaml.Node, value: yaml.Node, flag: str) -> str:
    """The text without the line of an entry. Raises InputError where something else stands there."""
    first = text.rfind("\n", 0, key.start_mark.index) + 1
    after, _, rest = text[value.end_mark.index :].partition("\n")
    alone = re.fullmatch(r"\s*+,?\s*+(?:#.*)?", after) and not text[first : key.start_mark.index].strip()
    if not alone or isinstance(value, yaml.CollectionNode):
        raise InputError(f"{flag} stands among others")
    return text[:first] + rest


def _entry(section: yaml.MappingNode, name: str) -> tuple[yaml.Node | None, yaml.Node | None]:
    return next(((key, value) for key, value in section.value if _plain(str(key.value)) == name), (None, None))


def _entry_below(section: yaml.MappingNode, name: str) -> tuple[yaml.Node | None, yaml.Node | None]:
    """The entry of this name in a section or below it. Raises InputError where there are several."""
    found, waiting = [], [section]
    while waiting:
        one = waiting.pop()
        found += [(key, value) for key, value in one.value if _plain(str(key.value)) == name]
        waiting += [value for _, value in one.value if isinstance(value, yaml.MappingNode)]
    if len({id(value) for _, value in found}) > 1:
        raise InputError(f"{name} stands in the file more than once")
    return found[0] if found else (None, None)


def _beside(root: yaml.MappingNode) -> yaml.MappingNode:
    """The section that holds the settings of the plan."""
    waiting = [root]
    while waiting:
        one = waiting.pop(0)
        if any(_entry(one, name)[0] is not None for name in ANCHORS):
            return one
        waiting += [value for _, value in one.value if isinstance(value, yaml.MappingNode)]
    return root


def _inserted(text: str, section: yaml.MappingNode, path: list[str], value: str) -> str:
    """A new entry in front of the section's first one."""
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
