"""Stacks, engines and formats: bytes, ages, what a GPU multiplies, what a release has."""

from dataclasses import replace
from itertools import pairwise

import pytest
from autoconfig.specs.errors import InputError, UnknownNameError
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import Recompute
from autoconfig.specs.run_settings import (
    GivenSettings,
    RunSettings,
    formula_only,
    kind_of,
    read_graphs,
    recipes,
    resolve_settings,
    usual_graphs,
    usual_settings,
    without_ring,
)
from autoconfig.specs.scenario import (
    FORMATS,
    Numerics,
    gathers_fp8,
    userbuffers_know,
    userbuffers_run,
)
from autoconfig.specs.software.engine import (
    KV_BYTES,
    RELEASED,
    WEIGHT_BYTES,
    _month,
    _release,
    engine_names,
    kernel_age,
    load_engine,
    module_formats,
    supports,
    weight_format,
)
from autoconfig.specs.software.software import StackOptions, load_stack, with_options
from small_models import B200, GPT, H100, HYBRID, MI300X, MLA, MOE
from tables import tabled

from autoconfig.training.question import request_of, understand


def test_every_engine_loads_and_names_a_known_parent():
    names = engine_names()
    assert len(names) == len(set(names))
    for name in names:
        engine = load_engine(name)
        assert engine.parent is None or engine.parent in names
        assert engine.eager_iterations in ("none", "mixed", "all")
        assert engine.sources
    with pytest.raises(UnknownNameError):
        load_engine("nvllm")


def test_formats_by_checkpoint_and_gpu():
    hopper, blackwell = load_gpu("h200"), load_gpu("b200")
    assert module_formats(load_model("llama3-70b"), "fp8", hopper).attention == "fp8"
    deepseek = module_formats(load_model("deepseek-v3"), "nvfp4", blackwell)
    assert (deepseek.attention, deepseek.experts) == ("bf16", "nvfp4")
    assert module_formats(load_model("gpt-oss-20b"), "fp8", hopper).experts == "mxfp4_weight_only"
    assert module_formats(load_model("gpt-oss-20b"), "nvfp4", blackwell).experts == "mxfp4"
    assert weight_format("FP4") == "nvfp4" and not supports(hopper, "nvfp4") and supports(blackwell, "nvfp4")
    assert weight_format("W4A16_AWQ") == weight_format("awq") == "int4" and weight_format("Float16") == "bf16"
    assert WEIGHT_BYTES["nvfp4"] == 0.5625 and WEIGHT_BYTES["int4"] == 0.515625


def test_bytes_of_formats_with_their_scales():
    """Block scales of the OCP MX specification (one byte for 32), NVFP4 (one for 16), DeepSeek-V3 (fp32 for 128 x 128), AWQ
    (16 bits for 128)."""
    blocks = {"fp8_block": 1.000244140625, "nvfp4": 0.5625, "mxfp4": 0.53125, "mxfp4_weight_only": 0.53125, "int4": 0.515625}
    assert {"bf16": 2, "fp8": 1, "int8": 1, **blocks} == WEIGHT_BYTES
    assert KV_BYTES == {"bf16": 2, "fp8": 1, "int8": 1, "nvfp4": 0.5625}
    found = {recipe or precision: (form.operand_bytes, form.saved_bytes, form.gathered_bytes, form.activation_bytes)
             for (precision, recipe), form in FORMATS.items()}  # fmt: skip
    assert found["mxfp8"] == (1, 1.03125, 2, 2) and found["nvfp4"] == (0.5625, 0.5625, 2, 2)
    assert found["bf16"] == found["fp16"] == (2, 2, 2, 2) and found["fp32"][:2] == (4, 4) and found["fp32"][3] == 4


@pytest.mark.parametrize(("capability", "known"), [
    (None, {"bf16", "int4", "mxfp4"}), (8.0, {"bf16", "int4", "mxfp4"}), (8.9, {"bf16", "int4", "mxfp4", "fp8", "fp8_block"}),
    (10.0, {"bf16", "int4", "mxfp4", "fp8", "fp8_block", "nvfp4"}),
])  # fmt: skip
def test_formats_that_matrix_units_multiply(capability, known):
    gpu = replace(load_gpu("h100"), compute_capability=capability)
    assert {name for name in ("bf16", "int4", "mxfp4", "fp8", "fp8_block", "nvfp4") if supports(gpu, name)} == known


def test_a_release_has_its_own_month_and_one_outside_of_them_that_of_the_nearest():
    for name, date in RELEASED.items():
        year, month = map(int, date.split("-"))
        assert _month(_release(name)) == 12 * year + month, name
    dated = sorted(map(_release, RELEASED))
    assert _month(dated[0] - 1) == _month(dated[0]) and _month(dated[-1] + 99) == _month(dated[-1])


