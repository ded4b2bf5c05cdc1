"""Reads values out of a model's JSON file with a check and a message for each, under the names that the classes of
transformers know them by; nothing here knows an architecture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoconfig.specs.errors import FileError, InputError, UnsupportedError
from autoconfig.specs.files import read_bytes
from autoconfig.specs.models.model import MAX_DIMENSION
from autoconfig.specs.models.model_numbers import LLAMA3_ORIGINAL, YARN_ORIGINAL, RopeScaling, RouterNumbers
from autoconfig.specs.remarks import Effect, Remark

MAX_BYTES = 16 * 2**20
"""Of a config.json: lists of modules that are not quantised take megabytes."""


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in the file. Raises FileError for a file that cannot be read, InputError for one that is not JSON."""
    try:
        if not path.is_file():
            raise FileError(f"{path}: no such file; give the path of a Hugging Face config.json or of the folder that holds it")
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: cannot be read ({error}); give the path of a readable config.json") from error
    raw = read_bytes(path, "a config.json, which has a few thousand bytes (is this a weights file?)", MAX_BYTES)
    try:
        data = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); give a config.json") from error
    except RecursionError as error:
        raise InputError(f"{path}: nested too deeply to be a model's config.json") from error
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({_short(error)}); is the file complete?") from error
    if not isinstance(data, dict):
        raise InputError(f"{path}: holds a JSON {_kind(data)}; a config.json is a JSON object {{...}}")
    return data


