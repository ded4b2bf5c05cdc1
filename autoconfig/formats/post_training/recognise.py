"""Which framework of post-training a file is of, and its settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autoconfig.formats.options import options_of, overrides_of, processes, read_command
from autoconfig.formats.post_training.inherit import whole_values
from autoconfig.formats.readers.hugging_face.preferences import algorithm_of, plans
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
    own_keys: tuple[str, ...] = ()
    """Keys of a file that stands alone: it names no defaults to lie over."""
    notes: tuple[Remark, ...] = ()
    """On the program that the file starts."""
    gpus: int | None = None
    """What the command that starts it says."""
    set_keys: tuple[str, ...] = ()
    """Keys that the caller sets, which are no variables of the file."""


def recognise(text: str, folder: Path | None = None, settings: Tree | None = None) -> Recognised:
    """Recognise which framework's file it is, by its words; with what the files that it lies over say; `settings`:
    variables. Raises InputError, UnsupportedError."""
    require_short(text)
    first = next((line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")), "")
    if re.match(r"(?:---\s*$|[A-Za-z_][\w.]*\s*:(?:\s|$))", first):
        return _of_yaml(text, folder)
    for sign, reader in SCRIPTS.items():
        if re.search(sign, text):
            return reader(text, settings or {})
    raise UnsupportedError(f"this is no file of a post-training framework that is read; give {WANTED}{_elsewhere(text)}")


def _of_yaml(text: str, folder: Path | None) -> Recognised:
    """Recognise a mapping of settings."""
    values = load_yaml(text)
    if not isinstance(values, dict):
        raise InputError(f"this YAML holds no mapping; give {WANTED}")
    alone, values = "defaults" not in values, whole_values(values, folder)
    keys = {str(key) for key in values}
    of = {"verl": {"actor_rollout_ref"}, "nemo-rl": {"policy", "grpo"}, "trl": OF_TRL}
    if framework := next((name for name, signs in of.items() if keys & signs), None):
        section = Section(values, text)
        stands_alone = framework == "nemo-rl" and alone
        return Recognised(framework=framework, section=section, own_keys=tuple(section.flat) if stands_alone else ())
    if {"distributed_type", "num_processes"} <= keys:
        raise UnsupportedError("this is accelerate's file, without model and batch: check TRL's file, with it beside")
    raise UnsupportedError(f"this YAML is of no post-training framework that is read; give {WANTED}{_elsewhere(text)}")


def _verl(text: str, settings: Tree) -> Recognised:
    script = read_command(text, settings, "verl", frozenset({"actor-rollout-ref.model.path", "data.train-files"}), VERL_WORD)
    config = re.search(r"--config-name[= ]['\"]?([\w.-]+)", text)
    name = config[1] if config else ""
    megatron = ".megatron." in text and "fsdp_config" not in text
    return Recognised(
        framework="verl",
        section=Section(_known(overrides_of(script.argv)), text),
        config_name=name or ("ppo_megatron" if megatron else ""),
        notes=(*_of_the_program((*script.before, script.program)), *_of_a_configuration(name)),
    )


def _openrlhf(text: str, settings: Tree) -> Recognised:
    decisive = frozenset({"--actor.model-name-or-path", "--pretrain"})
    script = read_command(text, settings, "OpenRLHF", decisive, r"--[A-Za-z][\w.-]*")
    words = [text_of(word) for word in script.argv]
    starts = (at + 1 for at, word in enumerate(words) if word.replace("/", ".").startswith("openrlhf.cli."))
    start = next(starts, 0)
    switches = {_flag(word): None for word in words[start:] if word.startswith("--")}
    values = {key.replace("-", "_"): value for key, value in options_of(script.argv[start:]).items()}
    alone = "train_ppo_ray" not in text and re.search(r"\btrain_ppo\b", text)
    return Recognised(
        framework="openrlhf",
        section=Section(_known({**switches, **values}), text),
        config_name="train_ppo" if alone else "",
        gpus=script.num_gpus if alone else None,
    )


def _slime(text: str, settings: Tree) -> Recognised:
    decisive = frozenset({"--hf-checkpoint", "--rollout-batch-size", "--actor-num-nodes", "--rollout-num-gpus"})
    script = read_command(text, settings, "slime", decisive, OPTION)
    argv = [word for word in script.argv if not ELSEWHERE.match(text_of(word))]
    sourced = (note(OF_ANOTHER_FILE, Effect.EVERYTHING),) if len(argv) < len(script.argv) else ()
    ahead = "train_async" if "train_async" in " ".join((*script.before, script.program)) else ""
    return Recognised(framework="slime", section=Section(_known(options_of(argv)), text), config_name=ahead, notes=sourced)


def _swift(text: str, settings: Tree) -> Recognised:
    script = read_command(text, settings, "ms-swift", frozenset({"--rlhf-type", "--model", "--num-generations"}), OPTION)
    section = Section(_known(options_of(script.argv)), text)
    return Recognised(framework="swift", section=section, gpus=processes(script.variables))


def _megatron_swift(text: str, settings: Tree) -> Recognised:
    raise UnsupportedError(
        "this is a script of Megatron-SWIFT (`megatron rlhf`), whose post-training is not read: `swift rlhf` is, and "
        "`autoconfig rl --framework other` plans a step with Megatron's parallelism"
    )


def _trl(text: str, settings: Tree) -> Recognised:
    if elsewhere := re.search(r"--config[=\s]\s*['\"]?([^\s'\"]{1,80})", text):
        raise InputError(f"--config {elsewhere[1]} has values that are not here: check that file, with --set KEY=VALUE")
    decisive = frozenset({"--num-generations", "--max-completion-length", "--model-name-or-path"})
    script = read_command(text, settings, "TRL", decisive, OPTION)
    return Recognised(framework="trl", section=Section(_known(options_of(script.argv)), text))


SCRIPTS = {
    r"actor_rollout_ref\.": _verl,
    r"\btrain_ppo_ray\b|\bopenrlhf[./]cli[./]train_ppo\b|--actor\.model_name_or_path": _openrlhf,
    r"--(?:rollout-num-gpus|actor-num-gpus|rollout-batch-size|sglang-mem)": _slime,
    r"\bswift\s+rlhf\b|\bswift/cli/rlhf\b": _swift,
    r"\bmegatron\s+rlhf\b": _megatron_swift,
    r"\btrl\s+grpo\b|--(?:num_generations|max_completion_length|vllm_mode)\b": _trl,
}
"""What a script has, and who reads it then; the first counts."""


def _of_the_program(words: tuple[str, ...]) -> tuple[Remark, ...]:
    """Return a note where another trainer than verl's own starts."""
    program = next((word for word in reversed(words) if re.search(r"\.py$|^[A-Za-z_]\w*(?:\.\w+)+$", word)), "")
    if not program or program.removesuffix(".py").replace("/", ".").rpartition(".")[2] in PROGRAMS:
        return ()
    why = "starts, read as verl.trainer.main_ppo: what it places or trains otherwise is not known"
    return (note(f"{program[:80]} {why}", Effect.EVERYTHING),)


