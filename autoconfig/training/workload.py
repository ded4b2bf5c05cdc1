"""The batch and the sequence length of a question: given, or as such models are trained or trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from autoconfig.specs.errors import InputError, option
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.scenario import LORA_MODULES, Numerics, Workload

DEFAULT_SEQ_LENGTH = 8192
DEFAULT_TOKENS_PER_STEP = 4_194_304
"""About 4 million tokens a step, the usual size of large pre-training runs (Llama 2 paper, section 2.2)."""
ADAPTER_SEQ_LENGTH, ADAPTER_BATCH = 2048, 128
"""Of fine-tuning with adapters (Megatron-Bridge, recipes/common.py: _peft_common)."""
OF_ATTENTION = LORA_MODULES[:2]


class Asked(Protocol):
    """What a request says of its workload; None where it says nothing."""

    @property
    def seq_length(self) -> int | None: ...
    @property
    def decoder_seq_length(self) -> int | None: ...
    @property
    def packed_length(self) -> int | None: ...
    @property
    def global_batch_size(self) -> int | None: ...


def trains_adapters(numerics: Mapping[str, object]) -> bool:
    """Whether adapters are trained. Raises InputError for fields of adapters where they are refused."""
    fields = [name for name in ("lora_rank", "lora_target_modules") if numerics.get(name) is not None]
    if fields and numerics.get("peft") == "none":
        raise InputError(f"{option(fields[0])} is for adapters, and {option('peft')} none trains all weights: drop one of them")
    return bool(fields) or numerics.get("peft") not in (None, "none")


def read_adapters(given: Mapping[str, Any], model: ModelSpec, assumed: list[str]) -> dict[str, Any]:
    """Kind, rank and layers of the adapters; what is not given is said in `assumed`. Raises InputError for adapters on experts,
    which no formula prices."""
    if "peft" not in given:
        assumed.append("peft lora, as its adapters are given (--peft)")
    if "lora_rank" not in given:
        assumed.append(f"adapters of rank {Numerics.lora_rank} (--lora-rank)")
    modules = given.get("lora_target_modules")
    if modules is None:
        named = OF_ATTENTION if model.is_moe else LORA_MODULES
        if model.is_moe:
            assumed.append("adapters on attention only, none on experts (--lora-target-modules)")
    else:
        named = tuple(modules.replace(",", " ").split() if isinstance(modules, str) else modules)
    if model.is_moe and (odd := [name for name in named if name in LORA_MODULES and name not in OF_ATTENTION]):
        raise InputError(
            f"{option('lora_target_modules')} {odd[0]}: {model.name} has experts, and adapters on experts are not priced here; "
            f"give {' or '.join(OF_ATTENTION)}"
        )
    return {"peft": given.get("peft", "lora"), "lora_target_modules": named}


def read_workload(asked: Asked, model: ModelSpec, assumed: list[str], *, adapters: bool) -> Workload:
    """Sequence lengths and batch; what is not given is that of the model's training, or of training adapters, and said in
    `assumed`. Raises InputError."""
    seq = asked.seq_length
    if seq is None and adapters:
        seq = min(model.max_position_embeddings, ADAPTER_SEQ_LENGTH)
        assumed.append(f"sequence length {seq}, as adapters are trained (--seq-length)")
    elif seq is None:
        seq = model.default_seq_length or min(model.max_position_embeddings, DEFAULT_SEQ_LENGTH)
        source = (
            _provenance(model, "default_seq_length") if model.default_seq_length else "what the model allows, at most 8,192"
        )
        assumed.append(f"sequence length {seq}, {source} (--seq-length)")
    batch = asked.global_batch_size
    if batch is None and adapters:
        batch = ADAPTER_BATCH
        assumed.append(f"global batch {batch}, as adapters are trained (--global-batch-size)")
    elif batch is None:
        same = model.default_global_batch_size and seq == (model.default_seq_length or seq)
        batch = model.default_global_batch_size if same else None
        source = _provenance(model, "default_global_batch_size")
        if batch is None:
            batch = max(1, DEFAULT_TOKENS_PER_STEP // max(seq, 1))
            source = f"about {DEFAULT_TOKENS_PER_STEP / 1e6:.0f} million tokens a step"
        assumed.append(f"global batch {batch}, {source} (--global-batch-size)")
    return Workload(
        seq_length=seq,
        global_batch_size=batch,
        decoder_seq_length=_decoder_seq_length(asked, model, seq, assumed),
        packed_length=asked.packed_length,
    )


def _decoder_seq_length(asked: Asked, model: ModelSpec, seq: int, assumed: list[str]) -> int | None:
    """Tokens of one sample in the decoder; None without an encoder before it. Raises InputError where one is given there."""
    given = asked.decoder_seq_length
    if not model.is_encoder_decoder:
        if given is not None:
            said = f"{model.name} has no decoder behind an encoder; leave it out"
            raise InputError(f"{option('decoder_seq_length')} {given}: {said}")
        return None
    if given is None:
        given = model.default_decoder_seq_length or seq
        source = _provenance(model, "default_decoder_seq_length") if model.default_decoder_seq_length else "as the encoder's"
        assumed.append(f"decoder sequence length {given}, {source} (--decoder-seq-length)")
    return given


def _provenance(model: ModelSpec, key: str) -> str:
    """Where a default of the model comes from."""
    return (
        "the model's published training"
        if model.published_parameters
        else model.sources.get(key, "as similar models are trained")
    )
