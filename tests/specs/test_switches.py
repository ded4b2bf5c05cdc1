"""Models by layer, switches of runs, software, engines and short forms: by hand, from the sources that are named."""

from dataclasses import replace

import pytest
from autoconfig.specs.errors import (
    InputError,
    UnknownKeyError,
)
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.layouts import layouts_of, middle_layers
from autoconfig.specs.models.config_reader import ConfigReader, rotary_fields
from autoconfig.specs.models.hybrid import delta_rule_flops_per_token, scan_flops_per_token, state_layer_bytes
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import gpt3_style, load_model
from autoconfig.specs.models.module_names import ModuleNames
from autoconfig.specs.models.overrides import apply_overrides
from autoconfig.specs.models.parameters import active_matmul_parameters, cross_attention_parameters
from autoconfig.specs.models.pattern import published_layers, scaled_pattern
from autoconfig.specs.plan import Recompute, parse_plan
from autoconfig.specs.run_settings import (
    GivenSettings,
    RunSettings,
    formula_only,
    resolve_settings,
    usual_graphs,
    without_ring,
)
from autoconfig.specs.scenario import (
    Entry,
    Factors,
    Numerics,
    Scenario,
    Workload,
)
from autoconfig.specs.serve_plan import parse_serve_plan
from autoconfig.specs.software.checkpoint import checkpoint_of
from autoconfig.specs.software.engine import (
    ModuleFormats,
    load_engine,
    loads_checkpoint,
    nearest_release,
    require_sparse_kernels,
)
from autoconfig.specs.software.software import StackOptions, load_stack, with_options
from small_models import MODELS

H100, B200, A100 = (load_gpu("h100"), load_gpu("b200"), load_gpu("a100-sxm-80gb"))
MI300X = load_gpu("mi300x")
GPT, MOE, T5, BERT, HYBRID, MLA = (ModelSpec(**MODELS[name]) for name in ("gpt", "moe", "t5", "bert", "hybrid", "mla"))
TE = load_stack("transformer-engine")


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
        return resolve_settings(asked, model, cluster_of(gpu, 8), TE, precision="bf16", dropless=True, seq_length=64).widest

    assert bool(formula_only(MOE, cluster_of(gpu, 8))) == (gpu is MI300X)
    assert formula_only(GPT, cluster_of(gpu, 8)) == []
    ask(GPT)  # a dense model has no experts to dispatch to
    if said:
        with pytest.raises(InputError, match=said):
            ask(MOE)
    else:
        assert ask(MOE).dispatcher == given.get("dispatcher", "alltoall")


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