def _of_a_configuration(name: str) -> tuple[Remark, ...]:
    """Return a note where the overrides lie over another configuration than the trainer's."""
    if not name or name.removesuffix(".yaml") in CONFIGURATIONS:
        return ()
    why = "not read: what it has and the script does not is as in verl's ppo_trainer"
    return (Remark("--config-name", name[:80], why, Effect.EVERYTHING),)


def _elsewhere(text: str) -> str:
    """Say what reads a file of supervised training, or plans it."""
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

ELSEWHERE = re.compile(r"\$\{?\w*ARGS\b")
"""Words that stand for arguments of another file: `${MODEL_ARGS[@]}` of scripts/models of slime."""
OF_ANOTHER_FILE = "arguments of a file that the script sources ($MODEL_ARGS) are not read: the model is that of --hf-checkpoint"
OF_TRL = {"num_generations", "use_vllm", "vllm_mode", "max_completion_length", "generation_batch_size", "reward_funcs"}
OPTION = r"--[A-Za-z][\w-]*"
VERL_WORD = r"[+~]{0,2}[A-Za-z_][\w.-]*|--config-(?:name|path)"


def _flag(text: str) -> str:
    return text.partition("=")[0].lstrip("-").replace("-", "_")


def _known(values: Mapping[str, object]) -> dict[str, object]:
    """Return the values, Hydra's `null` as None."""
    return {key: value if not isinstance(value, str) or value != "null" else None for key, value in values.items()}
