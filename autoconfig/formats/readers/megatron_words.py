"""Mappings whose keys are Megatron-LM's arguments (`tensor_model_parallel_size: 8`), as an argument list.

Keys are names of arguments or of the attributes that argparse makes of them: `add_bias_linear: false` is --disable-bias-linear.
Such are Megatron-LM's own YAML files: `MODEL_ARGS` of its functional tests, `ARGS` of its recipes of mixtures
(examples/moe_recipes), and the file of --yaml-cfg (examples/gpt3/gpt_config.yaml).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

from autoconfig.formats.argument_names import MEGATRON_ARGUMENTS, SWITCHED_OFF, argument_name
from autoconfig.formats.record import Document, from_words, not_known, word
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


def words_of(section: Section, skip: Iterable[str] = ()) -> list[Value]:
    """An argument list of all values of a section, but of paths that begin with one of `skip`."""
    words: list[Value] = []
    for path, value in section.flat.items():
        if any(path == start or path.startswith(f"{start}.") for start in skip):
            continue
        name = argument_name(path.rpartition(".")[2])
        if isinstance(value, str) and "$" in value:
            with suppress(InputError):  # named where its value is asked for
                value = section.get(path)
        if value in (None, {}, "None", "null", ""):
            continue
        argument = known_arguments().get(name)
        if isinstance(value, bool):
            off = SWITCHED_OFF.get(name) if argument is None else None
            words += [word(name)] * value if off is None else [word(off)] * (not value)
        elif argument is not None and argument.values == "0" and value in (0, 1, "0", "1"):
            words += [word(name)] * (str(value) == "1")
        else:
            words += [word(name), *_values(section, path, name, value)]
    return words


def _values(section: Section, path: str, name: str, value: Any) -> list[Value]:
    try:
        value = section.get(path)
    except InputError as error:
        return [not_known(str(value), str(error))]
    known = known_arguments().get(name)
    if isinstance(value, list):
        if known is not None and known.values in ("1", "?"):
            return [word(str(value).replace(" ", ""))]
        return [word(item) for item in value]
    text = str(value)
    if re.fullmatch(r"\[[0-9][0-9 ]*\]", text):
        return [word(item) for item in text.strip("[]").split()]
    if known is not None and known.values in ("*", "+", "2") and " " in text:
        return [word(item) for item in text.split()]
    return [word(text)]


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
    words = words_of(section, skip)
    chosen = None if model is None else with_sizes(model, words, section)
    return from_words(document, words, gpus, node=node, model=chosen, spell=spelled, software=software)
