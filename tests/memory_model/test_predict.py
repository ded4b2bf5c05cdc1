"""The sum: parts add up, one row equals many, and every knob moves memory the way it must."""

from dataclasses import replace

import numpy as np
import pytest
from autoconfig.memory_model.alike import alike_in_memory
from autoconfig.memory_model.peaks import MOMENTS, PeakTables, _numbered
from autoconfig.memory_model.predict import (
    NCCL_BYTES_PER_GROUP,
    MemoryEstimate,
    allocatable_bytes,
    allocator_bytes,
    estimate_memory,
    fit_probability,
    headroom_bytes,
    model_parallel_reserved_bytes,
    nccl_bytes,
    plans_that_fit,
)
from autoconfig.memory_model.tables import stage_terms
from autoconfig.specs.errors import GIB
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.layouts import layouts_of
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import layer_parameters, mtp_layer_parameters, total_parameters
from autoconfig.specs.plan import NONE, Recompute, parse_plan
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import StackMemory, load_stack, software_names

NO_DROPOUT = Numerics(attention_dropout=0.0, hidden_dropout=0.0)
LLAMA = Scenario(
    model=load_model("llama3-70b"), cluster=cluster_of(load_gpu("h100"), 64), numerics=NO_DROPOUT,
    software=load_stack("transformer-engine"), workload=Workload(seq_length=8192, global_batch_size=512),
)  # fmt: skip


def estimate(
    model: str,
    text: str,
    gpus: int,
    *,
    numerics: Numerics = NO_DROPOUT,
    stack: str = "transformer-engine",
    batch: int = 512,
    seq: int = 4096,
    recomputes: list[Recompute] | None = None,
    detail: bool = True,
) -> MemoryEstimate:
    spec, plan = load_model(model), parse_plan(text, gpus)
    scenario = Scenario(
        model=spec, cluster=cluster_of(load_gpu("h100"), gpus), numerics=numerics, software=load_stack(stack),
        workload=Workload(seq_length=seq, global_batch_size=batch),
    )  # fmt: skip
    return estimate_memory(scenario, scenario.layouts([plan]), recomputes or [plan.recompute], detail=detail)


def peak(model: str, text: str, gpus: int, **options: object) -> float:
    return float(estimate(model, text, gpus, **options).peak_bytes[0, 0])  # type: ignore[arg-type]


CASES = [
    ("gpt3-175b", "tp=8,pp=8,vpp=3,mbs=1,sp=1", 128),
    ("llama3-70b", "tp=4,pp=4,mbs=1,sp=1,recompute=full:block:3", 64),
    ("mixtral-8x7b", "tp=2,pp=2,ep=4,mbs=1,sp=1,recompute=selective:moe_act+layernorm", 32),
    ("deepseek-v3", "tp=2,pp=16,ep=8,mbs=1,sp=1,first=4,last=1,recompute=selective:mla_up_proj+mlp", 256),
    ("llama3-8b", "tp=1,pp=1,mbs=1,fsdp=3,dist_opt=0,recompute=full:uniform:2", 8),
]


@pytest.mark.parametrize(("model", "text", "gpus"), CASES)
def test_parts_sum_to_the_peak_of_every_stage(model: str, text: str, gpus: int) -> None:
    found = estimate(model, text, gpus)
    assert found.per_stage_bytes is not None and found.moment is not None
    np.testing.assert_allclose(sum(found.parts.values()), found.per_stage_bytes, rtol=1e-12)
    assert found.per_stage_bytes.shape[2] == parse_plan(text, gpus).pp
    assert found.peak_bytes[0, 0] == found.per_stage_bytes.max()
    assert set(np.unique(found.moment)) <= set(range(len(MOMENTS)))


