"""The rules that decide whether Megatron runs a plan, each checked over columns of plans at once.

How a rule stands in one place is said in recompute_rules.py, which holds those on a whole plan. A check is a function of
(Scenario, columns) that is True where the plan is legal; the columns `num_gpus` and `global_batch_size` are always there,
`needs` lists the others that it reads, so that the space can apply it as soon as these exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autoconfig.specs.models.hybrid import gdn_projected, mamba_projected
from autoconfig.specs.scenario import Scenario
from autoconfig.training.recompute_rules import JUDGED, PLAN_RULES, PlanRule, asks_offload, asks_overlap, documented

Mask = npt.NDArray[np.bool_]
Columns = Mapping[str, npt.NDArray[Any]]
Check = Callable[[Scenario, Columns], Mask]


@dataclass(frozen=True, kw_only=True)
class Rule(PlanRule):
    """A legality rule over columns of plans."""

    needs: tuple[str, ...]
    legal: Check


RULES: list[Rule] = []


def _rule(rule_id: str, needs: str, enforced_in: str, source: str = "") -> Callable[[Check], Check]:
    """Register a check, which says where the rule holds."""

    def register(function: Check) -> Check:
        facts = documented(function, rule_id, enforced_in, source)
        RULES.append(Rule(needs=tuple(needs.split()), legal=function, **facts))
        return function

    return register


@_rule(
    "NV001",
    "tp pp cp",
    "arguments",
    "megatron/training/arguments.py:432; megatron/core/parallel_state.py:822; "
    "Bridge:src/megatron/bridge/training/config.py:1024 (no gtp)",
)
def world_size(s: Scenario, c: Columns) -> Mask:
    """tp x pp x cp must divide the number of GPUs."""
    return c["num_gpus"] % (c["tp"] * c["pp"] * c["cp"]) == 0


@_rule("NV013", "tp", "config", "megatron/core/transformer/transformer_config.py:1446")
def heads(s: Scenario, c: Columns) -> Mask:
    """num_attention_heads must be a multiple of tp."""
    return s.model.num_attention_heads % c["tp"] == 0


@_rule("NV014", "tp", "config", "megatron/core/transformer/transformer_config.py:1461")
def query_groups(s: Scenario, c: Columns) -> Mask:
    """num_query_groups must be a multiple of tp, or tp a multiple of num_query_groups."""
    if s.model.multi_latent_attention:
        return np.ones(len(c["tp"]), bool)
    groups = s.model.num_query_groups
    return (groups % c["tp"] == 0) | (c["tp"] % groups == 0)


@_rule("AC025", "tp", "nowhere")
def whole_query_groups(s: Scenario, c: Columns) -> Mask:
    """Torch's tensor parallelism divides keys and values by head: num_query_groups must be a multiple of tp.

    torch's own, not Megatron's, which repeats heads: torchtitan 0.2.2 views the projected keys by whole heads after
    ColwiseParallel (models/llama3/model/model.py), accelerate and transformers likewise (base_model_tp_plan)."""
    if s.software.sharding != "torch" or s.model.multi_latent_attention:
        return np.ones(len(c["tp"]), bool)
    return s.model.num_query_groups % c["tp"] == 0


@_rule("NV018", "tp etp", "kernels", "megatron/core/tensor_parallel/layers.py")
def ffn_width(s: Scenario, c: Columns) -> Mask:
    """ffn_hidden_size must be a multiple of tp, moe_ffn_hidden_size of etp.

    the column- and row-parallel layers divide when they are built on the GPU, in Transformer Engine's code."""
    model = s.model
    ok = np.ones(len(c["tp"]), bool)
    if model.has_dense_mlp:
        ok &= model.ffn_hidden_size % c["tp"] == 0
    if model.is_moe:
        ok &= model.moe_ffn_hidden_size % c["etp"] == 0
        ok &= model.moe_shared_expert_intermediate_size % c["tp"] == 0
    return ok