def test_years_between_releases_of_kernels() -> None:
    """0.12 of August 2024, 0.14 of November 2024, 0.17 of February and 0.20 of June 2025."""
    ages = [kernel_age(load_engine(f"trtllm-{number}")) for number in ("0.12", "0.14", "0.17", "0.20")]
    between = [12 * (older - newer) for older, newer in pairwise(ages)]
    assert between == pytest.approx([3, 3, 4]) and kernel_age(load_engine("trtllm-1.2")) == 0 == kernel_age(load_engine("vllm"))


TE = load_stack("transformer-engine")


@pytest.mark.parametrize(("key", "capability", "expected"), [
    (("fp8", "delayed"), 9.0, 2), (("fp8", "delayed"), 10.0, 1), (("fp8", "delayed"), None, 2), (("fp8", "blockwise"), 9.9, 2),
    (("fp8", "mxfp8"), 10.0, 2 * 33 / 32), (("nvfp4", ""), 12.0, 2 * 9 / 16), (("bf16", ""), 10.0, 2),
])  # fmt: skip
def test_orientations_of_a_quantised_weight(key, capability, expected):
    """Below Blackwell GEMMs read one layout of fp8 only; microscaling scales one direction, so both are kept."""
    assert FORMATS[key].weight_copy_bytes(capability) == expected


@tabled
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
    assert bool(userbuffers_run(model, Numerics(**numerics), TE, cluster_of(gpu, 16), tp=tp, sp=sp, fsdp=fsdp)) == runs
    assert not userbuffers_know(model, Numerics(), replace(TE, time=replace(TE.time, tp_overlap_share=0.0)))


PARTS = read_graphs("attn moe_router moe_preprocess")
FULL = RunSettings(
    dispatcher="hybridep", cuda_graphs=read_graphs("full_iteration"), ep_overlap=True, fused_experts=True, fp8_attention=True
)


def settings(software: str, model: str, gpu: str, precision: str, **given: object) -> RunSettings:
    cluster = cluster_of(load_gpu(gpu), 64)
    asked = GivenSettings(**given)  # type: ignore[arg-type]
    more = {"precision": precision, "dropless": True, "seq_length": 4096}
    return resolve_settings(asked, load_model(model), cluster, load_stack(software), **more).widest


@pytest.mark.parametrize(("software", "model", "gpu", "precision", "expected"), [
    ("transformer-engine", "qwen3-30b-a3b", "gb200", "bf16", RunSettings()),
    ("megatron-moe-modelzoo", "qwen3-30b-a3b", "gb300", "mxfp8", RunSettings(dispatcher="hybridep", cuda_graphs=PARTS)),
    ("megatron-moe-modelzoo", "qwen3-30b-a3b", "h100", "bf16", RunSettings(dispatcher="deepep")),
    ("nemo-25.11", "qwen3-30b-a3b", "h100", "tensorwise", RunSettings(ep_overlap=True)),
    ("nemo-26.04", "qwen3-30b-a3b", "h100", "tensorwise", RunSettings()),
    ("nemo-26.06", "qwen3-30b-a3b", "gb300", "mxfp8", FULL),
    ("nemo-26.07", "qwen3-30b-a3b", "gb300", "mxfp8", FULL),
    ("nemo-26.04", "qwen3-30b-a3b", "gb300", "mxfp8",
     RunSettings(dispatcher="hybridep", cuda_graphs=read_graphs("moe_router moe_preprocess"))),
    ("nemo-26.06", "llama3-70b", "gb300", "mxfp8", RunSettings()),
])  # fmt: skip
def test_defaults_follow_software_gpu_model_and_precision(
    software: str, model: str, gpu: str, precision: str, expected: RunSettings
) -> None:
    assert settings(software, model, gpu, precision) == expected


def test_every_recipe_of_a_mixture_says_its_plan_whole() -> None:
    """Recipes that leave their plan to a base recipe were one expert-parallel rank without a batch (3 of 26.08 on H100)."""
    mixtures = [one for one in recipes() if load_model(one.model).is_moe]
    assert len(mixtures) > 200
    assert [one.row for one in mixtures if int(one.row["ep"]) == 1 or not one.row["gbs"]] == []


def test_a_model_without_a_recipe_runs_as_most_recipes_do() -> None:
    assert settings("nemo-26.06", "mixtral-8x7b", "gb300", "mxfp8").full_iteration
    assert settings("nemo-26.02", "mixtral-8x7b", "gb300", "mxfp8").dispatcher == "hybridep"