def test_rows_that_differ_in_one_degree_are_priced_together_as_alone() -> None:
    """State is worked out once for rows that share it: no degree that it depends on may be forgotten."""
    base = {"tp": "2", "pp": "4", "ep": "2", "mbs": "1", "sp": "1"}
    changes = ["mbs=2", "cp=2", "dist_opt=0", "offload=0.5", "offload=1.0", "vpp=2", "first=9,last=7", "etp=2", "ep=4", "tp=4"]
    changes += ["pp=2", "dp=4", "dp=2", "pp=1,ep=1,dist_opt=0,fsdp=3", "pp=1,ep=1,dist_opt=0,fsdp=2", "pp=1"]
    texts = [base | dict(pair.split("=") for pair in change.split(",")) for change in changes]
    plans = [parse_plan(",".join(f"{key}={value}" for key, value in text.items()), 64) for text in texts]
    scenario = replace(LLAMA, model=load_model("mixtral-8x7b"))
    together = estimate_memory(scenario, scenario.layouts(plans), [NONE]).peak_bytes
    alone = [estimate_memory(scenario, scenario.layouts([plan]), [NONE]).peak_bytes[0, 0] for plan in plans]
    assert together[:, 0].tolist() == alone
    fits = plans_that_fit(scenario, scenario.layouts(plans), [NONE], np.ones((len(plans), 1), bool))
    assert fits.fits[:, 0].tolist() == [peak <= limit for peak, limit in zip(alone, fits.limit_bytes, strict=True)]


@pytest.mark.parametrize(("model", "text", "gpus"), CASES)
def test_few_priced_stages_bound_all(model: str, text: str, gpus: int) -> None:
    """The search prices the first stages and the last; explain prices all: the same worst stage."""
    options = {
        "recomputes": [
            NONE,
            Recompute.parse("selective:core_attn"),
            Recompute.parse("full:uniform:1"),
            Recompute.parse("full:block:1"),
        ]
    }
    np.testing.assert_allclose(
        estimate(model, text, gpus, detail=False, **options).peak_bytes,  # type: ignore[arg-type]
        estimate(model, text, gpus, detail=True, **options).peak_bytes,
        rtol=1e-12,
    )  # type: ignore[arg-type]


def test_short_sequences_peak_where_a_tied_embeddings_gradient_meets_the_output_layers() -> None:
    """GPT-3 126M, 128 tokens: both gradients of the table, 2 x 2 V h, and one of the hidden states, when the last micro-batch's
    activations are gone: nothing of them stays."""
    options = {"seq": 128, "batch": 64}
    found = estimate("gpt3-126m", "tp=1,pp=1,mbs=1", 8, **options)  # type: ignore[arg-type]
    assert found.moment is not None and MOMENTS[found.moment[0, 0, 0]] == "embedding_backward"
    spec, parts = load_model("gpt3-126m"), {name: float(value[0, 0, 0]) for name, value in found.parts.items()}
    state = total_parameters(spec) * (2 + 4 + 12 / 8)
    table, hidden = 2 * 50304 * spec.hidden_size, 2 * 128 * spec.hidden_size
    assert parts["embedding_backward"] == table + hidden and parts["tied_weight_gradient"] == table
    saved = sum(parts[name] for name in ("norm_inputs", "norm_outputs", "query_key_value", "mlp_inside", "attention_output"))
    assert saved > 0 and parts["chunk_released"] < -saved
    rest = table + table + hidden + state + parts["dummy_weight_gradients"] + parts["workspace_bytes"] + parts["final_norm"]
    assert found.peak_bytes[0, 0] == pytest.approx(rest, rel=1e-3)
    for text in ("tp=1,pp=1,mbs=1", "tp=1,pp=2,mbs=1"):  # two micro-batches are in flight on the first of two stages
        found = estimate("gpt3-126m", text, 8, **options)  # type: ignore[arg-type]
        assert found.moment is not None and found.per_stage_bytes is not None
        assert MOMENTS[found.moment[0, 0, 0]] == "embedding_backward"
        assert sum(value[0, 0, 0] for value in found.parts.values()) == pytest.approx(found.per_stage_bytes[0, 0, 0])
        assert estimate("gpt3-126m", text, 8, detail=False, **options).peak_bytes == found.peak_bytes  # type: ignore[arg-type]


def test_one_row_equals_many() -> None:
    texts = [f"tp={tp},pp={pp},mbs={mbs},sp={int(tp > 1)}" for tp in (1, 2, 4, 8) for pp in (1, 2, 4) for mbs in (1, 2)]
    plans = [parse_plan(text, 64) for text in texts]
    many = LLAMA.layouts(plans)
    recomputes = [NONE, Recompute.parse("full:uniform:1")]
    together = estimate_memory(LLAMA, many, recomputes)
    for row in range(len(plans)):
        single = estimate_memory(LLAMA, many.take(slice(row, row + 1)), recomputes)
        np.testing.assert_array_equal(single.peak_bytes[0], together.peak_bytes[row])
    fits = plans_that_fit(LLAMA, many, recomputes, np.ones_like(together.fits)).fits
    np.testing.assert_array_equal(fits, together.fits)
    assert not fits.all(), "70B in one piece must be hopeless"


