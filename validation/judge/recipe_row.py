"""Rows of a table of recipes (the columns of `data/bridge_recipes.csv`) as questions and plans.

A recipe says a model by name, GPUs and a plan. What the table leaves out takes the documented default of its framework.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import NONE, Recompute, TrainPlan
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack

from autoconfig.runs.table import Row, cell, format_of, whole
from autoconfig.runs.training_row import even_ends
from autoconfig.training.plan_rules import PipelineSplit, split_by_accounting, split_of_layout

NOT_TEXT = r"_vl|vl_|audio|omni|neva|qwen3_next|nemotron_nano|llama_nemotron"
"""Names of vision, audio and hybrid models inside these families."""
_STACKS = {"nemo2-recommended": "nemo-25.09"}
_USUAL_STACK = "nemo-25.11"
LORA_RANK = 32
"""Megatron-Bridge's default; its recipes use 8 to 32."""


@dataclass(frozen=True, kw_only=True)
class RecipeRun:
    """A recipe that could be read."""

    scenario: Scenario
    plan: TrainPlan
    split: PipelineSplit | None


@cache
def _names() -> dict[str, dict[str, str]]:
    """How recipes name models and rules (recipes.toml)."""
    return tomllib.loads((Path(__file__).parent / "recipes.toml").read_text(encoding="utf-8"))


def family_of_recipe(name: str) -> str:
    """The family of a text decoder, empty for every other model."""
    if re.search(NOT_TEXT, name):
        return ""
    return next((family for family, pattern in _names()["families"].items() if re.search(rf"(?:^|_){pattern}", name)), "")


def model_of_recipe(name: str) -> ModelSpec:
    """The catalogue model that a recipe's name means. Raises UnsupportedError for others."""
    if family_of_recipe(name):
        for pattern, form in _names()["models"].items():
            if match := re.search(rf"(?:^|_){pattern}(?![0-9a-z])", name):
                parts = [_names()["sizes"].get(part, part).replace("_", "-") for part in match.groups()]
                return load_model(form.format(*(re.sub(r"(?<=[0-9])p(?=[0-9])", ".", part) for part in parts)))
    raise UnsupportedError("no catalogue model of this name (vision, audio, hybrid and other families are not covered)")


def named_rules(row: Row) -> tuple[str, ...]:
    """Our ids of the rules that column `violations` names."""
    text = cell(row, "violations")
    return tuple(dict.fromkeys(rule for named, rule in _names()["violations"].items() if named in text))


def read_recipe(row: Row) -> RecipeRun:
    """The question and plan of a row. Raises InputError saying which cell cannot be read."""
    name = cell(row, "recipe")
    model = model_of_recipe(name)
    gpus, seq, batch = whole(row, "gpus"), whole(row, "seq"), whole(row, "gbs")
    if seq > model.max_position_embeddings:
        model = model.replace(max_position_embeddings=seq)
    stack = load_stack(_STACKS.get(cell(row, "kind"), _USUAL_STACK))
    plan, split = _plan(row, model, gpus)
    numerics = _numerics(row)
    cluster = cluster_of(load_gpu(cell(row, "hw")), gpus)
    cluster.gpu.peak_flops_per_s(numerics.gemm_precision)
    workload = Workload(seq_length=seq, global_batch_size=batch)
    scenario = Scenario(model=model, cluster=cluster, numerics=numerics, software=stack, workload=workload)
    return RecipeRun(scenario=scenario, plan=plan, split=split)


def _numerics(row: Row) -> Numerics:
    text = cell(row, "precision")
    precision, recipe = format_of(text)
    if precision not in ("bf16", "fp8"):
        raise UnsupportedError(f"precision {text[:40]!r} is not priced; known are bf16 and the kinds of fp8")
    adapters = cell(row, "task") in ("peft", "lora")
    small_state = cell(row, "pao") == "True"
    gradients = "fp32" if cell(row, "kind") == "library" and not small_state else "bf16"
    return Numerics(
        precision=precision,
        fp8_recipe=recipe or "delayed",
        fp8_param_gather=precision == "fp8" and not adapters,
        grad_reduce_dtype=gradients,
        exp_avg_dtype="bf16" if small_state else "fp32",
        exp_avg_sq_dtype="bf16" if small_state else "fp32",
        attention_dropout=0.0,
        hidden_dropout=0.0,
        peft="lora" if adapters else "none",
        lora_rank=LORA_RANK,
    )


