"""NVIDIA's performance tables of 2023 to 2025 (NeMo, Megatron-LM, MoE model zoo) and of 2026 (Megatron-Bridge)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from autoconfig.specs.errors import InputError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model

from autoconfig.runs.table import format_of
from validation.intake import recipes
from validation.intake.repairs import Repairs

NOT_IN_THE_CATALOGUE = "NVIDIA, model not in the catalogue"
LONG_CONTEXT = 32_768
"""Rows above this sequence length, and release 24.03's series up to a million tokens, are a group of their own."""
RELEASE_STACK = {
    "moe-modelzoo": "megatron-moe-modelzoo",
    **dict.fromkeys(("v2.0 (2021-01)", "v2.6 (2021-04)", "v2.6"), "megatron-lm-2021"),
    "core_v0.4.0": "megatron-lm-2022",
}
RECOMPUTE = {"full": "full", "selective": "selective", "norm,moe_act": "selective(layernorm,moe_act)"}
FINE_TUNING = ("sft", "lora")


def rows_to_2025(raw: Iterable[Mapping[str, str]], repairs: Repairs) -> Iterator[dict[str, str]]:
    """Yield the training runs of nvidia_training_measurements.csv in the columns of a user's table."""
    for row in raw:
        if row["task"] == "inference":
            continue
        gpu = row["system"].removeprefix("DGX-")
        precision, scaling = format_of(row["precision"].removesuffix("/FP16"))
        cells = {
            "id": f"{row['release']} {row['model']} {row['num_gpus']} {row['system']} {row['precision']}",
            "source_ref": row["source"],
            "model": row["model"],
            "seq": row["seq_len"],
            "gpu": gpu,
            "gpus": row["num_gpus"],
            "precision": precision,
            "fp8_recipe": scaling,
            "vpp": row["vp"],
            "fsdp": "3" if float(row["fsdp"] or 0) > 0 else "1",
            "recompute": RECOMPUTE.get(row["recompute"], ""),
            "software": row["software"],
            "moe_routing": next((kind for kind in ("tokendrop", "dropless") if kind in row["model"]), ""),
            "metric_step_s": row["step_time_s"],
            "metric_tokens_per_s_per_gpu": row["tokens_per_s_per_gpu"],
            "metric_tflops_per_gpu": row["model_tflops_per_gpu"],
            "full_plan": row["full_plan"],
            "status": "ran",
            **{column: row[column] for column in ("tp", "pp", "cp", "ep", "etp", "mbs", "gbs", "task")},
        }
        model = _model(cells)
        if model is not None:
            cells["source"] = f"NVIDIA {gpu} {_kind(model)} {'FP8' if 'FP8' in row['precision'] else 'BF16'}{_group(row)}"
            if software := RELEASE_STACK.get(row["release"]):
                repairs.write("software", cells, {"software": software})
            if precision == "fp8" and not scaling:
                scaling = "tensorwise" if "25.09" <= row["release"] < "26" else "delayed"
                repairs.write("fp8-recipe", cells, {"fp8_recipe": scaling})
            _finish(cells, model, repairs)
        yield cells


def _group(row: Mapping[str, str]) -> str:
    task = {"pretrain": "", "sft": " SFT", "lora": " LoRA"}.get(row["task"], f" {row['task']}")
    long = int(row["seq_len"] or 0) > LONG_CONTEXT or (row["release"].startswith("24.03") and not task)
    return task + (" long context" if long else "")


def rows_of_2026(raw: Iterable[Mapping[str, str]], repairs: Repairs) -> Iterator[dict[str, str]]:
    """Yield the runs of nvidia_training_2026.csv in the columns of a user's table. Its columns recipe_* are of August 2026 and
    are not read: a run had the recipe of its own release."""
    same = ("id", "model", "seq", "gpu", "gpus", "tp", "pp", "vpp", "cp", "ep", "mbs", "gbs", "task")
    for row in raw:
        precision, scaling = format_of(row["precision"])
        cells = {
            "source_ref": row["source"],
            "precision": precision,
            "fp8_recipe": scaling,
            "fsdp": "3" if float(row["fsdp"] or 0) > 0 else "1",
            "recompute": "",
            "software": f"nemo-{row['release']}",
            "metric_tokens_per_s_per_gpu": row["tokens_per_s_per_gpu"],
            "full_plan": "1",
            "status": "ran",
            **{column: row[column] for column in same},
        }
        model = _model(cells)
        if model is not None:
            task = {"pretrain": ""}.get(row["task"], f" {row['task']}").upper().replace("LORA", "LoRA")
            cells["source"] = f"NVIDIA 2026 {row['gpu']} {_kind(model)} {(scaling or precision).upper()}{task}"
            _finish(cells, model, repairs)
        yield cells


def _model(cells: dict[str, str]) -> ModelSpec | None:
    """The catalogue's model of a row, whose depth is written; None and a group of its own where there is none."""
    try:
        model = load_model(cells["model"])
    except InputError:
        cells |= {"id": cells["model"], "source": NOT_IN_THE_CATALOGUE}
        return None
    cells["layers"] = str(model.num_layers)
    return model


def _kind(model: ModelSpec) -> str:
    return "hybrid" if model.is_hybrid else "MoE" if model.is_moe else "dense"


def _finish(cells: dict[str, str], model: ModelSpec, repairs: Repairs) -> None:
    """Write what both tables leave out."""
    repairs.write("sequence-parallel", cells, {"sp": str(int(cells["tp"] not in ("", "1")))})
    if cells["fsdp"] == "3":
        repairs.write("gradients", cells, {"grad_dtype": "bf16"})
    if cells["task"] in FINE_TUNING and cells["software"].startswith("nemo-"):
        tuning = {"packed_length": "200"}
        if cells["task"] == "lora":
            tuning |= {"lora_target_modules": "linear_qkv", "lora_rank": "16" if cells["software"] >= "nemo-25" else "32"}
        repairs.write("fine-tuning", cells, tuning)
    forced = cells["software"].startswith(("nemo-", "megatron-moe-modelzoo"))
    if model.is_moe and forced and cells.get("moe_routing") != "tokendrop":
        repairs.write("routing", cells, {"moe_routing": "balanced"})
    recipes.repair(cells, model, repairs)
