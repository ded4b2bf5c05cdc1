"""What the records start with, what words and units mean, and scenarios: by hand, from the sources that are named."""

import pytest
from autoconfig.specs.errors import GIB, MIB, SECONDS_PER_DAY, InputError, chance_text, nearest
from autoconfig.specs.hardware.cluster import brief, cluster_of
from autoconfig.specs.job import Job, ranks_of_stages, read_stages
from autoconfig.specs.json_record import AboveZero, Natural, NotNegative, Positive, Share
from autoconfig.specs.measurement import ExitCode, step_statistics
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import Recompute, TrainPlan, parse_plan
from autoconfig.specs.run_settings import (
    RunSettings,
)
from autoconfig.specs.scenario import (
    TYPE_BYTES,
    Entry,
    Factors,
    Numerics,
    Scenario,
    Workload,
    endless_recomputation,
    not_buildable,
)
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import (
    EngineSpec,
)
from autoconfig.specs.software.software import StackMemory, StackTime, load_stack
from autoconfig.specs.units import parse_count, parse_seconds, parse_size, whole_number
from small_models import GPT, H100, MODELS, MOE, T5
from tables import tabled

TE = load_stack("transformer-engine")

DEFAULTS = [
    # megatron/training/arguments.py: --attention-dropout, --hidden-dropout 0.1; --lora-rank of NeMo's recipes 8
    (Numerics(), {"attention_dropout": 0.1, "hidden_dropout": 0.1, "lora_rank": 8, "moe_imbalance": None, "precision": "bf16"}),
    (TrainPlan(tp=1, pp=1, dp=1, mbs=1), {"vpp": 1, "cp": 1, "ep": 1, "etp": 1, "fsdp": 0, "offload": 0, "dist_opt": True}),
    (Recompute(), {"granularity": "none", "num_layers": 0, "modules": ()}),
    # vLLM's max_num_seqs was 256; TensorRT-LLM's BuildConfig: max_num_tokens 8192, max_batch_size 2048, tokens_per_block 32,
    # free_gpu_memory_fraction 0.9
    (EnginePlan(), {"tp": 1, "pp": 1, "ep": 1, "adp": 1, "batch": 256, "tokens": 8192, "replicas": 1}),
    (EngineSpec(name="x", description="", framework="", year=2025), {
        "max_num_tokens": 8192, "max_batch_size": 2048, "kv_block_tokens": 32, "kv_memory_ratio": 0.9, "runtime_bytes": 0,
        "activation_live_buffers": 4}),
    (Factors(), dict.fromkeys(("step", "memory", "communication", "attention", "moe", "host"), 1)),
    (RunSettings(), {"dispatcher": "alltoall", "offload_layers": 0, "cuda_graphs": frozenset()}),
    # --make-vocab-size-divisible-by 128; a causal convolution of Mamba-2 has 4 taps; --moe-router-topk and rotary share whole
    (ModelSpec(**{key: value for key, value in MODELS["gpt"].items() if key != "position_embedding_type"}), {
        "make_vocab_size_divisible_by": 128, "linear_conv_kernel_dim": 4, "rotary_percent": 1, "num_layernorms_per_layer": 2,
        "max_position_embeddings": 4096, "moe_router_topk": 1, "moe_layer_freq": 1, **dict.fromkeys((
            "encoder_num_layers", "relative_attention_num_buckets", "num_tokentypes", "moe_ffn_hidden_size", "kv_lora_rank",
            "moe_shared_expert_intermediate_size", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "mtp_num_layers",
            "dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk", "mamba_num_heads", "mamba_head_dim",
            "mamba_state_dim", "mamba_num_groups", "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
            "linear_value_head_dim"), 0)}),
    (Job(model=GPT, plan=TrainPlan(tp=1, pp=1, dp=1, mbs=1), workload=Workload(seq_length=8, global_batch_size=1)),
     {"steps": 5, "warmup_steps": 2, "seed": 1234}),
    # Korthikanti et al. 2022, section 4.1: 2 a s^2 b of scores, 1 of the mask, 2 of the dropped ones; in the backward two
    # 16-bit gradients. A norm keeps its 16-bit input and fp32 statistics. docs/memory_model.md: loss 6, c = 1 and 1.7.
    (StackMemory(), {
        "score_bytes": 2, "score_dropout_bytes": 1 + 2, "score_backward_bytes": 2 + 2, "score_dropped_bytes": 2,
        "norm_input_bytes": 2, "norm_statistics_bytes": 4, "loss_bytes_per_logit": 6, "logit_gradient_bytes": 2,
        "mlp_backward_buffers": 1, "mlp_backward_buffers_no_sp": 1.7, **dict.fromkeys((
            "attention_mask_bytes", "rope_copy_bytes", "gated_activation_extra_bytes", "retained_logit_bytes",
            "tp_loss_bytes_per_logit", "workspace_bytes", "model_parallel_reserved_gib"), 0)}),
    # docs/time_model.md, norm_bytes: norm 4 / 12, residual 4 / 6 and with dropout + 3 / + 4, GELU 4 / 8, SwiGLU 6 / 10, copies
    # 4 / 5.5, RoPE 4; cross entropy 44; optimizer 26 and 3 ms; refit_mixtures: 0.9 and 0.115 ms, 0.85, 2.2, 0.86, 3.6;
    # HybridEP's table: 0.87
    (StackTime(), {
        "norm_forward_bytes": 4, "norm_backward_bytes": 12, "residual_forward_bytes": 4, "residual_backward_bytes": 6,
        "dropout_forward_bytes": 3, "dropout_backward_bytes": 4, "qkv_copy_forward_bytes": 4, "qkv_copy_backward_bytes": 5.5,
        "rope_bytes": 4, "activation_forward_bytes": 4, "activation_backward_bytes": 8, "gated_forward_bytes": 6,
        "gated_backward_bytes": 10, "forward_launches": 10, "backward_launches": 14, "loss_traffic_bytes": 44,
        "optimizer_extra_bytes": 26, "optimizer_fixed_seconds": 3e-3, "straggler_growth": 1e-3, "host_floor_seconds": 5e-4,
        "moe_host_seconds": 9e-4, "expert_host_seconds": 1.15e-4, "ep_overlap_hides": 0.85, "ep_overlap_host": 2.2,
        "grouped_gemm_share": 0.86, "hybridep_link_share": 0.87, "sink_attention_slowdown": 3.6, "moe_imbalance": 1.15,
        "cp_overlap_share": 0.8, "overlap_interference": 0.25}),
]  # fmt: skip


