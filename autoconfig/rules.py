"""The rules that decide whether Megatron runs a plan, each checked over columns of plans at once.

Ids are those of `autoconfig/data/megatron_constraints.csv`, which says where megatron-core or Megatron-LM enforces each;
ids starting with AC are ours, with their reason here. A rule is a function of (Setting, columns) that is True where the plan is
legal; `needs` lists the columns it reads, so that the space can apply it as soon as these exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specs.cluster import ClusterSpec
from specs.model import ModelSpec
from specs.numerics import Numerics, Workload
from specs.recompute import Recompute
from specs.software import SoftwareStack

Mask = npt.NDArray[np.bool_]
Columns = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything about a question but the plan."""

    model: ModelSpec
    cluster: ClusterSpec
    numerics: Numerics
    stack: SoftwareStack
    workload: Workload


Check = Callable[[Setting, Columns], Mask]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One legality rule."""

    id: str
    text: str
    """What must hold, in Megatron's words."""
    needs: tuple[str, ...]
    legal: Check


RULES: list[Rule] = []


def _rule(rule_id: str, needs: str) -> Callable[[Check], Check]:
    """Registers a check; its docstring is the rule's text."""

    def register(function: Check) -> Check:
        text = (function.__doc__ or "").strip().rstrip(".")
        RULES.append(Rule(id=rule_id, text=text, needs=tuple(needs.split()), legal=function))
        return function

    return register


@_rule("NV001", "tp pp cp")
def world_size(s: Setting, c: Columns) -> Mask:
    """tp x pp x cp must divide the number of GPUs."""
    return s.cluster.num_gpus % (c["tp"] * c["pp"] * c["cp"]) == 0


@_rule("NV013", "tp")
def heads(s: Setting, c: Columns) -> Mask:
    """num_attention_heads must be a multiple of tp."""
    return s.model.num_attention_heads % c["tp"] == 0


@_rule("NV014", "tp")
def query_groups(s: Setting, c: Columns) -> Mask:
    """num_query_groups must be a multiple of tp, or tp a multiple of num_query_groups."""
    if s.model.multi_latent_attention:
        return np.ones(len(c["tp"]), bool)
    groups = s.model.num_query_groups
    return (groups % c["tp"] == 0) | (c["tp"] % groups == 0)


@_rule("NV018", "tp etp")
def ffn_width(s: Setting, c: Columns) -> Mask:
    """ffn_hidden_size must be a multiple of tp, moe_ffn_hidden_size of etp."""
    model = s.model
    ok = np.ones(len(c["tp"]), bool)
    if 0 in model.moe_pattern:
        ok &= model.ffn_hidden_size % c["tp"] == 0
    if model.is_moe:
        ok &= model.moe_ffn_hidden_size % c["etp"] == 0
        ok &= model.moe_shared_expert_intermediate_size % c["tp"] == 0
    return ok


@_rule("NV026", "pp")
def stages_have_layers(s: Setting, c: Columns) -> Mask:
    """Every pipeline stage needs a layer."""
    return c["pp"] <= s.model.num_layers


@_rule("NV053", "cp")
def context_parallel_length(s: Setting, c: Columns) -> Mask:
    """seq_length must be a multiple of 2 x cp where cp is above 1."""
    return (c["cp"] == 1) | (s.workload.seq_length % (2 * c["cp"]) == 0)


@_rule("NV054", "cp")
def context_parallel_kernel(s: Setting, c: Columns) -> Mask:
    """Context parallelism needs Transformer Engine's attention."""
    return (c["cp"] == 1) | s.stack.supports_context_parallel


@_rule("NV046", "sp tp")
def sequence_parallel(s: Setting, c: Columns) -> Mask:
    """Sequence parallelism needs tp above 1."""
    return ~c["sp"] | (c["tp"] > 1)


@_rule("AC001", "sp tp cp")
def sequence_parallel_length(s: Setting, c: Columns) -> Mask:
    """Sequence parallelism needs seq_length / cp to be a multiple of tp (reduce-scatter along the sequence)."""
    return ~c["sp"] | (s.workload.seq_length % (c["tp"] * c["cp"]) == 0)


@_rule("AC002", "sp")
def sequence_parallel_support(s: Setting, c: Columns) -> Mask:
    """This software stack has no sequence parallelism."""
    return ~c["sp"] | s.stack.supports_sequence_parallel


@_rule("NV061", "ep")
def experts(s: Setting, c: Columns) -> Mask:
    """Ep above 1 needs experts, and num_moe_experts must be a multiple of ep."""
    return (c["ep"] == 1) | ((s.model.num_moe_experts or 1) % c["ep"] == 0)


@_rule("AC003", "etp")
def expert_tensor_parallel(s: Setting, c: Columns) -> Mask:
    """etp above 1 needs experts."""
    return (c["etp"] == 1) | s.model.is_moe


@_rule("NV002", "etp ep pp")
def expert_world_size(s: Setting, c: Columns) -> Mask:
    """etp x ep x pp must divide the number of GPUs."""
    return s.cluster.num_gpus % (c["etp"] * c["ep"] * c["pp"]) == 0


@_rule("NV062", "etp")
def expert_bias(s: Setting, c: Columns) -> Mask:
    """Expert tensor parallelism needs experts without biases."""
    return (c["etp"] == 1) | (not (s.model.is_moe and (s.model.moe_expert_bias or s.model.add_bias_linear)))


@_rule("NV048", "sp tp")
def experts_need_sequence_parallel(s: Setting, c: Columns) -> Mask:
    """A mixture of experts with tp above 1 needs sequence parallelism."""
    return c["sp"] | (c["tp"] == 1) | (not s.model.is_moe)


