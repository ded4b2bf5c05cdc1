"""Which framework of post-training a file is of, and its settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autoconfig.formats.post_training import slime
from autoconfig.formats.post_training.inherit import whole_values
from autoconfig.formats.readers.hugging_face.preferences import algorithm_of, plans
from autoconfig.formats.readers.options import options_of, overrides_of, processes, read_command
from autoconfig.maps.tree import Section, Tree, load_yaml
from autoconfig.megatron.shell.commands import text_of
from autoconfig.planning.work import require_short
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.remarks import Effect, Remark, note

WANTED = "a verl, OpenRLHF, slime or `swift rlhf` script, a NeMo-RL YAML, or a TRL configuration"


@dataclass(frozen=True, kw_only=True)
class Recognised:
    """A file's framework and settings."""

    framework: str
    section: Section
    config_name: str = ""
    given: tuple[str, ...] = ()
    """Keys of a file that stands alone: it names no defaults to lie over."""
    notes: tuple[Remark, ...] = ()
    """On the program that the file starts."""
    gpus: int | None = None
    """What the command that starts it says."""
    asked: tuple[str, ...] = ()
    """Keys that the caller sets, which are no variables of the file."""


def recognise(text: str, folder: Path | None = None, settings: Tree | None = None) -> Recognised:
    """Which framework's file it is, by its words; with what the files that it lies over say; `settings`: variables."""
    settings = settings or {}
    require_short(text)
    first = next((line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")), "")
    if re.match(r"(?:---\s*$|[A-Za-z_][\w.]*\s*:(?:\s|$))", first):
        values = load_yaml(text)
        if not isinstance(values, dict):
            raise InputError(f"this YAML holds no mapping; give {WANTED}")
        alone, values = "defaults" not in values, whole_values(values, folder)
        keys = {str(key) for key in values}
        if "actor_rollout_ref" in keys:
            return Recognised(framework="verl", section=Section(values, text))
        if "policy" in keys or "grpo" in keys:
            section = Section(values, text)
            return Recognised(framework="nemo-rl", section=section, given=tuple(section.flat) if alone else ())
        if keys & OF_TRL:
            return Recognised(framework="trl", section=Section(values, text))
        if {"distributed_type", "num_processes"} <= keys:
            raise UnsupportedError("this is accelerate's file, without model and batch: check TRL's file, with it beside")
        raise UnsupportedError(f"this YAML is of no post-training framework that is read; give {WANTED}{_elsewhere(text)}")
    if "actor_rollout_ref." in text:
        script = read_command(text, settings, "verl", OF_VERL, VERL_WORD)
        config = re.search(r"--config-name[= ]['\"]?([\w.-]+)", text)
        return Recognised(
            framework="verl",
            section=Section(_known(overrides_of(script.argv)), text),
            config_name=config[1] if config else "ppo_megatron" if ".megatron." in text and "fsdp_config" not in text else "",
            notes=(*_of_the_program((*script.before, script.program)), *_of_a_configuration(config[1] if config else "")),
        )
    return _of_flags(text, settings)


def _of_flags(text: str, settings: Tree) -> Recognised:
    """The same of scripts that hand flags to a program."""
    if re.search(r"\btrain_ppo_ray\b|\bopenrlhf[./]cli[./]train_ppo\b|--actor\.model_name_or_path", text):
        script = read_command(
            text, settings, "OpenRLHF", frozenset({"--actor.model-name-or-path", "--pretrain"}), r"--[A-Za-z][\w.-]*"
        )
        words = [text_of(word) for word in script.argv]
        start = next((at + 1 for at, word in enumerate(words) if re.match(r"openrlhf[./]cli[./]", word)), 0)
        found = {_flag(word): None for word in words[start:] if word.startswith("--")}
        values = {key.replace("-", "_"): value for key, value in options_of(script.argv[start:]).items()}
        ray = "train_ppo_ray" in text or not re.search(r"\btrain_ppo\b", text)
        section = Section(_known({**found, **values}), text)
        return Recognised(
            framework="openrlhf",
            section=section,
            config_name="" if ray else "train_ppo",
            gpus=script.num_gpus if not ray else None,
        )
    if re.search(r"--(?:rollout-num-gpus|actor-num-gpus|rollout-batch-size|sglang-mem)", text):
        decisive = frozenset({"--hf-checkpoint", "--rollout-batch-size", "--actor-num-nodes", "--rollout-num-gpus"})
        script = read_command(text, settings, "slime", decisive, r"--[A-Za-z][\w-]*")
        argv = [word for word in script.argv if not slime.ELSEWHERE.match(text_of(word))]
        sourced = (note(slime.OF_ANOTHER_FILE, Effect.EVERYTHING),) if len(argv) < len(script.argv) else ()
        ahead = "train_async" if re.search(r"\btrain_async\b", " ".join((*script.before, script.program))) else ""
        return Recognised(framework="slime", section=Section(_known(options_of(argv)), text), config_name=ahead, notes=sourced)
    if re.search(r"\bswift\s+rlhf\b|\bswift/cli/rlhf\b", text):
        decisive = frozenset({"--rlhf-type", "--model", "--num-generations"})
        script = read_command(text, settings, "ms-swift", decisive, r"--[A-Za-z][\w-]*")
        return Recognised(
            framework="swift", section=Section(_known(options_of(script.argv)), text), gpus=processes(script.variables)
        )
    if re.search(r"\bmegatron\s+rlhf\b", text):
        raise UnsupportedError(
            "this is a script of Megatron-SWIFT (`megatron rlhf`), whose post-training is not read: `swift rlhf` is, and "
            "`autoconfig rl --framework other` plans a step with Megatron's parallelism"
        )
    if re.search(r"\btrl\s+grpo\b|--(?:num_generations|max_completion_length|vllm_mode)\b", text):
        if elsewhere := re.search(r"--config[=\s]\s*['\"]?([^\s'\"]{1,80})", text):
            raise InputError(f"--config {elsewhere[1]} has values that are not here: check that file, with --set KEY=VALUE")
        decisive = frozenset({"--num-generations", "--max-completion-length", "--model-name-or-path"})
        script = read_command(text, settings, "TRL", decisive, r"--[A-Za-z][\w-]*")
        return Recognised(framework="trl", section=Section(_known(options_of(script.argv)), text))
    raise UnsupportedError(f"this is no file of a post-training framework that is read; give {WANTED}{_elsewhere(text)}")


def _of_the_program(words: tuple[str, ...]) -> tuple[Remark, ...]:
    """A note where another trainer than verl's own starts."""
    program = next((word for word in reversed(words) if re.search(r"\.py$|^[A-Za-z_]\w*(?:\.\w+)+$", word)), "")
    if not program or program.removesuffix(".py").replace("/", ".").rpartition(".")[2] in PROGRAMS:
        return ()
    why = "starts, read as verl.trainer.main_ppo: what it places or trains otherwise is not known"
    return (note(f"{program[:80]} {why}", Effect.EVERYTHING),)


def _of_a_configuration(name: str) -> tuple[Remark, ...]:
    """A note where the overrides lie over another configuration than the trainer's."""
    if not name or name.removesuffix(".yaml") in CONFIGURATIONS:
        return ()
    why = "not read: what it has and the script does not is as in verl's ppo_trainer"
    return (Remark("--config-name", name[:80], why, Effect.EVERYTHING),)


def _elsewhere(text: str) -> str:
    """What reads a file of supervised training, or plans it."""
    trains = re.search(r"\btrain_(sft|dpo|rm|kto|kd)\b|\b(?:fsdp_)?(sft)_trainer\b|\b(?:trl )(sft|dpo|kto|reward)\b", text)
    if trains:
        name = next(group for group in trains.groups() if group)
        command = "`autoconfig rl --algorithm sft` plans it" if name == "sft" else plans(name)
        return f". It trains by {name}, without generation: {command}"
    program = re.search(r"^(?!#)[^\n]*?([\w-]{1,80})\.py\b", text, re.MULTILINE)
    if program and "model_name_or_path" in text and (algorithm := algorithm_of(program[1])):
        return f". It trains by {algorithm}: {plans(algorithm)}"
    if re.search(r"\brun_grpo\w*\.py\b", text):
        return ". It hands overrides to a NeMo-RL configuration: check that file, with --set KEY=VALUE for each"
    return ". For supervised fine-tuning: `autoconfig check FILE`" if "model_name_or_path" in text else ""


CONFIGURATIONS = (
    "ppo_trainer",
    "ppo_megatron_trainer",
    "one_step_off_ppo_trainer",
    "one_step_off_ppo_megatron_trainer",
    "fully_async_ppo_trainer",
    "fully_async_ppo_megatron_trainer",
    "dapo_trainer",
    "dapo_megatron_trainer",
)
"""Of verl's repository: they change no value that is read here, but those of engines with GPUs of their own."""
PROGRAMS = ("main_ppo", "main_dapo", "fully_async_main")
"""Trainers of verl's repository that run a step as verl.trainer.main_ppo does."""

OF_TRL = {"num_generations", "use_vllm", "vllm_mode", "max_completion_length", "generation_batch_size", "reward_funcs"}
OF_VERL = frozenset({"actor-rollout-ref.model.path", "data.train-files"})
VERL_WORD = r"[+~]{0,2}[A-Za-z_][\w.-]*|--config-(?:name|path)"


def _flag(text: str) -> str:
    return text.partition("=")[0].lstrip("-").replace("-", "_")


def _known(values: Mapping[str, object]) -> dict[str, object]:
    """Values; of a list of lengths or files only that it is there. Hydra's `null` is None."""
    return {key: value if not isinstance(value, str) or value != "null" else None for key, value in values.items()}
