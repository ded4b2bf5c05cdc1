"""Published measured runs: from a row of a table to the question that our models can answer.

A row says what was run and what was measured. `read_case` uses the first half only: `notes`, `status` and every measured
column are never read for a prediction. Cells that are missing take the documented default of the row's software or of the
model's family (`data/model_families.json`), and the case says which.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.rules import Setting
from specs.cluster import ClusterSpec, cluster_of
from specs.errors import InputError
from specs.gpu import GpuSpec
from specs.gpu_catalogue import load_gpu
from specs.model import ModelSpec
from specs.numerics import Numerics, Workload
from specs.plan import TrainPlan
from specs.recompute import NONE, Recompute
from specs.software import SoftwareStack, StackMemory
from specs.software_catalogue import DEFAULT_STACK, load_stack

LOSS_BYTES = {"none": 6.0, "native": 10.0, "overwrite": 2.0}
"""Column loss_fusion -> bytes per logit (docs/memory_model.md, moment `loss`)."""
_FULL_RECOMPUTE = re.compile(r"full\((uniform|block),(\d+)\)")
_SELECTIVE = re.compile(r"selective\(\[?([a-z_ ]*)\]?\)")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One published run as a question."""

    id: str
    source: str
    setting: Setting
    plan: TrainPlan
    assumed: tuple[str, ...]


def published_rows(name: str = "training_measurements") -> Iterator[dict[str, str]]:
    """Rows of a published table that ships with the project."""
    path = resources.files("autoconfig") / "data" / "published" / f"{name}.csv"
    yield from csv.DictReader(path.read_text(encoding="utf-8").splitlines())


def read_case(row: Mapping[str, str]) -> Case:
    """The question behind a row of training_measurements.csv's form. Raises InputError saying which cell is missing or odd."""
    assumed: list[str] = []
    family = _family(row.get("model", ""))
    stack = _stack(row, assumed)
    plan, batch = _plan(row, stack, assumed)
    model = _model(row, family, assumed)
    numerics = _numerics(row, family, stack, assumed)
    workload = Workload(seq_length=_whole(row, "seq"), global_batch_size=batch)
    cluster = _cluster(row, plan.world_size)
    setting = Setting(model=model, cluster=cluster, numerics=numerics, stack=stack, workload=workload)
    return Case(id=row.get("id", ""), source=row.get("source", ""), setting=setting, plan=plan, assumed=tuple(assumed))


@cache
def _families() -> list[dict[str, Any]]:
    text = (resources.files("autoconfig") / "data" / "model_families.json").read_text(encoding="utf-8")
    families: list[dict[str, Any]] = json.loads(text)
    return families


def _family(name: str) -> dict[str, Any]:
    return next(family for family in _families() if re.search(family["pattern"], name.lower()))


def _cell(row: Mapping[str, str], key: str) -> str:
    return (row.get(key) or "").strip()


def _whole(row: Mapping[str, str], key: str, default: int | None = None) -> int:
    text = _cell(row, key)
    if not text:
        if default is None:
            raise InputError(f"cell {key} is empty")
        return default
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"cell {key}={text!r} is not a number") from None
    if value != int(value):
        raise InputError(f"cell {key}={text!r} is not a whole number")
    return int(value)


