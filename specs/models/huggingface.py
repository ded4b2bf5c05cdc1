"""ModelSpec from a Hugging Face `config.json` on disk. Nothing is downloaded and no code of the file is run.

Families and their defaults for absent keys follow `transformers` 4.57, models/*/configuration_*.py and modeling_*.py. What a
family has and ModelSpec cannot say is refused with the reason, never approximated.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from autoconfig.specs.errors import FileError, InputError, UnknownNameError, UnsupportedError, option
from autoconfig.specs.models.config_reader import (
    CLASSES,
    EXPERT_KEYS,
    EXPERTS,
    NOT_READ,
    OWN_OUTPUT,
    PARTS_BESIDE,
    SAME,
    TEXT_PARTS,
    WHOLE,
    ConfigReader,
    completed,
    left_out,
    other_parts,
    read_json_object,
    text_reader,
    text_type,
    tied_by_class,
    unified,
)
from autoconfig.specs.models.families.table import ENCODERS, FAMILIES
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.remarks import Effect, Remark, note

_SHOWN = ("llama", "mistral", "mixtral", "qwen3", "qwen3_moe", "gemma3_text", "deepseek_v3", "nemotron_h", "t5", "bert")
KNOWN = f"{', '.join(_SHOWN)} and {len(FAMILIES) - len(_SHOWN)} others (docs/families.md has them all)"
_CATALOGUE = Path(__file__).parents[1] / "catalogue"
REFUSED = json.loads((_CATALOGUE / "refused.json").read_text(encoding="utf-8"))
"""`model_types` of configs, and `names`, by why they cannot be planned; `no_shape`: keys without effect on memory and time."""
_REFUSED = {name: reason for reason, names in REFUSED["model_types"].items() for name in names}


def refused_kind(name: str, *, whole: bool = False) -> str | None:
    """What a name (lower case, `-` between words) stands for that cannot be planned, where it begins with the name of such
    models, or (`whole`) is one; None for others."""
    kinds = {name: kind for kind, names in REFUSED["names"].items() for name in names}
    found = (re.fullmatch if whole else re.match)(rf"({'|'.join(kinds)})(?![a-z])", name)
    return kinds[found[1]] if found else None


def model_from_config(path: str | Path) -> ModelSpec:
    """The model of a local config.json, or of a folder that holds one. Raises FileError when there is nothing to read,
    InputError when the file is not a model's config.json or a value is wrong, UnsupportedError when the architecture is
    understood or known and cannot be planned here."""
    return read_config(path)[0]


def read_config(path: str | Path, like: str | None = None) -> tuple[ModelSpec, list[Remark]]:
    """The same with what was taken for granted; `like`: the family that it is read as. Raises as
    `model_from_config`."""
    file = config_file(path)
    data = read_json_object(file)
    if like is not None:
        return read_like(data, str(file), _name(file), like)
    return model_from_mapping(data, str(file), _name(file)), config_notes(data)


def model_type_of(path: str | Path) -> str:
    """What a local config.json says of its language model. Raises as `model_from_config`."""
    file = config_file(path)
    return _model_type(text_reader(ConfigReader(read_json_object(file), str(file))))


def config_notes(data: Mapping[str, Any]) -> list[Remark]:
    """What of a config.json is not planned, or is planned otherwise. Raises as
    `model_from_mapping`."""
    reader = ConfigReader(data, "config.json")
    other, text = other_parts(reader), text_reader(reader)
    if text is not reader:
        other += _other_class_than_text(reader) + _another_class(reader)
        text = ConfigReader({**unified(reader).values(), "model_type": text.values()["model_type"]}, text.where)
    notes = _class_without_output_layer(text) + _another_class(text) + _tied_all_the_same(unified(text))
    return other + notes + _without_effect(reader)


def _other_class_than_text(reader: ConfigReader) -> list[Remark]:
    """Of a multi-modal file, where its class takes ends of its language model that its own part does not say. Raises
    InputError where its output layer does not fit that model."""
    model, kind = model_from_mapping(reader.values(), "config.json", "model"), str(reader.values().get("model_type"))
    untied, notes = model.untie_embeddings_and_output_weights, []
    unsaid = f"tie_word_embeddings is not said outside of the language model, and the class of {kind} in transformers 5.23 then"
    if (tied := tied_by_class(reader, not untied)) is not None and tied == untied:
        how = ("ties", "apart", "more") if tied else ("does not tie", "once", "fewer")
        notes.append(
            _of_class(
                f"{unsaid} {how[0]} the embeddings: they are counted {how[1]}, as the language model alone has them, "
                f"{model.vocab_size * model.hidden_size:,} parameters {how[2]} than in that class"
            )
        )
    elif "?" in WHOLE.get(kind, {"ties": ""})["ties"] and "tie_word_embeddings" not in reader.values():
        why = f"{unsaid} does what is not known here: the embeddings are counted as the language model alone has them"
        notes.append(_of_class(why))
    return notes if kind not in OWN_OUTPUT or not (untied if tied is None else not tied) else notes + _own_output(reader, model)


def _of_class(why: str) -> Remark:
    """Where the class that the file names has other parameters than those that are counted."""
    return note(why, Effect.EVERYTHING)


def _own_output(reader: ConfigReader, model: ModelSpec) -> list[Remark]:
    """Of a multi-modal file whose class has an output layer with sizes of its own and does not tie it."""
    kind = str(reader.values().get("model_type"))
    words, width = (reader.integer(key, usual) for key, usual in OWN_OUTPUT[kind].items())
    if width != model.hidden_size:
        inner = f"outside of its language model, whose hidden_size is {model.hidden_size:,}: one does not fit the other"
        raise reader.fail(f"says hidden_size {width:,} for the output layer of {kind}, {inner}")
    count, more = abs(words - model.vocab_size) * width, "fewer" if words > model.vocab_size else "more"
    note = (
        f"the output layer of {kind} in transformers 5.23 has {words:,} words (vocab_size outside of its language model), "
        f"its embedding {model.vocab_size:,}: both are counted with {model.vocab_size:,}, {count:,} parameters {more}"
    )
    return [_of_class(note)] if count else []


def _without_effect(whole: ConfigReader) -> list[Remark]:
    """Keys of other families, and of parts that stand beside the layers, that the file gives and its class does not read."""
    values, kind = text_reader(whole).values(), text_type(whole)
    given = [key for key in NOT_READ.get(kind, ()) if values.get(key) not in (None, False)]
    given += [key for key in _parts_beside(whole) if key not in SAME.get(kind, {})]
    given += [key for key in EXPERT_KEYS if kind in CLASSES and kind not in EXPERTS and values.get(key) and key not in given]
    of = CLASSES.get(kind) or kind
    return [left_out(f"{', '.join(given)}, which {of} of transformers does not read")] if given else []


def _parts_beside(whole: ConfigReader) -> list[str]:
    """Keys of PARTS_BESIDE with a value that the family does not read; none of a file that it cannot read."""
    reader = unified(whole)
    build, values = FAMILIES.get(str(reader.values().get("model_type"))), reader.values()
    given = [key for key in PARTS_BESIDE if values.get(key) not in (None, False, 0, [])]
    if build is not None and given:
        with suppress(InputError):
            build(reader)
            return [key for key in given if key in reader.unread()]
    return []


_OF_A_CLASS = re.compile(
    r"(?:(?:With)?LMHead|DoubleHeads|PreTrained|Encoder)?Model$|For(?:CausalLM|ConditionalGeneration|MaskedLM|PreTraining|"
    r"(?:Sequence|Token)Classification|QuestionAnswering|MultipleChoice|NextSentencePrediction|RewardModel)$"
)
"""Ends of the names of one architecture's classes in transformers."""


