"""NVIDIA's published training performance (`nvidia_training_measurements.csv`) as cases."""

from __future__ import annotations

from autoconfig.runs.cells import Row, cell, number
from autoconfig.specs.models.model_catalogue import load_model

RECIPES = {
    "FP8": "delayed",
    "FP8-CS": "tensorwise",
    "FP8-MX": "mxfp8",
    "MXFP8": "mxfp8",
    "FP8 (32x32 block)": "blockwise",
    "FP8 (1x128 act / 128x128 weight)": "blockwise",
}
"""Column precision -> fp8 recipe."""
LONG_CONTEXT = 32_768
"""Rows above this sequence length, and release 24.03's series up to a million tokens, are a group of their own."""
RELEASE_STACK = {"moe-modelzoo": "megatron-moe-modelzoo"}
"""Releases that name their software better than the column software does."""
RECOMPUTE = {"": "none", "full": "full", "selective": "selective", "norm,moe_act": "selective([layernorm moe_act])"}


def nvidia_source(row: Row) -> str:
    """Group name: GPU, dense or MoE, precision."""
    kind = "MoE" if load_model(cell(row, "model")).is_moe else "dense"
    precision = "FP8" if "FP8" in cell(row, "precision") else "BF16"
    task = {"pretrain": "", "sft": " SFT", "lora": " LoRA"}.get(cell(row, "task"), f" {cell(row, 'task')}")
    if (number(row, "seq_len") or 0) > LONG_CONTEXT or (cell(row, "release").startswith("24.03") and not task):
        task += " long context"
    return f"NVIDIA {cell(row, 'system').removeprefix('DGX-')} {kind} {precision}{task}"


def as_training_row(row: Row) -> dict[str, str]:
    """The same run in the columns of training_measurements.csv. Raises InputError for a model that is not in the catalogue."""
    model = load_model(cell(row, "model"))
    precision = cell(row, "precision")
    routing = next((kind for kind in ("tokendrop", "dropless") if kind in cell(row, "model")), "")
    return {
        "id": f"{cell(row, 'release')} {cell(row, 'model')} {cell(row, 'num_gpus')} {cell(row, 'system')} {precision}",
        "source": nvidia_source(row),
        "model": cell(row, "model"),
        "layers": str(model.num_layers),
        "seq": cell(row, "seq_len"),
        "gpu": cell(row, "system"),
        "gpus": cell(row, "num_gpus"),
        "precision": "fp8" if "FP8" in precision else "bf16",
        "fp8_recipe": RECIPES.get(precision, ""),
        "tp": cell(row, "tp"),
        "sp": "1" if cell(row, "tp") not in ("", "1") else "0",
        "pp": cell(row, "pp"),
        "vpp": cell(row, "vp"),
        "cp": cell(row, "cp"),
        "ep": cell(row, "ep"),
        "etp": cell(row, "etp"),
        "fsdp": "3" if (number(row, "fsdp") or 0) > 0 else "1",
        "mbs": cell(row, "mbs"),
        "gbs": cell(row, "gbs"),
        "recompute": RECOMPUTE.get(cell(row, "recompute"), "none"),
        "software": RELEASE_STACK.get(cell(row, "release"), cell(row, "software")),
        "moe_routing": routing,
        "peft": "lora" if cell(row, "task") == "lora" else "",
        "metric_step_s": cell(row, "step_time_s"),
        "metric_tokens_per_s_per_gpu": cell(row, "tokens_per_s_per_gpu"),
        "metric_tflops_per_gpu": cell(row, "model_tflops_per_gpu"),
        "full_plan": cell(row, "full_plan"),
        "status": "ran",
    }