@_rule("NV024", "pp first last")
def layer_split(s: Setting, c: Columns) -> Mask:
    """The layers must divide over the stages that first and last leave."""
    between = np.maximum(c["pp"] - 2, 0)
    rest = s.model.num_layers - c["first"] - np.where(c["pp"] > 1, c["last"], 0)
    whole = np.where(between > 0, rest % np.maximum(between, 1) == 0, rest == 0)
    return whole & np.where(between > 0, rest >= between, rest == 0) & (c["first"] > 0) & (c["last"] > 0)


@_rule("NV040", "vpp pp")
def interleaving(s: Setting, c: Columns) -> Mask:
    """Virtual pipeline stages need pp above 1."""
    return (c["vpp"] == 1) | (c["pp"] > 1)


@_rule("NV044", "vpp pp first last")
def chunk_layers(s: Setting, c: Columns) -> Mask:
    """The layers of every stage must be a multiple of vpp."""
    between = np.maximum(c["pp"] - 2, 1)
    middle = np.where(c["pp"] > 2, (s.model.num_layers - c["first"] - c["last"]) // between, c["first"])
    vpp = c["vpp"]
    return (vpp == 1) | ((c["first"] % vpp == 0) & (c["last"] % vpp == 0) & (middle % vpp == 0))


@_rule("NV007", "mbs dp")
def batch(s: Setting, c: Columns) -> Mask:
    """global_batch_size must be a multiple of mbs x dp."""
    return s.workload.global_batch_size % (c["mbs"] * c["dp"]) == 0


@_rule("NV041", "vpp pp mbs dp")
def interleaved_microbatches(s: Setting, c: Columns) -> Mask:
    """Interleaving needs at least pp micro-batches."""
    return (c["vpp"] == 1) | (s.workload.global_batch_size // (c["mbs"] * c["dp"]) >= c["pp"])


@_rule("NV042", "vpp pp mbs dp")
def interleaved_groups(s: Setting, c: Columns) -> Mask:
    """Interleaving needs the number of micro-batches to be a multiple of pp."""
    return (c["vpp"] == 1) | (s.workload.global_batch_size // (c["mbs"] * c["dp"]) % c["pp"] == 0)


@_rule("NV100", "fsdp pp ep dist_opt")
def fsdp(s: Setting, c: Columns) -> Mask:
    """FSDP (fsdp 2 or 3) needs pp 1, ep 1 and no distributed optimizer."""
    return (c["fsdp"] == 0) | ((c["pp"] == 1) & (c["ep"] == 1) & ~c["dist_opt"])


@_rule("AC006", "fsdp")
def fsdp_support(s: Setting, c: Columns) -> Mask:
    """This software stack has no FSDP."""
    return (c["fsdp"] == 0) | s.stack.supports_fsdp


@_rule("NV130", "fsdp dist_opt")
def fp8_param_gather(s: Setting, c: Columns) -> Mask:
    """fp8_param_gather needs the distributed optimizer or FSDP."""
    return (c["fsdp"] > 0) | c["dist_opt"] | (not s.numerics.fp8_param_gather)


@_rule("NV094", "offload dist_opt")
def offload(s: Setting, c: Columns) -> Mask:
    """Optimizer offload needs the distributed optimizer."""
    return (c["offload"] == 0) | c["dist_opt"]


@_rule("NV092", "fsdp dist_opt")
def precision_aware(s: Setting, c: Columns) -> Mask:
    """Optimizer types other than fp32 need the distributed optimizer."""
    n = s.numerics
    plain = (n.main_params_dtype, n.exp_avg_dtype, n.exp_avg_sq_dtype) == ("fp32",) * 3 and not n.store_param_remainders
    return c["dist_opt"] | plain


RULE_TEXT: dict[str, str] = {rule.id: rule.text for rule in RULES} | {
    "NV111": "full recomputation needs a number of layers from 1 to the layers of a stage (block: of a model chunk)",
    "NV114": "recomputing moe_act, moe or shared_experts needs a mixture of experts that has them",
    "NV115": "recomputing mla_up_proj needs multi-latent attention",
    "NV118": "recomputing moe_act or layernorm is refused with the delayed fp8 recipe",
    "AC004": "recomputing mlp needs a layer with a dense MLP",
    "AC007": "this software stack recomputes whole layers only",
    "AC005": "the plan's tp x pp x cp x dp must be the number of GPUs",
}


def recompute_rule(setting: Setting, recompute: Recompute) -> str | None:
    """The rule that forbids these modules for this model and precision, whatever the layout; None when legal."""
    model, modules = setting.model, set(recompute.modules)
    if modules and not setting.stack.supports_selective_recompute:
        return "AC007"
    if "mla_up_proj" in modules and not model.multi_latent_attention:
        return "NV115"
    if modules & {"moe", "moe_act"} and not model.is_moe:
        return "NV114"
    if "shared_experts" in modules and not model.moe_shared_expert_intermediate_size:
        return "NV114"
    if "mlp" in modules and 0 not in model.moe_pattern:
        return "AC004"
    if modules & {"moe_act", "layernorm"} and setting.numerics.precision == "fp8" and setting.numerics.fp8_recipe == "delayed":
        return "NV118"
    return None


def recompute_fits_layers(recompute: Recompute, chunk_layers: npt.NDArray[Any], stage_layers: npt.NDArray[Any]) -> Mask:
    """NV111, per layout: a uniform group fits a stage, a block fits the smallest model chunk."""
    if recompute.granularity != "full":
        return np.ones(len(chunk_layers), bool)
    return recompute.num_layers <= (stage_layers if recompute.method == "uniform" else chunk_layers)
