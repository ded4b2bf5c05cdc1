"""The model, numerics and software of a row of a table of runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.planning.resolve import read_stack as usual_stack
from autoconfig.planning.resolve import usual_fp8_recipe
from autoconfig.runs.table import (
    EP_OVERLAP,
    CellError,
    Row,
    cell,
    count_of,
    degree,
    flag,
    format_of,
    number,
    overlap_words,
    whole,
)
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.model import PER_LAYER, ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.models.pattern import parse_pattern, published_layers, scaled_pattern
from autoconfig.specs.run_settings import GivenSettings, read_graphs
from autoconfig.specs.scenario import FP8_RECIPES, PRECISIONS, Numerics
from autoconfig.specs.software.software import (
    GRAD_REDUCE,
    PARAM_GATHER,
    SoftwareStack,
    StackOptions,
    StackTime,
    load_stack,
    with_options,
)


@cache
def _families() -> list[dict[str, Any]]:
    text = (resources.files("autoconfig") / "data" / "model_families.json").read_text(encoding="utf-8")
    families: list[dict[str, Any]] = json.loads(text)
    return families


MIXTURES = "mixtral"
"""A name of the family that mixtures of an unknown name are read as: gated, without biases, as all of the catalogue but one."""


def family_of(row: Row) -> dict[str, Any]:
    """The first family of `data/model_families.json` whose pattern the model's name holds; the last one holds every name,
    but a mixture that no other one names is read as MIXTURES."""
    name = cell(row, "model").lower()
    found = next(family for family in _families() if re.search(family["pattern"], name))
    unknown = not found["pattern"] and not re.search("gpt", name)
    return next(f for f in _families() if re.search(f["pattern"], MIXTURES)) if unknown and whole(row, "experts", 0) else found


@cache
def _catalogue_model(name: str) -> ModelSpec | None:
    try:
        return load_model(name)
    except InputError:
        return None


_LAYERS_BEHIND = re.compile(r"(.+?)[-_ ]([0-9]{1,4})[-_ ]?layers?")
_SIZE_BEHIND = re.compile(r"(.+?)[-_ ]([0-9]{1,4}(?:\.[0-9]+)?)b")


SIZE_REACHED = 0.2
"""A size behind a name is one that a depth reaches within this share of it; otherwise it means another shape."""


def _cut_model(row: Row, assumed: list[str]) -> tuple[ModelSpec | None, Row]:
    """A catalogue model with a number of layers or a size in billions behind its name, and the row with that many layers.
    Raises CellError where no depth has about that size."""
    name = cell(row, "model").lower()
    for pattern in (_LAYERS_BEHIND, _SIZE_BEHIND):
        match = pattern.fullmatch(name)
        known = _catalogue_model(match[1]) if match else None
        if match is None or known is None:
            continue
        reached = ""
        if not cell(row, "layers"):
            layers = match[2]
            if pattern is _SIZE_BEHIND:
                layers, reached = _layers_of_size(known, float(layers) * 1e9)
            row = {**row, "layers": layers}
        assumed.append(f"{known.name} with {cell(row, 'layers')} layers{reached} ({cell(row, 'model')[:60]})")
        return known, row
    return None, row


def _layers_of_size(known: ModelSpec, parameters: float) -> tuple[str, str]:
    """The depth at which a model of this shape has about so many parameters, and the size reached, in words. Raises CellError
    where it is further off than SIZE_REACHED."""
    least = len(set(known.layer_kinds)) if known.is_hybrid else 1
    sizes = {n: total_parameters(_with_layers(known, n)) for n in range(least, 2 * known.num_layers + 1)}
    layers = min(sizes, key=lambda n: abs(sizes[n] - parameters))
    size = f"{sizes[layers] / 1e9:.3g} B parameters"
    if abs(sizes[layers] - parameters) > SIZE_REACHED * parameters:
        raise CellError(
            f"cell model asks for a {known.name} of {parameters / 1e9:g} B parameters: with {layers} layers it has {size}, and "
            "no other depth comes nearer; give layers, hidden, heads and ffn of the model that is meant"
        )
    return str(layers), f", {size}"


def _with_layers(known: ModelSpec, layers: int) -> ModelSpec:
    return _changed(known, {"layers": str(layers)}, [])


def read_model(row: Row, assumed: list[str]) -> ModelSpec:
    """The architecture: the row's cells; what they lack from the catalogue model of that name, else its family.

    Raises InputError, of a name alone that no model has UnknownNameError."""
    known = _catalogue_model(cell(row, "model"))
    if known is None:
        known, row = _cut_model(row, assumed)
    if known is None:
        if cell(row, "model") and not any(cell(row, key) for key in ("hidden", "heads", "layers")):
            load_model(cell(row, "model"))  # raises: which names are like it
        return _from_cells(row, assumed)
    if other := _contradictions(row, known):
        assumed.append(f"the shape of the columns, which is not {known.name}'s ({', '.join(other)})")
        return _from_cells(row, assumed)
    if blank := [key for key in ("layers", "hidden", "heads") if not cell(row, key)]:
        assumed.append(f"{', '.join(blank)} of {known.name}")
    return _changed(known, row, assumed)


def _contradictions(row: Row, known: ModelSpec) -> list[str]:
    ffn = known.moe_ffn_hidden_size if known.is_moe else known.ffn_hidden_size
    values: tuple[tuple[str, tuple[int, ...]], ...] = (
        ("hidden", (known.hidden_size,)),
        ("heads", (known.num_attention_heads,)),
        ("experts", (known.num_moe_experts or 0,)),
        ("ffn", (ffn, known.ffn_hidden_size)),
        *((("kv_channels", (known.kv_channels,)),) if not known.multi_latent_attention else ()),
    )
    given = [(key, whole(row, key), right) for key, right in values if cell(row, key)]
    return [f"{key} {value}, not {right[0]}" for key, value, right in given if value not in right]


def _changed(known: ModelSpec, row: Row, assumed: list[str]) -> ModelSpec:
    changes: dict[str, Any] = {}
    layers, seq = count_of(row, "layers") or known.num_layers, count_of(row, "seq") or 0
    if known.is_hybrid:
        changes |= _changed_pattern(known, layers)
    elif layers != known.num_layers:
        changes["num_layers"] = layers
        for name in PER_LAYER:
            if isinstance(pattern := getattr(known, name), tuple):
                changes[name] = pattern[:layers] + (1,) * max(0, layers - known.num_layers)
    changes["encoder_num_layers"] = _encoder_layers(known, row, layers)
    if seq > known.max_position_embeddings:
        changes["max_position_embeddings"] = seq
    if vocab := count_of(row, "vocab"):
        changes["vocab_size"] = vocab
    if (groups := count_of(row, "kv_heads")) and not known.multi_latent_attention:
        changes["num_query_groups"] = groups
    if (tied := flag(row, "tied_embeddings")) is not None:
        changes["untie_embeddings_and_output_weights"] = not tied
    changes = {key: value for key, value in changes.items() if getattr(known, key) != value}
    cells = (("layers", "num_layers"), ("encoder_layers", "encoder_num_layers"), ("vocab", "vocab_size"),
             ("kv_heads", "num_query_groups"))  # fmt: skip
    other = [f"{key} {changes[name]}, not {getattr(known, name)}" for key, name in cells if name in changes]
    if pattern := changes.get("hybrid_layer_pattern"):  # counted as checkpoints and users do, not in sublayers
        other[0] = f"layers {published_layers(pattern)}, not {published_layers(known.hybrid_layer_pattern)}"
    if other:
        assumed.append(f"{known.name} with {', '.join(other)}")
    return known.replace(published_parameters=None, **changes) if changes else known


def _encoder_layers(known: ModelSpec, row: Row, layers: int) -> int:
    """Of `layers` in all. Raises InputError where the row does not say how they split."""
    if known.is_encoder_only:
        return layers
    if known.is_encoder_decoder and layers != known.num_layers and not cell(row, "encoder_layers"):
        raise InputError(f"cell encoder_layers is empty: {known.name} has not {layers} layers in all")
    return whole(row, "encoder_layers", known.encoder_num_layers)


def _changed_pattern(known: ModelSpec, layers: int) -> dict[str, Any]:
    """A hybrid's pattern and number of sublayers for a number of layers, in sublayers or as checkpoints count them."""
    if layers in (known.num_layers, published_layers(known.hybrid_layer_pattern)):
        return {}
    pattern = scaled_pattern(known.hybrid_layer_pattern, layers)
    return {"hybrid_layer_pattern": pattern, "num_layers": len(parse_pattern(pattern).layers)}


