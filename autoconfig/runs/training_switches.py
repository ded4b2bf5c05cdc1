"""The software, switches, numerics and workload of a row of training runs; what it leaves open is what a question takes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from autoconfig.planning import resolve
from autoconfig.runs.table import (
    EP_OVERLAP,
    LOSSES,
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
from autoconfig.specs.errors import UnknownNameError
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.remarks import Effect, Remark, note
from autoconfig.specs.run_settings import GivenSettings, read_graphs, usual_graphs
from autoconfig.specs.scenario import FP8_RECIPES, Calibration, Numerics, Workload
from autoconfig.specs.software.bitsandbytes import FROZEN_BYTES
from autoconfig.specs.software.software import SoftwareStack, StackOptions, StackTime, load_stack, with_options
from autoconfig.training import question
from autoconfig.training.question import read_workload

ADAPTERS, FULL_TUNING = ("lora", "peft"), ("sft",)
"""Words of the column task: adapters are trained, or all weights of a trained model."""


def read_stack(row: Row, gpu: GpuSpec, assumed: list[Remark], calibration: Calibration) -> SoftwareStack:
    """Return the named software, else a question's, with what the row says of its kernels and overlap."""
    name = "megatron-local" if cell(row, "transformer_impl") == "local" else cell(row, "software")
    stack = resolve.read_stack(known_software(row, name, assumed) or None, gpu, assumed, calibration)
    compiled = flag(row, "compile")
    overlap = frozenset(overlap_words(cell(row, "overlap"))) - {EP_OVERLAP}
    options = StackOptions(
        attention_kernel=cell(row, "attention_kernel"),
        fused_rms_norm=cell(row, "norm_kernel") == "fused-rms",
        loss_fusion=cell(row, "loss_fusion") or ("compiled" if compiled else ""),
        compiled=compiled,
        overlaps=overlap or None,
    )
    stack = with_options(stack, options)
    shard = cell(row, "optimizer_shard")
    return replace(stack, time=_broadcasts(stack.time, shard, whole(row, "dp", 0))) if shard.isdigit() else stack


_KINDS = (
    (r"deep-?speed|zero-?[123]|\bds\b", "deepspeed"),
    (r"megatron|mcore|nemo|bridge|primus|swift|verl|mindspeed", ""),
    (r"titan|torchtune|automodel|torchao", "torchtitan"),
    (
        r"torch|fsdp|ddp|trl|peft|hugging|\bhf\b|transformers|accelerate|axolotl|unsloth|llama-?factory|litgpt|open-?instruct",
        "torch-eager",
    ),
)
"""What a name of software holds -> the stack of its kind; empty: Megatron's that the GPU runs."""


def known_software(row: Row, name: str, assumed: list[Remark]) -> str:
    """The name, or where nobody knows it the generic stack of its kind, by its words, else by what shards the row's run; which
    is said. Empty: what runs on the GPU. Raises UnknownNameError for a release that no calendar has."""
    try:
        return name and load_stack(name).name
    except UnknownNameError:
        if re.match(r"nemo-?[0-9]", name.lower()):
            raise  # a date that is none
        kinds = [stack for words, stack in _KINDS if re.search(words, name.lower().replace("_", "-"))]
        generic = kinds[0] if kinds else "torch-eager" if cell(row, "fsdp") not in ("", "0") else ""
        why = f"{name[:40]!r} is not known: priced as the generic {'stack of its kind' if kinds else 'stack'}"
        assumed.append(Remark("software", generic or "Megatron's", why, Effect.EVERYTHING))
        return generic


def _broadcasts(time: StackTime, shard: str, data_parallel: int) -> StackTime:
    """Owner-by-owner broadcasts of a sharded optimizer go over the shard group, which may be smaller than data parallelism."""
    if not (shard.isascii() and shard.isdigit() and len(shard) < 9) or not data_parallel:
        return time
    return replace(time, optimizer_seconds_per_rank=time.optimizer_seconds_per_rank * min(1.0, int(shard) / data_parallel))


def read_settings(row: Row, model: ModelSpec) -> GivenSettings:
    """Return the switches that the row says, of CUDA graphs without a scope the usual one. An empty cell is left to the
    resolver of a question's switches."""
    graphed, scope = flag(row, "cuda_graph"), cell(row, "cuda_graph_scope")
    if graphed is None and scope:
        graphed = scope.lower() != "none"
    graphs = None if graphed is None else frozenset[str]()
    if graphed:
        graphs = read_graphs(scope) if scope else usual_graphs(model)
    ep_overlap, words = flag(row, "ep_overlap"), overlap_words(cell(row, "overlap"))
    if ep_overlap is None and words:
        ep_overlap = EP_OVERLAP in words
    return GivenSettings(
        dispatcher=cell(row, "moe_dispatcher").lower() or None,
        cuda_graphs=graphs,
        ep_overlap=ep_overlap,
        fused_experts=flag(row, "fused_experts"),
        fp8_attention=flag(row, "fp8_attention"),
        fp8_output=flag(row, "fp8_output"),
        offload_layers=_offloaded(row, model.num_layers - 1),
        loss=loss if (loss := cell(row, "loss").lower()) in LOSSES else None,
        async_tp=flag(row, "async_tp"),
        zero_bucket=count_of(row, "zero_bucket"),
        expandable_segments=flag(row, "expandable_segments"),
    )


