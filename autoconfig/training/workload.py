"""Sequence lengths and batch of a question: as asked, else of the model's training or of training adapters."""

from __future__ import annotations

import math
from typing import Protocol

from autoconfig.specs.errors import InputError, option
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.remarks import Remark
from autoconfig.specs.scenario import Workload

DEFAULT_SEQ_LENGTH = 8192
DEFAULT_TOKENS_PER_STEP = 4_194_304
"""About 4 million tokens a step, the usual size of large pre-training runs (Llama 2 paper, section 2.2)."""
ADAPTER_SEQ_LENGTH, ADAPTER_BATCH = 2048, 128
"""Of fine-tuning with adapters (Megatron-Bridge, recipes/common.py: _peft_common)."""


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
    @property
    def schedule_calls(self) -> int | None: ...


def read_workload(
    asked: Asked, model: ModelSpec, assumed: list[Remark], *, adapters: bool, gpus: int | None = None
) -> Workload:
    """Sequence lengths and batch; what is not given is that of the model's training, or of training adapters, and said in
    `assumed`. A batch that is not given suits the number of `gpus`, where that is said. Raises InputError."""
    seq = asked.seq_length
    if seq is None and adapters:
        seq = min(model.max_position_embeddings, ADAPTER_SEQ_LENGTH)
        assumed.append(Remark("seq_length", seq, "as adapters are trained"))
    elif seq is None:
        seq = model.default_seq_length or min(model.max_position_embeddings, DEFAULT_SEQ_LENGTH)
        source = (
            _provenance(model, "default_seq_length") if model.default_seq_length else "what the model allows, at most 8,192"
        )
        assumed.append(Remark("seq_length", seq, source))
    batch = asked.global_batch_size
    if batch is None and adapters:
        batch, source = suited_batch(ADAPTER_BATCH, "as adapters are trained", model, seq, gpus)
        assumed.append(Remark("global_batch_size", batch, source))
    elif batch is None:
        same = model.default_global_batch_size and seq == (model.default_seq_length or seq)
        batch = model.default_global_batch_size if same else None
        source = _provenance(model, "default_global_batch_size")
        if batch is None:
            batch = max(1, DEFAULT_TOKENS_PER_STEP // max(seq, 1))
            source = f"about {DEFAULT_TOKENS_PER_STEP / 1e6:.0f} million tokens a step"
        batch, source = suited_batch(batch, source, model, seq, gpus)
        assumed.append(Remark("global_batch_size", batch, source))
    return Workload(
        seq_length=seq,
        global_batch_size=batch,
        decoder_seq_length=_decoder_seq_length(asked, model, seq, assumed),
        packed_length=asked.packed_length,
        schedule_calls=1 if asked.schedule_calls is None else asked.schedule_calls,
    )


SUITED = 0.1
"""How far a batch may be from the usual one for more of the GPUs' factors; for odd ones it may be as far as it must."""


def suited_batch(usual: int, source: str, model: ModelSpec, seq: int, gpus: int | None) -> tuple[int, str]:
    """(the usual batch, its source); where the GPUs' number has an odd factor that neither this batch nor heads nor sequence
    divide over them, the nearest multiple of the most of their number (it, its half, ...) that is within SUITED, else of the
    odd part."""
    odd = gpus or 1
    while odd % 2 == 0:
        odd //= 2
    left = odd
    for shared in (usual, model.num_attention_heads, seq):
        left //= math.gcd(left, shared)
    if gpus is None or left == 1:
        return usual, source
    parts = [gpus >> power for power in range(gpus.bit_length()) if gpus % (1 << power) == 0]
    nearest = [max(1, round(usual / part)) * part for part in parts]
    batch = next((one for one in nearest if abs(one / usual - 1) <= SUITED), nearest[-1])
    return batch, f"which suits {gpus:,} GPUs, near {usual:,}, {source}"


def _decoder_seq_length(asked: Asked, model: ModelSpec, seq: int, assumed: list[Remark]) -> int | None:
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
        assumed.append(Remark("decoder_seq_length", given, source))
    return given


def _provenance(model: ModelSpec, key: str) -> str:
    """Where a default of the model comes from."""
    return (
        "the model's published training"
        if model.published_parameters
        else model.sources.get(key, "as similar models are trained")
    )