@pytest.mark.parametrize(("record", "usual"), DEFAULTS, ids=[type(record).__name__ for record, _ in DEFAULTS])
def test_what_a_record_holds_where_nothing_is_said(record, usual):
    assert {name: getattr(record, name) for name in usual} == usual


def test_units_bytes_of_types_and_exit_codes():
    assert (GIB, MIB, SECONDS_PER_DAY) == (1_073_741_824, 1_048_576, 24 * 3600)
    assert TYPE_BYTES == {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
    found = {code.name: int(code) for code in ExitCode}
    assert found == {
        "RAN": 0, "CRASHED": 1, "BAD_JOB": 2, "OUT_OF_MEMORY": 10, "PEER_LOST": 11, "MISSING_PACKAGE": 12, "DISK": 13,
        "NO_DEVICE": 14, "INTERRUPTED": 130, "TERMINATED": 143,
    }  # fmt: skip


def test_keywords_of_the_schemas_numbers():
    found = [kind.__metadata__[0].keywords for kind in (Natural, Positive, NotNegative, AboveZero, Share)]
    least, most = {"minimum": 0}, {"maximum": 1}
    assert found == [least, {"minimum": 1}, least, {"exclusiveMinimum": 0}, least | most]


@tabled
def test_a_chance_is_never_rounded_up(chance, text):
    assert chance_text(chance) == text


@tabled
def test_durations(text, seconds):
    if seconds is None:
        with pytest.raises(ValueError, match=r"duration|without a unit"):
            parse_seconds(text, 10.0)
    else:
        assert parse_seconds(text, 10.0) == pytest.approx(seconds)


@pytest.mark.parametrize("field", ["gpus", "global_batch_size", "prompts", "minibatch"])
def test_a_thousand_of_what_is_no_length_may_be_either(field):
    with pytest.raises(ValueError, match="write 2000 or 2048"):
        whole_number("2k", field)


@tabled
def test_whole_numbers(given, field, number):
    if number is None:
        with pytest.raises(ValueError, match="integer"):
            whole_number(given, field)
    else:
        assert whole_number(given, field) == number


def test_near_names_begin_alike_or_look_alike_and_are_at_most_three():
    known = ["h100-a", "h100-b", "h100-c", "h100-d", "a100"]
    assert nearest("h100", known) == ["h100-a", "h100-b", "h100-c"] and nearest("", known) == []
    assert nearest("H100-A", known, 1) == ["h100-a"] and nearest("zzz", known) == [] and nearest("a10", known)[0] == "a100"


def test_a_value_in_a_message_is_at_most_80_characters():
    assert brief("x" * 80) == "x" * 80 and brief("x" * 81) == "x" * 77 + "..." and brief("a\nb") == "a\\nb"


def test_statistics_of_a_steps_samples():
    assert step_statistics((3.0, 1.0, 2.0, 9.0))["step_seconds"] == 2.5
    assert step_statistics((3.0, 1.0, 9.0))["step_seconds_spread"] == 8.0


@tabled
def test_stages_that_are_traced(pp, text, stages):
    assert list(read_stages(text, TrainPlan(tp=1, pp=pp, dp=1, mbs=1))) == stages


@tabled
def test_what_megatron_has_no_setting_for(change, said, more):
    found = not_buildable(GPT.replace(**change), **more)
    assert (said in found[0] and len(found) == 1) if said else not found


@pytest.mark.parametrize(("model", "modules", "ends"), [
    (GPT, ("mlp",), False), (GPT, ("moe",), True), (GPT.replace(add_bias_linear=False), ("mlp",), True),
    (MOE, ("mlp",), True), (MOE.replace(moe_layer_freq=2), ("mlp",), False),
])  # fmt: skip
def test_recomputed_mlps_with_biases_never_end(model, modules, ends):
    assert (endless_recomputation(model, modules) is None) == ends


def test_tokens_of_a_sample():
    both = Workload(seq_length=1000, global_batch_size=8, decoder_seq_length=250)
    assert [both.tokens_of(kind) for kind in ("encoder", "decoder", "dense")] == [1000, 250, 1000]
    assert Workload(seq_length=1000, global_batch_size=8).tokens_of("decoder") == 1000 and both.tokens_per_step == 8000
    assert Workload(seq_length=1000, global_batch_size=1, packed_length=10).attended_length == 10
    assert both.attended_length == 1000


def test_a_stack_of_two_is_a_scenario_of_its_own():
    whole = Scenario(
        model=T5, cluster=cluster_of(H100, 8), numerics=Numerics(), software=TE,
        workload=Workload(seq_length=100, global_batch_size=8, decoder_seq_length=30),
    )  # fmt: skip
    encoder, decoder = whole.stack("encoder"), whole.stack("decoder")
    assert (encoder.model.num_layers, encoder.workload.seq_length, encoder.model.is_encoder_only) == (2, 100, True)
    assert (decoder.model.num_layers, decoder.workload.seq_length, decoder.model.encoder_num_layers) == (2, 30, 0)
    assert whole.with_batch(16).workload.global_batch_size == 16 and whole.on(num_gpus=16).cluster.num_gpus == 16


def test_sizes_are_read_in_their_units():
    sizes = {"3b": 3, "600MiB": 600 * 2**20, "5MB": 5e6, "2 GB": 2e9, "1.5TB": 1.5e12, "2GiB": 2**31, "1TiB": 2**40, 17: 17}
    assert {given: parse_size(given) for given in sizes} == sizes
    for given in ("0b", "1e3", "5 km", float("inf"), True, ""):
        with pytest.raises(InputError, match="write it like 600MiB"):
            parse_size(given)


def test_counts_are_positive_and_words_give_their_power_of_a_thousand():
    found = [parse_count(text) for text in ("4096", "7k", "350M", "300b", "2g", "1.5T", "2e12")]
    assert found == [4096, 7e3, 350e6, 300e9, 2e9, 1.5e12, 2e12]
    for text in ("0", "0b", "1e400", "-1", "1.5.1", ""):
        with pytest.raises(InputError):
            parse_count(text)


def test_ranks_that_stand_for_stages_are_the_first_and_the_last_of_each():
    """Stages of 8 of 32 ranks follow each other; a stage of one rank has one."""
    plan = parse_plan("tp=2,pp=4,mbs=1", 32)
    assert ranks_of_stages(plan, (0, 2), both_ends=True) == (0, 7, 16, 23)
    assert ranks_of_stages(plan, (1, 3), both_ends=False) == (8, 24)
    assert ranks_of_stages(parse_plan("pp=4,mbs=1", 4), (0, 3), both_ends=True) == (0, 3)


def test_an_entry_of_a_calibration_is_dense_unless_it_says_so():
    assert Entry(architecture="x", generation="y", factors=Factors()).kind == "dense"
