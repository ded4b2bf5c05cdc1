"""The software, switches, numerics and workload of a row of training runs; what it leaves open is what a question takes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from autoconfig.planning import resolve
from autoconfig.runs.cells import EP_OVERLAP, RunRow, read_flag
from autoconfig.runs.table import CellError, format_of, names_of
from autoconfig.specs.errors import UnknownNameError
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.remarks import Effect, Remark
from autoconfig.specs.run_settings import GRAPH_SCOPES, GivenSettings, read_graphs, usual_graphs
from autoconfig.specs.scenario import FP8_RECIPES, Calibration, Numerics, Workload
from autoconfig.specs.software.bitsandbytes import FROZEN_BYTES
from autoconfig.specs.software.software import SoftwareStack, StackOptions, StackTime, load_stack, with_options
from autoconfig.training.numerics import AskedNumerics
from autoconfig.training.workload import read_workload

ADAPTERS, FULL_TUNING = ("lora", "peft"), ("sft",)
"""Words of the column task: adapters are trained, or all weights of a trained model."""


def read_stack(row: RunRow, gpu: GpuSpec, calibration: Calibration) -> SoftwareStack:
    """Return the named software, else a question's, with what the row says of its kernels and overlap."""
    name = "megatron-local" if row.text("transformer_impl") == "local" else row.text("software")
    stack = resolve.read_stack(known_software(row, name) or None, gpu, row.assumed, calibration)
    options = row.fields("stack")
    if options.get("compiled"):
        options.setdefault("loss_fusion", "compiled")
    overlaps = frozenset(row.words("overlap")) - {EP_OVERLAP} or None
    stack = with_options(
        stack, StackOptions(fused_rms_norm=row.text("norm_kernel") == "fused-rms", overlaps=overlaps, **options)
    )
    shard = row.text("optimizer_shard")
    return replace(stack, time=_broadcasts(stack.time, shard, row.count("dp") or 0)) if shard.isdigit() else stack


_DATED = re.compile(r"(?:nemo|megatron[-_ ]bridge)?[-_: ]?v?([0-9]{2})\.([0-9]{1,2})((?:\.[0-9]{1,2})?)")


def release_name(text: str) -> str:
    """Return a dated release of NVIDIA's as nemo-26.04 (also 26.04, v26.04, NeMo 26.4, nemo:26.04); our own name as it is, and
    either without the question mark of somebody who is not sure."""
    text = text.rstrip("? ")
    dated = None if text.lower().startswith("nemo-") else _DATED.fullmatch(text.lower())
    return f"nemo-{dated[1]}.{dated[2]:0>2}{dated[3]}" if dated else text


def known_software(row: RunRow, text: str) -> str:
    """Return the name, or where nobody knows it the generic stack of its kind, by its words ([software] of
    data/run_tables.toml), else by what shards the row's run; which is said. Empty: what runs on the GPU. Raises
    UnknownNameError for a release that no calendar has."""
    name = release_name(text)
    try:
        return name and load_stack(name).name
    except UnknownNameError:
        if name.lower().startswith("nemo") and name[4:].lstrip("-")[:1].isdigit():
            raise  # a date that is none
        words = f"-{re.sub('[^a-z0-9]+', '-', name.lower())}-"
        kind = next((stack for stack, marks in names_of("software").items() if any(mark in words for mark in marks)), "")
        generic = kind or ("torch-eager" if row.count("fsdp") else "megatron")
        why = f"{name[:40]!r} is not known: priced as the generic {'stack of its kind' if kind else 'stack'}"
        row.assumed.append(Remark("software", generic if generic != "megatron" else "Megatron's", why, Effect.EVERYTHING))
        return generic if generic != "megatron" else ""


def _broadcasts(time: StackTime, shard: str, data_parallel: int) -> StackTime:
    """Return the time of owner-by-owner broadcasts of a sharded optimizer over the shard group, which may be smaller than data
    parallelism."""
    if not (shard.isascii() and shard.isdigit() and len(shard) < 9) or not data_parallel:
        return time
    return replace(time, optimizer_seconds_per_rank=time.optimizer_seconds_per_rank * min(1.0, int(shard) / data_parallel))


def read_settings(row: RunRow, model: ModelSpec) -> GivenSettings:
    """Return the switches that the row says. An empty cell is left to the resolver of a question's switches."""
    ep_overlap, words = row.flag("ep_overlap"), row.words("overlap")
    if ep_overlap is None and words:
        ep_overlap = EP_OVERLAP in words
    return GivenSettings(
        cuda_graphs=_graphs(row, model),
        ep_overlap=ep_overlap,
        offload_layers=_offloaded(row, model.num_layers - 1),
        **row.fields("settings"),
    )


