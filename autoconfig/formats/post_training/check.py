"""`autoconfig rl check FILE`: unknown keys, what cannot run, what fits, the step, and the better neighbour."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoconfig.formats.post_training import nemo_rl, openrlhf, slime, trl, verl
from autoconfig.formats.post_training.inherit import whole_values
from autoconfig.formats.post_training.keys import added_keys, key_types, lacking_keys, unknown_keys, version_of
from autoconfig.formats.post_training.legality import broken, broken_of_model
from autoconfig.formats.post_training.run import PLACEHOLDER, RlRun, job_of, named_by, placement_of, said_lengths
from autoconfig.formats.post_training.verdict import MicroBatchVerdict, filled_up, hanging_on, turning_mean, verdict
from autoconfig.formats.readers.hugging_face.preferences import algorithm_of, plans
from autoconfig.formats.readers.options import options_of, overrides_of, read_command
from autoconfig.formats.tree import NotKnown, Section, Tree, load_yaml
from autoconfig.formats.writers.trl import LAUNCH
from autoconfig.megatron.check_input import read_settings
from autoconfig.megatron.shell.commands import text_of
from autoconfig.planning.work import bounded, require_short, spend
from autoconfig.post_training.answer import fit_chance_of, host_memory_of
from autoconfig.post_training.frameworks import Constants
from autoconfig.post_training.job import Placement, PostTrainingJob
from autoconfig.post_training.ranking import FIT_CHANCE, PricedPlacement, price, ranked
from autoconfig.specs.errors import GIB, InputError, UnsupportedError, option, option_name
from autoconfig.specs.files import read_text
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.remarks import Effect, Remark, note
from autoconfig.time_model.hardware.efficiency import efficiency_of

WANTED = "a verl, OpenRLHF or slime launch script, a NeMo-RL YAML, or a TRL configuration"
BETTER = 0.98
"""A neighbour is worth saying from this share of the step on."""
LIKELIER = 0.01
"""And where none has the asked chance to fit, from so much more of it on."""
TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}


@dataclass(frozen=True, kw_only=True)
class RlCheck:
    """What `rl check` says of a file."""

    run: RlRun
    version: str
    unknown: tuple[Remark, ...]
    """Keys that the release does not take, each with a hint."""
    broken: tuple[str, ...]
    """What cannot run."""
    job: PostTrainingJob | None = None
    priced: PricedPlacement | None = None
    """None where the run is not legal."""
    better: PricedPlacement | None = None
    """Of the placements that `rl` ranks with this `fit_chance`; None where the run's is as good."""
    fit_chance: float = FIT_CHANCE
    verdict: MicroBatchVerdict | None = None
    """Of the micro-batches of training."""
    filled: PricedPlacement | None = None
    """Where they do not fit surely: the same placement with micro-batches filled up to a number of tokens."""

    @property
    def filled_words(self) -> str:
        """The change of the file to `filled`, in its own words; empty where there is none."""
        return filled_words(self.run, self.version, self.filled.placement.tokens_per_gpu) if self.filled else ""

    @property
    def legal(self) -> bool:
        return not self.broken and not self.unknown

    @property
    def fits(self) -> bool:
        return self.priced is not None and self.priced.memory.fits


@dataclass(frozen=True, kw_only=True)
class _Input:
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


@bounded()
def read_file(text: str, given: Mapping[str, Any], folder: Path | None = None) -> tuple[_Input, RlRun]:
    """The run of the text of a file in `folder`. Raises InputError or UnsupportedError saying what is read."""
    settings = read_settings(tuple(given.get("set") or ()))
    shell = {name: value for name, value in settings.items() if re.search(rf"\$(?:{name}\b|\{{{name}\b)", text)}
    document = replace(_recognise(text, folder, shell), asked=tuple(key for key in settings if key not in shell))
    section = document.section
    section.flat |= {key: load_yaml(said) for key, said in settings.items() if key not in shell or key in section.flat}
    notes: list[Remark] = []
    named = [key for key in MODELS[document.framework] if key in section.flat] or MODELS[document.framework][:1]
    for key in named:
        value = section.flat.get(key)
        if given.get("model"):
            section.flat[key] = given["model"]
        elif isinstance(value, NotKnown) and (found := _by_its_end(value.text)):
            section.flat[key] = found
            notes.append(Remark("model", found, f"as {value.text[:80]} ends", Effect.EVERYTHING))
        elif isinstance(value, NotKnown) or value == PLACEHOLDER:
            raise InputError(f"{key} is not known, as the file leaves it to who starts it: say {option('model')} NAME")
    if document.framework == "verl":
        run = verl.read(section, document.config_name, given.get("version") or verl.VERSION)
    elif document.framework == "nemo-rl":
        run = nemo_rl.read(section)
    elif document.framework == "openrlhf":
        alone = document.config_name == "train_ppo"
        if alone and not (given.get("gpus") or document.gpus):
            raise InputError("openrlhf.cli.train_ppo does not say its GPUs: say --gpus N")
        run = openrlhf.read(section, given.get("version"), (given.get("gpus") or document.gpus) if alone else None)
    elif document.framework == "slime":
        run = slime.read(section, ahead=document.config_name == "train_async")
    else:
        run = trl.read(section, given.get("gpus"), given.get("version") or trl.VERSION)
    run.prompt_mean, run.response_mean = said_lengths(text)
    run.notes += [*notes, *document.notes, *_gpus_of(document.framework, run, given.get("gpus"))]
    return document, run


