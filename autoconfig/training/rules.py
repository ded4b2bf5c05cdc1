"""The rules that decide whether Megatron runs a plan, each checked over columns of plans at once.

Ids are those of `autoconfig/data/megatron_constraints.csv`, which says where megatron-core or Megatron-LM enforces each; ids
starting with AC are ours. Which of them Megatron refuses where, and why the others stand, is in `autoconfig/data/rules.toml`. A
rule is a function of (Scenario, columns) that is True where the plan is legal; the columns `num_gpus` and `global_batch_size`
are always there, `needs` lists the others that it reads, so that the space can apply it as soon as these exist.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from autoconfig.specs.models.hybrid import gdn_projected, mamba_projected
from autoconfig.specs.plan import OUTPUT_DISCARDING, Recompute
from autoconfig.specs.run_settings import FULL_ITERATION
from autoconfig.specs.scenario import Scenario, all_biases

Mask = npt.NDArray[np.bool_]
Columns = Mapping[str, npt.NDArray[Any]]
Check = Callable[[Scenario, Columns], Mask]
JUDGED = ("arguments", "config", "groups", "schedule")
"""Refused by megatron-core before a GPU is needed: parsing and validation, TransformerConfig and OptimizerConfig, process
groups, the pipeline schedule's own checks."""
ENFORCED_IN = (*JUDGED, "kernels", "run time", "nowhere")
"""kernels: layers or collectives that cannot be built or called; run time: a check in the layers; nowhere: Megatron runs
something else than the plan says."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One legality rule."""

    id: str
    text: str
    """What must hold, in Megatron's words."""
    needs: tuple[str, ...]
    legal: Check
    enforced_in: str
    """Where Megatron refuses such a plan, one of ENFORCED_IN; `docs/legality.md` shows it against the real megatron-core."""
    reason: str = ""
    """Why the judge (arguments to schedule, on a machine without GPU) accepts it, or where exactly it is refused."""


RULES: list[Rule] = []
_TOLD = tomllib.loads((resources.files("autoconfig") / "data" / "rules.toml").read_text(encoding="utf-8"))


def _rule(rule_id: str, needs: str) -> Callable[[Check], Check]:
    """Registers a check; its docstring is the rule's text."""

    def register(function: Check) -> Check:
        text = " ".join((function.__doc__ or "").split()).rstrip(".")
        RULES.append(Rule(id=rule_id, text=text, needs=tuple(needs.split()), legal=function, **_TOLD["columns"][rule_id]))
        return function

    return register


@_rule("NV001", "tp pp cp")
def world_size(s: Scenario, c: Columns) -> Mask:
    """tp x pp x cp must divide the number of GPUs."""
    return c["num_gpus"] % (c["tp"] * c["pp"] * c["cp"]) == 0


@_rule("NV013", "tp")
def heads(s: Scenario, c: Columns) -> Mask:
    """num_attention_heads must be a multiple of tp."""
    return s.model.num_attention_heads % c["tp"] == 0


@_rule("NV014", "tp")
def query_groups(s: Scenario, c: Columns) -> Mask:
    """num_query_groups must be a multiple of tp, or tp a multiple of num_query_groups."""
    if s.model.multi_latent_attention:
        return np.ones(len(c["tp"]), bool)
    groups = s.model.num_query_groups
    return (groups % c["tp"] == 0) | (c["tp"] % groups == 0)


@_rule("AC025", "tp")
def whole_query_groups(s: Scenario, c: Columns) -> Mask:
    """Torch's tensor parallelism divides keys and values by head: num_query_groups must be a multiple of tp."""
    if s.software.sharding != "torch" or s.model.multi_latent_attention:
        return np.ones(len(c["tp"]), bool)
    return s.model.num_query_groups % c["tp"] == 0


@_rule("NV018", "tp etp")
def ffn_width(s: Scenario, c: Columns) -> Mask:
    """ffn_hidden_size must be a multiple of tp, moe_ffn_hidden_size of etp."""
    model = s.model
    ok = np.ones(len(c["tp"]), bool)
    if model.has_dense_mlp:
        ok &= model.ffn_hidden_size % c["tp"] == 0
    if model.is_moe:
        ok &= model.moe_ffn_hidden_size % c["etp"] == 0
        ok &= model.moe_shared_expert_intermediate_size % c["tp"] == 0
    return ok


