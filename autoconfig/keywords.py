"""Keywords of the functions of `import autoconfig`, as types for editors; written by `python -m tools.keywords`.

What each means: `autoconfig COMMAND --help-all`, under the option of its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class _Common(TypedDict, total=False):
    """Of every question about training."""

    model: str | Mapping[str, Any]
    like: str
    download: bool
    cluster: str | Mapping[str, Any]
    gpus_per_node: int | str
    software: str
    calibration: str
    seq_length: int | str
    decoder_seq_length: int | str
    packed_length: int | str
    global_batch_size: int | str
    schedule_calls: int | str
    zero_stage: int | str
    memory_margin: float | str
    tokens: float | str
    price: float | str | Mapping[str, Any]
    power_limit: float
    memory_bandwidth: float
    dispatcher: str
    cuda_graphs: str
    ep_overlap: bool
    fused_experts: bool
    fp8_attention: bool
    fp8_output: bool
    offload_layers: int | str
    activation_offload: bool
    compile: bool
    loss: str
    async_tp: bool
    zero_bucket: int | str
    expandable_segments: bool
    fp8_recipe: str
    fp8_param_gather: bool
    grad_reduce_dtype: str
    main_params_dtype: str
    optimizer: str
    exp_avg_dtype: str
    exp_avg_sq_dtype: str
    store_param_remainders: bool
    master_weights: str
    optimizer_in_backward: bool
    weights_are_masters: bool
    attention_dropout: float
    hidden_dropout: float
    moe_capacity_factor: float
    moe_imbalance: float
    deterministic: bool
    peft: str
    frozen_dtype: str
    lora_rank: int | str
    lora_target_modules: str
    num_layers: int | str
    hidden_size: int | str
    ffn_hidden_size: int | str
    num_attention_heads: int | str
    num_query_groups: int | str
    kv_channels: int | str
    vocab_size: int | str
    max_position_embeddings: int | str
    rotary_base: int | str
    make_vocab_size_divisible_by: int | str
    num_moe_experts: int | str
    moe_router_topk: int | str
    moe_ffn_hidden_size: int | str
    moe_shared_expert_intermediate_size: int | str
    moe_layer_freq: int | str
    q_lora_rank: int | str
    kv_lora_rank: int | str
    qk_head_dim: int | str
    qk_pos_emb_head_dim: int | str
    v_head_dim: int | str
    mtp_num_layers: int | str
    window_size: int | str
    window_attn_skip_freq: int | str
    untie_embeddings_and_output_weights: bool
    add_bias_linear: bool
    add_qkv_bias: bool
    qk_layernorm: bool
    gated_linear_unit: bool


class _File(TypedDict, total=False):
    """Of every file that is read."""

    model: str | Mapping[str, Any]
    like: str
    gpus: int | str
    gpu: str
    cluster: str | Mapping[str, Any]
    gpus_per_node: int | str
    power_limit: float
    memory_bandwidth: float
    software: str
    core_release: str
    seq_length: int | str
    global_batch_size: int | str
    set: str | Sequence[str] | Mapping[str, Any]


class QuestionKeywords(_Common, total=False):
    """Of `explain` and `export`."""

    gpus: int | str
    gpu: str
    gpu_table: str
    precision: str


class DiagnoseKeywords(_Common, total=False):
    """Of `diagnose`."""

    gpus: int | str
    gpu: str
    gpu_table: str
    precision: str
    step: float | str
    tokens_per_s_per_gpu: float
    tflops_per_gpu: float
    mfu: float | str
    core_release: str
    set: str | Sequence[str] | Mapping[str, Any]


class SearchKeywords(_Common, total=False):
    """Of `search`."""

    gpus: int | str
    gpu: str | Sequence[str]
    gpu_table: str
    precision: str | Sequence[str]
    top: int | str
    include: str | Sequence[str] | Mapping[str, Any]
    fix: str | Sequence[str] | Mapping[str, Any]
    max: str | Sequence[str] | Mapping[str, Any]
    exclude: str | Sequence[str] | Mapping[str, Any]
    vary: str | Sequence[str] | Mapping[str, Any]
    gpus_at_most: int | str
    fit_chance: float | str
    sort_by: str


class ScalingKeywords(_Common, total=False):
    """Of `scaling`."""

    gpus: int | str | Sequence[int]
    gpu: str | Sequence[str]
    precision: str
    fix: str | Sequence[str] | Mapping[str, Any]
    max: str | Sequence[str] | Mapping[str, Any]
    exclude: str | Sequence[str] | Mapping[str, Any]
    fit_chance: float | str
    keep: str | Sequence[str] | Mapping[str, Any]
    days: float
    spares: int | str
    mtbf: float
    checkpoint_rate: float
    restart_seconds: float
    repair_hours: float


class BudgetKeywords(TypedDict, total=False):
    """Of `budget`."""

    money: float | str
    days: float | str
    model: str | Mapping[str, Any]
    family: str
    gpu: str | Sequence[str] | Mapping[str, Any]
    gpus: int | str
    tokens: float | str
    like: str
    download: bool
    gpus_per_node: int | str
    software: str
    calibration: str
    seq_length: int | str
    decoder_seq_length: int | str
    packed_length: int | str
    global_batch_size: int | str
    schedule_calls: int | str
    zero_stage: int | str
    memory_margin: float | str
    power_limit: float
    memory_bandwidth: float
    dispatcher: str
    cuda_graphs: str
    ep_overlap: bool
    fused_experts: bool
    fp8_attention: bool
    fp8_output: bool
    offload_layers: int | str
    activation_offload: bool
    compile: bool
    loss: str
    async_tp: bool
    zero_bucket: int | str
    expandable_segments: bool
    precision: str
    fp8_recipe: str
    fp8_param_gather: bool
    grad_reduce_dtype: str
    main_params_dtype: str
    optimizer: str
    exp_avg_dtype: str
    exp_avg_sq_dtype: str
    store_param_remainders: bool
    master_weights: str
    optimizer_in_backward: bool
    weights_are_masters: bool
    attention_dropout: float
    hidden_dropout: float
    moe_capacity_factor: float
    moe_imbalance: float
    deterministic: bool
    peft: str
    frozen_dtype: str
    lora_rank: int | str
    lora_target_modules: str
    num_layers: int | str
    hidden_size: int | str
    ffn_hidden_size: int | str
    num_attention_heads: int | str
    num_query_groups: int | str
    kv_channels: int | str
    vocab_size: int | str
    max_position_embeddings: int | str
    rotary_base: int | str
    make_vocab_size_divisible_by: int | str
    num_moe_experts: int | str
    moe_router_topk: int | str
    moe_ffn_hidden_size: int | str
    moe_shared_expert_intermediate_size: int | str
    moe_layer_freq: int | str
    q_lora_rank: int | str
    kv_lora_rank: int | str
    qk_head_dim: int | str
    qk_pos_emb_head_dim: int | str
    v_head_dim: int | str
    mtp_num_layers: int | str
    window_size: int | str
    window_attn_skip_freq: int | str
    untie_embeddings_and_output_weights: bool
    add_bias_linear: bool
    add_qkv_bias: bool
    qk_layernorm: bool
    gated_linear_unit: bool
    fix: str | Sequence[str] | Mapping[str, Any]
    max: str | Sequence[str] | Mapping[str, Any]
    exclude: str | Sequence[str] | Mapping[str, Any]
    fit_chance: float | str
    mtbf: float
    checkpoint_rate: float
    restart_seconds: float
    repair_hours: float


class DeploymentsKeywords(TypedDict, total=False):
    """Of `deployments`."""

    model: str | Mapping[str, Any]
    like: str
    download: bool
    gpus: int | str
    gpu: str
    gpus_per_node: int | str
    engine: str
    isl: int | str
    osl: int | str
    isl_stddev: float
    osl_stddev: float
    trace: str | Sequence[Mapping[str, Any]]
    ttft: float | str
    tpot: float | str
    ttft_p95: float | str
    ttft_p99: float | str
    tpot_p95: float | str
    tpot_p99: float | str
    rate: float
    goal: str
    fix: str | Sequence[str] | Mapping[str, Any]
    include: str | Sequence[str] | Mapping[str, Any]
    prefix_hit: float | str
    draft_tokens: int | str
    acceptance: float | str
    imbalance: float
    disaggregated: bool
    chunked_prefill: bool
    kv_memory_ratio: float | str
    release: str
    max_num_seqs: int | str
    max_model_len: int | str
    enforce_eager: bool
    max_loras: int | str
    max_lora_rank: int | str
    draft_method: str
    price: float | str | Mapping[str, Any]
    calibration: str
    top: int | str
    simulate: int | str


class RlKeywords(TypedDict, total=False):
    """Of `rl`."""

    model: str | Mapping[str, Any]
    download: bool
    like: str
    gpus: int | str
    gpu: str
    algorithm: str
    framework: str
    prompts: int | str
    group_size: int | str
    minibatch: int | str
    prompt_length: int | str
    response_length: int | str
    max_response_length: int | str
    tokens_per_gpu: int | str
    logprob_micro_batch: int | str
    staleness: int | str
    goal: str
    hours: float
    steps: int | str
    turns: int | str
    tool_time: float
    tool_spread: float
    tool_tokens: int | str
    sandboxes: int | str
    drop_prefix: bool
    host_memory: float | str
    fit_chance: float | str
    top: int | str
    price: float | str | Mapping[str, Any]
    calibration: str


class PredictKeywords(_File, total=False):
    """Of `predict`."""

    memory_margin: float | str
    dispatcher: str
    cuda_graphs: str
    ep_overlap: bool
    fused_experts: bool
    fp8_attention: bool
    fp8_output: bool
    offload_layers: int | str
    activation_offload: bool
    compile: bool
    loss: str
    async_tp: bool
    zero_bucket: int | str
    expandable_segments: bool


class CheckKeywords(_File, total=False):
    """Of `check`."""

    memory_margin: float | str
    fit_chance: float | str
    dispatcher: str
    cuda_graphs: str
    ep_overlap: bool
    fused_experts: bool
    fp8_attention: bool
    fp8_output: bool
    offload_layers: int | str
    activation_offload: bool
    compile: bool
    loss: str
    async_tp: bool
    zero_bucket: int | str
    expandable_segments: bool
    without_effect: str | Sequence[str] | Mapping[str, Any]
    release: str
    server: int | str
    isl: int | str
    osl: int | str
    rate: float
    concurrency: int | str
    trace: str | Sequence[Mapping[str, Any]]


class ConvertKeywords(_File, total=False):
    """Of `convert`, but for its format."""