def test_every_knob_moves_memory_the_right_way() -> None:
    base = "tp=4,pp=4,mbs=1,sp=1"
    at = peak("llama3-70b", base, 64)
    assert peak("llama3-70b", "tp=8,pp=4,mbs=1,sp=1", 64) < at
    assert peak("llama3-70b", "tp=4,pp=4,mbs=1,sp=0", 64) > at
    assert peak("llama3-70b", "tp=4,pp=4,mbs=2,sp=1", 64) > at
    assert peak("llama3-70b", base + ",recompute=selective:mlp", 64) < at
    assert peak("llama3-70b", base + ",recompute=full:uniform:1", 64) < peak(
        "llama3-70b", base + ",recompute=selective:mlp", 64
    )
    assert peak("llama3-70b", base + ",recompute=full:block:5", 64) < at
    assert peak("llama3-70b", base + ",dist_opt=0", 64) > at
    assert peak("llama3-70b", base + ",offload=1", 64) < at
    assert peak("llama3-70b", "tp=4,pp=4,cp=2,mbs=1,sp=1", 64) < at
    assert peak("llama3-70b", base, 64, stack="megatron-local", seq=8192) > peak("llama3-70b", base, 64, seq=8192)
    assert peak("llama3-70b", base, 64, numerics=Numerics()) > at, "dropout keeps masks"
    lora = Numerics(peft="lora", attention_dropout=0.0, hidden_dropout=0.0)
    assert peak("llama3-70b", base, 64, numerics=lora) < 0.6 * at


def test_core_attention_recomputation_frees_nothing_worth_with_flash() -> None:
    base = peak("llama3-70b", "tp=4,pp=4,mbs=1,sp=1", 64)
    freed = base - peak("llama3-70b", "tp=4,pp=4,mbs=1,sp=1,recompute=selective:core_attn", 64)
    assert 0 <= freed < 0.001 * base
    unfused = peak("gpt3-22b", "tp=8,pp=1,mbs=4,sp=1", 8, stack="megatron-lm-2022", seq=2048, batch=4)
    assert (
        peak("gpt3-22b", "tp=8,pp=1,mbs=4,sp=1,recompute=selective:core_attn", 8, stack="megatron-lm-2022", seq=2048, batch=4)
        < 0.85 * unfused
    )


def test_korthikanti_state_of_figure_1() -> None:
    """Parameters and optimizer state of the first stage, 175B at tp 8 pp 8: 45.56 GiB (Figure 1, digitised; row KM-0009)."""
    found = estimate(
        "gpt3-175b", "tp=8,pp=8,vpp=3,mbs=1,dist_opt=0", 64, stack="megatron-lm-2022", seq=2048, batch=64,
        numerics=Numerics(precision="fp16"),
    )  # fmt: skip
    state = sum(float(found.parts[name][0, 0, 1]) for name in ("weight_bytes", "gradient_bytes", "optimizer_bytes"))
    assert state / 2**30 == pytest.approx(45.5625, rel=0.002)


def test_experts_are_divided_by_ep_and_their_state_by_their_own_ranks() -> None:
    one, four = (estimate("mixtral-8x7b", f"tp=1,pp=1,ep={ep},mbs=1", 8, batch=64) for ep in (1, 4))
    experts = 32 * 8 * 3 * 4096 * 14336
    assert float((one.parts["weight_bytes"] - four.parts["weight_bytes"])[0, 0, 0]) == pytest.approx(2 * experts * 3 / 4)
    np.testing.assert_allclose(one.parts["optimizer_bytes"], four.parts["optimizer_bytes"], rtol=1e-12)


def test_imbalance_and_capacity_scale_the_experts_rows() -> None:
    balanced = peak("mixtral-8x7b", "tp=1,pp=1,ep=8,mbs=1", 8, batch=64)
    skewed = Numerics(moe_imbalance=1.8, attention_dropout=0.0, hidden_dropout=0.0)
    assert peak("mixtral-8x7b", "tp=1,pp=1,ep=8,mbs=1", 8, batch=64, numerics=skewed) > balanced
    dropped = Numerics(moe_capacity_factor=0.5, attention_dropout=0.0, hidden_dropout=0.0)
    assert peak("mixtral-8x7b", "tp=1,pp=1,ep=8,mbs=1", 8, batch=64, numerics=dropped) < balanced


