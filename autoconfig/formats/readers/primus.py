"""AMD's Primus: an experiment whose module `pre_trainer` names a model file and overrides Megatron-LM's arguments."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources

from autoconfig.formats.readers.megatron_words import read_words
from autoconfig.formats.record import Document, model_named, with_lora
from autoconfig.maps.tree import Section
from autoconfig.megatron.check_input import CheckInput
from autoconfig.megatron.read_vocabulary import tokenizer_entries
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.software.software import DEFAULT_STACK

DEFAULTS = {"bf16": True, "use_distributed_optimizer": True, "sequence_parallel": True}
"""What an experiment need not say (primus/configs/modules/megatron/trainer_base.yaml and primus/configs/models/megatron/
language_model.yaml, fd1eeabb)."""
TENSOR = "tensor_model_parallel_size"
LANGUAGE_MODEL = "language-model"
OF_MODELS = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
"""What each model file sets beside language_model.yaml itself, in llama_base.yaml where nowhere nearer."""
OF_EXPERTS = {"moe_token_dispatcher_type": "alltoall", "moe_grouped_gemm": True, "moe_permute_fusion": True}
"""What they set where there are experts; Mixtral's, Grok's and Llama 4's leave out the fusion, which no formula reads."""
MEGATRONS_EXPERTS = frozenset({"glm4-7"})
"""Model files that leave the experts as language_model.yaml has them."""


def read(document: Document) -> CheckInput:
    """The record. GPUs: `--gpus`. `${NAME:default}` counts as its default. Raises InputError, UnsupportedError."""
    path = _trained(document)
    name = (document.section(path).word("model") or "").removesuffix(".yaml").removesuffix(".yml").replace("_", "-").lower()
    section = document.section(f"{path}.overrides")
    if (kind := section.word("model_type") or "gpt") not in ("gpt", "mamba", "hybrid"):
        raise UnsupportedError(f"{section.place('model_type')} is {kind[:40]!r}: only language models are read")
    defaults = DEFAULTS | {"bf16": not section.has("fp16"), "sequence_parallel": (section.count(TENSOR) or 1) > 1}
    _fill(section, defaults)
    if document.request.model is not None or name in _own() or not (section.has("num_layers") and section.has("hidden_size")):
        model: ModelSpec | None = _model(document, section, name, f"{path}.model is not in the file")
    else:
        model = None
    if name and name != LANGUAGE_MODEL:
        experts = (section.has("num_experts") if model is None else model.is_moe) and name not in MEGATRONS_EXPERTS
        _fill(section, OF_MODELS | (OF_EXPERTS if experts else {}))
    answer = read_words(document, section, None, model=model, skip=("lora",), software=DEFAULT_STACK)
    if not section.flag("lora.enabled"):
        return answer
    return with_lora(answer, section.count("lora.dim"), section.get("lora.target_modules"), "lora.dim")


def _trained(document: Document) -> str:
    """Where the module stands that trains. Raises InputError where none does, UnsupportedError for another framework."""
    modules = document.values.get("modules") or {}
    names = [name for name, module in modules.items() if isinstance(module, dict) and "framework" in module]
    if not names:
        raise InputError("modules: no module with a framework is there; give the experiment file of a pre-training")
    path = f"modules.{names[0]}"
    framework = document.section(path).word("framework")
    if framework != "megatron":
        raise UnsupportedError(f"{path}.framework is {framework!r}: of Primus only megatron is read")
    return path


def _fill(section: Section, defaults: Mapping[str, object]) -> None:
    """What the section does not say."""
    section.flat.update({key: value for key, value in defaults.items() if not section.has(key)})


def _model(document: Document, section: Section, name: str, missing: str) -> ModelSpec:
    """The model that Primus's file of this name builds, with the vocabulary of the tokenizer that the experiment names. Raises
    InputError."""
    if document.request.model is not None:
        return model_named(document, None, [])
    changes = dict(_own().get(name, {}))
    model = model_named(document, str(changes.pop("base", name)), [], missing)
    changes = {key: None if value == 0 and value is not False else value for key, value in changes.items()}
    model = model.replace(name=f"{model.name}*", published_parameters=None, **changes) if changes else model
    tokenizer = section.word("tokenizer_model")
    if tokenizer is None or section.has("vocab_size"):
        return model.replace(vocab_size=section.count("vocab_size") or model.vocab_size)
    number = tokenizer_entries(tokenizer)
    if number is None:
        raise InputError(f"{section.place('tokenizer_model')} is {tokenizer[:60]!r}, of unknown vocabulary: add vocab_size: N")
    return model if abs(number / model.vocab_size - 1) < 0.01 else model.replace(vocab_size=number)


@cache
def _own() -> dict[str, dict[str, object]]:
    """Name of a model file of Primus -> what it builds otherwise than the catalogue's model."""
    text = (resources.files("autoconfig") / "data" / "primus_models.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