def _offloaded(row: Row, most: int) -> int | None:
    """Return how many layers' activations wait in host memory: the number that the row says, all but one (NV123) where
    `activation_offload` is on, or `offload` says activations, without a number; none where it says something else; None where
    the row says nothing. Raises CellError."""
    offload, activations = cell(row, "offload").lower(), flag(row, "activation_offload")
    if activations is not None and not cell(row, "offload_layers"):
        return most if activations else 0
    if not cell(row, "offload_layers") and "activations" not in offload:
        return 0 if offload else None
    if (layers := whole(row, "offload_layers", most)) < 0:
        raise CellError(f"cell offload_layers={layers} must be at least 0")
    return min(layers, most)


def trains_adapters(row: Row) -> bool:
    """Whether the row says that adapters are trained."""
    quantised = cell(row, "frozen_dtype").lower() in FROZEN_BYTES
    return quantised or cell(row, "peft").lower() == "lora" or cell(row, "task").lower() in ADAPTERS


PURE_BF16 = ("none", "bf16")
"""Words of the cell master_weights for a run that trains its 16-bit weights themselves; blank and fp32: copies in fp32."""


def read_numerics(row: Row, model: ModelSpec, stack: SoftwareStack, gpu: GpuSpec, assumed: list[Remark]) -> Numerics:
    """Return types, dropout and adapters. Raises CellError for cells that contradict each other, InputError for odd ones."""
    precision, recipe = format_of(cell(row, "precision").split("(")[0])
    scaled = format_of(cell(row, "fp8_recipe"))[-1] or cell(row, "fp8_recipe").lower()
    if recipe and scaled not in ("", recipe):
        raise CellError(f"cells precision={cell(row, 'precision')[:40]} and fp8_recipe={scaled[:40]} contradict each other")
    recipe = recipe or scaled
    if recipe in FP8_RECIPES and precision not in ("", "fp8"):
        assumed.append(note(f"precision {precision}, which has no fp8_recipe {recipe}"))
    given: dict[str, Any] = {
        "precision": precision or None,
        "fp8_recipe": recipe or None if precision == "fp8" else None,
        "grad_reduce_dtype": cell(row, "grad_dtype") or None,
        "optimizer": cell(row, "optimizer").lower() or None,
        "optimizer_in_backward": flag(row, "optimizer_in_backward"),
        "weights_are_masters": cell(row, "master_weights").lower() in PURE_BF16 or None,
        "fp8_param_gather": flag(row, "fp8_param_gather"),
        "deterministic": bool(flag(row, "deterministic")),
        "moe_capacity_factor": 1.0 if cell(row, "moe_routing") == "tokendrop" else None,
        "moe_imbalance": 1.0 if cell(row, "moe_routing") == "balanced" and model.is_moe else number(row, "moe_imbalance"),
    }
    if (dropout := number(row, "hidden_dropout")) is not None:
        if not 0 <= dropout < 1:
            raise CellError(f"cell hidden_dropout={dropout:g} must be at least 0 and below 1")
        given |= {"hidden_dropout": dropout, "attention_dropout": dropout}
    if trains_adapters(row):
        modules = cell(row, "lora_target_modules") or None
        given |= {"peft": "lora", "lora_rank": count_of(row, "lora_rank"), "lora_target_modules": modules}
        given |= {"frozen_dtype": cell(row, "frozen_dtype").lower() or None}
    return question.read_numerics(given, model, gpu, stack, assumed)


@dataclass(frozen=True)
class _Cells:
    """What a row says of its workload (training.workload.Asked)."""

    seq_length: int | None
    decoder_seq_length: int | None
    packed_length: int | None
    global_batch_size: int | None
    schedule_calls: int | None


def read_row_workload(row: Row, model: ModelSpec, assumed: list[Remark]) -> Workload:
    """Return the lengths and the batch. Raises InputError."""
    seq, packed = count_of(row, "seq"), count_of(row, "packed_length")
    asked = _Cells(
        seq_length=seq,
        decoder_seq_length=count_of(row, "decoder_seq") if model.is_encoder_decoder else None,
        packed_length=None if packed is not None and seq is not None and packed >= seq else packed,
        global_batch_size=count_of(row, "gbs"),
        schedule_calls=count_of(row, "schedule_calls"),
    )
    if packed is None and cell(row, "task").lower() in (*ADAPTERS, *FULL_TUNING):
        assumed.append(note("packed_length: samples that are not packed"))
    return read_workload(asked, model, assumed, adapters=trains_adapters(row))


def micro_batches(row: Row, workload: Workload, data_parallel: int, assumed: list[Remark], broken: list[str]) -> Workload:
    """Return the workload with a batch of whole micro-batches on every rank; a rule is broken where the row said the batch."""
    step, batch = degree(row, "mbs", None) * data_parallel, workload.global_batch_size
    if batch % step == 0:
        return workload
    rounded = max(1, round(batch / step)) * step
    if cell(row, "gbs"):
        assumed.append(Remark("gbs", rounded, f"the row's {batch} is no multiple of mbs x dp"))
        broken.append("NV007")
    else:
        assumed.append(Remark("gbs", rounded, "a multiple of mbs x dp"))
    return replace(workload, global_batch_size=rounded)