@_rule("NV026", "pp", "arguments", "megatron/core/transformer/transformer_config.py:2303-2353")
def stages_have_layers(s: Scenario, c: Columns) -> Mask:
    """Every pipeline stage needs a layer."""
    return c["pp"] <= s.model.num_layers


@_rule("NV053", "cp", "arguments", "megatron/training/arguments.py:1336; Bridge:src/megatron/bridge/training/config.py:1575")
def context_parallel_length(s: Scenario, c: Columns) -> Mask:
    """seq_length must be a multiple of 2 x cp where cp is above 1."""
    return (c["cp"] == 1) | (s.workload.seq_length % (2 * c["cp"]) == 0) | (s.software.sharding == "deepspeed")


@_rule("NV054", "cp", "run time", "megatron/core/transformer/dot_product_attention.py:58")
def context_parallel_kernel(s: Scenario, c: Columns) -> Mask:
    """Context parallelism needs Transformer Engine's attention.

    the local attention asserts it when the layer is built; arguments and config do not look at the layer's kind."""
    return (c["cp"] == 1) | s.software.supports_context_parallel | (s.software.sharding != "megatron")


@_rule("AC026", "cp", "nowhere")
def context_parallel_support(s: Scenario, c: Columns) -> Mask:
    """This software stack has no context parallelism.

    what a software stack has is ours to know."""
    return (c["cp"] == 1) | s.software.supports_context_parallel | (s.software.sharding == "megatron")


@_rule("AC027", "cp fsdp", "nowhere")
def context_parallel_beside_fsdp(s: Scenario, c: Columns) -> Mask:
    """Context parallelism of this software stack divides sequences over ranks that FSDP shards over: fsdp must be 2 or 3.

    accelerate 1.15 shards over the flattened dp_shard and cp ranks of FSDP2 (parallelism_config.py); Megatron knows no such
    bond."""
    return (c["cp"] == 1) | (c["fsdp"] > 0) | (not s.software.context_parallel_needs_fsdp)


@_rule("NV046", "sp tp", "nowhere", "megatron/training/arguments.py:1433; megatron/core/model_parallel_config.py:__post_init__")
def sequence_parallel(s: Scenario, c: Columns) -> Mask:
    """Sequence parallelism needs tp above 1.

    Megatron-LM switches sequence parallelism off and runs, so a plan that says sp=1 would not be what runs; megatron-core's
    config refuses it where it is built directly (model_parallel_config.py)."""
    return ~c["sp"] | (c["tp"] > 1)


@_rule("AC001", "sp tp cp", "kernels")
def sequence_parallel_length(s: Scenario, c: Columns) -> Mask:
    """Sequence parallelism needs seq_length / cp to be a multiple of tp (reduce-scatter along the sequence).

    the reduce-scatter along the sequence needs equal shards; it fails in the first forward."""
    return ~c["sp"] | (s.workload.seq_length % (c["tp"] * c["cp"]) == 0)


@_rule("AC002", "sp", "nowhere")
def sequence_parallel_support(s: Scenario, c: Columns) -> Mask:
    """This software stack has no sequence parallelism.

    the flag came with Megatron-LM of 2022; today's parser knows it whatever stack is priced."""
    return ~c["sp"] | s.software.supports_sequence_parallel


@_rule("AC013", "tp", "kernels")
def mamba_heads(s: Scenario, c: Columns) -> Mask:
    """mamba_num_heads and mamba_num_groups must be multiples of tp (and in fp8 in_proj's columns one of 16).

    asserted when the layer is built (megatron-core 0.19.2, ssm/mamba_mixer.py); arguments and config do not look."""
    if "mamba" not in s.model.kinds:
        return np.ones(len(c["tp"]), bool)
    columns = not s.numerics.format.quantised or mamba_projected(s.model) % 16 == 0
    return columns & (s.model.mamba_num_heads % c["tp"] == 0) & (s.model.mamba_num_groups % c["tp"] == 0)


