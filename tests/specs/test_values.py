"""What the records start with, what words mean, and the switches of a run: by hand, from the sources that are named."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from autoconfig.specs.errors import (
    GIB,
    MIB,
    SECONDS_PER_DAY,
    InputError,
    UnknownKeyError,
    chance_text,
    nearest,
    parse_seconds,
    whole_number,
)
from autoconfig.specs.hardware.cluster import brief, cluster_of, load_gpu, match_reported_gpu
from autoconfig.specs.job import Job, read_stages
from autoconfig.specs.json_record import AboveZero, Natural, NotNegative, Positive, Share
from autoconfig.specs.layouts import layouts_of, middle_layers
from autoconfig.specs.measurement import ExitCode, step_statistics
from autoconfig.specs.models.config_reader import ConfigReader, rotary_fields
from autoconfig.specs.models.hybrid import delta_rule_flops_per_token, scan_flops_per_token, state_layer_bytes
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import gpt3_style, load_model
from autoconfig.specs.models.module_names import ModuleNames
from autoconfig.specs.models.overrides import apply_overrides
from autoconfig.specs.models.parameters import active_matmul_parameters, cross_attention_parameters
from autoconfig.specs.models.pattern import published_layers, scaled_pattern
from autoconfig.specs.plan import Recompute, TrainPlan, parse_plan
from autoconfig.specs.run_settings import (
    GivenSettings,
    RunSettings,
    current_recipes,
    formula_only,
    recipes,
    release_neighbours,
    resolve_settings,
    usual_graphs,
    without_ring,
)
from autoconfig.specs.scenario import (
    FORMATS,
    TYPE_BYTES,
    Entry,
    Factors,
    Numerics,
    Scenario,
    Workload,
    endless_recomputation,
    gathers_fp8,
    not_buildable,
    userbuffers_know,
    userbuffers_run,
)
from autoconfig.specs.serve_plan import EnginePlan, parse_serve_plan
from autoconfig.specs.software.checkpoint import checkpoint_of
from autoconfig.specs.software.engine import (
    EngineSpec,
    ModuleFormats,
    load_engine,
    loads_checkpoint,
    nearest_release,
    require_sparse_kernels,
)
from autoconfig.specs.software.software import StackMemory, StackOptions, StackTime, load_stack, with_options
from small_models import MODELS

H100, B200, A100, V100 = (load_gpu(name) for name in ("h100", "b200", "a100-sxm-80gb", "v100-32gb"))
MI300X = load_gpu("mi300x")
GPT, MOE, T5, BERT, HYBRID, MLA, OSS = (
    ModelSpec(**MODELS[name]) for name in ("gpt", "moe", "t5", "bert", "hybrid", "mla", "gpt-oss")
)
TE = load_stack("transformer-engine")

DEFAULTS = [
    # megatron/training/arguments.py: --attention-dropout, --hidden-dropout 0.1; --lora-rank of NeMo's recipes 8
    (Numerics(), {"attention_dropout": 0.1, "hidden_dropout": 0.1, "lora_rank": 8, "moe_imbalance": 1, "precision": "bf16"}),
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
            "gathered_loss_bytes_per_logit", "workspace_bytes", "model_parallel_reserved_gib"), 0)}),
    # docs/time_model.md, norm_bytes: norm 4 / 12, residual 4 / 6 and with dropout + 3 / + 4, GELU 4 / 8, SwiGLU 6 / 10, copies
    # 4 / 5.5, RoPE 4; cross entropy 44; optimizer 26 and 3 ms; refit_mixtures: 0.9 and 0.115 ms, 0.85, 2.2, 0.86, 0.78, 3.6
    (StackTime(), {
        "norm_forward_bytes": 4, "norm_backward_bytes": 12, "residual_forward_bytes": 4, "residual_backward_bytes": 6,
        "dropout_forward_bytes": 3, "dropout_backward_bytes": 4, "qkv_copy_forward_bytes": 4, "qkv_copy_backward_bytes": 5.5,
        "rope_bytes": 4, "activation_forward_bytes": 4, "activation_backward_bytes": 8, "gated_forward_bytes": 6,
        "gated_backward_bytes": 10, "forward_launches": 10, "backward_launches": 14, "loss_traffic_bytes": 44,
        "optimizer_extra_bytes": 26, "optimizer_fixed_seconds": 3e-3, "straggler_growth": 1e-3, "host_floor_seconds": 5e-4,
        "moe_host_seconds": 9e-4, "expert_host_seconds": 1.15e-4, "ep_overlap_hides": 0.85, "ep_overlap_host": 2.2,
        "grouped_gemm_share": 0.86, "hybridep_link_share": 0.78, "sink_attention_slowdown": 3.6, "moe_imbalance": 1.15,
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


@pytest.mark.parametrize(("chance", "text"), [
    (0.896, "89%"), (0.899999, "89%"), (0.9, "90%"), (0.9901, "99%"), (0.991, "99.1%"), (0.99899, "99.8%"), (0.9999, "100%"),
    (0.99989, "99.9%"), (0.0, "0%"), (1.0, "100%"), (0.29, "29%"), (0.57, "57%"),
])  # fmt: skip
def test_a_chance_is_never_rounded_up(chance, text):
    assert chance_text(chance) == text


@pytest.mark.parametrize(("text", "seconds"), [
    ("50ms", 0.05), ("20us", 2e-5), ("2s", 2.0), ("0.05", 0.05), (99.9, 99.9), ("100s", 100.0), ("100", None), ("0", None),
    ("-1s", None), ("infs", None), ("inf", None), ("nan", None), ("1h", None), (" 3 S ", 3.0),
])  # fmt: skip
def test_durations(text, seconds):
    if seconds is None:
        with pytest.raises(ValueError, match=r"duration|without a unit"):
            parse_seconds(text)
    else:
        assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(("given", "field", "number"), [
    ("4k", "seq_length", 4096), ("128K", "isl", 131072), ("4k", "gpus", None), ("1,024", "gpus", 1024), ("1,02", "gpus", None),
    ("12", "gpus", 12), (7, "gpus", 7), (True, "gpus", None), (1.5, "gpus", None), ("", "gpus", None),
    ("1234,567", "gpus", None), ("1,234,567", "gpus", 1_234_567), ("1234567k", "isl", None), ("999999k", "isl", 1_023_998_976),
])  # fmt: skip
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


@pytest.mark.parametrize(("pp", "text", "stages"), [
    (4, None, (0, 2, 3)), (1, None, (0,)), (2, None, (0, 1)), (3, " all ", (0, 1, 2)), (4, "3,0,3", (3, 0)),
])  # fmt: skip
def test_stages_that_are_traced(pp, text, stages):
    assert read_stages(text, TrainPlan(tp=1, pp=pp, dp=1, mbs=1)) == stages


@pytest.mark.parametrize(("share", "known"), [(0.901, True), (0.899, False), (1.099, True), (1.101, False), (1.0, True)])
def test_a_reported_gpu_may_differ_by_a_tenth_of_its_memory(share, known):
    def ask():
        return match_reported_gpu("NVIDIA H100 80GB HBM3", H100.memory_bytes * share)

    if known:
        assert ask().id == H100.id
    else:
        with pytest.raises(InputError, match="with other memory"):
            ask()


@pytest.mark.parametrize(("gpu", "per_node", "domain"), [
    ("h100", 4, 4), ("h100", 16, 16), ("gb200", 4, 72), ("gb200", 18, 72), ("gb200", 32, 64), ("gb200", 96, 96),
])  # fmt: skip
def test_a_domain_is_of_whole_nodes(gpu, per_node, domain):
    assert cluster_of(load_gpu(gpu), per_node, gpus_per_node=per_node).link_domain_size == domain


@pytest.mark.parametrize(("gpus", "nodes"), [(1, 1), (8, 1), (16, 2), (24, 3)])
def test_nodes_in_use(gpus, nodes):
    assert cluster_of(H100, gpus).num_nodes == nodes


def test_a_dgx_h200_has_less_than_a_tenth_of_its_links_in_its_network():
    cluster = cluster_of(load_gpu("h200"), 16)
    assert cluster.link_bytes_per_s == 450e9 and cluster.nic_bytes_per_s == 400e9 / 8 and cluster.hbm_bytes_per_s == 4.8e12


@pytest.mark.parametrize(("key", "capability", "expected"), [
    (("fp8", "delayed"), 9.0, 2), (("fp8", "delayed"), 10.0, 1), (("fp8", "delayed"), None, 2), (("fp8", "blockwise"), 9.9, 2),
    (("fp8", "mxfp8"), 10.0, 2 * 33 / 32), (("nvfp4", ""), 12.0, 2 * 9 / 16), (("bf16", ""), 10.0, 2),
])  # fmt: skip
def test_orientations_of_a_quantised_weight(key, capability, expected):
    """Below Blackwell GEMMs read one layout of fp8 only; microscaling scales one direction, so both are kept."""
    assert FORMATS[key].weight_copy_bytes(capability) == expected


@pytest.mark.parametrize(("fsdp", "stack", "given", "holds"), [
    (0, "transformer-engine", True, True), (0, "transformer-engine", False, False), (3, "transformer-engine", True, False),
    (2, "transformer-engine", True, False), (3, "nemo-25.11", True, True),
])  # fmt: skip
def test_weights_are_gathered_in_fp8_but_under_torchs_fsdp2(fsdp, stack, given, holds):
    assert bool(gathers_fp8(Numerics(precision="fp8", fp8_param_gather=given), load_stack(stack), fsdp)) == holds


@pytest.mark.parametrize(("model", "numerics", "gpu", "plan", "runs"), [
    (GPT, {}, H100, (2, True, 0), True), (GPT, {}, H100, (1, True, 0), False), (GPT, {}, H100, (2, False, 0), False),
    (GPT, {}, H100, (8, True, 0), True), (GPT, {}, H100, (16, True, 0), False), (GPT, {}, H100, (2, True, 3), False),
    (GPT, {}, B200, (2, True, 3), True), (MOE, {}, H100, (2, True, 0), False), (MLA, {}, H100, (2, True, 0), False),
    (GPT, {"deterministic": True}, H100, (2, True, 0), False),
])  # fmt: skip
def test_userbuffers(model, numerics, gpu, plan, runs):
    tp, sp, fsdp = plan
    found = userbuffers_run(model, Numerics(**numerics), TE, cluster_of(gpu, 16), tp=tp, sp=sp, fsdp=fsdp)
    assert bool(found) == runs
    without = replace(TE, time=replace(TE.time, tp_overlap_share=0.0))
    assert not userbuffers_know(model, Numerics(), without)


@pytest.mark.parametrize(("change", "said", "more"), [
    ({}, "", {}), ({"encoder_num_layers": 2}, "an encoder", {}), ({"encoder_num_layers": 2}, "", {"encoders": True}),
    ({"position_embedding_type": "alibi"}, "alibi", {}), ({"parallel_attention": True}, "in parallel", {}),
    ({"embedding_layernorm": True}, "behind the embedding", {}), ({"layernorm_bias": False}, "without bias", {}),
    ({"layernorm_bias": False, "normalization": "RMSNorm"}, "", {}), ({"activation": "relu"}, "activation relu", {}),
    ({"activation": "geglu", "gated_linear_unit": True}, "activation geglu", {}),
    ({"activation": "geglu", "gated_linear_unit": True}, "activation geglu", {"encoders": True}),
    ({"activation": "geglu", "gated_linear_unit": True}, "", {"gemma": True}),
    ({"activation": "geglu", "gated_linear_unit": True, "encoder_num_layers": 2}, "", {"encoders": True}),
    ({"num_layernorms_per_layer": 4}, "four a layer", {}), ({"num_layernorms_per_layer": 4}, "", {"gemma": True}),
    ({"qk_layernorm_full": True}, "all channels", {}), ({"add_bias_linear": False, "add_mlp_bias": True}, "some linear", {}),
    ({"add_bias_linear": False, "add_attention_output_bias": True}, "some linear", {}), ({"add_bias_linear": False}, "", {}),
])  # fmt: skip
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


@pytest.mark.parametrize(("model", "of"), [
    (GPT, ("dense",)), (MOE, ("dense", "moe")), (T5, ("encoder", "decoder")), (BERT, ("dense",)),
    (HYBRID, ("mamba", "attention", "gdn", "moe")),
])  # fmt: skip
def test_kinds_of_layers(model, of):
    assert model.kinds == of and model.is_encoder_only == (model is BERT) and model.is_encoder_decoder == (model is T5)
    assert model.has_dense_mlp == (model not in (MOE, HYBRID))
    assert model.attention_layers == (1 if model is HYBRID else 4)


@pytest.mark.parametrize(("freq", "moe", "slides"), [
    (1, (1, 1, 1, 1), (0, 0, 0, 0)), (2, (1, 0, 1, 0), (1, 0, 1, 0)), (3, (1, 0, 0, 1), (1, 1, 0, 1)),
    ((0, 1, 1, 0), (0, 1, 1, 0), (0, 1, 1, 0)), (None, None, (1, 1, 1, 1)),
])  # fmt: skip
def test_which_layers_have_experts_and_which_slide(freq, moe, slides):
    """Megatron's --moe-layer-freq N: layers 0, N, 2 N ...; --window-attn-skip-freq N: layers N, 2 N, ... counted from 1 do not
    slide."""
    assert moe is None or MOE.replace(moe_layer_freq=freq).moe_pattern == moe
    assert GPT.replace(window_size=8, window_attn_skip_freq=freq).sliding_pattern == slides
    assert GPT.replace(window_attn_skip_freq=freq).sliding_pattern == (0, 0, 0, 0)


SCENARIO = Scenario(
    model=MOE, cluster=cluster_of(H100, 8), numerics=Numerics(), software=TE,
    workload=Workload(seq_length=64, global_batch_size=8),
)  # fmt: skip


@pytest.mark.parametrize(("graphs", "recompute", "left"), [
    ({"attn", "full_iteration"}, "full:uniform:1", {"full_iteration"}), ({"full"}, "full:block:1", set()),
    ({"attn", "moe_router", "moe_preprocess"}, "selective:moe", {"attn"}), 
    ({"moe_router"}, "selective:moe_act", {"moe_router"}), ({"attn"}, "none", {"attn"}),
])  # fmt: skip
def test_switches_that_megatron_runs_beside_a_recomputation(graphs, recompute, left):
    """NV081, NV146, NV152 (megatron-core 0.19.2, transformer_config.py)."""
    found = RunSettings(cuda_graphs=frozenset(graphs), ep_overlap=True).beside(Recompute.parse(recompute))
    assert found.cuda_graphs == left and found.ep_overlap == (recompute in ("none", "selective:moe_act"))


@pytest.mark.parametrize(("scopes", "part", "replayed"), [
    ({"attn"}, "attn", True), ({"attn"}, "mlp", False), ({"full"}, "mlp", True), ({"full_iteration"}, "moe", True),
    ((), "attn", False),
])  # fmt: skip
def test_parts_that_are_replayed(scopes, part, replayed):
    assert RunSettings(cuda_graphs=frozenset(scopes)).graphed(part) == replayed


def test_usual_graphs_are_whole_layers_of_dense_models_and_what_is_before_the_experts():
    parts = {"attn", "moe_router", "moe_preprocess"}
    assert usual_graphs(GPT) == {"full"} and usual_graphs(MOE) == parts and usual_graphs(HYBRID) == parts | {"mamba"}


@pytest.mark.parametrize(("gpu", "given", "said"), [
    (MI300X, {"dispatcher": "hybridep"}, "hybridep"), (MI300X, {"fused_experts": True}, "fused experts"), (MI300X, {}, ""),
    (H100, {"dispatcher": "hybridep", "fused_experts": True}, ""),
])  # fmt: skip
def test_what_is_nvidias_own_is_refused_elsewhere(gpu, given, said):
    def ask(model):
        asked = GivenSettings(**given)
        return resolve_settings(asked, model, cluster_of(gpu, 8), TE, precision="bf16", dropless=True)

    assert formula_only(MOE, cluster_of(gpu, 8)).startswith("mixtures of experts") == (gpu is MI300X)
    assert formula_only(GPT, cluster_of(gpu, 8)) == ""
    ask(GPT)  # a dense model has no experts to dispatch to
    if said:
        with pytest.raises(InputError, match=said):
            ask(MOE)
    else:
        assert ask(MOE).dispatcher == given.get("dispatcher", "alltoall")


def test_releases_between_two_known_ones_lie_by_their_months():
    known = sorted({recipe.release for recipe in recipes()} | {recipe.until for recipe in recipes()})
    assert release_neighbours("") is release_neighbours(known[0]) is release_neighbours(known[-1]) is None
    assert release_neighbours("nemo-20.01") is release_neighbours("nemo-99.01") is None
    for before, after in pairwise(known):
        dates = (map(int, one.removeprefix("nemo-").split(".")[:2]) for one in (before, after))
        (year, month), (year_after, month_after) = dates
        apart = 12 * (year_after - year) + month_after - month
        if apart >= 2 and before.count(".") == after.count(".") == 1:
            between = f"nemo-{year + month // 12:02}.{month % 12 + 1:02}"
            assert release_neighbours(between) == (before, after, pytest.approx(1 / apart))
            assert release_neighbours(f"{between}.01")[2] == pytest.approx(1.5 / apart)


def test_recipes_of_a_release_are_those_it_has_or_the_last_before():
    for recipe in recipes():
        found = current_recipes(recipe.model, recipe.gpu, recipe.precision, recipe.until)
        assert recipe in found
        assert current_recipes(recipe.model, recipe.gpu, recipe.precision, "nemo-20.01") == ()
        later = current_recipes(recipe.model, recipe.gpu, recipe.precision, "nemo-99.01")
        assert later and len({one.until for one in later}) == 1


@pytest.mark.parametrize(("change", "kind"), [
    ({}, "p2p"), ({"window_size": 8}, "allgather"), ({"attention_sinks": True}, "a2a"),
    ({"attention_sinks": True, "window_size": 8}, "a2a"),
])  # fmt: skip
def test_windows_and_sinks_do_not_run_in_a_ring(change, kind):
    assert without_ring(GPT.replace(**change), TE).memory.cp_comm_type == kind
    always = replace(TE, memory=replace(TE.memory, cp_comm_type="a2a"))
    assert without_ring(GPT.replace(**change), always).memory.cp_comm_type == "a2a"


@pytest.mark.parametrize(("options", "expected"), [
    ({}, {}), ({"attention_kernel": "torch"}, {"attention_kernel": "unfused", "softmax_slowdown": 5.7}),
    ({"attention_kernel": "fused"}, {"attention_kernel": "unfused", "softmax_slowdown": 1.0}),
    ({"attention_kernel": "unfused"}, {"attention_kernel": "unfused", "softmax_slowdown": 1.0}),
    ({"attention_kernel": "flash_attention2"}, {"attention_kernel": "flash", "attention_generation": "flash2"}),
    ({"attention_kernel": "flash"}, {"attention_kernel": "flash", "attention_generation": "flash3"}),
    ({"attention_kernel": "flash_attentionv1.0.8"}, {"attention_generation": "flash1"}),
    ({"loss_fusion": "te"}, {"loss_bytes_per_logit": 4.0}), ({"loss_fusion": "native"}, {"loss_bytes_per_logit": 10.0}),
    ({"loss_fusion": "none"}, {"loss_bytes_per_logit": 6.0}), ({"loss_fusion": "overwrite"}, {"loss_bytes_per_logit": 2.0}),
    ({"cuda_graphs": True}, {"cuda_graphs": True}),
    ({"overlaps": frozenset()}, {"overlap_grad_reduce": False, "overlap_param_gather": False, "tp_overlap_share": 0.0}),
    ({"overlaps": frozenset({"overlap-grad-reduce"})},
     {"overlap_grad_reduce": True, "overlap_param_gather": False, "tp_overlap_share": 0.0}),
    ({"overlaps": frozenset({"overlap-param-gather", "tp-comm-overlap"})},
     {"overlap_grad_reduce": False, "overlap_param_gather": True}),
])  # fmt: skip
def test_options_of_a_run(options, expected):
    found = with_options(TE, StackOptions(**options))
    values = {**vars(found.memory), **vars(found.time)}
    before = {**vars(TE.memory), **vars(TE.time)}
    assert {name for name in values if values[name] != before[name]} <= set(expected)
    assert {name: values[name] for name in expected} == expected


def test_a_fused_norm_reads_and_writes_16_bits():
    eager = load_stack("torch-eager")
    found = with_options(eager, StackOptions(fused_rms_norm=True))
    assert (found.memory.norm_input_bytes, found.time.norm_forward_bytes, found.time.norm_backward_bytes) == (2, 4, 12)


@pytest.mark.parametrize(("gpu", "runs"), [(A100, False), (H100, True), (B200, True), (load_gpu("rtx-5090"), False)])
def test_kernels_of_sparse_attention(gpu, runs):
    if runs:
        require_sparse_kernels(MLA, gpu)
    else:
        with pytest.raises(InputError, match="not for"):
            require_sparse_kernels(MLA, gpu)


@pytest.mark.parametrize(("gpu", "form"), [(H100, "mxfp4_weight_only"), (B200, "mxfp4"), (MI300X, "mxfp4_weight_only")])
def test_mxfp4_multiplies_from_blackwell_on(gpu, form):
    found = ModuleFormats(attention="bf16", mlp="fp8", experts="mxfp4").on(gpu)
    assert (found.attention, found.mlp, found.experts) == ("bf16", "fp8", form)
    exact = ModuleFormats(attention="fp8", mlp="bf16", experts="int4", exact=(("mlp", 1.25),))
    assert [exact.bytes_of(part) for part in ("attention", "mlp", "experts", "recurrent", "output")] == [
        1, 1.25, 0.515625, 1, 2,
    ]  # fmt: skip


@pytest.mark.parametrize(("framework", "kind", "gpu", "loads"), [
    ("vllm", "awq", H100, True), ("vllm", "nonsense", H100, False), ("megatron", "awq", H100, False),
    ("vllm", "awq", replace(H100, compute_capability=5.0), False),
])  # fmt: skip
def test_checkpoints_that_engines_load(framework, kind, gpu, loads):
    assert (loads_checkpoint(framework, kind, gpu) == "") == loads


def test_releases_of_engines_between_two_known_ones_lie_by_date():
    """1.0 is of September, 0.21 of July and 1.2 of December 2025."""
    assert nearest_release("nonsense", "1.0") is None
    for name in ("trtllm-0.20", "trtllm-1.2"):
        assert nearest_release("tensorrt-llm", name.split("-")[1]).name == name
    between = nearest_release("tensorrt-llm", "1.0")
    months = {"0.20": 6, "1.0": 9, "1.2": 12}
    share = (months["1.2"] - months["1.0"]) / (months["1.2"] - months["0.20"])
    assert (between.name, between.between) == ("trtllm-1.2", ("trtllm-0.20", pytest.approx(share)))
    assert load_engine("trtllm-1.2").is_release("v1.2") and not load_engine("trtllm-1.2").is_release("1.1")
    assert load_engine("trtllm-1.2").is_release("") and not load_engine("trtllm-1.2").is_release("none")


def test_a_state_of_recurrent_layers_in_bytes():
    """Mamba-2: 12 heads of 20 channels and 26 states in fp32, 3 columns of 240 + 2 x 4 x 26 channels in 16 bits; Gated
    DeltaNet: 8 heads of 22 x 30, 3 columns of 2 x 4 x 22 + 8 x 30."""
    assert state_layer_bytes(HYBRID, "mamba", 2) == (4 * 12 * 20 * 26 + 2 * 3 * (240 + 208)) / 2
    assert state_layer_bytes(HYBRID, "gdn", 1) == 4 * 8 * 22 * 30 + 2 * 3 * (176 + 240)
    assert state_layer_bytes(HYBRID, "attention", 1) == 0
    assert scan_flops_per_token(HYBRID) == 12 * (2 * 128 * 20 + 4 * 26 * 20) + 2 * 4 * 128 * 26
    assert delta_rule_flops_per_token(HYBRID) == 8 * (6 * 22 * 30 + 2 * 64 * (2 * 22 + 30))


@pytest.mark.parametrize(("pattern", "layers", "found", "units"), [
    ("M-*-", 4, "M-M-*-*-", 2), ("MMM*", 8, "MMM*MMM*", 4), ("MMM*", 4, "MMM*", 4), ("MMM*", 2, "M*", 4),
    ("MMM*/ME", 6, "MMM*MM/ME", 4), ("M*-", 3, "M*-", 3),
])  # fmt: skip
def test_a_mix_of_more_or_fewer_layers(pattern, layers, found, units):
    """Three quarters of 6 layers are 4.5: the larger remainder is the first kind's."""
    if pattern != "M-*-":
        assert scaled_pattern(pattern, layers) == found
    assert published_layers(pattern) == units