def _graphs(row: RunRow, model: ModelSpec) -> frozenset[str] | None:
    """Return the scopes of CUDA graphs, the usual ones where the row says none; None where it says nothing of graphs. The cell
    of on and off may hold scopes, or Megatron's cuda_graph_impl."""
    text, own = row.text("cuda_graph"), ""
    scopes = read_graphs(text)
    if text in names_of("cuda_graphs"):
        text, own = names_of("cuda_graphs")[text]
    elif scopes and scopes <= {*GRAPH_SCOPES}:
        text, own = "1", text
    scope = row.text("cuda_graph_scope") or own
    graphed = read_flag("cuda_graph", text)
    if graphed is None:
        graphed = scope.lower() != "none" if scope else None
    if not graphed:
        return None if graphed is None else frozenset()
    return read_graphs(scope) if scope else usual_graphs(model)


def _offloaded(row: RunRow, most: int) -> int | None:
    """Return how many layers' activations wait in host memory: the number that the row says, all but one (NV123) where
    `activation_offload` is on, or `offload` says activations, without a number; none where it says something else; None where
    the row says nothing. Raises CellError."""
    layers, offload, activations = row.count("offload_layers"), row.words("offload"), row.flag("activation_offload")
    if layers is not None:
        return min(layers, most)
    if activations is None and offload:
        activations = "activations" in offload
    return None if activations is None else most if activations else 0


def trains_adapters(row: RunRow) -> bool:
    """Return whether the row says that adapters are trained."""
    return row.text("frozen_dtype") in FROZEN_BYTES or row.text("peft") == "lora" or row.text("task") in ADAPTERS


PURE_BF16 = ("none", "bf16")
"""Words of the cell master_weights for a run that trains its 16-bit weights themselves; blank and fp32: copies in fp32."""


def read_numerics(row: RunRow, model: ModelSpec, stack: SoftwareStack, gpu: GpuSpec) -> Numerics:
    """Return types, dropout and adapters. Raises CellError for cells that contradict each other, InputError for odd ones."""
    precision, recipe = _precision(row)
    numerics = row.fields("numerics") | {"precision": precision or None, "fp8_recipe": recipe if precision == "fp8" else None}
    if row.text("master_weights") in PURE_BF16:
        numerics["weights_are_masters"] = True
    routing = row.text("moe_routing")
    if routing == "tokendrop":
        numerics["moe_capacity_factor"] = 1.0
    elif routing == "balanced" and model.is_moe:
        numerics["moe_imbalance"] = 1.0
    if (dropout := row.number("hidden_dropout")) is not None:
        numerics |= {"hidden_dropout": dropout, "attention_dropout": dropout}
    if trains_adapters(row):
        numerics |= {"peft": "lora", **row.fields("adapters")}
    return AskedNumerics(numerics).read(model, gpu, stack, row.assumed)


def _precision(row: RunRow) -> tuple[str, str | None]:
    """Return (precision, recipe of fp8) of the cells precision and fp8_recipe. Raises CellError where they contradict."""
    precision, recipe = format_of(row.text("precision").split("(")[0])
    scaled = format_of(row.text("fp8_recipe"))[-1] or row.text("fp8_recipe").lower()
    if recipe and scaled not in ("", recipe):
        raise CellError(f"cells precision={row.text('precision')[:40]} and fp8_recipe={scaled[:40]} contradict each other")
    recipe = recipe or scaled
    if recipe in FP8_RECIPES and precision not in ("", "fp8"):
        row.assume(f"precision {precision}, which has no fp8_recipe {recipe}")
    return precision, recipe or None


@dataclass(frozen=True)
class _Cells:
    """What a row says of its workload (training.workload.Asked)."""

    seq_length: int | None = None
    decoder_seq_length: int | None = None
    packed_length: int | None = None
    global_batch_size: int | None = None
    schedule_calls: int | None = None


def read_row_workload(row: RunRow, model: ModelSpec) -> Workload:
    """Return the lengths and the batch. Raises InputError."""
    cells = _Cells(**row.fields("workload", but="" if model.is_encoder_decoder else "decoder_seq"))
    if cells.packed_length is None and row.text("task") in (*ADAPTERS, *FULL_TUNING):
        row.assume("packed_length: samples that are not packed")
    if cells.packed_length is not None and cells.seq_length is not None and cells.packed_length >= cells.seq_length:
        cells = replace(cells, packed_length=None)
    return read_workload(cells, model, row.assumed, adapters=trains_adapters(row))


def micro_batches(row: RunRow, workload: Workload, data_parallel: int, broken: list[str]) -> Workload:
    """Return the workload with a batch of whole micro-batches on every rank; a rule is broken where the row said the batch."""
    step, batch = row.degree("mbs") * data_parallel, workload.global_batch_size
    if batch % step == 0:
        return workload
    rounded, why = max(1, round(batch / step)) * step, "a multiple of mbs x dp"
    if row.text("gbs"):
        why = f"the row's {batch} is no multiple of mbs x dp"
        broken.append("NV007")
    row.assumed.append(Remark("gbs", rounded, why))
    return replace(workload, global_batch_size=rounded)