def _model(row: Mapping[str, str], family: Mapping[str, Any], assumed: list[str]) -> ModelSpec:
    hidden, heads = _whole(row, "hidden"), _whole(row, "heads")
    traits = dict(family["traits"])
    gated = traits.get("gated_linear_unit", False)
    ffn = _whole(row, "ffn", -1)
    if ffn < 0:
        ffn = -(-8 * hidden // 3 // 256) * 256 if gated else 4 * hidden
        assumed.append(f"ffn {ffn}")
    vocab = _whole(row, "vocab", -1)
    if vocab < 0:
        vocab = family["vocab_size"]
        assumed.append(f"vocab {vocab}")
    if _cell(row, "tied_embeddings"):
        traits["untie_embeddings_and_output_weights"] = _cell(row, "tied_embeddings") == "0"
    experts = _whole(row, "experts", 0) or None
    return ModelSpec(
        name=_cell(row, "model") or "model",
        num_layers=_whole(row, "layers"),
        hidden_size=hidden,
        num_attention_heads=heads,
        num_query_groups=_whole(row, "kv_heads", heads),
        kv_channels=hidden // heads,
        ffn_hidden_size=ffn,
        vocab_size=vocab,
        max_position_embeddings=_whole(row, "seq"),
        num_moe_experts=experts,
        moe_router_topk=_whole(row, "topk", 1) if experts else 1,
        moe_ffn_hidden_size=ffn if experts else 0,
        **traits,
    )


def _stack(row: Mapping[str, str], assumed: list[str]) -> SoftwareStack:
    """The named stack with what the row says of its kernels."""
    name = _cell(row, "software")
    if not name:
        name = DEFAULT_STACK
        assumed.append(f"software {name}")
    stack = load_stack("megatron-local" if _cell(row, "transformer_impl") == "local" else name)
    return replace(stack, memory=_kernels(row, stack.memory))


def _kernels(row: Mapping[str, str], memory: StackMemory) -> StackMemory:
    kernel = _cell(row, "attention_kernel")
    if kernel in ("unfused", "torch", "fused"):
        memory = replace(memory, attention_kernel="unfused")
    elif kernel:
        memory = replace(memory, attention_kernel="flash")
    if _cell(row, "loss_fusion") in LOSS_BYTES:
        memory = replace(memory, loss_bytes_per_logit=LOSS_BYTES[_cell(row, "loss_fusion")])
    if _cell(row, "norm_kernel") == "fused-rms":
        memory = replace(memory, norm_input_bytes=2.0)
    return memory


def _numerics(row: Mapping[str, str], family: Mapping[str, Any], stack: SoftwareStack, assumed: list[str]) -> Numerics:
    precision = _cell(row, "precision").split("(")[0] or "bf16"
    if not _cell(row, "precision"):
        assumed.append("precision bf16")
    grad = _cell(row, "grad_dtype") or stack.memory.default_grad_dtype
    gather = precision == "fp8" and stack.memory.default_fp8_param_gather
    if precision == "fp8":
        assumed.append(f"fp8_param_gather {int(gather)}")
    dropout = float(row.get("hidden_dropout") or family["dropout"])
    if not row.get("hidden_dropout"):
        assumed.append(f"dropout {dropout:g}")
    return Numerics(
        precision=precision,
        fp8_param_gather=gather,
        grad_reduce_dtype=grad,
        hidden_dropout=dropout,
        attention_dropout=dropout,
        deterministic=row.get("deterministic") == "1",
    )


def read_recompute(text: str) -> Recompute:
    """A cell of the column `recompute`: none, full, full(uniform,1), selective(core_attn), selective([a b]). Raises InputError."""
    text = text.strip()
    if text in ("", "none"):
        return NONE
    if text in ("full", "selective"):
        return Recompute.parse(text)
    if match := _FULL_RECOMPUTE.fullmatch(text):
        return Recompute("full", (), match[1], int(match[2]))
    if match := _SELECTIVE.fullmatch(text):
        return Recompute("selective", tuple(match[1].split()))
    raise InputError(f"recompute {text!r} cannot be read")


def _plan(row: Mapping[str, str], stack: SoftwareStack, assumed: list[str]) -> tuple[TrainPlan, int]:
    tp, pp, cp = (_whole(row, key, 1) for key in ("tp", "pp", "cp"))
    gpus = _whole(row, "gpus", 0)
    dp = _whole(row, "dp", 0) or (gpus // (tp * pp * cp) if gpus else 0)
    if dp < 1:
        raise InputError("neither dp nor gpus is given")
    mbs = _whole(row, "mbs")
    batch = _whole(row, "gbs", 0)
    if not batch:
        batch = mbs * dp * pp
        assumed.append(f"gbs {batch}")
    stage, dist_opt = _sharding(row, stack, assumed)
    plan = TrainPlan(
        tp=tp,
        pp=pp,
        dp=dp,
        mbs=mbs,
        vpp=_whole(row, "vpp", 1),
        cp=cp,
        ep=_whole(row, "ep", 1),
        sp=_cell(row, "sp") == "1" and tp > 1,
        recompute=read_recompute(_cell(row, "recompute")),
        dist_opt=dist_opt,
        fsdp=stage if stage in (2, 3) else 0,
        offload=1.0 if "optimizer" in _cell(row, "offload") else 0.0,
    )
    return plan, batch


def _sharding(row: Mapping[str, str], stack: SoftwareStack, assumed: list[str]) -> tuple[int, bool]:
    """(sharding stage 0 to 3, optimizer state sharded): columns fsdp and optimizer_shard, else the software's default."""
    shard, text = _cell(row, "optimizer_shard"), _cell(row, "fsdp")
    if not shard and not text:
        assumed.append("optimizer state " + ("sharded" if stack.memory.default_optimizer_shard else "not sharded"))
        return 0, stack.memory.default_optimizer_shard
    stage = 3 if text == "hsdp" else _whole(row, "fsdp", 0)
    return stage, stage < 2 and (shard != "none" if shard else stage == 1)


def _cluster(row: Mapping[str, str], num_gpus: int) -> ClusterSpec:
    gpu = _gpu(_cell(row, "gpu"), _cell(row, "gpu_mem_gb"))
    per_node = _whole(row, "gpus_per_node", 0) or None
    if per_node is not None:
        per_node = min(per_node, num_gpus)
    network = _whole(row, "node_network_gbps", 0)
    nic = network * 1e9 / 8 / gpu.gpus_per_node if network else None
    return cluster_of(
        gpu, num_gpus, gpus_per_node=per_node if per_node and num_gpus % per_node == 0 else None, nic_bytes_per_s=nic
    )


@cache
def _gpu(name: str, memory_gb: str) -> GpuSpec:
    """`A100` and `40` name a100-40gb; a name alone the usual one."""
    try:
        return load_gpu(f"{name}-{int(float(memory_gb))}gb") if memory_gb else load_gpu(name)
    except InputError:
        return load_gpu(name)
