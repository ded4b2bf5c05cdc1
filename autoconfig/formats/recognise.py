"""Which format a file has, by its content."""

from __future__ import annotations

import re
from typing import Any

from autoconfig.formats.argument_names import MEGATRON_ARGUMENTS
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
_OTHERS = (
    ("actor_rollout_ref", "verl", _RL),
    ("policy", "NeMo-RL", _RL),
    ("apiVersion", "Kubernetes", "give the script that it starts"),
    ("services", "docker-compose", "give the script that it starts"),
    ("defaults", "Hydra", "a file of defaults names others, which are not opened: give the file with the model and the plan"),
    ("decode_step_seconds", "a deployment that autoconfig exported", "give the serve.sh beside it"),
    ("model_type", "Hugging Face's config.json", "it is a model: give it as --model"),
)
BRIDGES = {"ddp", "checkpoint", "scheduler", "optimizer", "mixed_precision", "comm_overlap", "dist"}
"""Parts of Megatron-Bridge's ConfigContainer, beside model and train."""
_TITAN = ("training", "parallelism", "model", "job")
TRAINER = {"per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing"}
"""Arguments of transformers' Trainer, in files that name nothing else of their framework."""
NESTED = frozenset(("actor_rollout_ref", "policy", "services", "defaults"))
"""Of the keys of others: those that hold more keys; a log that says `policy: 31 s` is none of their files."""
_DEEPSPEED = ("train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization", "zero_allow_untested_optimizer")


class UnknownFormat(UnsupportedError):
    """A text that nothing says a format of."""


