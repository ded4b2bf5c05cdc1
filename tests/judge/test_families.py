"""Parameters of every family of Hugging Face that is read, against the class itself on torch's meta device: as `transformers`
configures it, and small with one field after another changed. Equal, or refused; never another number."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.huggingface import FAMILIES, model_from_mapping
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import total_parameters

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
auto = pytest.importorskip("transformers.models.auto.modeling_auto")
CONFIGS = pytest.importorskip("transformers.models.auto.configuration_auto").CONFIG_MAPPING

LISTS = ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM")
CLASSES: dict[str, str] = {}
for _list in LISTS:
    for _type, _class in getattr(auto, f"MODEL_FOR_{_list}_MAPPING_NAMES").items():
        CLASSES.setdefault(_type, _class if isinstance(_class, str) else _class[0])
NO_CLASS = {"kimi_k2": "built by code of its own repository, as DeepSeek-V3"}
CORRECTION = "e_score_correction_bias"
"""A buffer that is published among the weights, and counted."""
SMALL = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 5),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "n_embed"), 96),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 6),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner"), 80),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 8),
    **dict.fromkeys(("num_experts_per_tok", "moe_k"), 3),
    **{"num_key_value_heads": 3, "vocab_size": 1003, "head_dim": 16, "moe_intermediate_size": 48, "num_decoder_layers": 3},
    **{"shared_expert_intermediate_size": 40, "n_shared_experts": 2, "first_k_dense_replace": 2, "moe_layer_end_index": 4},
    **{"n_group": 1, "topk_group": 1, "max_window_layers": 3, "pad_token_id": 0},
    "mamba_n_heads": 12, "mamba_d_state": 8,
    "attention_types": [[["global", "local"], 2], [["local"], 1]],
}  # fmt: skip
OTHER = {
    "num_key_value_heads": (6, 2, 1), "num_kv_heads": (2,), "head_dim": (24,), "vocab_size": (1024,), "num_hidden_layers": (7,),
    "num_decoder_layers": (5,), "type_vocab_size": (1, 3), "shared_intermediate_size": (32,), "d_kv": (24,), "n_inner": (200,),
    "relative_attention_num_buckets": (16,), "moe_num_shared_experts": (0, 1), "num_nextn_predict_layers": (1,),
    "first_k_dense_replace": (0, 1), "moe_layer_freq": (2,), "decoder_sparse_step": (2,), "q_lora_rank": (None, 40),
    "kv_lora_rank": (24,), "v_head_dim": (40,), "qk_rope_head_dim": (8,), "feed_forward_proj": ("gated-gelu", "relu"),
    "num_ln_in_parallel_attn": (1, 2), "moe_layer_interval": (2,), "word_embed_proj_dim": (48,), "ffn_hidden_size": (200,),
    "mlp_layer_types": (["dense", "sparse", "dense", "sparse", "sparse"],), "num_shared_experts": (0, 2), "rotary_dim": (8,),
    "mamba_n_groups": (2,), "mamba_d_conv": (3,), "num_local_experts": (0,),
    "layer_types": (["linear_attention", "full_attention", "linear_attention", "full_attention", "linear_attention"],
                    ["full_attention"] * 5, ["sliding_attention", "full_attention"] * 2 + ["full_attention"]),
    "linear_num_value_heads": (16,), "linear_conv_kernel_dim": (3,), "partial_rotary_factor": (0.5,), "hidden_act": ("relu",),
}  # fmt: skip
"""Values that single fields take, beside every switch turned over."""


def built(model_type: str, changes: dict[str, Any]) -> tuple[dict[str, Any], int] | None:
    """(config.json, parameters) of the real class; None where `transformers` itself does not build it."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            config = CONFIGS[model_type](**changes)
            model = getattr(transformers, CLASSES[model_type])(config)
    except Exception:  # whatever a class says of a configuration that it does not know
        return None
    finally:
        logging.disable(logging.NOTSET)
    count = sum(parameter.numel() for parameter in model.parameters())
    count += sum(buffer.numel() for name, buffer in model.named_buffers() if name.endswith(CORRECTION))
    return json.loads(config.to_json_string(use_diff=False)), count


def variants(model_type: str) -> Iterator[dict[str, Any]]:
    """The defaults, a small model, and small ones with one field changed."""
    yield {}
    usual = CONFIGS[model_type]().to_dict()
    small = {key: value for key, value in SMALL.items() if key in usual}
    yield small
    for key, value in usual.items():
        if isinstance(value, bool) and key not in ("use_cache", "return_dict", "is_decoder", "is_encoder_decoder"):
            yield {**small, key: not value}
        for other in OTHER.get(key, ()):
            yield {**small, key: other}