@pytest.mark.parametrize("stack", software_names())
@pytest.mark.parametrize(("precision", "weight"), [("bf16", 2), ("fp16", 2), ("fp32", 4), ("fp8", 2)])
def test_every_stack_holds_the_state_and_layers_inputs_beside_it(stack: str, precision: str, weight: int) -> None:
    """GPT-3 1.7B on two stages of tp 2, dp 2: at least weights, gradients and half of the optimizer's state of a quarter of the
    parameters and two micro-batches' inputs of 12 layers; at most all of Korthikanti's Table 2 in fp32, the scores
    with two fp32 copies, and 6 GiB more."""
    spec = load_model("gpt3-1.7b")
    found = peak("gpt3-1.7b", "tp=2,pp=2,mbs=1", 8, numerics=Numerics(precision=precision), stack=stack, batch=64)
    state = total_parameters(spec) / 4 * (weight + 4 + (8 if precision == "fp32" else 12) / 2)
    s, h, a, layers = 4096, spec.hidden_size, spec.num_attention_heads, 2 * spec.num_layers / 2
    least, most = layers * s * h * weight, layers * s * h * ((10 + 24 / 2) * 2 + (5 * 2 + 8) * a * s / h / 2)
    assert state + least < found < state + most + 6 * 2**30


def test_margin_lowers_the_limit_and_the_chance_to_fit() -> None:
    layouts = LLAMA.layouts([parse_plan("tp=4,pp=4,mbs=1,sp=1", 64)])
    free = estimate_memory(LLAMA, layouts, [NONE])
    tight = estimate_memory(LLAMA, layouts, [NONE], margin=0.2)
    assert tight.limit_bytes[0] < free.limit_bytes[0] < load_gpu("h100").memory_bytes
    assert tight.fit_probability[0, 0] < free.fit_probability[0, 0]
    assert bool(free.fits[0, 0]) == bool(free.fit_probability[0, 0] >= 0.5)


@pytest.mark.parametrize("model", ["nemotron-3-nano", "qwen3-next-80b-a3b", "nemotron-3-super"])
def test_a_hybrids_stages_add_up_and_hold_their_sublayers(model: str) -> None:
    """Parts sum to the peak; what the stages hold of weights is the model's parameters, each once."""
    text = "tp=2,pp=2,ep=8,mbs=1,sp=1"
    found = estimate(model, text, 64, seq=8192)
    assert found.per_stage_bytes is not None
    assert sum(found.parts.values()) == pytest.approx(found.per_stage_bytes, rel=1e-12)
    spec = load_model(model)
    weights = float(found.parts["weight_bytes"].sum()) / 2
    kinds = [layer_parameters(spec, kind, 2, 1, 8) for kind in spec.layer_kinds]
    layers = sum(float(layer.dense + layer.experts) for layer in kinds)
    ends = 2 * spec.vocab_size * spec.hidden_size / 2 + spec.hidden_size
    depth = mtp_layer_parameters(spec, 2, 1, 8) if spec.mtp_num_layers else None
    more = float(depth.dense + depth.experts) + spec.vocab_size * spec.hidden_size / 2 if depth else 0.0
    assert weights == pytest.approx(layers + ends + more, rel=1e-3)
    recomputed = estimate(model, text + ",recompute=full:uniform:1", 64, seq=8192)
    assert (recomputed.peak_bytes < found.peak_bytes).all()


@pytest.mark.parametrize(("model", "layers"), [("qwen3-next-80b-a3b", 48), ("qwen3.5-27b", 64), ("nemotron-3-nano", 52)])
def test_full_recomputation_of_hybrids_keeps_the_inputs_of_what_megatron_counts(model: str, layers: int) -> None:
    """GPTModel's layer of a gated delta net is a mixer and its MLP (48 of Qwen3-Next, 64 of Qwen3.5-27B); Nemotron's is a
    sublayer. Groups of n keep layers / n inputs of 2 T h / t, and both sums of the peak agree."""
    options = {"seq": 8192, "batch": 64, "recomputes": [Recompute.parse(f"full:uniform:{n}") for n in (1, 2, 4)]}
    whole, quick = (estimate(model, "tp=8,mbs=1,sp=1", 64, detail=detail, **options) for detail in (True, False))  # type: ignore[arg-type]
    each = 2 * 8192 * load_model(model).hidden_size / 8
    kept = [float(whole.parts["layer_input"][0, r, 0]) / each for r in range(3)]
    assert kept == pytest.approx([layers, layers / 2, layers / 4])
    np.testing.assert_allclose(whole.peak_bytes, quick.peak_bytes, rtol=1e-12)
    np.testing.assert_allclose(sum(whole.parts.values()), whole.per_stage_bytes, rtol=1e-9)