class ConfigReader:
    """A JSON object whose values are asked for by key and type. Every wrong value is an InputError that names key and file."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        """`where` opens every message: the file, or the file and a key."""
        self._values = values
        self._asked: set[str] = set()
        self.where = where

    def __contains__(self, key: str) -> bool:
        self._asked.add(key)
        return self._values.get(key) is not None

    def has_key(self, key: str) -> bool:
        """Whether the key is there at all, be it null."""
        self._asked.add(key)
        return key in self._values

    def unread(self) -> list[str]:
        """Keys that have a value and that nobody asked for, in the file's order."""
        return [key for key, value in self._values.items() if value is not None and key not in self._asked]

    def missed(self) -> list[str]:
        """Keys that were asked for and have no value."""
        return [key for key in self._asked if self._values.get(key) is None]

    def fail(self, text: str) -> InputError:
        """An InputError about this file, to raise."""
        return InputError(f"{self.where}: {text}")

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int = MAX_DIMENSION - 1) -> int:
        """A whole number from `low` to `high`; absent or null gives `default`, and without a default it is required."""
        value = self._get(key, default, "a whole number")
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.fail(f"{key}={_short(value)} must be a whole number from {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number of at least 0."""
        value = self._get(key, default, "a number")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
            raise self.fail(f"{key}={_short(value)} must be a number of at least 0")
        return float(value)

    def values(self) -> dict[str, Any]:
        """A copy of what the object holds."""
        return dict(self._values)

    def replaced(self, **values: Any) -> ConfigReader:
        """A reader of the same object with other values; what it is asked for, this one is not."""
        return ConfigReader({**self._values, **values}, self.where)

    def optional_integer(self, key: str, *, low: int = 1) -> int | None:
        """Like `integer`, or None where the key is absent or null."""
        return self.integer(key, low=low) if key in self else None

    def boolean(self, key: str, default: bool) -> bool:
        """true or false; null is false, as it is to the classes, which ask whether it is true."""
        value = False if self.has_key(key) and self._values[key] is None else self._get(key, default, "true or false")
        if not isinstance(value, bool):
            raise self.fail(f"{key}={_short(value)} must be true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(key, default, "a string")
        if not isinstance(value, str):
            raise self.fail(f"{key}={_short(value)} must be a string")
        return value

    def items(self, key: str, kind: type) -> list[Any] | None:
        """A list whose items are all of `kind` (booleans are no integers), or None where absent or null."""
        if key not in self:
            return None
        value = self._values[key]
        if not isinstance(value, list) or any(not isinstance(v, kind) or isinstance(v, bool) for v in value):
            raise self.fail(f"{key}={_short(value)} must be a list of {kind.__name__} values")
        return value

    def section(self, key: str) -> ConfigReader:
        """A nested object, empty where absent or null."""
        self._asked.add(key)
        value = self._values.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.fail(f"{key}={_short(value)} must be an object")
        return ConfigReader(value or {}, f"{self.where}: {key}")

    def _get(self, key: str, default: Any, what: str) -> Any:
        self._asked.add(key)
        value = self._values.get(key)
        if value is not None:
            return value
        if default is None:
            raise self.fail(f"{key} is missing; it must be {what} (is this the config.json of the whole model?)")
        return default


def _kind(value: object) -> str:
    return {list: "array", str: "string", bool: "boolean", type(None): "null"}.get(type(value), "number")


def _short(value: object) -> str:
    try:
        text = repr(value) if not isinstance(value, Exception) else str(value)
    except (ValueError, RecursionError):
        return "a huge value"
    return text if len(text) <= 60 else text[:57] + "..."


_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": float(LLAMA3_ORIGINAL)}
_YARN = {"beta_fast": 32.0, "beta_slow": 1.0}
"""What Megatron-LM has fixed, or fixed for multi-latent attention."""


def rotary_fields(cfg: ConfigReader, base: int = 10_000, percent: float = 1.0) -> dict[str, Any]:
    """position_embedding_type, rotary_base, rotary_percent, rope_scaling; `base`, `percent`: the family's for absent keys."""
    scaling = rope_scaling(cfg.section("rope_scaling") if "rope_scaling" in cfg else _rope_section(cfg))
    return {
        "position_embedding_type": "yarn" if scaling is not None and scaling.type == "yarn" else "rope",
        "rotary_base": _base(cfg, base),
        "rotary_percent": _percent(cfg, percent),
        "rope_scaling": scaling,
    }


def _rope_section(cfg: ConfigReader) -> ConfigReader:
    """`rope_parameters`; of a file that has them by kind of layer, those of full attention."""
    section = cfg.section("rope_parameters")
    return section.section("full_attention") if "full_attention" in section else section


def _rotary_number(cfg: ConfigReader, key: str, older: str, default: float) -> tuple[ConfigReader, str, float]:
    """(Where it stands, its key, the number)."""
    places = ((cfg, key), (_rope_section(cfg), key), (cfg, older))
    return next(((reader, name, reader.number(name)) for reader, name in places if name in reader), (cfg, key, default))


def _base(cfg: ConfigReader, default: int) -> int:
    reader, key, value = _rotary_number(cfg, "rope_theta", "rotary_emb_base", default)
    if value < 1 or value >= 2**31 or value != int(value):
        raise reader.fail(f"{key}={value:g} must be a whole number from 1 (Megatron-LM's --rotary-base takes no other)")
    return int(value)


def _percent(cfg: ConfigReader, default: float) -> float:
    reader, key, value = _rotary_number(cfg, "partial_rotary_factor", "rotary_pct", default)
    if not 0 < value <= 1:
        raise reader.fail(f"{key}={value:g} must be above 0 and at most 1")
    return value


def rope_scaling(section: ConfigReader) -> RopeScaling | None:
    """Of a config.json's rope_scaling or rope_parameters; None where positions are not scaled. Raises InputError."""
    kind = section.text("rope_type", section.text("type", "default"))
    if kind == "default":
        return None
    factor = section.number("factor", 1.0)
    if kind == "linear":
        return RopeScaling(type="linear", factor=factor)
    if kind == "llama3":
        usual = all(section.number(key, value) == value for key, value in _LLAMA3.items())
        return RopeScaling(type="llama3" if usual else "other", factor=factor)
    if kind == "yarn":
        return RopeScaling(
            type="yarn" if all(section.number(key, value) == value for key, value in _YARN.items()) else "other",
            factor=factor,
            original_max_position_embeddings=section.integer("original_max_position_embeddings", YARN_ORIGINAL),
            mscale=section.number("mscale", 1.0),
            mscale_all_dim=section.number("mscale_all_dim", 0.0),
            truncate=section.boolean("truncate", True),
        )
    return RopeScaling(type="other", factor=factor)


def norm_epsilon(cfg: ConfigReader) -> float | None:
    """The norms' epsilon; None where the file does not say it."""
    key = next((key for key in ("rms_norm_eps", "norm_eps", "layer_norm_epsilon", "layer_norm_eps") if key in cfg), None)
    return None if key is None else cfg.number(key)


def softmax_router(cfg: ConfigReader, normalises: bool | None) -> dict[str, Any]:
    """`normalises`: whether the family normalises the chosen scores (Mixtral: always); None where norm_topk_prob says it."""
    if normalises is None and "norm_topk_prob" not in cfg:
        return {}
    over_all = not (cfg.boolean("norm_topk_prob", True) if normalises is None else normalises)
    coefficient = cfg.number("router_aux_loss_coef") if "router_aux_loss_coef" in cfg else None
    return {"router": RouterNumbers(score_function="softmax", pre_softmax=over_all, aux_loss_coeff=coefficient)}


def deepseek_router(cfg: ConfigReader) -> dict[str, Any]:
    """DeepSeek-V3's norm_topk_prob is true, and Megatron's sigmoid scores are normalised always."""
    if "scoring_func" not in cfg:
        return {}
    score, grouped = cfg.text("scoring_func"), cfg.text("topk_method", "") in ("group_limited_greedy", "noaux_tc")
    groups = cfg.optional_integer("n_group") if grouped else None
    return {
        "router": RouterNumbers(
            score_function=score,
            pre_softmax=score == "softmax" and not cfg.boolean("norm_topk_prob", False),
            topk_scaling_factor=cfg.number("routed_scaling_factor", 1.0),
            num_groups=groups,
            group_topk=cfg.optional_integer("topk_group") if groups else None,
            load_balancing_type="seq_aux_loss" if cfg.boolean("seq_aux", True) else "aux_loss",
            aux_loss_coeff=cfg.number("aux_loss_alpha") if "aux_loss_alpha" in cfg else None,
        )
    }


_CATALOGUE = Path(__file__).parents[1] / "catalogue"
DEFAULTS = json.loads((_CATALOGUE / "huggingface_defaults.json").read_text(encoding="utf-8"))
_OF_CLASSES = json.loads((_CATALOGUE / "huggingface_classes.json").read_text(encoding="utf-8"))
CLASSES: Mapping[str, str] = _OF_CLASSES["classes"]
"""model_type -> its text class in transformers; empty where it has none of its own."""
SAME: Mapping[str, Mapping[str, str]] = _OF_CLASSES["same"]
"""model_type -> other names under which its class knows a key -> the key."""
NOT_READ: Mapping[str, list[str]] = _OF_CLASSES["not_read"]
"""model_type -> keys of other families, without effect on its class."""
EXPERTS: Mapping[str, list[str]] = _OF_CLASSES["experts"]
"""model_type -> the names of EXPERT_KEYS that its class takes; none of those without experts."""
WHOLE: Mapping[str, Mapping[str, Any]] = _OF_CLASSES["multi_modal"]
"""Multi-modal model_type with a class that has an output layer -> its `class`; the `part` that holds the language model;
`inner`, where it builds that of one model_type only; `head`, where its output layer is that model's; `defaults`, where it fills
that part with its own; `ties`, whether the embeddings are tied where the file says true, false or nothing outside of its
language model, and inside true or false (T, F; ?: it cannot be built so)."""
TEXT_PARTS = ("text_config", "llm_config", "language_config")
"""Of a multi-modal file: the language model, whose keys are those of a file of its own."""
OTHER_PARTS = ("vision_config", "audio_config", "vision_tower_config", "speech_config")
PARTS_BESIDE = (
    "num_nextn_predict_layers", "num_mtp_layers", "mtp_num_layers", "mtp_num_hidden_layers", "num_mtp_modules",
    "add_cross_attention", "cross_attention_layers", "num_cross_attention_layers", "cross_attention_hidden_size",
)  # fmt: skip
"""Keys of depths of multi-token prediction and of cross-attention, in whichever family they stand."""
OWN_OUTPUT = {"ovis2": {"vocab_size": 151_643, "hidden_size": 1_536}}
"""Multi-modal files whose output layer has sizes of its own -> those of its class (transformers 5.23)."""
FLAT = {"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}
"""Multi-modal files whose language model's keys stand beside the vision part's (transformers before 4.52)."""
TEXT_TYPES = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "glm4v_text": "glm4",
    "glm4v_moe_text": "glm4_moe",
}
"""`model_type` of a language model inside a multi-modal file -> of the one alone with the same layers. Defaults, other
names and keys that it does not read are its own."""
EXPERT_KEYS = ("num_experts", "n_routed_experts", "moe_num_experts", "num_local_experts")
"""The number of experts: each family has its own key, and its class passes over the others (EXPERTS)."""


def text_reader(reader: ConfigReader) -> ConfigReader:
    """The language model's part of the file; the file itself where it is one."""
    for key in TEXT_PARTS:
        if key in reader and "model_type" in reader.section(key):
            return reader.section(key)
    return reader


def left_out(what: str) -> Remark:
    """A part that no figure holds."""
    return Remark("left out", None, what, Effect.LEFT_OUT)


def other_parts(reader: ConfigReader) -> list[Remark]:
    """Of a multi-modal file, that it is one."""
    other = sorted({key.removesuffix("_config") for key in OTHER_PARTS if key in reader})
    if text_reader(reader) is reader and not other:
        return []
    parts = " and ".join(other) or "other"
    return [left_out(f"the {parts} parts of a multi-modal model, weights and time: its language model is planned")]


def text_type(reader: ConfigReader) -> str:
    """`model_type` of the language model; of one whose keys stand beside the vision part's that of the text alone."""
    values = text_reader(reader).values()
    kind = str(values.get("model_type"))
    return FLAT.get(kind, kind) if "hidden_size" in values else kind


def unified(reader: ConfigReader) -> ConfigReader:
    """The language model's keys under the names that its family reads."""
    text, kind = text_reader(reader), text_type(reader)
    values = text.values() if text is reader else _as_part(reader, text)
    if kind in _TWO_DEPTHS and "num_hidden_layers" in values and not values.keys() & {"num_layers", "num_decoder_layers"}:
        raise text.fail("says num_hidden_layers and no num_layers: its class then takes 6 for the decoder; give num_layers")
    for other, key in SAME.get(kind, {}).items():
        if type(given := values.get(other)) in (int, bool):
            if values.setdefault(key, given) not in (given, None):
                raise text.fail(f"says {key} {values[key]} and {other} {given}, which are the same to {kind}: give one of them")
            values[key] = given
    values = _one_number_of_experts(kind, values, text)
    ignored = NOT_READ.get(kind, ())
    values = completed({key: value for key, value in values.items() if key not in ignored} | {"model_type": kind})
    raw = text.values().get("model_type")
    return ConfigReader({**values, "model_type": TEXT_TYPES.get(kind, kind) if isinstance(raw, str) else raw}, text.where)


def _one_number_of_experts(kind: str, values: dict[str, Any], reader: ConfigReader) -> dict[str, Any]:
    """With the number under each of EXPERT_KEYS, of a family that has experts or that is not known. Raises InputError where
    two differ, and where the class would take its own default since its own key is not there."""
    given = {key: values[key] for key in EXPERT_KEYS if values.get(key) is not None}
    if not given or (kind in CLASSES and kind not in EXPERTS):
        return values
    if len({str(number) for number in given.values()}) > 1:
        raise reader.fail(f"says {' and '.join(f'{key} {str(one)[:20]}' for key, one in given.items())}: give one of them")
    if (own := EXPERTS.get(kind)) and not given.keys() & set(own):
        key, number = next(iter(given.items()))
        raise reader.fail(
            f"says {key} {str(number)[:20]}, which {CLASSES.get(kind) or kind} of transformers does not read: it takes its own "
            f"default for {own[0]}; give {own[0]}"
        )
    return {**dict.fromkeys(EXPERT_KEYS, next(iter(given.values()))), **values}


_TIE = "tie_word_embeddings"
_TWO_DEPTHS = ("t5", "mt5", "umt5")
"""Families with a depth of the encoder and one of the decoder."""


def _as_part(reader: ConfigReader, text: ConfigReader) -> dict[str, Any]:
    """The language model's part as the class of the whole file takes it. Raises InputError where that builds another one, or
    none, and where it is not known which part holds."""
    outer, inner = reader.values(), text.values()
    kind = str(outer.get("model_type"))
    given = [key for key in TEXT_PARTS if key in reader and "model_type" in reader.section(key)]
    if any(outer[key] != outer[given[0]] for key in given):
        raise reader.fail(f"says {' and '.join(given)}, which differ: which is the language model is not known; give one")
    if kind not in WHOLE:
        if kind in CLASSES:
            raise UnsupportedError(f"{reader.where}: {kind} of transformers has no class of a language model with a {given[0]}")
        return inner | ({} if outer.get(_TIE) is None else _tied_as_said(outer[_TIE], inner, text))
    facts = WHOLE[kind]
    if facts["part"] not in given:
        raise UnsupportedError(f"{reader.where}: the class of {kind} reads {facts['part']}, and the file has {given[0]}")
    if facts.get("inner", inner["model_type"]) != inner["model_type"]:
        says = str(inner["model_type"])[:40]
        raise UnsupportedError(f"{text.where}: the class of {kind} builds {facts['inner']}, whatever model_type says: {says!r}")
    return {**facts.get("defaults", {}), **inner, **_tied(outer, inner, facts["ties"], text)}


def _tied_as_said(said: object, inner: Mapping[str, Any], reader: ConfigReader) -> dict[str, Any]:
    """Of a multi-modal file whose class is not known. Raises InputError where its language model says another."""
    if inner.get(_TIE, said) not in (said, None):
        raise reader.fail(f"says {_TIE} {inner[_TIE]}, and the file around it {said}: which one holds is not known; give one")
    return {_TIE: said}


def _tied(outer: Mapping[str, Any], inner: Mapping[str, Any], ties: str, reader: ConfigReader) -> dict[str, Any]:
    """As the class takes it where the file says it outside of its language model, or never ties; else as that part says
    (`tied_by_class` tells where the class has another). Nothing where the language model's own default decides."""
    if set(ties) == {"F"}:
        return {_TIE: False}
    if _TIE not in outer:
        return {}
    both = ties[:2] if outer[_TIE] else ties[2:4]
    if "?" in both or not isinstance(outer[_TIE], bool | None):
        return _tied_as_said(outer[_TIE], inner, reader)
    return {_TIE: both[0 if inner.get(_TIE) else 1] == "T"} if _TIE in inner or both[0] == both[1] else {}


def tied_by_class(reader: ConfigReader, tied: bool) -> bool | None:
    """Whether the class of a multi-modal file that does not say it outside of its language model ties its embeddings, where
    that part has them `tied`; None for other files and classes."""
    outer = reader.values()
    facts = WHOLE.get(str(outer.get("model_type")))
    if text_reader(reader) is reader or facts is None or _TIE in outer:
        return None
    return {"T": True, "F": False}.get(facts["ties"][4 if tied else 5])


def completed(values: dict[str, Any]) -> dict[str, Any]:
    """With what the family's class in transformers takes for keys that are not there under any name; null stays null."""
    kind = str(values.get("model_type"))
    usual: dict[str, Any] = DEFAULTS["defaults"].get(kind, {})
    said = values.keys() | {name for pair in SAME.get(kind, {}).items() if values.keys() & {*pair} for name in pair}
    absent = usual.keys() - said
    return {**values, **{key: usual[key] for key in absent}}