@_rule("AC014", "tp cp", "kernels")
def mamba_context_parallel(s: Scenario, c: Columns) -> Mask:
    """mamba_num_heads / tp must be a multiple of cp, and mamba_num_groups / tp too, or cp a multiple of it.

    asserted where heads go around (megatron-core 0.19.2, ssm/mamba_context_parallel.py)."""
    if "mamba" not in s.model.kinds:
        return np.ones(len(c["tp"]), bool)
    heads, groups = s.model.mamba_num_heads // c["tp"], np.maximum(s.model.mamba_num_groups // c["tp"], 1)
    return (c["cp"] == 1) | ((heads % c["cp"] == 0) & ((groups % c["cp"] == 0) | (c["cp"] % groups == 0)))


@_rule("AC015", "tp cp", "kernels")
def delta_rule_heads(s: Scenario, c: Columns) -> Mask:
    """linear_num_key_heads and linear_num_value_heads must be multiples of tp x cp (and in fp8 in_proj's columns one of 16,
    with MXFP8 of 32).

    divided when the layer is built (megatron-core 0.19.2, ssm/gated_delta_net.py); arguments and config do not look."""
    if "gdn" not in s.model.kinds:
        return np.ones(len(c["tp"]), bool)
    ranks, wide = c["tp"] * c["cp"], 32 if s.numerics.format.recipe == "mxfp8" else 16
    columns = not s.numerics.format.quantised or gdn_projected(s.model) % wide == 0
    return columns & (s.model.linear_num_key_heads % ranks == 0) & (s.model.linear_num_value_heads % ranks == 0)


@_rule("AC021", "pp vpp", "run time")
def pipeline_of_stacks(s: Scenario, c: Columns) -> Mask:
    """Pipeline parallelism is not supported for T5 from megatron-core 0.14 on (pretrain_t5.py); before, a stage must end where
    the encoder ends (pipeline_model_parallel_split_rank), and stages are not interleaved.

    raised by pretrain_t5.py when the model is built ("Pipeline parallelism is not supported for T5", Megatron-LM core_v0.14.0
    to core_v0.19.0); arguments do not look."""
    if not s.model.is_encoder_decoder:
        return np.ones(len(c["pp"]), bool)
    layers, encoder = s.model.num_layers, s.model.encoder_num_layers
    split = (layers % c["pp"] == 0) & (encoder * c["pp"] % layers == 0) & (c["vpp"] == 1)
    return (c["pp"] == 1) | (split & s.software.supports_encoder_decoder_pipeline)


@_rule("AC022", "cp", "nowhere")
def context_parallel_batches(s: Scenario, c: Columns) -> Mask:
    """Context parallelism needs a decoder-only model: the batches of pretrain_t5.py and pretrain_bert.py are not divided over
    it.

    get_batch of pretrain_t5.py and pretrain_bert.py broadcasts whole sequences: every rank would compute all of them."""
    return (c["cp"] == 1) | (s.model.encoder_num_layers == 0)


@_rule("AC023", "cp", "nowhere")
def sparse_context_parallel(s: Scenario, c: Columns) -> Mask:
    """Context parallelism of sparse attention (DSA) is not modelled: cp must be 1.

    megatron-core 0.19.2 takes --cp-comm-type allgather with it (transformer_config.py); memory and time of the gathered keys
    are not modelled."""
    return (c["cp"] == 1) | (not s.model.is_sparse)


@_rule("AC024", "tp cp", "kernels")
def exchanged_heads(s: Scenario, c: Columns) -> Mask:
    """Context parallelism by all-to-all (attention with sinks knows no other) divides the heads: those of queries and those of
    keys must be a multiple of tp x cp. Windows need dense keys: with latent attention cp must be 1.

    asserted by Transformer Engine in the first forward (context_parallel.py: the number of heads needs to be divisible by CP
    size; the context parallel running configs cannot support MLA)."""
    model, ranks = s.model, c["tp"] * c["cp"]
    if model.window_size and model.multi_latent_attention:
        return c["cp"] == 1
    if not model.attention_sinks:
        return np.ones(len(ranks), bool)
    return (c["cp"] == 1) | ((model.num_attention_heads % ranks == 0) & (model.num_query_groups % ranks == 0))


