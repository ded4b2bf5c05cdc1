"""T5 and BERT as megatron-core 0.19 builds them from the arguments of examples/t5/pretrain_t5.py and
examples/bert/pretrain_bert.py."""

from __future__ import annotations

from typing import Any

from autoconfig.megatron.argument_list import Arguments
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.remarks import Remark


def kind_read(a: Arguments, program: str) -> str | None:
    """Which of these a run trains, by its program, or by the arguments that only it has. Raises InputError for both."""
    name = program.rsplit("/", 1)[-1]
    t5, bert = name == "pretrain_t5.py", name == "pretrain_bert.py"
    stacks = a.has("--decoder-num-layers", "--decoder-seq-length")
    if (bert or name == "pretrain_gpt.py") and stacks:
        raise InputError(f"{name} with --decoder-num-layers or --decoder-seq-length, which are T5's; drop them")
    if t5 or stacks:
        return "t5"
    return "bert" if bert or a.has("--bert-no-binary-head") else None


def read_stacks(a: Arguments, kind: str, values: dict[str, Any], assumed: list[Remark]) -> dict[str, Any]:
    """Fields of ModelSpec that T5Model and BertModel of megatron-core set, beside those of any transformer in `values`.

    Raises InputError where T5 has no length of its decoder, UnsupportedError for depths that pretrain_t5.py does not build.
    """
    layers = values["num_layers"]
    if kind == "bert":
        a.has("--spec")
        binary = not a.has("--bert-no-binary-head")
        return {
            "encoder_num_layers": layers,
            "num_tokentypes": 2 if binary else 0,
            "output_layer_bias": True,
            "masked_lm_head": True,
            "bert_binary_head": binary,
        }
    decoder = a.count("--decoder-num-layers")
    if decoder not in (None, layers):
        raise UnsupportedError(
            f"--decoder-num-layers {decoder} with {layers} layers of the encoder: pretrain_t5.py builds as many of both; give "
            "one number"
        )
    if decoder is None:
        assumed.append(Remark("--decoder-num-layers", layers, "as many as of the encoder (pretrain_t5.py)"))
    relative = values["position_embedding_type"] == "relative"
    return {
        "num_layers": 2 * layers,
        "encoder_num_layers": layers,
        "output_layer_bias": True,
        "relative_attention_num_buckets": (a.count("--relative-attention-num-buckets") or 32) if relative else 0,
    }


def read_decoder_length(a: Arguments, model: ModelSpec) -> int | None:
    """Tokens of a decoder behind an encoder; None without one. Raises InputError where the file does not say it."""
    if not model.is_encoder_decoder:
        return None
    length = a.count("--decoder-seq-length")
    if length is None:
        raise InputError("--decoder-seq-length is not in the file, and T5's decoder needs it; add it")
    return length