def _from_cells(row: Row, assumed: list[str]) -> ModelSpec:
    family = family_of(row)
    if family["pattern"] and not re.search(family["pattern"], cell(row, "model").lower()):
        assumed.append("gated experts and no biases, as mixtures of experts have them")
    hidden, heads = degree(row, "hidden", None), degree(row, "heads", None)
    width = degree(row, "kv_channels", max(1, hidden // heads))
    if hidden < heads:
        raise InputError(f"cells hidden={hidden} and heads={heads} are no shape of a model")
    traits = dict(family["traits"])
    ffn, vocab = count_of(row, "ffn"), count_of(row, "vocab")
    if ffn is None:
        ffn = -(-8 * hidden // 3 // 256) * 256 if traits.get("gated_linear_unit") else 4 * hidden
        assumed.append(f"ffn {ffn}")
    if vocab is None:
        vocab = int(family["vocab_size"])
        assumed.append(f"vocab {vocab}")
    if (tied := flag(row, "tied_embeddings")) is not None:
        traits["untie_embeddings_and_output_weights"] = not tied
    experts = whole(row, "experts", 0) or None
    return ModelSpec(
        name=cell(row, "model") or "model",
        num_layers=degree(row, "layers", None),
        encoder_num_layers=whole(row, "encoder_layers", 0),
        hidden_size=hidden,
        num_attention_heads=heads,
        num_query_groups=degree(row, "kv_heads", heads),
        kv_channels=width,
        ffn_hidden_size=ffn,
        vocab_size=vocab,
        max_position_embeddings=degree(row, "seq", None),
        num_moe_experts=experts,
        moe_router_topk=degree(row, "topk") if experts else 1,
        moe_ffn_hidden_size=ffn if experts else 0,
        **traits,
    )


def read_stack(row: Row, gpu: GpuSpec, assumed: list[str]) -> SoftwareStack:
    """The named stack, else a question's, with what the row says of its kernels and overlap."""
    name = cell(row, "software")
    if not name:
        name = usual_stack(None, gpu, []).name
        assumed.append(f"software {name}")
    overlap = _overlaps(row) - {EP_OVERLAP}
    stack_name = "megatron-local" if cell(row, "transformer_impl") == "local" else name
    if overlap and not overlap & {"none", GRAD_REDUCE, PARAM_GATHER} and load_stack(stack_name).release:
        overlap |= {GRAD_REDUCE, PARAM_GATHER}  # such a cell of a dated release speaks of model parallelism
    options = StackOptions(
        attention_kernel=cell(row, "attention_kernel"),
        fused_rms_norm=cell(row, "norm_kernel") == "fused-rms",
        loss_fusion=cell(row, "loss_fusion"),
        overlaps=overlap or None,
        balanced_experts=cell(row, "moe_routing") == "balanced",
    )
    stack = with_options(load_stack(stack_name), options)
    shard = cell(row, "optimizer_shard")
    return replace(stack, time=_broadcasts(stack.time, shard, whole(row, "dp", 0))) if shard.isdigit() else stack


def _overlaps(row: Row) -> frozenset[str]:
    return frozenset(overlap_words(cell(row, "overlap")))


def read_settings(row: Row, model: ModelSpec) -> GivenSettings:
    """What the row says of its switches: dispatcher, CUDA graphs and their scope, EP overlap (a column of its own, else a word
    of `overlap`), kernels, offloaded activations (of `offload_layers`, else of all layers but one: NV123); an empty cell is the
    default of release, GPU, model and plan."""
    graphed, scope, layers = flag(row, "cuda_graph"), cell(row, "cuda_graph_scope"), model.num_layers
    graphs = frozenset[str]() if graphed is False else read_graphs(scope) if scope else None
    overlap = EP_OVERLAP in _overlaps(row) if cell(row, "overlap") else None
    every = layers if cell(row, "offload").lower() == "activations" else None
    offloaded = whole(row, "offload_layers", every) if cell(row, "offload_layers") or every else None
    return GivenSettings(
        dispatcher=cell(row, "moe_dispatcher").lower() or None,
        cuda_graphs=graphs,
        ep_overlap=overlap if (said := flag(row, "ep_overlap")) is None else said,
        fused_experts=flag(row, "fused_experts"),
        fp8_attention=flag(row, "fp8_attention"),
        fp8_output=flag(row, "fp8_output"),
        offload_layers=None if offloaded is None else min(offloaded, layers - 1),
    )


def _broadcasts(time: StackTime, shard: str, data_parallel: int) -> StackTime:
    """Owner-by-owner broadcasts of a sharded optimizer go over the shard group, which may be smaller than data parallelism."""
    if not (shard.isascii() and shard.isdigit() and len(shard) < 9) or not data_parallel:
        return time
    return replace(time, optimizer_seconds_per_rank=time.optimizer_seconds_per_rank * min(1.0, int(shard) / data_parallel))


def read_numerics(row: Row, stack: SoftwareStack, gpu: GpuSpec, assumed: list[str]) -> Numerics:
    """Types, dropout and adapters; what the row lacks is the stack's or the family's default, and said."""
    precision, recipe = format_of(cell(row, "precision").split("(")[0])
    scaled = format_of(cell(row, "fp8_recipe"))[-1] or cell(row, "fp8_recipe").lower()
    if recipe and scaled not in ("", recipe):
        raise CellError(f"cells precision={cell(row, 'precision')[:40]} and fp8_recipe={scaled[:40]} contradict each other")
    recipe = recipe or scaled
    if recipe == precision == "nvfp4":
        recipe = ""  # NVFP4 has one recipe, of its own name
    if recipe in FP8_RECIPES and precision in PRECISIONS and precision != "fp8":
        assumed.append(f"precision {precision}, which has no fp8_recipe {recipe}")
        recipe = ""
    if precision not in PRECISIONS:
        if precision:
            raise InputError(f"cell precision={precision[:40]!r} is not one of {', '.join(PRECISIONS)}")
        precision = "bf16"
        assumed.append("precision bf16")
    if precision == "fp8" and not recipe:
        recipe = usual_fp8_recipe(stack, gpu)
        assumed.append(f"fp8_recipe {recipe}")
    gather = precision == "fp8" and stack.memory.default_fp8_param_gather
    if precision == "fp8":
        assumed.append(f"fp8_param_gather {int(gather)}")
    usual = stack.memory.default_grad_dtype
    if cell(row, "fsdp") in ("2", "3", "hsdp"):
        usual = stack.memory.default_fsdp_grad_dtype or usual
    if not cell(row, "grad_dtype"):
        assumed.append(f"gradients {usual}")
    given = number(row, "hidden_dropout")
    if given is not None and not 0 <= given < 1:
        raise CellError(f"cell hidden_dropout={given:g} must be at least 0 and below 1")
    dropout = float(family_of(row)["dropout"]) if given is None else given
    if given is None:
        assumed.append(f"dropout {dropout:g}")
    return Numerics(
        precision=precision,
        fp8_param_gather=gather,
        grad_reduce_dtype=cell(row, "grad_dtype") or usual,
        hidden_dropout=dropout,
        attention_dropout=dropout,
        deterministic=bool(flag(row, "deterministic")),
        fp8_recipe=recipe or "delayed",
        moe_capacity_factor=1.0 if cell(row, "moe_routing") == "tokendrop" else None,
        **_adapters(row, stack, assumed),
    )


FINE_TUNING = ("sft", "lora", "peft")
"""Words of the column task that mean a run on packed sequences; `lora` and `peft` train adapters."""
SQUAD_TOKENS = 200
"""Length of the sequence that a token of SQuAD v1.1 stands in: about 860 characters of context, question, answer and template
at 4.3 a token; what NeMo's tables print of FLOPs says 100 to 180 (FLOPs a token less 6 a parameter, 4 of frozen ones, over
12 L h). NVIDIA's recipes fine-tune on it, packed to the sample (NeMo, performance_summary.md; Megatron-Bridge,
default_squad_config); attention is 1 to 2 % of their steps, so a factor of two in it is nothing."""
RECIPE_ADAPTERS = ("linear_qkv",)
"""Layers that NVIDIA's benchmark recipes adapt (Megatron-Bridge, scripts/performance: peft.target_modules; NeMo 1's
default)."""


NEMO_RANK, BRIDGE_RANK = 32, 16
"""Rank of the adapters: NeMo-Framework-Launcher, conf/peft/llama/squad.yaml; Megatron-Bridge, llama3_70b_peft_config."""


def is_fine_tuning(row: Row) -> bool:
    """Whether the row says that a trained model was trained on."""
    return cell(row, "task").lower() in FINE_TUNING or cell(row, "peft").lower() == "lora"


def packed_length_of(row: Row, stack: SoftwareStack, seq: int, assumed: list[str]) -> int | None:
    """Length of the sequences packed in a sample: the cell, else that of NVIDIA's recipes where its software fine-tunes, else
    None (a sample is one sequence)."""
    if (given := count_of(row, "packed_length")) is not None:
        return None if given >= seq else given
    if not is_fine_tuning(row):
        return None
    if not stack.name.startswith("nemo-") or seq <= SQUAD_TOKENS:
        assumed.append("packed_length: samples that are not packed")
        return None
    assumed.append(f"packed_length {SQUAD_TOKENS} (SQuAD, as NVIDIA's recipes fine-tune)")
    return SQUAD_TOKENS


def _adapters(row: Row, stack: SoftwareStack, assumed: list[str]) -> dict[str, Any]:
    """Numerics of LoRA; none for other rows."""
    if cell(row, "peft").lower() != "lora" and cell(row, "task").lower() not in ("lora", "peft"):
        return {}
    modules = tuple(cell(row, "lora_target_modules").replace(",", " ").split())
    if not modules and stack.name.startswith("nemo-"):
        modules = RECIPE_ADAPTERS
        assumed.append(f"lora_target_modules {' '.join(modules)} (as NVIDIA's recipes)")
    found: dict[str, Any] = {"peft": "lora"} | ({"lora_target_modules": modules} if modules else {})
    rank = count_of(row, "lora_rank")
    if rank is None and stack.name.startswith("nemo-"):
        rank = BRIDGE_RANK if stack.name >= "nemo-25" else NEMO_RANK
        assumed.append(f"lora_rank {rank} (as NVIDIA's recipes)")
    if rank is not None:
        found["lora_rank"] = rank
    return found