def _class(kind: str) -> str:
    """The class of a model_type in transformers; empty where it is not known or has none of its own."""
    return str(WHOLE[kind]["class"]) if kind in WHOLE else CLASSES.get(kind, "")


def _foreign_class(reader: ConfigReader) -> str:
    """The class that the file names where it is not its type's in transformers; empty where it is, or the type is not known."""
    kind = str(reader.values().get("model_type"))
    named, known = [*(reader.items("architectures", str) or []), *_own_code(reader)], {_stem(kind), _stem(_class(kind))}
    return next((name[:60] for name in named if kind in CLASSES and _stem(name) not in known), "")


def _own_code(reader: ConfigReader) -> list[str]:
    """Classes of models that `auto_map` takes from code beside the file."""
    code = reader.values().get("auto_map")
    found = code if isinstance(code, dict) else {}
    return [str(value).rpartition(".")[2] for key, value in found.items() if str(key).startswith("AutoModel")]


def _another_class(reader: ConfigReader) -> list[Remark]:
    """That the file names a class which is not its type's in transformers, or brings code of its own."""
    if odd := _foreign_class(reader):
        usual = _class(kind := str(reader.values().get("model_type"))) or kind
        return [
            left_out(
                f"what {odd} has beside {usual} or otherwise: the file names the one, and the class of its model_type in "
                f"transformers is {usual}: it is counted and priced as {usual}"
            )
        ]
    own = _own_code(reader)
    return [left_out(f"the file's own code for {own[0][:60]} (auto_map), which is not read")] if own else []


def _stem(name: str) -> str:
    """What names of one architecture's classes have in common."""
    return re.sub("[^a-z0-9]", "", _OF_A_CLASS.sub("", name).lower())