def test_every_kind_of_parallelism_has_its_communicators_a_pipeline_two():
    assert nccl_bytes(1, 1, 1, 1, 1) == 0
    for place in (0, 2, 3, 4):
        assert nccl_bytes(*(8 if i == place else 1 for i in range(5))) == NCCL_BYTES_PER_GROUP
    assert nccl_bytes(1, 4, 1, 1, 1) == 2 * NCCL_BYTES_PER_GROUP
    assert nccl_bytes(2, 2, 2, 2, 2) == 6 * NCCL_BYTES_PER_GROUP


def test_tensors_get_what_context_communicators_and_the_allocator_leave():
    """80 GiB, a tenth kept free, half a GiB of context, 1.5 GiB of NCCL; 3 % of what is allocated is reserved beside it."""
    assert allocatable_bytes(80 * GIB, 1.5 * GIB, 0.1) == pytest.approx((80 * 0.9 - 0.5 - 1.5) * GIB / 1.03)


@pytest.mark.parametrize(("pp", "chunks"), [(1, 1), (2, 2), (4, 4)])
def test_no_option_saves_an_input_of_each_chunk_in_flight(pp, chunks):
    """Under full recomputation: 8,192 tokens of 4,096 channels in 16 bits for each micro-batch that the first stage holds."""
    scenario = Scenario(
        model=load_model("llama3-8b"), cluster=cluster_of(load_gpu("h100"), 8), numerics=Numerics(),
        software=load_stack("transformer-engine"), workload=Workload(seq_length=8192, global_batch_size=64),
    )  # fmt: skip
    layouts = scenario.layouts([parse_plan(f"tp=1,pp={pp},mbs=1", 8)])
    tables, terms = (
        PeakTables.of(scenario, layouts, [Recompute.parse("full:uniform:8")]),
        stage_terms(scenario, layouts, every=False),
    )
    least, state = tables._least(terms, np.array([0]))[0], terms.state[0]
    assert least == pytest.approx(max(state[0] + chunks * 2 * 8192 * 4096, state.max()), rel=1e-9)


def test_the_chance_to_fit():
    """A logistic of the distance over 2.5 % of the device; 95 % needs ln 19 of them."""
    assert fit_probability(10.0, 10.0, 80.0) == 0.5 and fit_probability(8.0, 10.0, 80.0) == pytest.approx(1 / (1 + np.exp(-1)))
    assert headroom_bytes(0.95, 80.0) == pytest.approx(2 * np.log(19)) and headroom_bytes(0.5, 80.0) == 0
    assert fit_probability(10.0 - headroom_bytes(0.9, 80.0), 10.0, 80.0) == pytest.approx(0.9)
    assert fit_probability(1e9, 10.0, 80.0) > 0 and allocator_bytes(100.0) == 3.0


@pytest.mark.parametrize(("tp", "pp", "gib"), [(1, 1, 0), (2, 1, 3), (1, 2, 3), (2, 2, 3)])
def test_what_a_stack_loses_where_a_model_is_divided(tp, pp, gib):
    assert model_parallel_reserved_bytes(StackMemory(model_parallel_reserved_gib=3.0), tp, pp) == gib * GIB


def test_positions_of_numbers_of_layers():
    """Halves are numbered one by one; whole numbers are their own positions."""
    for given in ([1.5, 2.0, 1.5], [3.0, 1.0, 7.0]):
        numbers, position = _numbered(np.array(given))
        assert numbers[position].tolist() == given
    assert _numbered(np.array([3.0, 1.0]))[1].tolist() == [3, 1]


