"""The recipe that a release of Megatron-Bridge has for a printed plan (specs/catalogue/software/releases.csv)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import log2

from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.run_settings import PLAN_COLUMNS, PRETRAIN, RecipeSettings, recipes

from validation.intake.repairs import Repairs


@cache
def releases() -> tuple[str, ...]:
    """Return the releases that some recipe names, oldest first."""
    return tuple(sorted({r.release for r in recipes()} | {r.until for r in recipes()}))


@cache
def recipes_of(model: str, gpu: str, form: str, release: str, task: str) -> tuple[RecipeSettings, ...]:
    """Return the recipes that a release has for a model on a GPU in a format (bf16, nvfp4, or how fp8 is scaled); of a format
    that has none those of the others."""
    release = max((latest for latest in releases() if latest <= release), default=release)
    alike = (model, gpu, task)
    every = [r for r in recipes() if (r.model, r.gpu, r.task) == alike and r.release <= release <= r.until]
    return tuple([r for r in every if r.precision == form] or every)


def plan_of(row: Mapping[str, str]) -> tuple[int, ...]:
    """Return GPUs and degrees of a row (PLAN_COLUMNS); an empty degree is 1."""
    return tuple(int(row.get(column) or 1) for column in PLAN_COLUMNS)


def with_plan(several: Sequence[RecipeSettings], plan: tuple[int, ...]) -> RecipeSettings | None:
    """Return the recipe with these degrees: of several that of the nearest number of GPUs, then the later one."""
    same = [r for r in several if r.plan[1:] == plan[1:]]
    return min(reversed(same), key=lambda r: abs(log2(r.plan[0] / plan[0]))) if same else None


def repair(row: dict[str, str], model: ModelSpec, repairs: Repairs) -> None:
    """Write the switches, recomputation, offload and layout of the recipe with the row's plan, where there is one."""
    gpu = load_gpu(row["gpu"]).id.split("-")[0]
    task = {"peft": "lora"}.get(row["task"], row["task"] or PRETRAIN)
    several = recipes_of(model.name.rstrip("*"), gpu, row["fp8_recipe"] or row["precision"], row["software"], task)
    recipe = with_plan(several, plan_of(row))
    if recipe is None:
        return
    settings = recipe.settings
    graphs = " ".join(sorted(settings.cuda_graphs))
    cells = {"cuda_graph": str(int(bool(graphs))), "cuda_graph_scope": graphs, "fp8_attention": _flag(settings.fp8_attention)}
    if model.is_moe:
        cells |= {
            "moe_dispatcher": settings.dispatcher,
            "ep_overlap": _flag(settings.ep_overlap),
            "fused_experts": _flag(settings.fused_experts),
            "fp8_output": _flag(settings.fp8_output),
        }
    repairs.write("switches", row, cells)
    if not row["recompute"] and (modules := recipe.row["recompute"]):
        repairs.write("recompute", row, {"recompute": f"selective({modules.replace(' ', ',')})"})
    if row["fsdp"] == "3" and (layers := recipe.row["offload_layers"]):
        repairs.write("offload", row, {"offload": "activations", "offload_layers": layers})
    if layout := recipe.row["layout"]:
        repairs.write("layout", row, {"pipeline_layout": layout})


def _flag(on: bool) -> str:
    return str(int(on))