@_rule("NV061", "ep", "arguments", "megatron/training/arguments.py:1656; megatron/core/transformer/transformer_config.py:1595")
def experts(s: Scenario, c: Columns) -> Mask:
    """Ep above 1 needs experts, and num_moe_experts must be a multiple of ep."""
    return (c["ep"] == 1) | ((s.model.num_moe_experts or 1) % c["ep"] == 0)


@_rule("AC003", "etp", "nowhere")
def expert_tensor_parallel(s: Scenario, c: Columns) -> Mask:
    """etp above 1 needs experts.

    Megatron-LM ignores the size without experts; a plan that says etp=2 would not be what runs."""
    return (c["etp"] == 1) | s.model.is_moe


@_rule("NV002", "etp ep pp", "groups", "megatron/core/parallel_state.py:881")
def expert_world_size(s: Scenario, c: Columns) -> Mask:
    """etp x ep x pp must divide the number of GPUs."""
    return c["num_gpus"] % (c["etp"] * c["ep"] * c["pp"]) == 0


@_rule("NV062", "etp", "config", "megatron/core/transformer/transformer_config.py:2612")
def expert_bias(s: Scenario, c: Columns) -> Mask:
    """Expert tensor parallelism needs experts without biases."""
    return (c["etp"] == 1) | (not (s.model.is_moe and (s.model.moe_expert_bias or s.model.add_bias_linear)))


@_rule("NV048", "sp tp", "run time", "megatron/core/model_parallel_config.py:__post_init__")
def experts_need_sequence_parallel(s: Scenario, c: Columns) -> Mask:
    """A mixture of experts with tp above 1 needs sequence parallelism.

    the MoE layer raises in its first training forward; before that there is a warning."""
    return c["sp"] | (c["tp"] == 1) | (not s.model.is_moe)


@_rule(
    "NV024",
    "pp first last",
    "arguments",
    "megatron/training/arguments.py:998; megatron/core/transformer/transformer_config.py:2382",
)
def layer_split(s: Scenario, c: Columns) -> Mask:
    """The layers must divide over the stages that first=,last= leave.

    even stages in the arguments, first and last stage in the config."""
    between = np.maximum(c["pp"] - 2, 0)
    rest = s.model.num_layers - c["first"] - np.where(c["pp"] > 1, c["last"], 0)
    whole = np.where(between > 0, rest % np.maximum(between, 1) == 0, rest == 0)
    return whole & np.where(between > 0, rest >= between, rest == 0) & (c["first"] > 0) & (c["last"] > 0)


@_rule("NV040", "vpp pp", "arguments", "megatron/training/arguments.py:1000-1006; megatron/core/parallel_state.py:829")
def interleaving(s: Scenario, c: Columns) -> Mask:
    """Virtual pipeline stages need pp above 1."""
    return (c["vpp"] == 1) | (c["pp"] > 1)


@_rule("NV044", "vpp pp first last", "config", "megatron/core/transformer/transformer_block.py:156-196")
def chunk_layers(s: Scenario, c: Columns) -> Mask:
    """The layers of every stage must be a multiple of vpp, or of all stages but the first and the last, whose ends may be
    shorter chunks (a pipeline layout).

    get_num_layers_to_build asserts it when a stage's layers are counted."""
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