def _gpus_of(framework: str, run: RlRun, gpus: int | None) -> list[Remark]:
    """A note where the GPUs that are asked for are not those that the file names, which count; of TRL's none does."""
    own = run.train_gpus + run.rollout_gpus + run.critic_gpus
    if framework == "trl" or gpus in (None, own):
        return []
    return [Remark("gpus", own, f"as the file says: {gpus:,} is for files that say none (change the file)", Effect.EVERYTHING)]


def _by_its_end(text: str) -> str | None:
    """The catalogue's model of a path whose folder alone is not known: `$HOME/models/Qwen2.5-7B`."""
    end = re.fullmatch(r"(?:[^$`]*+[$`])++[^/$`]*+/([^$`]++)", text)
    return named_by(end[1]) if end else None


MODELS = {
    "verl": ("actor_rollout_ref.model.path",),
    "nemo-rl": ("policy.model_name",),
    "openrlhf": ("actor.model_name_or_path", "pretrain"),
    "slime": ("hf_checkpoint",),
    "trl": ("model_name_or_path",),
}


def _recognise(text: str, folder: Path | None = None, settings: Tree | None = None) -> _Input:
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
            return _Input(framework="verl", section=Section(values, text))
        if "policy" in keys or "grpo" in keys:
            section = Section(values, text)
            return _Input(framework="nemo-rl", section=section, given=tuple(section.flat) if alone else ())
        if keys & OF_TRL:
            return _Input(framework="trl", section=Section(values, text))
        if {"distributed_type", "num_processes"} <= keys:
            raise UnsupportedError("this is accelerate's file, without model and batch: check TRL's file, with it beside")
        raise UnsupportedError(f"this YAML is of no post-training framework that is read; give {WANTED}{_elsewhere(text)}")
    if "actor_rollout_ref." in text:
        script = read_command(text, settings, "verl", OF_VERL, VERL_WORD)
        config = re.search(r"--config-name[= ]['\"]?([\w.-]+)", text)
        return _Input(
            framework="verl",
            section=Section(_known(overrides_of(script.argv)), text),
            config_name=config[1] if config else "ppo_megatron" if ".megatron." in text and "fsdp_config" not in text else "",
            notes=(*_of_the_program((*script.before, script.program)), *_of_a_configuration(config[1] if config else "")),
        )
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
        return _Input(
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
        return _Input(framework="slime", section=Section(_known(options_of(argv)), text), config_name=ahead, notes=sourced)
    if re.search(r"\btrl\s+grpo\b|--(?:num_generations|max_completion_length|vllm_mode)\b", text):
        if elsewhere := re.search(r"--config[=\s]\s*['\"]?([^\s'\"]{1,80})", text):
            raise InputError(f"--config {elsewhere[1]} has values that are not here: check that file, with --set KEY=VALUE")
        decisive = frozenset({"--num-generations", "--max-completion-length", "--model-name-or-path"})
        script = read_command(text, settings, "TRL", decisive, r"--[A-Za-z][\w-]*")
        return _Input(framework="trl", section=Section(_known(options_of(script.argv)), text))
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


def check_file(path: Path, given: Mapping[str, Any], constants: Constants | None = None) -> RlCheck:
    """Check the file at `path`, of TRL with accelerate's file beside it; `given`: model, gpus, gpu, prompt_length,
    response_length, version, set, download. Raises InputError."""
    beside = path.with_name(LAUNCH)
    launch = read_text(beside, WANTED) if path.name != LAUNCH and beside.is_file() else ""
    return check_text(read_text(path, WANTED), given, constants, launch, path.parent)


def _launched(text: str, given: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """(what is given with the GPUs of accelerate's file, what of the file is said)."""
    values = load_yaml(text)
    processes = values.get("num_processes") if isinstance(values, dict) else None
    if not isinstance(values, dict) or not isinstance(processes, int) or isinstance(processes, bool):
        raise InputError(f"{LAUNCH} beside it says no num_processes: correct it, or move it away and say {option('gpus')} N")
    machines = values.get("num_machines")
    if isinstance(machines, int) and not isinstance(machines, bool) and machines > 0 and processes % machines:
        raise InputError(
            f"{LAUNCH} beside it has {processes:,} processes on {machines:,} machines, which do not share them evenly: "
            "num_processes counts those of all machines"
        )
    engine = values.get("deepspeed_config")
    stage = engine.get("zero_stage") if isinstance(engine, dict) else None
    kind = str(values.get("distributed_type", "NO")).upper()
    other = "" if (kind, stage) == ("DEEPSPEED", 3) else f"; its {kind} is priced as ZeRO-3 over all of them"
    if given.get("gpus"):
        counts = f", {option_name('gpus')} {given['gpus']:,} counts" if given["gpus"] != processes else ""
        return given, f"{LAUNCH} beside it is for {processes:,} GPUs{counts}{other}"
    return {**given, "gpus": processes}, f"{processes:,} GPUs, as {LAUNCH} beside it says{other}"


@bounded()
def check_text(
    text: str,
    given: Mapping[str, Any],
    constants: Constants | None = None,
    launch: str = "",
    folder: Path | None = None,
) -> RlCheck:
    """The same of a file's text; `launch`: that of accelerate's file beside one of TRL, `folder`: where what it lies over is
    looked for."""
    chance = fit_chance_of(given)
    beside = ""
    if launch and _recognise(text, folder).framework == "trl":
        given, beside = _launched(launch, given)
    document, run = read_file(text, given, folder)
    run.notes += [note(beside, Effect.EVERYTHING)] if beside else []
    gpu = load_gpu(str(given.get("gpu") or "h100"))
    if not given.get("gpu"):
        run.notes.append(Remark("gpu", gpu.id, "", Effect.EVERYTHING))
    version = version_of(run.framework, given.get("version") or run.version)
    odd = _odd(document, run, version)
    wrong = broken(run)
    if run.algorithm == "dapo" and not wrong:
        run.notes.append(note("no KL term: no pass of a reference, priced as dapo"))
    if document.given and (lacking := lacking_keys(run.framework, version, document.given)):
        wrong.append(f"{run.framework} {version} requires {', '.join(lacking)}: give them, or `defaults:` that have them")
    if wrong:
        return RlCheck(run=run, version=version, unknown=tuple(odd), broken=tuple(wrong))
    job = job_of(
        run,
        gpu,
        given.get("prompt_length"),
        given.get("response_length"),
        given.get("like"),
        download=bool(given.get("download")),
    )
    job = replace(job, host_memory_bytes=host_memory_of(given))
    placement = placement_of(run, job.tokens)
    wrong = broken_of_model(run, job, placement)
    if wrong:
        return RlCheck(run=run, version=version, unknown=tuple(odd), broken=tuple(wrong), job=job)
    priced = price(job, placement, constants)
    run.notes += copies_of(job, priced)
    tokens = placement.tokens_per_gpu or max(8192, round(job.tokens))
    found = ranked(job, placement.gpus, tokens, placement.staleness, constants, chance)
    better = _better(priced, [one for one in found if one.memory.fits], chance)
    return RlCheck(
        run=run,
        version=version,
        unknown=tuple(odd),
        broken=(),
        job=job,
        priced=priced,
        better=better,
        fit_chance=chance,
        verdict=_judged(job, placement, run),
        filled=_surer(job, priced, run, version, chance),
    )


def _odd(document: _Input, run: RlRun, version: str) -> list[Remark]:
    """Keys that the release does not take, and values of another type; those that hydra adds get a note."""
    names = [key for key in document.section.flat if not isinstance(document.section.flat[key], NotKnown)]
    written = document.section.text
    spend(len(names) * (1 + len(written) / 500))
    names = [
        key
        for key in names
        if key in written or key.rpartition(".")[2] in written or key in document.asked or document.framework == "slime"
    ]
    names = [key for key in names if key not in run.other_keys]
    names = slime.own_keys(names) if run.framework == "slime" else names
    said = unknown_keys(run.framework, run.back_end, version, names, written)
    added = added_keys(run.framework, [one.field for one in said], written)
    run.notes += [Remark(key, None, "a key of the caller's own (+): not read") for key in added]
    return [*(one for one in said if one.field not in added), *_types(run.framework, document.section)]


def _judged(job: PostTrainingJob, placement: Placement, run: RlRun) -> MicroBatchVerdict:
    """The micro-batches of training; a mean response that was assumed gets its note."""
    judged = verdict(job, placement)
    if any(one.field == "response_length" for one in run.notes):
        run.notes.append(note(hanging_on(judged, turning_mean(job, placement, judged.limit_tokens))))
    return judged


def _surer(job: PostTrainingJob, priced: PricedPlacement, run: RlRun, version: str, chance: float) -> PricedPlacement | None:
    """With micro-batches that are filled up, where training is not sure to fit, these are surer, and the file can say them."""
    if priced.memory.training_fit >= chance or not filled_words(run, version, 1):
        return None
    filled = filled_up(job, priced.placement)
    return filled if filled and filled.memory.chance > priced.memory.chance + LIKELIER else None


FILLED = {
    "verl": (
        "actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu={0}"
        " actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True"
    ),
    "nemo-rl": "policy.sequence_packing.enabled=true policy.sequence_packing.train_mb_tokens={0}",
    "openrlhf": (
        "--train.dynamic_batch_enable --train.max_tokens_per_gpu {0} --rollout.max_tokens_per_gpu {0} --ds.packing_samples"
    ),
    "slime": "--use-dynamic-batch-size --max-tokens-per-gpu {0}",
    "openrlhf without dots": (
        "--use_dynamic_batch --train_max_tokens_per_gpu {0} --rollout_max_tokens_per_gpu {0} --packing_samples"
    ),
}
"""Settings that fill micro-batches up to so many tokens of a GPU."""


def filled_words(run: RlRun, version: str, tokens: int) -> str:
    """Settings of the file's framework and release that fill micro-batches; empty where it has none."""
    for name in (run.framework, f"{run.framework} without dots"):
        words = FILLED.get(name, "").format(tokens)
        keys = [re.split(r"[= ]", word)[0].lstrip("-").replace("-", "_") for word in words.split() if not word.isdigit()]
        if words and not unknown_keys(run.framework, run.back_end, version, keys):
            return words
    return ""


def copies_of(job: PostTrainingJob, priced: PricedPlacement) -> list[Remark]:
    """The note on what offloading copies in a step: state of training out while the engines generate, and back. Its bytes over
    the host's link (time_model/hardware) are a lower bound: runs load weights for passes too."""
    node = min(job.gpus_per_node or job.gpu.gpus_per_node, priced.placement.gpus)
    copied = 2.0 * priced.memory.waiting_bytes / node
    if copied <= 0.0:
        return []
    seconds = copied / efficiency_of(job.gpu).host_bytes_per_s
    why = (
        f"offloading copies {copied / GIB:,.1f} GiB of a GPU's state in a step, about {seconds:,.1f} s of its host's link: "
        f"they are in the step as far as the {priced.phases.other:,.1f} s beside its phases hold them"
    )
    return [note(why, Effect.TIME)]


def _better(priced: PricedPlacement, fits: list[PricedPlacement], chance: float) -> PricedPlacement | None:
    """The quickest with this chance to fit, else the likeliest; None where the run's own is as good by that rule."""
    if not fits:
        return None
    own = priced.memory.chance if priced.memory.fits else 0.0
    first = fits[0]  # of those with the chance, where any has it
    if first.memory.chance < chance:
        first = max(fits, key=lambda one: one.memory.chance)
        return first if first.memory.chance > own + LIKELIER else None
    return first if own < chance or first.seconds < BETTER * priced.seconds else None


def _types(framework: str, section: Section) -> list[Remark]:
    """Values of another type than the base configuration's."""
    found = []
    for key, kind in key_types(framework).items():
        value = section.flat.get(key)
        if kind not in TYPES or value is None or str(value).startswith("$"):
            continue
        good = isinstance(value, TYPES[kind]) and (kind == "bool" or not isinstance(value, bool))
        if not good and not (kind == "float" and re.fullmatch(r"[0-9.]+e-?[0-9]+", str(value))):
            found.append(Remark(key, repr(str(value)[:40]), f"{kind} is wanted"))
    return found