def degrees_of_recipe(row: Row) -> dict[str, int]:
    """tp, pp, cp, ep, etp, mbs with the defaults of the framework; etp defaults to tp. Raises InputError."""
    degrees = {key: whole(row, key, 1) for key in ("tp", "pp", "cp", "ep", "mbs")}
    degrees["etp"] = whole(row, "etp", 0) or (degrees["tp"] if degrees["ep"] > 1 else 1)
    if min(degrees.values()) < 1:
        raise InputError("cells tp, pp, cp, ep, etp and mbs must be at least 1")
    return degrees


def sizes_of_recipe(row: Row) -> dict[str, int]:
    """Degrees with GPUs, batch and chunks of a recipe of any model, whose etp is 1 where nothing says it. Raises InputError."""
    own = {"etp": whole(row, "etp", 1) or 1, "vpp": whole(row, "vp", 1) or 1}
    return degrees_of_recipe(row) | own | {"gpus": whole(row, "gpus"), "gbs": whole(row, "gbs")}


def _plan(row: Row, model: ModelSpec, gpus: int) -> tuple[TrainPlan, PipelineSplit | None]:
    degrees = degrees_of_recipe(row)
    tp, pp, cp = degrees["tp"], degrees["pp"], degrees["cp"]
    if not model.is_moe:
        degrees["etp"] = degrees["ep"] = 1
    elif not cell(row, "etp") and tp > 1:
        degrees["etp"] = tp  # its default
    sp = cell(row, "sp") == "True" if cell(row, "sp") else tp > 1  # as NeMo's performance scripts set it
    split, vpp, ends = _stages(row, model, pp)
    plan = TrainPlan(
        **degrees,
        dp=max(1, gpus // (tp * pp * cp)),
        vpp=vpp,
        sp=sp,
        recompute=_recompute(row),
        first=ends[0],
        last=ends[1],
        dist_opt=cell(row, "fsdp") not in ("True", "1"),
        fsdp=3 if cell(row, "fsdp") in ("True", "1") else 0,
    )
    return plan, split


def _stages(row: Row, model: ModelSpec, pp: int) -> tuple[PipelineSplit | None, int, tuple[int | None, int | None]]:
    vpp, layers, layout = whole(row, "vp", 1) or 1, model.num_layers, cell(row, "layout")
    if layout.startswith("[["):
        split = _cut_layout(layout, pp, vpp, model)
        return split, split.vpp, split.ends(layers)
    if layout:
        split = split_of_layout(layout, pp, layers, model.mtp_num_layers)
        return split, split.vpp, split.ends(layers)
    if layers % (pp * vpp) == 0 or pp == 1:
        return None, vpp, (None, None)
    for embedding, loss in ((True, True), (False, True), (True, False)):
        if (layers + embedding + loss) % (pp * vpp) == 0:
            split = split_by_accounting(layers, pp, vpp, embedding=embedding, loss=loss)
            return split, vpp, split.ends(layers)
    return None, vpp, even_ends(model, pp, [])


def _cut_layout(text: str, pp: int, vpp: int, model: ModelSpec) -> PipelineSplit:
    """The split of a layout list that the table cuts off, in letters: chunks like the first one where it is whole, the last one
    with the rest."""
    chunks = pp * vpp
    first_row, _, behind = text.partition("]")
    size = first_row.count("decoder") if behind else -(-model.num_layers // chunks)
    rest = model.num_layers - size * (chunks - 1)
    if not 0 <= rest <= size:
        raise InputError(f"cell layout={text[:40]!r} is cut off and its stages cannot be guessed")
    per_rank = [size * vpp] * (pp - 1) + [size * (vpp - 1) + rest]
    letters = ["E" + "t" * size, *["t" * size] * (chunks - 2), "t" * rest + "m" * model.mtp_num_layers + "L"]
    return PipelineSplit(vpp=vpp, layers=tuple(per_rank), text="|".join(letters))


def _recompute(row: Row) -> Recompute:
    granularity, modules = cell(row, "recompute"), cell(row, "rmodules").replace("/", " ").split()
    if granularity == "full":
        return Recompute("full", (), cell(row, "rmethod") or "uniform", whole(row, "rlayers", 1) or 1)
    if granularity == "selective":
        return Recompute("selective", tuple(modules) or ("core_attn",))
    return NONE