def test_the_majority_of_models_counts_and_of_each_its_last_recipes() -> None:
    """GB200, MXFP8, 26.06: four of five mixtures have graphs of the full iteration, three FP8 attention, two an FP8 output
    layer; older plans of the same models, still in the release, do not count."""
    found = usual_settings("mixture", "gb200", "gb200", "mxfp8", "nemo-26.06")
    mine = [r for r in recipes() if (r.row["kind"], r.gpu, r.precision, r.task) == ("mixture", "gb200", "mxfp8", "pretrain")]
    alive = [r for r in mine if r.release <= "nemo-26.06" <= r.until]
    last = {r.model: max(one.release for one in alive if one.model == r.model) for r in alive}
    voters = [r.settings for r in alive if r.release == last[r.model]]
    assert len(voters) == len(last) == 5 < len(alive)
    for name in ("ep_overlap", "fused_experts", "fp8_attention", "fp8_output", "full_iteration"):
        assert getattr(found, name) == (sum(getattr(one, name) for one in voters) > 2), name
    assert (
        usual_settings("mixture", "a100", "", "bf16", "nemo-26.06")
        is None
        is usual_settings("mixture", "h100", "h100", "bf16", "nemo-24.07")
    )


def test_the_kind_of_every_recipe_is_its_models() -> None:
    assert {(r.model, r.row["kind"]) for r in recipes()} == {(r.model, kind_of(load_model(r.model))) for r in recipes()}


@pytest.mark.parametrize(("gpu", "plan", "given", "changed"), [
    ("gb200", "ep=8", {}, {}),
    ("gb200", "ep=1", {}, {"dispatcher": "alltoall", "cuda_graphs": frozenset(), "ep_overlap": False}),
    ("gb200", "pp=2,ep=8", {}, {"ep_overlap": False}),
    ("gb200", "pp=2,vpp=2,ep=8", {}, {}),
    ("gb200", "pp=2,ep=8", {"ep_overlap": True}, {}),
    ("gb200", "ep=8,recompute=full:uniform:1", {}, {"ep_overlap": False}),
    ("gb200", "ep=8,recompute=selective:moe", {"cuda_graphs": PARTS}, {"cuda_graphs": PARTS, "ep_overlap": False}),
    ("gb200", "ep=8", {"dispatcher": "alltoall"}, {"dispatcher": "alltoall", "cuda_graphs": frozenset()}),
    ("gb200", "ep=8", {"fp8_attention": False, "fp8_output": True}, {"fp8_attention": False, "fp8_output": True}),
])  # fmt: skip
def test_usual_switches_give_way_to_the_plan_and_given_ones_do_not(
    gpu: str, plan: str, given: dict[str, object], changed: dict[str, object]
) -> None:
    scenario = understand(request_of({"model": "qwen3-30b-a3b", "gpus": 64, "gpu": gpu, "precision": "mxfp8"})).scenario
    scenario = replace(scenario, given=GivenSettings(**given))  # type: ignore[arg-type]
    one = scenario.read_plan(plan)
    assert scenario.settings(one) == replace(FULL, **changed)  # type: ignore[arg-type]
    layouts = scenario.layouts([one])
    assert [settings.beside(one.recompute) for settings, _ in layouts.by_settings()] == [
        replace(FULL, **changed).beside(one.recompute)  # type: ignore[arg-type]
    ]


def test_a_gpu_without_recipes_takes_those_of_its_class() -> None:
    found, own = (
        settings("nemo-26.04", "qwen3-30b-a3b", "h200", "bf16"),
        settings("nemo-26.04", "qwen3-30b-a3b", "h100", "bf16"),
    )
    assert found == own


def test_deepep_gives_way_where_links_join_boards() -> None:
    assert settings("nemo-26.04", "qwen3-30b-a3b", "gb200", "mxfp8", dispatcher="deepep").dispatcher == "alltoall"
    assert settings("nemo-26.04", "qwen3-30b-a3b", "b200", "mxfp8", dispatcher="deepep").dispatcher == "deepep"


def test_what_is_given_counts_and_what_is_odd_is_refused() -> None:
    found = settings("nemo-26.06", "qwen3-30b-a3b", "gb300", "mxfp8", ep_overlap=False, cuda_graphs=frozenset())
    assert not found.ep_overlap and not found.cuda_graphs and found.fused_experts
    for given, text in (({"dispatcher": "allreduce"}, "hybridep"), ({"cuda_graphs": frozenset({"mlpp"})}, "moe_router")):
        with pytest.raises(InputError, match=text):
            GivenSettings(**given)  # type: ignore[arg-type]
    assert read_graphs("attn,moe_router+mamba") == {"attn", "moe_router", "mamba"} and read_graphs("none") == frozenset()


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