@_rule("AC033", "vpp pp first last", "nowhere")
def whole_layers(s: Scenario, c: Columns) -> Mask:
    """A chunk of a hybrid holds whole layers: a mixer and the MLP or experts behind it.

    HybridStack splits its pattern between any two sublayers; GPTModel, which Megatron-Bridge and Megatron-SWIFT build, counts
    both as one layer and divides these (megatron-core 0.19.2, transformer_config.py)."""
    middle = (s.model.num_layers - c["first"] - c["last"]) // np.maximum(c["pp"] - 2, 1)
    size, legal = c["vpp"] * s.model.sublayers_per_layer, np.array(True)
    if s.model.sublayers_per_layer > 1:
        for layers in (c["first"], c["last"], np.where(c["pp"] > 2, middle, 0)):
            legal = legal & (layers % size == 0)
    return legal


@_rule("NV007", "mbs dp", "arguments", "megatron/core/num_microbatches_calculator.py:381")
def batch(s: Scenario, c: Columns) -> Mask:
    """global_batch_size must be a multiple of mbs x dp.

    the evaluation batch in validate_args, then the micro-batch calculator."""
    return c["global_batch_size"] % (c["mbs"] * c["dp"]) == 0


@_rule("NV041", "vpp pp mbs dp", "schedule", "megatron/core/pipeline_parallel/schedules.py:1161")
def interleaved_microbatches(s: Scenario, c: Columns) -> Mask:
    """Interleaving needs at least pp micro-batches."""
    return (c["vpp"] == 1) | (c["global_batch_size"] // (c["mbs"] * c["dp"]) >= c["pp"])


@_rule("AC028", "vpp pp mbs dp", "nowhere")
def filled_stages(s: Scenario, c: Columns) -> Mask:
    """This software stack's 1F1B schedule refuses fewer micro-batches than stages (nanotron: than one less).

    Megatron runs them with bubbles; torch 2.11 raises in Schedule1F1B (distributed/pipelining/schedules.py), nanotron below one
    less (parallel/pipeline_parallel/engine.py)."""
    missing = c["pp"] - c["global_batch_size"] // (c["mbs"] * c["dp"]) // s.workload.schedule_calls
    return (c["pp"] == 1) | (c["vpp"] > 1) | (missing <= s.software.stages_beyond_micro_batches)


@_rule("AC030", "pp mbs dp", "nowhere")
def whole_schedules(s: Scenario, c: Columns) -> Mask:
    """Where a step runs the pipeline's schedule several times, its micro-batches must divide over these.

    Megatron's schedule runs once a step; torchtitan 0.2.2 asserts it (train.py: the global batch over local batch and data
    parallelism; distributed/pipeline_parallel.py: the local batch over its micro-batch)."""
    return (c["pp"] == 1) | (c["global_batch_size"] // (c["mbs"] * c["dp"]) % s.workload.schedule_calls == 0)


@_rule("AC029", "mbs dp", "nowhere")
def one_micro_batch(s: Scenario, c: Columns) -> Mask:
    """Weights that step in backward (optimizer_in_backward) need a step of one micro-batch.

    torchtune's own: its full_finetune recipes refuse gradient accumulation beside optimizer_in_bwd."""
    return (c["global_batch_size"] == c["mbs"] * c["dp"]) | (not s.numerics.optimizer_in_backward)


@_rule("NV042", "vpp pp mbs dp", "schedule", "megatron/core/pipeline_parallel/schedules.py:1172")
def interleaved_groups(s: Scenario, c: Columns) -> Mask:
    """Interleaving needs the number of micro-batches to be a multiple of pp."""
    return (c["vpp"] == 1) | (c["global_batch_size"] // (c["mbs"] * c["dp"]) % c["pp"] == 0)


@_rule("NV100", "fsdp pp ep dist_opt", "arguments", "megatron/training/arguments.py:1031-1048")
def fsdp(s: Scenario, c: Columns) -> Mask:
    """FSDP (fsdp 2 or 3) needs pp 1, ep 1, no distributed optimizer, no fp16 and an output layer of its own."""
    if s.software.sharding != "megatron":
        return (c["fsdp"] == 0) | ~c["dist_opt"]
    tied = not (s.model.untie_embeddings_and_output_weights or s.software.supports_fsdp_with_tied_embeddings)
    possible = not tied and s.numerics.precision != "fp16"
    own = s.given.of_a_run and s.software.supports_fp8_param_gather_with_fsdp  # Megatron-FSDP shards experts, too
    return (c["fsdp"] == 0) | ((c["pp"] == 1) & ((c["ep"] == 1) | own) & ~c["dist_opt"] & possible)


@_rule("AC016", "fsdp pp ep", "nowhere")
def zero_stages(s: Scenario, c: Columns) -> Mask:
    """DeepSpeed's ZeRO-2 and ZeRO-3 need pp 1, and ZeRO-3 a model without DeepSpeed's own layers of experts: ep must be 1.

    DeepSpeed's own rule, which Megatron does not know: DeepSpeed 0.19.8 asserts it in runtime/pipe/engine.py (ZeRO-2 and ZeRO-3
    are incompatible with pipeline parallelism) and runtime/engine.py (MoE not supported with Stage 3)."""
    if s.software.sharding != "deepspeed":
        return np.ones(len(c["fsdp"]), bool)
    whole = (c["ep"] == 1) & ((not s.model.is_moe) | s.software.supports_zero3_with_experts)
    return (c["fsdp"] == 0) | ((c["pp"] == 1) & ((c["fsdp"] < 3) | whole))


@_rule("AC017", "tp cp", "nowhere")
def ulysses_heads(s: Scenario, c: Columns) -> Mask:
    """DeepSpeed-Ulysses (cp) needs num_attention_heads to be a multiple of tp x cp, and seq_length one of cp.

    DeepSpeed's own rule: each rank keeps whole heads between its two all-to-alls (deepspeed/sequence/layer.py)."""
    whole = (s.model.num_attention_heads % (c["tp"] * c["cp"]) == 0) & (s.workload.seq_length % c["cp"] == 0)
    return (c["cp"] == 1) | (s.software.sharding != "deepspeed") | whole


@_rule("AC018", "tp pp", "nowhere")
def model_parallel_support(s: Scenario, c: Columns) -> Mask:
    """This software stack has neither tensor nor pipeline parallelism.

    what a software stack has is ours to know."""
    return ((c["tp"] == 1) & (c["pp"] == 1)) | s.software.supports_model_parallel


@_rule("AC031", "fsdp tp pp cp ep dp", "nowhere")
def unsharded_alone(s: Scenario, c: Columns) -> Mask:
    """DDP of this software stack (fsdp=0, dp or cp above 1) stands beside no other parallelism: tp, pp, cp and ep must be 1.

    Megatron's DDP stands beside all; torchtitan 0.2.2 raises "DDP has not supported > 1D parallelism"
    (models/llama3/infra/parallelize.py and those of its other models), and divides experts over ranks that shard."""
    alone = (c["tp"] == 1) & (c["pp"] == 1) & (c["cp"] == 1) & (c["ep"] == 1)
    return (c["fsdp"] > 0) | (c["dp"] * c["cp"] == 1) | alone | (not s.software.ddp_stands_alone)


@_rule("AC032", "sp tp", "nowhere")
def divided_sequences(s: Scenario, c: Columns) -> Mask:
    """Tensor parallelism of this software stack divides the sequence, too: tp above 1 needs sp=1.

    Megatron has it both ways; torchtitan's parallelize functions always shard norms and residuals by sequence (SequenceParallel
    in apply_tp), and files of its first year could leave it out."""
    return c["sp"] | (c["tp"] == 1) | (not s.software.tp_divides_sequences) | s.given.of_a_run


@_rule("AC009", "fsdp", "nowhere")
def fsdp_support(s: Scenario, c: Columns) -> Mask:
    """This software stack has no FSDP.

    what a software stack has is ours to know."""
    return (c["fsdp"] == 0) | s.software.supports_fsdp


@_rule("NV130", "fsdp dist_opt", "arguments", "megatron/training/arguments.py:1095")
def fp8_param_gather(s: Scenario, c: Columns) -> Mask:
    """fp8_param_gather needs the distributed optimizer or FSDP."""
    return (c["fsdp"] > 0) | c["dist_opt"] | (not s.numerics.fp8_param_gather)


@_rule("NV094", "offload dist_opt fsdp", "config", "megatron/training/arguments.py:1884")
def offload(s: Scenario, c: Columns) -> Mask:
    """Optimizer offload needs the distributed optimizer, and with fp8_param_gather the delayed recipe."""
    possible = not s.numerics.fp8_param_gather or s.numerics.fp8_recipe == "delayed"
    sharded = c["dist_opt"] | ((c["fsdp"] > 0) & (s.software.sharding != "megatron"))  # FSDP2 has a CPUOffloadPolicy
    return (c["offload"] == 0) | (sharded & possible)


@_rule("AC008", "dist_opt", "nowhere")
def distributed_optimizer_support(s: Scenario, c: Columns) -> Mask:
    """This software stack has no distributed optimizer (dist_opt=0).

    what a software stack has is ours to know."""
    return ~c["dist_opt"] | s.software.supports_distributed_optimizer


@_rule(
    "NV092",
    "fsdp dist_opt",
    "config",
    "megatron/core/optimizer/optimizer_config.py:434-466; megatron/core/optimizer/__init__.py:1057",
)
def precision_aware(s: Scenario, c: Columns) -> Mask:
    """Optimizer types other than fp32 need the distributed optimizer.

    OptimizerConfig, built before the model."""
    n = s.numerics
    plain = (n.main_params_dtype, n.exp_avg_dtype, n.exp_avg_sq_dtype) == ("fp32",) * 3 and not n.store_param_remainders
    return c["dist_opt"] | plain


@_rule(
    "NV080",
    "ep pp vpp",
    "config",
    "megatron/core/transformer/transformer_config.py:3002-3037; Bridge:src/megatron/bridge/training/comm_overlap.py:479-499",
)
def ep_overlap(s: Scenario, c: Columns) -> Mask:
    """EP overlap needs ep above 1, pp 1 or interleaving, 16-bit parameters and a dispatcher other than all-gather."""
    possible = s.settings().dispatcher != "allgather" and s.numerics.precision != "fp32"
    return (not asks_overlap(s)) | ((c["ep"] > 1) & ((c["pp"] == 1) | (c["vpp"] > 1)) & possible)


@_rule(
    "NV071",
    "tp ep",
    "kernels",
    "megatron/core/transformer/moe/token_dispatcher.py:1836,1854; "
    "Bridge:src/megatron/bridge/training/flex_dispatcher_backend.py:61-107",
)
def flexible_dispatcher(s: Scenario, c: Columns) -> Mask:
    """DeepEP and HybridEP need tp x ep above 1.

    the flexible dispatcher asserts it when an expert layer is built."""
    return (c["tp"] * c["ep"] > 1) | s.given.of_a_run | (s.given.dispatcher not in ("deepep", "hybridep"))


@_rule("NV036", "pp", "config", "megatron/core/transformer/transformer_config.py:1891")
def activation_offload(s: Scenario, c: Columns) -> Mask:
    """Offloaded activations need one pipeline stage."""
    return (c["pp"] == 1) | (not asks_offload(s))


ALL_RULES: tuple[PlanRule, ...] = (*RULES, *PLAN_RULES)
RULE_TEXT: dict[str, str] = {rule.id: rule.text for rule in ALL_RULES}
JUDGED_RULES = frozenset(rule.id for rule in ALL_RULES if rule.enforced_in in JUDGED)
"""Rules that the real megatron-core enforces before a GPU is needed: `make judge` holds us to them both ways."""