@_rule("NV026", "pp")
def stages_have_layers(s: Scenario, c: Columns) -> Mask:
    """Every pipeline stage needs a layer."""
    return c["pp"] <= s.model.num_layers


@_rule("NV053", "cp")
def context_parallel_length(s: Scenario, c: Columns) -> Mask:
    """seq_length must be a multiple of 2 x cp where cp is above 1."""
    return (c["cp"] == 1) | (s.workload.seq_length % (2 * c["cp"]) == 0) | (s.software.sharding == "deepspeed")


@_rule("NV054", "cp")
def context_parallel_kernel(s: Scenario, c: Columns) -> Mask:
    """Context parallelism needs Transformer Engine's attention."""
    return (c["cp"] == 1) | s.software.supports_context_parallel | (s.software.sharding != "megatron")


@_rule("AC026", "cp")
def context_parallel_support(s: Scenario, c: Columns) -> Mask:
    """This software stack has no context parallelism."""
    return (c["cp"] == 1) | s.software.supports_context_parallel | (s.software.sharding == "megatron")


@_rule("AC027", "cp fsdp")
def context_parallel_beside_fsdp(s: Scenario, c: Columns) -> Mask:
    """Context parallelism of this software stack divides sequences over ranks that FSDP shards over: fsdp must be 2 or 3."""
    return (c["cp"] == 1) | (c["fsdp"] > 0) | (not s.software.context_parallel_needs_fsdp)


@_rule("NV046", "sp tp")
def sequence_parallel(s: Scenario, c: Columns) -> Mask:
    """Sequence parallelism needs tp above 1."""
    return ~c["sp"] | (c["tp"] > 1)


@_rule("AC001", "sp tp cp")
def sequence_parallel_length(s: Scenario, c: Columns) -> Mask:
    """Sequence parallelism needs seq_length / cp to be a multiple of tp (reduce-scatter along the sequence)."""
    return ~c["sp"] | (s.workload.seq_length % (c["tp"] * c["cp"]) == 0)


@_rule("AC002", "sp")
def sequence_parallel_support(s: Scenario, c: Columns) -> Mask:
    """This software stack has no sequence parallelism."""
    return ~c["sp"] | s.software.supports_sequence_parallel


@_rule("AC013", "tp")
def mamba_heads(s: Scenario, c: Columns) -> Mask:
    """mamba_num_heads and mamba_num_groups must be multiples of tp (and in fp8 in_proj's columns one of 16)."""
    if "mamba" not in s.model.kinds:
        return np.ones(len(c["tp"]), bool)
    columns = not s.numerics.format.quantised or mamba_projected(s.model) % 16 == 0
    return columns & (s.model.mamba_num_heads % c["tp"] == 0) & (s.model.mamba_num_groups % c["tp"] == 0)


@_rule("AC014", "tp cp")
def mamba_context_parallel(s: Scenario, c: Columns) -> Mask:
    """mamba_num_heads / tp must be a multiple of cp, and mamba_num_groups / tp too, or cp a multiple of it."""
    if "mamba" not in s.model.kinds:
        return np.ones(len(c["tp"]), bool)
    heads, groups = s.model.mamba_num_heads // c["tp"], np.maximum(s.model.mamba_num_groups // c["tp"], 1)
    return (c["cp"] == 1) | ((heads % c["cp"] == 0) & ((groups % c["cp"] == 0) | (c["cp"] % groups == 0)))


@_rule("AC015", "tp cp")
def delta_rule_heads(s: Scenario, c: Columns) -> Mask:
    """linear_num_key_heads and linear_num_value_heads must be multiples of tp x cp (and in fp8 in_proj's columns one of 16,
    with MXFP8 of 32)."""
    if "gdn" not in s.model.kinds:
        return np.ones(len(c["tp"]), bool)
    ranks, wide = c["tp"] * c["cp"], 32 if s.numerics.format.recipe == "mxfp8" else 16
    columns = not s.numerics.format.quantised or gdn_projected(s.model) % wide == 0
    return columns & (s.model.linear_num_key_heads % ranks == 0) & (s.model.linear_num_value_heads % ranks == 0)


