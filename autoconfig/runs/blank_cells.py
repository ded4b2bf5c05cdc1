"""Cells that a row of a table of runs leaves empty, filled with what its release, GPU and model run with; never `off`."""

from __future__ import annotations

from math import gcd

from autoconfig.planning.resolve import usual_fp8_recipe
from autoconfig.runs.release_cells import sharding_of_a_release, without_later_switches
from autoconfig.runs.table import Row, cell, count_of, degree, flag, format_of
from autoconfig.runs.training_model import is_fine_tuning
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.run_settings import PLAN_COLUMNS, PRETRAIN, RecipeSettings, current_recipes, nearest_recipe
from autoconfig.specs.scenario import FP8_RECIPES
from autoconfig.specs.software.software import SoftwareStack


def with_usual_cells(row: Row, model: ModelSpec, stack: SoftwareStack, gpu: GpuSpec, assumed: list[str]) -> dict[str, str]:
    """The row with sequence parallelism where its tp and its software or its experts want it (rule NV048), and for a dated
    release of NVIDIA's software with what the recipe of its task and plan sets: degrees, batch, format, recomputation, sharding
    and offload; of fine-tuning also the length of a sample and CUDA graphs. Switches of a later release are left out
    (without_later_switches). What was filled in is said. Raises CellError for odd cells."""
    found = dict(row)
    if stack.release:
        sharding_of_a_release(found, assumed)
        form = _form(found, model.name.rstrip("*"), stack, gpu, assumed)
        _fill_from_recipes(found, model, stack, gpu, form, assumed)
        without_later_switches(found, model, stack, gpu, form, assumed)
        if flag(found, "sp") and not cell(row, "tp") and degree(found, "tp") == 1:
            found["sp"] = "0"
            assumed.append("sp off (tp is left out, and no recipe of the release that is like the row has it above 1)")
    wants = stack.usually_sequence_parallel or (model.is_moe and stack.supports_sequence_parallel)
    if not cell(found, "sp") and degree(found, "tp") > 1 and wants:
        found["sp"] = "1"
        assumed.append("sp on (tp is above 1)")
    return found


def _form(row: dict[str, str], name: str, stack: SoftwareStack, gpu: GpuSpec, assumed: list[str]) -> str:
    """The row's format as recipes name it; how fp8 is scaled is filled in where the row does not say it."""
    precision, recipe = format_of(cell(row, "precision").split("(")[0])
    own = recipe or format_of(cell(row, "fp8_recipe"))[-1] or cell(row, "fp8_recipe").lower()
    if precision == "fp8" and not own:
        own = _usual_recipe(row, name, stack, gpu)
        row["fp8_recipe"] = own
        assumed.append(f"fp8_recipe {own}")
    return own if precision == "fp8" else precision or "bf16"


def _task(row: Row) -> str:
    return PRETRAIN if not is_fine_tuning(row) else "sft" if cell(row, "task").lower() == "sft" else "lora"


def _fill_from_recipes(
    row: dict[str, str], model: ModelSpec, stack: SoftwareStack, gpu: GpuSpec, form: str, assumed: list[str]
) -> None:
    name, where, task = model.name.rstrip("*"), gpu.id.split("-")[0], _task(row)
    current = current_recipes(name, where, form, stack.release, task)
    if not current:
        return
    as_published = model.num_layers == load_model(name).num_layers
    if twins := [r for r in current if as_published and _agrees(row, r)]:
        _fill_degrees(row, twins, assumed)
    elif as_published:
        _fill_from_nearest(row, name, where, form, stack, task, assumed)
    plan = tuple(count_of(row, column) or 1 for column in PLAN_COLUMNS)
    known = nearest_recipe(name, where, form, stack.release, plan, task=task)
    assert known is not None
    said = _fill_tuning(row, known) if task != PRETRAIN else []
    if cell(row, "recompute") in ("", "selective") and (modules := known.row["recompute"]):
        row["recompute"] = f"selective({modules.replace(' ', ',')})"
        said.append(f"recompute {row['recompute']}")
    if known.plan[1:] == plan[1:] and (layers := known.row["offload_layers"]):
        said += _fill_offload(row, layers)
    if said:
        assumed.append(f"{', '.join(said)} (as {stack.name}'s recipe)")


def _fill_tuning(row: dict[str, str], recipe: RecipeSettings) -> list[str]:
    """Length of a packed sample, and graphs, of a fine-tuning recipe; pretraining has the defaults of RunSettings."""
    said = []
    if not cell(row, "seq") and recipe.row["seq"]:
        row["seq"] = recipe.row["seq"]
        said.append(f"seq {row['seq']}")
    if not cell(row, "cuda_graph") and not cell(row, "cuda_graph_scope"):
        row["cuda_graph"], row["cuda_graph_scope"] = str(int(bool(recipe.row["cuda_graphs"]))), recipe.row["cuda_graphs"]
        said.append(f"graphs of {row['cuda_graph_scope']}" if row["cuda_graph_scope"] else "no CUDA graphs")
    elif flag(row, "cuda_graph") and not cell(row, "cuda_graph_scope"):
        row["cuda_graph_scope"] = recipe.row["cuda_graphs"]
    return said