def compare(model_type: str) -> tuple[int, list[str], list[str]]:
    """(exact, wrong, refused) of the variants that `transformers` builds."""
    exact, wrong, refused = 0, [], []
    for changes in variants(model_type):
        if (found := built(model_type, changes)) is None:
            continue
        config, count = found
        try:
            ours = total_parameters(model_from_mapping(config, model_type, model_type))
        except InputError as error:
            refused.append(f"{changes}: {error}")
            continue
        if ours == count:
            exact += 1
        else:
            wrong.append(f"{changes}: {ours:,}, the class has {count:,} ({ours - count:+,})")
    return exact, wrong, refused


@pytest.mark.parametrize("model_type", sorted(set(FAMILIES) - set(NO_CLASS)))
def test_parameters_are_those_of_the_class(model_type: str) -> None:
    exact, wrong, refused = compare(model_type)
    assert wrong == []
    assert exact >= 3, refused


NO_SHAPE = (
    *("model_type", "architectures", "transformers_version", "dtype", "id2label", "label2id", "problem_type", "_name_or_path"),
    *("use_cache", "return_dict", "output_attentions", "output_hidden_states", "output_router_logits", "initializer_range"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id", "chunk_size_feed_forward"),
)


def loaded(model_type: str, config: dict[str, Any]) -> int | None:
    """Parameters of the class that `transformers` builds of this config.json; None where it builds none."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            model = getattr(transformers, CLASSES[model_type])(CONFIGS[model_type].from_dict(dict(config)))
    except Exception:
        return None
    finally:
        logging.disable(logging.NOTSET)
    count = sum(parameter.numel() for parameter in model.parameters())
    return count + sum(buffer.numel() for name, buffer in model.named_buffers() if name.endswith(CORRECTION))


def without_one_key(model_type: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The small model's config.json with one key after another left out."""
    usual = CONFIGS[model_type]().to_dict()
    found = built(model_type, {key: value for key, value in SMALL.items() if key in usual})
    config = found[0] if found else {}
    for key in set(config) - set(NO_SHAPE):
        yield key, {name: value for name, value in config.items() if name != key}


@pytest.mark.parametrize("model_type", sorted(set(FAMILIES) - set(NO_CLASS)))
def test_a_key_that_is_left_out_is_what_the_class_takes_or_asked_for(model_type: str) -> None:
    wrong = []
    for key, config in without_one_key(model_type):
        try:
            ours = total_parameters(model_from_mapping(config, model_type, model_type))
        except InputError:
            continue
        count = loaded(model_type, config)
        if count not in (None, ours):
            wrong.append(f"{key}: {ours:,}, the class has {count:,}")
    assert wrong == []


OF_RELEASE_4 = Path(__file__).parents[1] / "specs" / "configs_of_transformers_4.json"


@pytest.mark.parametrize("model_type", sorted(json.loads(OF_RELEASE_4.read_text(encoding="utf-8"))["files"]))
def test_files_saved_by_transformers_4_are_the_same_model_in_this_release(model_type: str) -> None:
    parameters, config = json.loads(OF_RELEASE_4.read_text(encoding="utf-8"))["files"][model_type]
    if model_type == "mt5":  # its files say tie_word_embeddings false, as its published weights are; release 5 ties them always
        config = {**config, "tie_word_embeddings": True}
        parameters -= 1003 * 96
    assert loaded(model_type, config) in (None, parameters)


CATALOGUE = json.loads((Path(__file__).parent / "catalogue_configs.json").read_text(encoding="utf-8"))
"""Models of the catalogue whose config.json this project does not hold, as changes to the defaults of their class."""


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_models_of_the_catalogue_count_what_their_class_has(name: str) -> None:
    changes = dict(CATALOGUE[name])
    model_type = changes.pop("model_type")
    kinds = {"mamba": "linear_attention", "attention": "full_attention"}
    if "layer_types" in changes:
        changes["layer_types"] = [kinds[kind] for kind in changes["layer_types"]]
    found = built(model_type, changes)
    assert found is not None and total_parameters(load_model(name)) == found[1]
    assert total_parameters(model_from_mapping(found[0], name, name)) == found[1]


def test_every_other_text_class_is_refused_with_a_reason() -> None:
    assert len(FAMILIES) >= 85
    for model_type in sorted(set(CLASSES) - set(FAMILIES)):
        with pytest.raises(InputError, match=r"model_type|has (text|vision|audio)_config|is_encoder_decoder"):
            model_from_mapping({"model_type": model_type}, "config.json", "model")
