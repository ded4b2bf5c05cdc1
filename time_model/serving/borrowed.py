"""What stands in for operators that nobody measured on a GPU or in a format, in words: for the assumptions of an answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.remarks import Effect, Remark, note
from autoconfig.specs.software.engine import ModuleFormats, module_formats
from autoconfig.time_model.serving.costs import cache_table, head_dim
from autoconfig.time_model.serving.rows import stand_in
from autoconfig.time_model.serving.tables import WEIGHT_ONLY_CHIP, ServingTables


def borrowed_shares(
    tables: ServingTables, model: ModelSpec, gpu: GpuSpec, weights: Iterable[str], caches: Iterable[str]
) -> Iterator[Remark]:
    """One remark for each share that is not this GPU's own, of layouts with these formats of weights and cache."""
    if tables.chip != gpu.id:
        yield note(f"operators of {tables.chip} for {gpu.id}, which has none of its own", Effect.TIME)
    said = set[str]()
    for form in weights:
        formats = module_formats(model, form, gpu)
        said.update(_gemms(tables, one) for one in _linear(model, formats))
        near = stand_in(tables.experts, formats.experts)
        if model.is_moe and near != formats.experts:
            said.add(f"experts in {formats.experts}, not measured on {tables.chip}, at {near}'s share of their roofline")
    said.update(_cache(tables, model, kv) for kv in caches)
    yield from (note(why, Effect.TIME) for why in sorted(said - {""}))


def _linear(model: ModelSpec, formats: ModuleFormats) -> tuple[str, ...]:
    """Formats of the linear layers beside routed experts."""
    dense = 0 in model.moe_pattern or model.moe_shared_expert_intermediate_size
    return (formats.attention, formats.mlp) if dense else (formats.attention,)


def _gemms(tables: ServingTables, form: str) -> str:
    """Of linear layers; empty where they were measured."""
    near, given = stand_in(tables.gemm, form), f"linear layers in {form}, not measured on {tables.chip}, at"
    if form in tables.elsewhere:
        return f"{given} its 16-bit share of their roofline times what sets {form} apart on {WEIGHT_ONLY_CHIP}"
    return "" if near == form else f"{given} {near}'s share of their roofline"


def _cache(tables: ServingTables, model: ModelSpec, kv: str) -> str:
    """Of attention that reads the cache; empty where it was measured."""
    if model.multi_latent_attention:
        near = kv if f"decode:{kv}" in tables.latent_attention else "bf16"
    else:
        near = cache_table(tables.decode_attention, kv, head_dim(model)).split(":")[0]
    return "" if near == kv else f"cache in {kv}, not measured on {tables.chip}, at {near}'s share of the roofline"