@pytest.mark.parametrize(("section", "scaling"), [
    ({"rope_type": "yarn", "factor": 4.0}, "yarn"), ({"rope_type": "yarn", "factor": 4.0, "beta_fast": 32}, "yarn"),
    ({"rope_type": "yarn", "factor": 4.0, "beta_fast": 16}, "other"), ({"type": "yarn", "beta_slow": 2}, "other"),
    ({"rope_type": "llama3", "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}, "llama3"),
    ({"rope_type": "llama3", "low_freq_factor": 2}, "other"), ({"rope_type": "llama3", "high_freq_factor": 8}, "other"),
    ({"rope_type": "default"}, None),
])  # fmt: skip
def test_scalings_that_megatron_has_arguments_for(section, scaling):
    """megatron-core: yarn has beta_fast 32 and beta_slow 1, _apply_scaling factors 1 and 4 and 8,192 positions."""
    found = rotary_fields(ConfigReader({"rope_scaling": section}, "x"))["rope_scaling"]
    assert (found and found.type) == scaling


@pytest.mark.parametrize(("model", "change", "expected"), [
    (GPT, {"num_attention_heads": 48, "num_query_groups": 8}, {"num_attention_heads": 48, "kv_channels": 10}),
    ("gpt3-175b", {"hidden_size": 6144}, {"kv_channels": 64, "ffn_hidden_size": 4 * 6144}),
    ("gpt3-175b", {"num_attention_heads": 48}, {"kv_channels": 256, "num_query_groups": 48}),
    ("gpt3-175b", {"default_seq_length": 4096}, {"max_position_embeddings": 4096}),
    ("gpt3-175b", {"default_seq_length": 1024}, {"max_position_embeddings": 1024}),
    ("llama3-8b", {"default_seq_length": 1024}, {"max_position_embeddings": 8192}),
    ("llama3-8b", {"default_seq_length": 65536}, {"max_position_embeddings": 65536}),
    ("llama3-8b", {"num_moe_experts": 8}, {"moe_router_topk": 2, "moe_ffn_hidden_size": 14336}),
    ("llama3-8b", {"num_moe_experts": 1}, {"moe_router_topk": 1, "moe_ffn_hidden_size": 14336}),
    ("llama3-8b", {"num_moe_experts": 8, "ffn_hidden_size": 1024}, {"moe_ffn_hidden_size": 1024}),
    ("gpt3-175b", {"gated_linear_unit": True}, {"activation": "geglu"}),
    ("llama3-8b", {"gated_linear_unit": False}, {"activation": "gelu"}),
    ("mixtral-8x7b", {"num_moe_experts": 0}, {"num_moe_experts": None, "moe_layer_freq": 1}),
    ("deepseek-v3", {"num_layers": 5}, {"moe_layer_freq": (0, 0, 0, 1, 1)}),
    ("llama3-8b", {"num_layers": "16"}, {"num_layers": 16, "published_parameters": None, "name": "llama3-8b*"}),
])  # fmt: skip
def test_what_follows_a_changed_number(model, change, expected):
    """Heads share the width where they did, an MLP of four widths stays one, and experts are as wide as the MLP was."""
    found = apply_overrides(load_model(model) if isinstance(model, str) else model, change)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(("text", "gpus", "given", "expected"), [
    ("tp=4", 64, {}, {"dp": 16, "sp": False, "dist_opt": True, "mbs": 1}), ("tp=4", 64, {"sp": True}, {"sp": True}),
    ("tp=1", 64, {"sp": True}, {"sp": False}), ("pp=2,cp=4", 64, {"sp": True}, {"dp": 8, "sp": False}),
    ("tp=4,fsdp=3", 64, {}, {"dist_opt": False}), ("tp=4,fsdp=3,dist_opt=1", 64, {}, {"dist_opt": True}),
    ("tp=64", 8, {}, {"dp": 1}), ("tp=4", 64, {"dist_opt": False}, {"dist_opt": False}),
    ("dp=3,TP=2", 64, {}, {"dp": 3, "tp": 2}),
])  # fmt: skip
def test_keys_that_a_short_form_leaves_out(text, gpus, given, expected):
    found = parse_plan(text, gpus, **given)
    assert {name: getattr(found, name) for name in expected} == expected
    assert parse_plan(str(found), gpus) == found


@pytest.mark.parametrize(("text", "mended"), [("tpp=2,pp=2", "tp=2,pp=2"), ("ppp=2,tp=2,ppp=4", "pp=2,tp=2,ppp=4")])
def test_the_first_wrong_key_is_mended(text, mended):
    with pytest.raises(UnknownKeyError) as caught:
        parse_plan(text, 8)
    assert caught.value.mended == mended


@pytest.mark.parametrize(("plan", "middle"), [
    ("pp=3,first=3,last=4", 5), ("pp=4,first=2,last=2", 4), ("pp=2,first=5,last=7", 0), ("pp=1", 0), ("pp=6", 2),
])  # fmt: skip
def test_layers_between_the_ends(plan, middle):
    model = GPT.replace(num_layers=12)
    assert middle_layers(model, layouts_of([parse_plan(plan, 12)], model, 24)).tolist() == [middle]


@pytest.mark.parametrize(("text", "gpus"), [
    ("tp=4,pp=2,adp=2,ep=8,replicas=3", 48), ("tp=1", 1), ("prefill(tp=2,replicas=3)+decode(tp=4)", 10),
])  # fmt: skip
def test_gpus_of_a_deployment(text, gpus):
    found = parse_serve_plan(text)
    assert found.gpus == gpus and parse_serve_plan(str(found)) == found


def test_an_entry_of_a_calibration_is_dense_unless_it_says_so():
    assert Entry(architecture="x", generation="y", factors=Factors()).kind == "dense"


@pytest.mark.parametrize(("billions", "batch"), [
    (1, 512), (1.7, 512), (3.6, 512), (7.5, 512), (18.4, 1024), (39.1, 1536), (76.1, 1792), (145.6, 2304), (310.1, 2160),
    (529.6, 2520), (1008, 3072), (9000, 3072),
])  # fmt: skip
def test_a_gpt_trains_with_the_batch_of_narayanans_nearest_size(billions, batch):
    """Narayanan et al. 2021, Table 1."""
    assert gpt3_style(billions * 1e9).default_global_batch_size == batch


@pytest.mark.parametrize(("count", "taken"), [(18, True), (19, False)])
def test_expressions_of_a_list_end_in_bounded_time(count, taken):
    """60 characters and four repeats: 60^4 / 24 = 540,000 steps each; ten million in all."""
    names = [f"re:a*b*c*d*{i}" for i in range(count)]
    if taken:
        ModuleNames(names, "x")
    else:
        with pytest.raises(InputError, match="simple repeats"):
            ModuleNames(names, "x")


@pytest.mark.parametrize(("said", "each"), [
    ({"load_in_4bit": True}, 0.5 + 4 / 64), ({"load_in_8bit": True}, 1.0),
    ({"load_in_4bit": True, "bnb_4bit_use_double_quant": True}, 0.5 + (1 + 4 / 256) / 64),
])  # fmt: skip
def test_bytes_of_bitsandbytes_weights(said, each):
    """Dettmers et al. 2023 (QLoRA), section 3: 64 weights share an fp32 maximum, or a byte of which 256 share one."""
    found = checkpoint_of({"quantization_config": {"quant_method": "bitsandbytes", **said}}, "x")
    assert found.main.bytes == pytest.approx(each, rel=1e-12)


def test_parameters_of_depths_and_of_cross_attention():
    """A depth: its layer, 2 h x h, and the output layer again. Cross-attention on two ranks: q and proj over both, keys and
    values of half of the heads, their biases, a whole bias behind it and a norm."""
    shorter, depth = GPT.replace(num_layers=3), GPT.replace(mtp_num_layers=1)
    layer = active_matmul_parameters(GPT) - active_matmul_parameters(shorter)
    assert active_matmul_parameters(depth) - active_matmul_parameters(GPT) == layer + 2 * 96 * 96 + 1000 * 96
    weights = 96 * 240 / 2 + 96 * 2 * 40 + 240 * 96 / 2
    assert cross_attention_parameters(T5, 2) == weights + 240 / 2 + 2 * 40 + 96 + 2 * 96
