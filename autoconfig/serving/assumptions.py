"""What a serving answer took for granted, each with the option that changes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from autoconfig.serving.load import DEFAULT_IMBALANCE, DEFAULT_TOKENS
from autoconfig.serving.space import SEARCHED_KV, weight_formats
from autoconfig.specs.hardware.gpu import GpuSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.software.engine import EngineSpec
from autoconfig.time_model.serving.borrowed import borrowed_shares
from autoconfig.time_model.serving.tables import has_tables, serving_tables_of
from autoconfig.time_model.serving.workload import Trace, Workload

if TYPE_CHECKING:
    from autoconfig.serving.question import ServeRequest


def assumptions(
    request: ServeRequest,
    notes: Sequence[str],
    model: ModelSpec,
    gpu: GpuSpec,
    engine: EngineSpec,
    workload: Workload,
    constants: str,
    wish: Mapping[str, frozenset[object]],
) -> Iterator[str]:
    """Lines for `Assumed: ...`; `notes`: what reading the model assumed, `constants`: where the engine's are from, `wish`: the
    values of --fix by key."""
    yield from notes
    if request.gpu is None:
        yield f"GPU {gpu.id} (--gpu)"
    if request.gpus_per_node is None and request.gpus > 1:
        yield f"{min(gpu.link_domain_size, request.gpus)} GPUs reach each other over {gpu.link} (--gpus-per-node)"
    if request.engine is None:
        yield f"engine {engine.name} (--engine)"
    yield f"{engine.name} priced with {constants}"
    if has_tables(gpu):  # where there are none, a search refuses the GPU and a study measures it
        weights, caches = ([str(one) for one in wish.get(key, ())] for key in ("weights", "kv"))
        yield from borrowed_shares(serving_tables_of(gpu), model, gpu, weight_formats(gpu, weights), caches or SEARCHED_KV)
    if request.chunked is None:
        yield f"{'chunked' if engine.chunked_prefill else 'whole-prompt'} prefill, the engine's default (--chunked-prefill)"
    yield from _load(request, workload)
    if workload.osl <= 1.0:
        limit = ", --tpot is not looked at" if request.tpot_s is not None else ""
        yield f"answers of one token: no TPOT{limit}, no separate decode instances"
    most = workload.longest_tokens
    if most > model.max_position_embeddings:
        yield f"{most:,.0f} tokens in a sequence, beyond the {model.max_position_embeddings:,} positions of {model.name}"
    if model.is_moe and request.imbalance is None:
        yield f"experts: the busiest rank has {DEFAULT_IMBALANCE:g} times the mean rows (--imbalance)"
    if not request.prefix_hit:
        yield "no prefix hits (--prefix-hit)"
    if not request.draft_tokens:
        yield "no speculation (--draft-tokens)"
    if request.kv_memory_ratio is None:
        of = "of the memory, weights and the rest within it" if engine.kv_of_total else "of the free memory"
        yield f"{engine.kv_memory_ratio:g} {of} for the cache (--kv-memory-ratio)"
    yield f"{engine.runtime_bytes / 1e9:g} GB of a GPU for context, libraries and workspaces"


def _load(request: ServeRequest, workload: Workload) -> Iterator[str]:
    if isinstance(workload, Trace):
        yield "requests go to replicas and ranks in turn"
        return
    for name, given in (("isl", request.isl), ("osl", request.osl)):
        if given is None:
            yield f"{DEFAULT_TOKENS:,} {'input' if name == 'isl' else 'output'} tokens (--{name})"
    if not request.isl_stddev and not request.osl_stddev:
        yield "requests of one length (--isl-stddev, --osl-stddev)"
    else:
        yield f"lengths gamma distributed, at most {workload.longest_tokens:,.0f} tokens together (mean + 6 stddev each)"
    yield "Poisson arrivals" if request.rate else "a queue that is never empty (--rate)"