@_rule("AC021", "pp vpp")
def pipeline_of_stacks(s: Scenario, c: Columns) -> Mask:
    """Pipeline parallelism is not supported for T5 from megatron-core 0.14 on (pretrain_t5.py); before, a stage must end where
    the encoder ends (pipeline_model_parallel_split_rank), and stages are not interleaved."""
    if not s.model.is_encoder_decoder:
        return np.ones(len(c["pp"]), bool)
    layers, encoder = s.model.num_layers, s.model.encoder_num_layers
    split = (layers % c["pp"] == 0) & (encoder * c["pp"] % layers == 0) & (c["vpp"] == 1)
    return (c["pp"] == 1) | (split & s.software.supports_encoder_decoder_pipeline)


@_rule("AC022", "cp")
def context_parallel_batches(s: Scenario, c: Columns) -> Mask:
    """Context parallelism needs a decoder-only model: the batches of pretrain_t5.py and pretrain_bert.py are not divided over
    it."""
    return (c["cp"] == 1) | (s.model.encoder_num_layers == 0)


@_rule("AC023", "cp")
def sparse_context_parallel(s: Scenario, c: Columns) -> Mask:
    """Context parallelism of sparse attention (DSA) is not modelled: cp must be 1."""
    return (c["cp"] == 1) | (not s.model.is_sparse)


@_rule("AC024", "tp cp")
def exchanged_heads(s: Scenario, c: Columns) -> Mask:
    """Context parallelism by all-to-all (attention with sinks knows no other) divides the heads: those of queries and those of
    keys must be a multiple of tp x cp. Windows need dense keys: with latent attention cp must be 1."""
    model, ranks = s.model, c["tp"] * c["cp"]
    if model.window_size and model.multi_latent_attention:
        return c["cp"] == 1
    if not model.attention_sinks:
        return np.ones(len(ranks), bool)
    return (c["cp"] == 1) | ((model.num_attention_heads % ranks == 0) & (model.num_query_groups % ranks == 0))


@_rule("NV061", "ep")
def experts(s: Scenario, c: Columns) -> Mask:
    """Ep above 1 needs experts, and num_moe_experts must be a multiple of ep."""
    return (c["ep"] == 1) | ((s.model.num_moe_experts or 1) % c["ep"] == 0)


@_rule("AC003", "etp")
def expert_tensor_parallel(s: Scenario, c: Columns) -> Mask:
    """etp above 1 needs experts."""
    return (c["etp"] == 1) | s.model.is_moe


@_rule("NV002", "etp ep pp")
def expert_world_size(s: Scenario, c: Columns) -> Mask:
    """etp x ep x pp must divide the number of GPUs."""
    return c["num_gpus"] % (c["etp"] * c["ep"] * c["pp"]) == 0


@_rule("NV062", "etp")
def expert_bias(s: Scenario, c: Columns) -> Mask:
    """Expert tensor parallelism needs experts without biases."""
    return (c["etp"] == 1) | (not (s.model.is_moe and (s.model.moe_expert_bias or s.model.add_bias_linear)))


@_rule("NV048", "sp tp")
def experts_need_sequence_parallel(s: Scenario, c: Columns) -> Mask:
    """A mixture of experts with tp above 1 needs sequence parallelism."""
    return c["sp"] | (c["tp"] == 1) | (not s.model.is_moe)


@_rule("NV024", "pp first last")
def layer_split(s: Scenario, c: Columns) -> Mask:
    """The layers must divide over the stages that first=,last= leave."""
    between = np.maximum(c["pp"] - 2, 0)
    rest = s.model.num_layers - c["first"] - np.where(c["pp"] > 1, c["last"], 0)
    whole = np.where(between > 0, rest % np.maximum(between, 1) == 0, rest == 0)
    return whole & np.where(between > 0, rest >= between, rest == 0) & (c["first"] > 0) & (c["last"] > 0)


@_rule("NV040", "vpp pp")
def interleaving(s: Scenario, c: Columns) -> Mask:
    """Virtual pipeline stages need pp above 1."""
    return (c["vpp"] == 1) | (c["pp"] > 1)