def _tied_all_the_same(reader: ConfigReader) -> list[Remark]:
    values = reader.values()
    if values.get("model_type") not in ("t5", "mt5", "umt5") or values.get("tie_word_embeddings") is not False:
        return []
    more = reader.integer("vocab_size", 0) * reader.integer("d_model", 512)
    count = f"{more:,} (vocab_size x d_model)" if more else "vocab_size x d_model"
    return [
        _of_class(
            f"tie_word_embeddings is false, and transformers 5 ties the embeddings of {values['model_type']} all the same: "
            f"they are counted once; an output layer of its own, as transformers 4 builds it, has {count} more parameters"
        )
    ]


_HEADS: Mapping[str, tuple[int, int]] = {
    "ForSequenceClassification": (0, 0),
    "ForTokenClassification": (1, 0),
    "ForQuestionAnswering": (1, 2),
    "Model": (0, -1),
}
"""Ends of the names of classes without output layer: whether theirs has a bias, and its width (0: one for each label;
-1: there is none). transformers 5.23, modeling_layers.py; held by tests/judge/test_families.py."""
_OTHER_HEADS = (("eurobert", "ForSequenceClassification"), ("gptj", "ForQuestionAnswering"))


def _class_without_output_layer(reader: ConfigReader) -> list[Remark]:
    """The parameters of the class that the file names, where it is another than the one that is planned."""
    classes = reader.items("architectures", str) or []
    found = [(one, end) for one in classes for end in _HEADS if one.endswith(end) and not one.endswith("LMHeadModel")]
    kind = str(reader.values().get("model_type"))
    if not found or kind in ENCODERS:
        return []
    name, end = found[0]
    note = f"architectures says {name[:60]}: planned as the language model, with its output layer"
    try:
        model = model_from_mapping(reader.values(), "config.json", "model")
        labels = reader.integer("num_labels", len(reader.section("id2label").values()) or 2)
    except InputError:
        return [_of_class(note)]
    bias, width = _HEADS[end]
    output = model.vocab_size * (model.hidden_size * model.untie_embeddings_and_output_weights + model.output_layer_bias)
    own = max(0, width or labels) * (model.hidden_size + bias)
    plain = name.removesuffix(end).lower() == re.sub("[^a-z0-9]", "", kind.lower())
    if (kind, end) in _OTHER_HEADS or not plain:
        return [_of_class(f"{note}; what stands there instead of it is not counted")]
    return [_of_class(f"{note}; {name[:60]} itself has {total_parameters(model) - output + own:,} parameters")]


def model_from_mapping(data: Mapping[str, Any], where: str, name: str) -> ModelSpec:
    """The model of a config.json's values, of a multi-modal one its language model; `where` opens every message. Raises
    InputError or UnsupportedError."""
    whole = ConfigReader(data, where)
    reader = unified(whole)
    model_type = _model_type(reader)
    build = FAMILIES.get(model_type)
    if build is None:
        raise UnsupportedError(_refusal(where, model_type, reader))
    if without := [key for key in TEXT_PARTS if key in whole and text_reader(whole) is whole]:
        raise UnsupportedError(f"{where}: {without[0]} has no model_type, so its language model's family is not known")
    if reader.boolean("is_encoder_decoder", False) and model_type not in ENCODERS:
        raise UnsupportedError(f"{where}: is_encoder_decoder is true; only decoder-only models can be planned")
    if shared := [key for key in ("tie_encoder_decoder", "torchscript") if reader.boolean(key, False)]:
        raise UnsupportedError(f"{where}: {shared[0]} must be false: transformers 4 shares or clones weights by it")
    fields = build(reader)
    facts = WHOLE.get(str(data.get("model_type"))) if text_reader(whole) is not whole else None
    if facts and "head" not in facts and (fields.get("output_layer_bias") or model_type in ENCODERS):
        raise UnsupportedError(f"{where}: {facts['class']} puts an output layer of its own on {model_type}: not counted")
    fields.setdefault("sources", {"*": where})
    return ModelSpec(name=name, model_type=model_type, **fields)


def config_file(path: str | Path) -> Path:
    """The file, or the config.json of the folder. Raises FileError."""
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


def _refusal(where: str, model_type: str, reader: ConfigReader) -> str:
    shown = model_type if len(model_type) <= 40 else model_type[:37] + "..."
    reason = _REFUSED.get(model_type, "an architecture this project does not know")
    alike = [family for family in FAMILIES if CLASSES.get(family) and CLASSES.get(family) == CLASSES.get(model_type)]
    if alike and model_type not in _REFUSED:
        return f"{where}: model_type {shown!r} is {reason}; it has the class of {alike[0]}: say {option('like')} {alike[0]}"
    near = likely_family(reader.values()) if model_type not in {*_REFUSED, *CLASSES} else None
    offer = f"; its keys are those of {near[0]}: say {option('like')} {near[0]} to read it so" if near else ""
    if near and near[1]:
        offer += f" (left out then: {', '.join(near[1])})"
    return f"{where}: model_type {shown!r} is {reason}{offer}; supported are {KNOWN}"


