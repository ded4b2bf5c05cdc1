"""ModelSpec from a Hugging Face `config.json` on disk. Nothing is downloaded and no code of the file is run.

Families and their defaults for absent keys follow `transformers` 4.57, models/*/configuration_*.py and modeling_*.py. What a
family has and ModelSpec cannot say is refused with the reason, never approximated.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoconfig.specs.errors import FileError, InputError, UnsupportedError
from autoconfig.specs.models.config_reader import ConfigReader, read_json_object
from autoconfig.specs.models.huggingface_encoders import ENCODERS
from autoconfig.specs.models.huggingface_experts import WITH_EXPERTS
from autoconfig.specs.models.huggingface_families import FAMILIES as DECODERS
from autoconfig.specs.models.huggingface_later import LATER
from autoconfig.specs.models.model import ModelSpec

FAMILIES = DECODERS | LATER | WITH_EXPERTS | ENCODERS
_SHOWN = ("llama", "mistral", "mixtral", "qwen3", "qwen3_moe", "gemma3_text", "deepseek_v3", "nemotron_h", "t5", "bert")
KNOWN = f"{', '.join(_SHOWN)} and {len(FAMILIES) - len(_SHOWN)} others (docs/families.md has them all)"
"""For messages."""
REFUSED = json.loads((Path(__file__).parents[1] / "catalogue" / "refused.json").read_text(encoding="utf-8"))
"""`model_types` of configs, and `names`, by why they cannot be planned."""
_REFUSED = {name: reason for reason, names in REFUSED["model_types"].items() for name in names}


def model_from_config(path: str | Path) -> ModelSpec:
    """The model of a local config.json, or of a folder that holds one.

    Raises FileError when there is nothing to read, InputError when the file is not a model's config.json or a value is wrong,
    UnsupportedError when the architecture is understood or known and cannot be planned here.
    """
    file = _config_file(path)
    return model_from_mapping(read_json_object(file), str(file), _name(file))


def model_type_of(path: str | Path) -> str:
    """What a local config.json says. Raises as `model_from_config`."""
    file = _config_file(path)
    return _model_type(ConfigReader(read_json_object(file), str(file)))


def model_from_mapping(data: Mapping[str, Any], where: str, name: str) -> ModelSpec:
    """The model of a config.json's values; `where` opens every message. Raises InputError or UnsupportedError."""
    reader = ConfigReader(data, where)
    model_type = _model_type(reader)
    build = FAMILIES.get(model_type)
    if build is None:
        raise UnsupportedError(_refusal(where, model_type))
    for key in ("text_config", "vision_config", "audio_config", "language_config"):
        if key in reader:
            raise UnsupportedError(f"{where}: has {key}: a multi-modal model, of which only part is a language model; save "
                                   f"that part as a config.json of its own (model_type one of {KNOWN})")
    if reader.boolean("is_encoder_decoder", False) and model_type not in ENCODERS:
        raise UnsupportedError(f"{where}: is_encoder_decoder is true; only decoder-only models can be planned")
    fields = build(reader)
    fields.setdefault("sources", {"*": where})
    return ModelSpec(name=name, **fields)


def _config_file(path: str | Path) -> Path:
    try:
        given = Path(str(path).strip()).expanduser()
        if given.is_dir():
            if not (given / "config.json").is_file():
                raise FileError(f"{given}: folder holds no config.json; give a Hugging Face model's folder or its config.json")
            return given / "config.json"
    except (OSError, ValueError, RuntimeError) as error:
        raise FileError(f"{path!r}: not a path that can be read ({error}); give the path of a config.json") from error
    return given


def _model_type(reader: ConfigReader) -> str:
    if "model_type" in reader:
        return reader.text("model_type")
    raise reader.fail(f"has no model_type, so it is no Hugging Face model's config.json; model_type is one of {KNOWN}")


def _refusal(where: str, model_type: str) -> str:
    shown = model_type if len(model_type) <= 40 else model_type[:37] + "..."
    reason = _REFUSED.get(model_type, "an architecture this project does not know")
    return f"{where}: model_type {shown!r} is {reason}; supported are {KNOWN}"


def _name(file: Path) -> str:
    """The folder's name for a file called config.json, else the file's own; only characters that print well."""
    try:
        stem = file.resolve().parent.name if file.name == "config.json" else file.stem
    except OSError:
        stem = file.stem
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", stem).strip("-")[:80] or "model"


_NOT_A_SHAPE = frozenset(
    {
        "name", "norm_epsilon", "rope_scaling", "rotary_base", "router", "default_seq_length", "default_global_batch_size",
        "published_parameters", "make_vocab_size_divisible_by", "sources", "position_embedding_type", "mtp_num_layers",
    }
)  # fmt: skip
_FAMILIES = (
    ("llama", "LlamaForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
    ("mistral", "MistralForCausalLM"),
    ("mixtral", "MixtralForCausalLM"),
    ("qwen3_moe", "Qwen3MoeForCausalLM"),
)


def huggingface_config(model: ModelSpec) -> dict[str, Any]:
    """The content of a config.json. Raises UnsupportedError where no family has the model's shape."""
    nearest: list[str] | None = None
    for family, architecture in _FAMILIES:
        body = {**_common(model), "model_type": family, "architectures": [architecture]}
        try:
            again = model_from_mapping(body, family, model.name)
        except InputError:
            continue
        other = _differences(model, again)
        if not other:
            return body
        if nearest is None or len(other) < len(nearest):
            nearest = other
    why = f" (nearest family differs in {', '.join(nearest)})" if nearest else ""
    raise UnsupportedError(f"{model.name}: no Hugging Face architecture of Llama, Qwen or Mixtral has its shape{why}")


def _common(model: ModelSpec) -> dict[str, Any]:
    body: dict[str, Any] = {
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_query_groups,
        "head_dim": model.kv_channels,
        "intermediate_size": model.ffn_hidden_size,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_position_embeddings,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_epsilon or 1e-5,
        "rope_theta": float(model.rotary_base or 10_000),
        "tie_word_embeddings": not model.untie_embeddings_and_output_weights,
        "attention_bias": False,
        "sliding_window": model.window_size,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    if model.is_moe:
        body |= {
            "num_local_experts": model.num_moe_experts,
            "num_experts": model.num_moe_experts,
            "num_experts_per_tok": model.moe_router_topk,
            "moe_intermediate_size": model.moe_ffn_hidden_size,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": True,
        }
    return body


def _differences(model: ModelSpec, again: ModelSpec) -> list[str]:
    fields = [f.name for f in dataclasses.fields(ModelSpec) if f.name not in _NOT_A_SHAPE]
    other = [name for name in fields if getattr(model, name) != getattr(again, name)]
    rotary = (model.position_embedding_type in ("rope", "yarn")) == (again.position_embedding_type in ("rope", "yarn"))
    return other if rotary else [*other, "position_embedding_type"]