@_rule("NV044", "vpp pp first last")
def chunk_layers(s: Scenario, c: Columns) -> Mask:
    """The layers of every stage must be a multiple of vpp, or of all stages but the first and the last, whose ends may be
    shorter chunks (a pipeline layout)."""
    between = np.maximum(c["pp"] - 2, 1)
    middle = np.where(c["pp"] > 2, (s.model.num_layers - c["first"] - c["last"]) // between, c["first"])
    vpp = c["vpp"]
    placed = (c["pp"] > 2) & np.array(s.software.supports_pipeline_layout and not s.model.is_hybrid)
    for end in ("first", "last"):
        placed = placed & (middle - c[end] >= 0) & (middle - c[end] <= middle // vpp)
    ends = (c["first"] % vpp == 0) & (c["last"] % vpp == 0)
    # of a hybrid megatron-core counts the layers of even stages
    even = np.array(not s.model.is_hybrid) | (s.model.num_layers % (c["pp"] * vpp) == 0)
    return (vpp == 1) | ((middle % vpp == 0) & (ends | placed) & even)


@_rule("AC033", "vpp pp first last")
def whole_layers(s: Scenario, c: Columns) -> Mask:
    """A chunk of a hybrid holds whole layers: a mixer and the MLP or experts behind it."""
    middle = (s.model.num_layers - c["first"] - c["last"]) // np.maximum(c["pp"] - 2, 1)
    size, legal = c["vpp"] * s.model.sublayers_per_layer, np.array(True)
    if s.model.sublayers_per_layer > 1:
        for layers in (c["first"], c["last"], np.where(c["pp"] > 2, middle, 0)):
            legal = legal & (layers % size == 0)
    return legal


@_rule("NV007", "mbs dp")
def batch(s: Scenario, c: Columns) -> Mask:
    """global_batch_size must be a multiple of mbs x dp."""
    return c["global_batch_size"] % (c["mbs"] * c["dp"]) == 0


@_rule("NV041", "vpp pp mbs dp")
def interleaved_microbatches(s: Scenario, c: Columns) -> Mask:
    """Interleaving needs at least pp micro-batches."""
    return (c["vpp"] == 1) | (c["global_batch_size"] // (c["mbs"] * c["dp"]) >= c["pp"])


@_rule("AC028", "vpp pp mbs dp")
def filled_stages(s: Scenario, c: Columns) -> Mask:
    """This software stack's 1F1B schedule refuses fewer micro-batches than stages (nanotron: than one less)."""
    missing = c["pp"] - c["global_batch_size"] // (c["mbs"] * c["dp"]) // s.workload.schedule_calls
    return (c["pp"] == 1) | (c["vpp"] > 1) | (missing <= s.software.stages_beyond_micro_batches)


@_rule("AC030", "pp mbs dp")
def whole_schedules(s: Scenario, c: Columns) -> Mask:
    """Where a step runs the pipeline's schedule several times, its micro-batches must divide over these."""
    return (c["pp"] == 1) | (c["global_batch_size"] // (c["mbs"] * c["dp"]) % s.workload.schedule_calls == 0)


@_rule("AC029", "mbs dp")
def one_micro_batch(s: Scenario, c: Columns) -> Mask:
    """Weights that step in backward (optimizer_in_backward) need a step of one micro-batch."""
    return (c["global_batch_size"] == c["mbs"] * c["dp"]) | (not s.numerics.optimizer_in_backward)


@_rule("NV042", "vpp pp mbs dp")
def interleaved_groups(s: Scenario, c: Columns) -> Mask:
    """Interleaving needs the number of micro-batches to be a multiple of pp."""
    return (c["vpp"] == 1) | (c["global_batch_size"] // (c["mbs"] * c["dp"]) % c["pp"] == 0)


@_rule("NV100", "fsdp pp ep dist_opt")
def fsdp(s: Scenario, c: Columns) -> Mask:
    """FSDP (fsdp 2 or 3) needs pp 1, ep 1, no distributed optimizer, no fp16 and an output layer of its own."""
    if s.software.sharding != "megatron":
        return (c["fsdp"] == 0) | ~c["dist_opt"]
    tied = not (s.model.untie_embeddings_and_output_weights or s.software.supports_fsdp_with_tied_embeddings)
    possible = not tied and s.numerics.precision != "fp16"
    own = s.given.of_a_run and s.software.supports_fp8_param_gather_with_fsdp  # Megatron-FSDP shards experts, too
    return (c["fsdp"] == 0) | ((c["pp"] == 1) & ((c["ep"] == 1) | own) & ~c["dist_opt"] & possible)


@_rule("AC016", "fsdp pp ep")
def zero_stages(s: Scenario, c: Columns) -> Mask:
    """DeepSpeed's ZeRO-2 and ZeRO-3 need pp 1, and ZeRO-3 a model without DeepSpeed's own layers of experts: ep must be 1."""
    if s.software.sharding != "deepspeed":
        return np.ones(len(c["fsdp"]), bool)
    whole = (c["ep"] == 1) & ((not s.model.is_moe) | s.software.supports_zero3_with_experts)
    return (c["fsdp"] == 0) | ((c["pp"] == 1) & ((c["fsdp"] < 3) | whole))


@_rule("AC017", "tp cp")
def ulysses_heads(s: Scenario, c: Columns) -> Mask:
    """DeepSpeed-Ulysses (cp) needs num_attention_heads to be a multiple of tp x cp, and seq_length one of cp."""
    whole = (s.model.num_attention_heads % (c["tp"] * c["cp"]) == 0) & (s.workload.seq_length % c["cp"] == 0)
    return (c["cp"] == 1) | (s.software.sharding != "deepspeed") | whole


@_rule("AC018", "tp pp")
def model_parallel_support(s: Scenario, c: Columns) -> Mask:
    """This software stack has neither tensor nor pipeline parallelism."""
    return ((c["tp"] == 1) & (c["pp"] == 1)) | s.software.supports_model_parallel


@_rule("AC031", "fsdp tp pp cp ep dp")
def unsharded_alone(s: Scenario, c: Columns) -> Mask:
    """DDP of this software stack (fsdp=0, dp or cp above 1) stands beside no other parallelism: tp, pp, cp and ep must be 1."""
    alone = (c["tp"] == 1) & (c["pp"] == 1) & (c["cp"] == 1) & (c["ep"] == 1)
    return (c["fsdp"] > 0) | (c["dp"] * c["cp"] == 1) | alone | (not s.software.ddp_stands_alone)


@_rule("AC032", "sp tp")
def divided_sequences(s: Scenario, c: Columns) -> Mask:
    """Tensor parallelism of this software stack divides the sequence, too: tp above 1 needs sp=1."""
    return c["sp"] | (c["tp"] == 1) | (not s.software.tp_divides_sequences) | s.given.of_a_run


@_rule("AC009", "fsdp")
def fsdp_support(s: Scenario, c: Columns) -> Mask:
    """This software stack has no FSDP."""
    return (c["fsdp"] == 0) | s.software.supports_fsdp


@_rule("NV130", "fsdp dist_opt")
def fp8_param_gather(s: Scenario, c: Columns) -> Mask:
    """fp8_param_gather needs the distributed optimizer or FSDP."""
    return (c["fsdp"] > 0) | c["dist_opt"] | (not s.numerics.fp8_param_gather)


@_rule("NV094", "offload dist_opt fsdp")
def offload(s: Scenario, c: Columns) -> Mask:
    """Optimizer offload needs the distributed optimizer, and with fp8_param_gather the delayed recipe."""
    possible = not s.numerics.fp8_param_gather or s.numerics.fp8_recipe == "delayed"
    sharded = c["dist_opt"] | ((c["fsdp"] > 0) & (s.software.sharding != "megatron"))  # FSDP2 has a CPUOffloadPolicy
    return (c["offload"] == 0) | (sharded & possible)


@_rule("AC008", "dist_opt")
def distributed_optimizer_support(s: Scenario, c: Columns) -> Mask:
    """This software stack has no distributed optimizer (dist_opt=0)."""
    return ~c["dist_opt"] | s.software.supports_distributed_optimizer


@_rule("NV092", "fsdp dist_opt")
def precision_aware(s: Scenario, c: Columns) -> Mask:
    """Optimizer types other than fp32 need the distributed optimizer."""
    n = s.numerics
    plain = (n.main_params_dtype, n.exp_avg_dtype, n.exp_avg_sq_dtype) == ("fp32",) * 3 and not n.store_param_remainders
    return c["dist_opt"] | plain


@_rule("NV080", "ep pp vpp")
def ep_overlap(s: Scenario, c: Columns) -> Mask:
    """EP overlap needs ep above 1, pp 1 or interleaving, 16-bit parameters and a dispatcher other than all-gather."""
    possible = s.settings().dispatcher != "allgather" and s.numerics.precision != "fp32"
    return (not _asks_overlap(s)) | ((c["ep"] > 1) & ((c["pp"] == 1) | (c["vpp"] > 1)) & possible)


@_rule("NV071", "tp ep")
def flexible_dispatcher(s: Scenario, c: Columns) -> Mask:
    """DeepEP and HybridEP need tp x ep above 1."""
    return (c["tp"] * c["ep"] > 1) | s.given.of_a_run | (s.given.dispatcher not in ("deepep", "hybridep"))


@_rule("NV036", "pp")
def activation_offload(s: Scenario, c: Columns) -> Mask:
    """Offloaded activations need one pipeline stage."""
    return (c["pp"] == 1) | (not _asks_offload(s))


def _asks_offload(s: Scenario) -> bool:
    return bool(s.given.offload_layers) and not s.given.of_a_run


def _asks_overlap(s: Scenario) -> bool:
    return bool(s.given.ep_overlap) and not s.given.of_a_run


@dataclass(frozen=True, kw_only=True)
class PlanRule:
    """A rule on a whole plan, beside the column rules."""

    id: str
    text: str
    enforced_in: str
    reason: str = ""


PLAN_RULES = tuple(PlanRule(id=rule, **told) for rule, told in _TOLD["plan"].items())
ALL_RULES: tuple[Rule | PlanRule, ...] = (*RULES, *PLAN_RULES)
RULE_TEXT: dict[str, str] = {rule.id: rule.text for rule in ALL_RULES}
JUDGED_RULES = frozenset(rule.id for rule in ALL_RULES if rule.enforced_in in JUDGED)
"""Rules that the real megatron-core enforces before a GPU is needed: `make judge` holds us to them both ways."""


def recompute_rule(scenario: Scenario, recompute: Recompute) -> str | None:
    """The rule that forbids these modules for this model and precision, whatever the layout; None when legal."""
    model, modules, given = scenario.model, set(recompute.modules), scenario.given
    graphs = (given.cuda_graphs or frozenset()) - {FULL_ITERATION} if not given.of_a_run else frozenset()
    if _asks_overlap(scenario) and (recompute.granularity == "full" or "moe" in modules):
        return "NV081"
    if _asks_offload(scenario) and recompute.granularity != "none":
        return "NV122"
    if graphs and recompute.granularity == "full":
        return "NV146"
    if "moe_router" in graphs and "moe" in modules:
        return "NV152"
    own = scenario.software.recomputes_by_operator
    if own and not given.of_a_run and recompute.granularity == "full" and recompute != Recompute("full", (), "uniform", 1):
        return "AC012"
    if modules and (recompute.by_operator != own or (own and len(modules) > 1)):
        return "AC012"
    if "mla_up_proj" in modules and not model.multi_latent_attention:
        return "NV115"
    if "moe_act" in modules and not model.is_moe:
        return "NV114"
    if (
        modules & {"moe_act", "layernorm"}
        and scenario.numerics.precision == "fp8"
        and scenario.numerics.fp8_recipe == "delayed"
    ):
        return "NV118"
    if modules & {"moe", "shared_experts"} and not model.is_moe:
        return "AC006"
    if "shared_experts" in modules and not model.moe_shared_expert_intermediate_size:
        return "AC006"
    if "mlp" in modules and not model.has_dense_mlp:
        return "AC004"
    if "mlp" in modules and all_biases(model) and not scenario.software.supports_mlp_recompute_with_biases:
        return "AC011"
    if model.mtp_num_layers and recompute.method == "uniform" and recompute.num_layers > 1:
        return "NV121"
    lacking = modules.intersection(() if scenario.software.supports_output_discarding else OUTPUT_DISCARDING)
    return "AC010" if lacking or (modules and not scenario.software.supports_selective_recompute) else None


def recompute_fits_layers(recompute: Recompute, chunk_layers: npt.NDArray[Any], stage_layers: npt.NDArray[Any]) -> Mask:
    """NV111, per layout: a uniform group fits a stage, a block fits the smallest model chunk."""
    if recompute.granularity != "full":
        return np.ones(len(chunk_layers), bool)
    return recompute.num_layers <= (stage_layers if recompute.method == "uniform" else chunk_layers)