@pytest.mark.parametrize("stack", ["torchtitan", "nanotron", "transformer-engine"])
def test_gradients_that_backward_has_not_made_are_in_no_earlier_moment(stack: str) -> None:
    """torch drops gradients at zero_grad: a step of one micro-batch peaks without them (4 bytes x parameters / ranks less than
    one of two, in which the first has left them); other stacks keep a buffer. The search's sum is the detailed one."""
    plan, found = "tp=1,pp=1,mbs=1,fsdp=3,dist_opt=0,recompute=full:uniform:1", {}
    for count in (1, 2):
        options = {"gpus": 8, "stack": stack, "batch": 8 * count, "seq": 8192}
        both = (estimate("llama3-8b", plan, detail=detail, **options) for detail in (True, False))  # type: ignore[arg-type]
        detailed, summed = both
        assert summed.peak_bytes[0, 0] == pytest.approx(detailed.peak_bytes[0, 0], rel=1e-12)
        assert sum(part[0, 0].sum() for part in detailed.parts.values()) == pytest.approx(detailed.peak_bytes[0, 0], rel=1e-9)
        found[count] = float(detailed.peak_bytes[0, 0])
    gradients = 4 * total_parameters(load_model("llama3-8b")) / 8
    assert found[2] - found[1] == pytest.approx(gradients if stack == "torchtitan" else 0.0, rel=1e-6)


TEXTS = [
    f"tp={tp},pp={pp},cp={cp},mbs={mbs},dp={16 // (tp * pp * cp)},sp={sp}"
    for tp, sp in ((1, 0), (2, 0), (2, 1)) for pp in (1, 2) for cp in (1, 2, 4) for mbs in (1, 2, 3, 4)
]  # fmt: skip
OPTIONS = [NONE, Recompute.parse("selective:core_attn"), Recompute.parse("full:uniform:1")]


def scenario_of(model: str, stack: str, gpu: str = "a100-sxm-80gb") -> Scenario:
    return Scenario(
        model=load_model(model), cluster=cluster_of(load_gpu(gpu), 16), numerics=Numerics(),
        software=load_stack(stack), workload=Workload(seq_length=4096, global_batch_size=384),
    )  # fmt: skip


# one of each kind of attention, of context parallelism, and of what both keep
STACKS = (
    *("transformer-engine", "torchtitan", "megatron-local-flash", "megatron-local", "torch-eager", "megatron-core-0.14"),
    *("transformers-deepspeed", "alephalpha-torch-2023"),
)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("model", ["llama3-8b", "deepseek-v2"])
def test_many_layouts_have_the_peaks_that_each_has_alone(model, stack):
    scenario = scenario_of(model, stack)
    plans = [parse_plan(text, 16) for text in TEXTS]
    layouts = layouts_of(2 * plans, scenario.model, [384] * len(plans) + [plan.mbs * plan.dp for plan in plans])
    peaks = estimate_memory(scenario, layouts, OPTIONS).peak_bytes
    for row in range(2, len(plans), 3):
        alone = estimate_memory(scenario, layouts.take(slice(row, row + 1)), OPTIONS)
        np.testing.assert_array_equal(alone.peak_bytes[0], peaks[row], TEXTS[row])
    first, group = alike_in_memory(scenario, layouts, np.ones(len(layouts)))
    np.testing.assert_array_equal(peaks, peaks[first][group])
    for share in (0.2, 0.5, 0.8):  # limits that some are above
        margin = 1 - share * float(peaks.max()) / scenario.cluster.memory_bytes
        every = estimate_memory(scenario, layouts, OPTIONS, margin=margin)
        found = plans_that_fit(scenario, layouts, OPTIONS, np.ones_like(every.fits), margin=margin)
        np.testing.assert_array_equal(found.fits, every.fits)
        rows = np.flatnonzero(every.fits.any(axis=1))
        np.testing.assert_array_equal(found.peak_bytes(rows), peaks[rows])


def test_halved_sequences_of_twice_as_many_are_one_group_under_flash_attention():
    """Half a sequence of four and a quarter of eight are as many tokens, of several sequences in parts; two whole sequences are
    not in parts, and half a sequence of two is fewer tokens."""
    scenario = scenario_of("llama3-8b", "transformer-engine", "h100-sxm-80gb")
    texts = ("cp=2,mbs=4,dp=8", "cp=4,mbs=8,dp=4", "cp=1,mbs=2,dp=16", "cp=2,mbs=2,dp=8")
    layouts = scenario.layouts([parse_plan(f"tp=1,pp=1,{text}", 16) for text in texts])
    group = alike_in_memory(scenario, layouts, np.ones(4))[1]
    assert group[0] == group[1] and len(set(group.tolist())) == 3
    assert len(set(alike_in_memory(scenario, layouts, np.array([1.0, 2.0, 1.0, 1.0]))[1].tolist())) == 4