@bounded()
def recognise(text: str) -> tuple[str, Any]:
    """(name of the format, its values; None for scripts). Raises InputError or UnsupportedError naming what else it is."""
    require_short(text)
    spend(len(text) / 8)
    start = text.lstrip()
    first = next((line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")), "")
    if first.startswith("{") and (re.match(r"\{\s*[\"'}]", first) or _KEY.search(text)):
        return _of_json(text)
    if start.startswith("[") and re.match(r"\[\s*[\"\]]", start):
        return "arguments", None
    if (printed := megatron_log.in_log(text)) is not None:
        return megatron_log.FORMAT, printed
    if first.startswith("--"):
        return "arguments", None
    if is_list(text):
        return "bridge", None
    if re.fullmatch(r"\[\[?[A-Za-z_][\w.-]*\]\]?\s*(#.*)?", first):
        return _of_toml(load_toml(text))
    if re.match(r"(?:from\s+[\w.]+\s+import|import\s+[\w.]+|@|def |class |\"\"\")", first):
        raise UnsupportedError(
            "this is Python: a recipe or config registry is not run; give its key=value overrides "
            "(model.tensor_model_parallel_size=8), or the launch script"
        )
    if not start.startswith("#!") and re.match(
        r"(?:---\s*$|[\"']?--?[\w-]++[\"']?\s*+:|[\"']?[A-Za-z_][\w .-]*+[\"']?\s*+:(?:\s|$))", first
    ):
        return _of_mapping(load_yaml(text))
    if re.search(r"^[^#\n]*(?:\bprimus-cli\b|\bprimus/cli/main\.py)", text, re.MULTILINE):
        raise UnsupportedError("this starts Primus, whose settings stand in the YAML that --config names: check that file")
    if found := POST_TRAINING.search(text):
        raise UnsupportedError(f"this is post-training ({found[1] or found[2]}): {_RL}")
    if SWIFT.search(text):
        return "ms-swift", None
    if (found := FACTORY.search(text)) and (not found[0].endswith(".py") or _FACTORYS.search(text)):
        return "llama-factory", None
    if (found := _TRL.search(text)) and found[1] != "sft":
        raise UnsupportedError(not_supervised(f"trl {found[1]}", found[1]))
    if found or (_PROGRAM.search(text) and _MODEL.search(text) and _TRAINERS.search(text)):
        return "llama-factory" if _FACTORYS.search(text) else "trl", None
    if _RECIPE.search(text) and "pretrain_gpt" not in text:
        return "bridge", None
    return "script", None


def _of_json(text: str) -> tuple[str, Any]:
    if re.match(r"\s*\{\s*(?:[\"}]\s*kind\b|\})", text) or '"kind"' in text[:400]:
        return "plan", None
    try:
        values = load_json(text)
    except InputError:
        values = load_yaml(text)  # GPT-NeoX's files look like JSON with comments
    if not isinstance(values, dict):
        raise InputError("this file holds no mapping; give a launch script or a trainer's configuration")
    if "kind" in values:
        return "plan", None
    keys = {str(key).replace("-", "_") for key in values}
    if "log_history" in keys:
        raise UnknownFormat("this is transformers' trainer_state.json, which a run left behind: it says no plan")
    if {"num_layers", "hidden_size"} <= keys and keys & {
        "pipe_parallel_size",
        "model_parallel_size",
        "train_micro_batch_size_per_gpu",
    }:
        return "gpt-neox", values
    if keys & set(_DEEPSPEED):
        return "deepspeed", values
    return _of_mapping(values)


def _named_by(values: dict[Any, Any]) -> str:
    """The files that Hydra's `defaults` name: `train: 7b` is train/7b.yaml beside the file."""
    entries = values["defaults"] if isinstance(values["defaults"], list) else []
    pairs = [pair for entry in entries if isinstance(entry, dict) for pair in entry.items() if isinstance(pair[1], str)]
    files = [f"{str(group).split()[-1].split('@')[0]}/{name}.yaml" for group, name in pairs if str(group).strip()]
    files += [f"{entry}.yaml" for entry in entries if isinstance(entry, str) and entry != "_self_"]
    return f" (it names {', '.join(file[:60] for file in files[:4])} beside itself)" if files else ""


def _of_toml(values: Any) -> tuple[str, Any]:
    if isinstance(values, dict) and isinstance(values.get("training"), dict) and ("parallelism" in values or "model" in values):
        return "torchtitan", values
    known = isinstance(values, dict) and any(isinstance(values.get(key), dict) for key in _TITAN)
    raise (UnsupportedError if known else UnknownFormat)(
        "this TOML is no torchtitan configuration (with [model], [training] and [parallelism]); no other is read"
    )


def _of_mapping(values: Any) -> tuple[str, Any]:
    if not isinstance(values, dict):
        raise InputError("this YAML holds no mapping; give a launch script or a trainer's configuration")
    keys = {str(key).replace("-", "_") for key in values}
    if any(isinstance(values.get(key), dict) for key in MEGATRON_ARGUMENTS) or {"language_model", "model_parallel"} <= keys:
        return "megatron-yaml", values
    if isinstance(values.get("modules"), dict):
        return "primus", values
    inner = values.get("train") if isinstance(values.get("train"), dict) else values
    if isinstance(inner, dict) and isinstance(inner.get("system"), dict) and isinstance(inner.get("model"), dict):
        return "flagscale", values
    if isinstance(values.get("model"), dict) and isinstance(values.get("train"), dict) and keys & BRIDGES:
        return "bridge", values
    if isinstance(values.get("trainer"), dict) and isinstance(values.get("model"), dict):
        return "nemo", values
    if {"parallelism", "tokens", "model"} <= keys:
        return "nanotron", values
    if keys & {"pipe_parallel_size", "model_parallel_size"} or {"num_layers", "train_micro_batch_size_per_gpu"} <= keys:
        return "gpt-neox", values
    if "model_name_or_path" in keys and keys & {"stage", "finetuning_type", "template", "cutoff_len"}:
        return "llama-factory", values
    if keys & {"num_generations", "max_completion_length"} and "per_device_train_batch_size" in keys:
        raise UnsupportedError("this is a file of TRL's reinforcement learning: autoconfig rl --like reads it")
    if "base_model" in keys:
        return "axolotl", values
    if keys & {"train_type", "tuner_type", "sft_type"} or {"model", "tensor_model_parallel_size"} <= keys:
        return "ms-swift", values
    if keys & TRAINER:
        return "trl", values
    if keys & {"device_train_microbatch_size", "device_train_batch_size"}:
        raise UnsupportedError("this is a file of llm-foundry: its settings are not read")
    if keys & {"distributed_type", "compute_environment", "fsdp_config"}:
        return "accelerate", values
    if keys & set(_DEEPSPEED):
        return "deepspeed", values
    for key, name, why in _OTHERS:
        if key in keys and (key not in NESTED or isinstance(values.get(key), (dict, list))):
            raise UnsupportedError(f"this is a file of {name}: {why}{_named_by(values) if name == 'Hydra' else ''}")
    raise UnknownFormat(
        f"no configuration that is known has the keys {', '.join(sorted(keys)[:8])}; docs/check.md lists the formats"
    )