def _fill_offload(row: dict[str, str], layers: str) -> list[str]:
    """Sharding and offload of a recipe that has both: Megatron-Bridge offloads activations under Megatron-FSDP only."""
    said = []
    if not cell(row, "fsdp") and not cell(row, "optimizer_shard"):
        row["fsdp"] = "3"
        said.append("fsdp 3")
    if cell(row, "fsdp") in ("2", "3", "hsdp") and not cell(row, "offload"):
        row["offload"] = "activations"
        said.append("offload activations")
    if cell(row, "offload").lower() == "activations" and not cell(row, "offload_layers"):
        row["offload_layers"] = layers
        said.append(f"offload_layers {layers}")
    return said


def _agrees(row: Row, recipe: RecipeSettings) -> bool:
    """Every degree that the row gives is the recipe's; GPUs may be others. Sequence parallelism says that tp is above 1."""
    plan = dict(zip(PLAN_COLUMNS, recipe.plan, strict=True))
    if not cell(row, "tp") and flag(row, "sp") and plan["tp"] == 1:
        return False
    return all(degree(row, column) == plan[column] for column in PLAN_COLUMNS[1:] if cell(row, column))


def _fill_from_nearest(
    row: dict[str, str], name: str, gpu: str, form: str, stack: SoftwareStack, task: str, assumed: list[str]
) -> None:
    """Empty mbs, ep and gbs of a plan that no recipe has, as in the release's recipe with most of its degrees; tp, too, where
    the row says sequence parallelism. ep is one that divides the row's ranks, gbs the recipe's per GPU (Megatron-Bridge,
    scripts/performance: gbs_scaling_factor = global_batch_size / num_gpus)."""
    plan = tuple(count_of(row, column) or 0 for column in PLAN_COLUMNS)
    known = nearest_recipe(name, gpu, form, stack.release, plan, task=task)
    assert known is not None
    theirs = dict(zip(PLAN_COLUMNS, known.plan, strict=True))
    filled = {column: theirs[column] for column in ("mbs", "ep") if not cell(row, column)}
    if filled.get("ep") == 1:
        del filled["ep"]
    if not cell(row, "tp") and flag(row, "sp") and theirs["tp"] > 1:
        filled["tp"] = theirs["tp"]
    others = filled.get("tp", degree(row, "tp")) * degree(row, "cp")
    gpus = count_of(row, "gpus") or (count_of(row, "dp") or 0) * others * degree(row, "pp")
    ranks = gpus // degree(row, "pp") // degree(row, "etp")
    if "ep" in filled and ranks:
        filled["ep"] = gcd(filled["ep"], ranks)
    if not cell(row, "gbs") and gpus and (batches := known.row["gbs"].split()):
        multiple = filled.get("mbs", degree(row, "mbs")) * max(1, gpus // (others * degree(row, "pp")))
        filled["gbs"] = max(1, round(int(batches[-1]) * gpus / theirs["gpus"] / multiple)) * multiple
    row.update({column: str(value) for column, value in filled.items()})
    if said := [f"{column} {value}" for column, value in filled.items() if value > 1 or column == "mbs"]:
        like = ", ".join(f"{column} {value}" for column, value in theirs.items() if value > 1)
        assumed.append(f"{', '.join(said)} (no recipe of {stack.name} has this plan; the nearest has {like})")


def _fill_degrees(row: dict[str, str], twins: list[RecipeSettings], assumed: list[str]) -> None:
    """Empty degrees and batch as in the recipe with all given ones; of several one for the row's GPUs, then the one with most
    of them 1, as tables leave 1 out."""
    given = {"gpus": cell(row, "gpus") or cell(row, "dp"), "vpp": cell(row, "vpp") or cell(row, "pipeline_layout")}
    blank = [column for column in PLAN_COLUMNS if not given.get(column, cell(row, column))]
    gpus = count_of(row, "gpus")

    def likeness(recipe: RecipeSettings) -> tuple[bool, int]:
        ones = sum(recipe.plan[PLAN_COLUMNS.index(column)] == 1 for column in blank)
        return recipe.plan[0] == gpus, ones

    best = max(reversed(twins), key=likeness)
    filled = {column: best.plan[PLAN_COLUMNS.index(column)] for column in blank}
    if not cell(row, "gbs") and (batches := best.row["gbs"].split()) and (gpus or best.plan[0]) == best.plan[0]:
        filled["gbs"] = int(batches[-1])
    row.update({column: str(value) for column, value in filled.items()})
    if said := [f"{column} {value}" for column, value in filled.items() if value > 1 or column == "mbs"]:
        assumed.append(f"{', '.join(said)} (as the recipe with the other degrees)")


def _usual_recipe(row: Row, name: str, stack: SoftwareStack, gpu: GpuSpec) -> str:
    """How the release scales fp8 on this GPU, unless another format's recipe alone has this plan."""
    usual = usual_fp8_recipe(stack, gpu)
    plan = tuple(count_of(row, column) or 1 for column in PLAN_COLUMNS[1:])
    where = gpu.id.split("-")[0]
    release = stack.release
    known = [r for form in FP8_RECIPES for r in current_recipes(name, where, form, release) if r.precision == form]
    having = {r.precision for r in known if r.plan[1:] == plan}
    return having.pop() if len(having) == 1 else usual
