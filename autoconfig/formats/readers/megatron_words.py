"""Mappings whose keys are Megatron-LM's arguments (`tensor_model_parallel_size: 8`), as an argument list.

Keys are names of arguments or of the attributes that argparse makes of them: `add_bias_linear: false` is --disable-bias-linear.
Such are Megatron-LM's own YAML files: `MODEL_ARGS` of its functional tests, `ARGS` of its recipes of mixtures
(examples/moe_recipes), and the file of --yaml-cfg (examples/gpt3/gpt_config.yaml).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from autoconfig.formats.argument_names import MEGATRON_ARGUMENTS, SWITCHED_OFF, argument_name
from autoconfig.formats.record import Document, from_words, not_known, unread_in, word
from autoconfig.maps.table import Map
from autoconfig.maps.tree import Section
from autoconfig.megatron.argument_list import known_arguments
from autoconfig.megatron.check import plan_flags
from autoconfig.megatron.check_input import CheckInput
from autoconfig.megatron.shell.commands import Value, text_of
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.overrides import apply_overrides
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario

SHARED = "moe_shared_expert_intermediate_size"
SIZES = {
    "--num-layers": "num_layers",
    "--hidden-size": "hidden_size",
    "--ffn-hidden-size": "ffn_hidden_size",
    "--num-attention-heads": "num_attention_heads",
    "--num-query-groups": "num_query_groups",
    "--num-experts": "num_moe_experts",
    "--moe-router-topk": "moe_router_topk",
    "--moe-ffn-hidden-size": "moe_ffn_hidden_size",
    "--kv-channels": "kv_channels",
    "--moe-shared-expert-intermediate-size": SHARED,
}
"""What a file may change of a model that it names."""
DEPTHS = "mtp_num_layers"
SWITCHES = ("qk_layernorm", "untie_embeddings_and_output_weights", "add_qkv_bias")


def read(document: Document) -> CheckInput:
    """The record of Megatron-LM's own YAML. GPUs: `--gpus`, which such files do not say. Raises InputError."""
    whole = document.section()
    path = next((key for key in MEGATRON_ARGUMENTS if whole.has(key)), "")
    return read_words(document, document.section(path), None)


def names_in(section: Section, skip: Iterable[str] = ()) -> dict[str, str]:
    """Path -> the argument whose name it ends in, of all paths but those that begin with one of `skip`."""
    left_out = tuple(skip)
    below = tuple(f"{start}." for start in left_out)
    paths = (path for path in section.flat if path not in left_out and not path.startswith(below))
    return {path: argument_name(path.rpartition(".")[2]) for path in paths}


def words_of(section: Section, names: Mapping[str, str]) -> list[Value]:
    """An argument list of the values at paths, as the arguments that stand beside these; a value that is not known is named
    where it is asked for."""
    words: list[Value] = []
    for path in (path for path in section.flat if path in names):
        try:
            words += argument_words(names[path], section.get(path))
        except InputError as error:
            words += [word(names[path]), not_known(str(section.flat[path]), str(error))]
    return words


def require_values(section: Section, names: Mapping[str, str]) -> None:
    """Take true and false for texts at the paths whose arguments have one value, which then refuse them."""
    arguments = known_arguments()
    for path, name in names.items():
        if isinstance(section.flat.get(path), bool) and name in arguments and arguments[name].values == "1":
            section.flat[path] = str(section.flat[path])


def argument_words(name: str, value: Any) -> list[Value]:
    """An argument with its value; nothing where the value is null or switches nothing on."""
    if value in (None, "null", ""):
        return []
    argument = known_arguments().get(name)
    if isinstance(value, bool) and argument is None and name in SWITCHED_OFF:
        return [word(SWITCHED_OFF[name])] * (not value)
    takes = "" if argument is None else argument.values
    if isinstance(value, bool) or (takes == "0" and str(value) in ("0", "1")):
        return [word(name)] * (str(value) in ("True", "1"))
    return [word(name), *map(word, _texts(value, takes))]


def _texts(value: Any, takes: str) -> list[Any]:
    """The values of an argument that takes so many (`*`, `+` and `?` as argparse has them): of `[1 2]` two."""
    if isinstance(value, list):
        return [str(value).replace(" ", "")] if takes in ("1", "?") else value
    text = str(value)
    numbers = text[1:-1].split() if text.startswith("[") and text.endswith("]") else []
    if "".join(numbers).isdigit():
        return numbers
    return text.split() if takes in ("*", "+", "2") else [text]


def field_words(fields: Mapping[str, Any]) -> list[Value]:
    """The arguments among the fields of a map, which begin with two dashes."""
    return [text for name, value in fields.items() if name.startswith("--") for text in argument_words(name, value)]


def with_unread(answer: CheckInput, section: Section, table: Map, paths: Iterable[str]) -> CheckInput:
    """The record with these paths, which nothing read, as without effect where the map says so, else as unknown."""
    ignored, unknown = unread_in(section, table, paths)
    return replace(answer, ignored=(*answer.ignored, *ignored), unknown=(*answer.unknown, *unknown))


def with_sizes(model: ModelSpec, words: list[Value], section: Section) -> ModelSpec:
    """The model with the sizes and switches that the file changes. Raises UnsupportedError for another kind of attention."""
    pairs = pairwise(map(text_of, words))
    changes: dict[str, object] = {SIZES[flag]: int(text) for flag, text in pairs if flag in SIZES and text.isdigit()}
    if SHARED in section.flat and section.flat[SHARED] is None and model.is_moe:
        changes[SHARED] = 0  # null takes away what the named model has
    sizes = _different(model, changes)
    model = apply_overrides(model, sizes) if sizes else model
    if DEPTHS in section.flat:
        model = model.replace(mtp_num_layers=section.whole(DEPTHS) or 0)
    latent = section.flat.get("multi_latent_attention")
    if isinstance(latent, bool) and latent != model.multi_latent_attention:
        raise UnsupportedError(
            f"{section.place('multi_latent_attention')} is {latent}, and {model.name} is not built so: give the whole model"
        )
    switches = _different(model, {name: section.flat[name] for name in SWITCHES if isinstance(section.flat.get(name), bool)})
    return model.replace(**switches) if switches else model


def _different(model: ModelSpec, fields: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if getattr(model, name) != value}


def spelled(scenario: Scenario, plan: TrainPlan) -> dict[str, tuple[str, ...]]:
    """The arguments of a plan as keys of such a mapping; a switch is `true`. Adapters have keys of their own."""
    whole = replace(scenario, numerics=replace(scenario.numerics, peft="none"))
    flags: Mapping[str, tuple[str, ...]] = plan_flags(whole, plan)
    return {flag.removeprefix("--").replace("-", "_"): values or ("true",) for flag, values in flags.items()}


def read_words(
    document: Document,
    section: Section,
    gpus: int | None,
    *,
    node: int | None = None,
    model: ModelSpec | None = None,
    skip: Iterable[str] = (),
    software: str | None = None,
) -> CheckInput:
    """The record of a mapping of Megatron-LM's arguments. `node`: processes on each machine; `software`: what runs them;
    None: by the newest of them."""
    words = words_of(section, names_in(section, skip))
    chosen = None if model is None else with_sizes(model, words, section)
    return from_words(document, words, gpus, node=node, model=chosen, spell=spelled, software=software)