NOT_THE_SHAPE = frozenset(REFUSED["no_shape"])
OFFERED = ("llama", "qwen2", "qwen3", "mistral", "mixtral", "qwen3_moe", "glm4_moe", "deepseek_v3", "gemma2", "gpt2")
"""Families that a file of an unknown type may be read as, plainest first."""
MAX_LEFT_OUT = 3
"""Keys that a family may leave out of a file of an unknown type and still be offered."""


def read_like(data: Mapping[str, Any], where: str, name: str, family: str) -> tuple[ModelSpec, list[Remark]]:
    """The model of a config.json read as one of `family`, whatever its type says; what of it nothing reads, and what has the
    family's defaults. Raises InputError where the family is unknown or a value that it needs is missing."""
    if family not in FAMILIES:
        raise UnknownNameError("family", family, FAMILIES, "docs/families.md has them", field="like")
    reader = unified(ConfigReader(data, where))
    if (kind := reader.values().get("model_type")) in _REFUSED:
        raise UnsupportedError(f"{where}: model_type {kind!r} is {_REFUSED[kind]}, which {option('like')} does not change")
    its = CLASSES.get(str(kind))
    if its is not None and _stem(its) != _stem(CLASSES.get(family, family)) and not _foreign_class(reader):
        raise UnsupportedError(
            f"{where}: model_type {kind!r} is built by {its or 'classes of its own'} of transformers, which is not "
            f"as {family} is, and {option('like')} does not change it; a model of your own needs a model_type of its own"
        )
    fields, unread, absent = _built(reader.values(), where, family)
    fields.setdefault("sources", {"*": where})
    notes = [Remark("like", family, f"whatever {where} says", Effect.EVERYTHING), *other_parts(ConfigReader(data, where))]
    notes += [left_out(f"{', '.join(unread)}, which {family} does not read")] if unread else []
    notes += [_of_class(f"what it does not say is as {family} has it: {', '.join(absent)}")] if absent else []
    return ModelSpec(name=name, model_type=str(kind or ""), **fields), notes


def _built(values: Mapping[str, Any], where: str, family: str) -> tuple[dict[str, Any], list[str], list[str]]:
    """(Fields of ModelSpec, keys that the family does not read, keys that it looks for in vain). Raises InputError."""
    reader = ConfigReader(completed({**values, "model_type": family}), where)
    fields = FAMILIES[family](reader)
    filled = reader.values().keys() - values.keys() - {"model_type", *reader.unread()}
    unread = [key for key in reader.unread() if key not in NOT_THE_SHAPE and values.get(key) not in (None, False, 0, [], {})]
    if len(set(EXPERT_KEYS) & set(unread)) < len(EXPERT_KEYS):  # one of the spellings is read
        unread = [key for key in unread if key not in EXPERT_KEYS]
    return fields, unread, sorted(filled.union(reader.missed()) - NOT_THE_SHAPE)


def likely_family(values: Mapping[str, Any]) -> tuple[str, list[str]] | None:
    """The family of OFFERED that reads most of a file's keys, with those that it leaves out; None where none reads all but
    MAX_LEFT_OUT."""
    found = []
    for family in OFFERED:
        try:
            fields, unread, _ = _built(values, "config.json", family)
            ModelSpec(name="model", **fields)
        except InputError:
            continue
        if len(unread) <= MAX_LEFT_OUT:
            found.append((len(unread), OFFERED.index(family), family, unread))
    return None if not found else (min(found)[2], min(found)[3])


def _name(file: Path) -> str:
    """The folder's name for a file called config.json, else the file's own; only characters that print well."""
    try:
        stem = file.resolve().parent.name if file.name == "config.json" else file.stem
    except OSError:
        stem = file.stem
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", stem).strip("-")[:80] or "model"


_NOT_A_SHAPE = (
    "name", "norm_epsilon", "rope_scaling", "rotary_base", "router", "default_seq_length", "default_global_batch_size",
    "published_parameters", "make_vocab_size_divisible_by", "sources", "position_embedding_type", "mtp_num_layers",
    "model_type",
)  # fmt: skip
_FAMILIES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}


def huggingface_config(model: ModelSpec) -> dict[str, Any]:
    """The content of a config.json. Raises UnsupportedError where no family has the model's shape."""
    nearest: list[str] | None = None
    for family, architecture in _FAMILIES.items():
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
        **dict.fromkeys(("bos_token_id", "eos_token_id"), 0),
    }
    if model.is_moe:
        body |= {
            **dict.fromkeys(("num_local_experts", "num_experts"), model.num_moe_experts),
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
