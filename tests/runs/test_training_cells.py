"""Cells of a table of training runs: formats, switches, layouts, names with a depth or a size; what an empty cell means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.plan import NONE
from autoconfig.specs.remarks import sentences
from autoconfig.specs.scenario import Calibration, Entry, Factors, OwnRuns
from autoconfig.specs.software.software import DEFAULT_STACK, load_stack, newest_release
from autoconfig.time_model.job import TrainingJob
from autoconfig.time_model.predict import estimate_step_time

from autoconfig.runs.predict import predict_rows
from autoconfig.runs.training_row import Case, read_case
from autoconfig.training.question import Request, understand

ROW = {
    "id": "x", "source": "s", "model": "deepseek-v3", "seq": "4096", "gpu": "GB200", "gpus": "256", "precision": "mxfp8",
    "tp": "1", "pp": "4", "vpp": "4", "ep": "64", "mbs": "1", "gbs": "2048", "fsdp": "1", "software": "nemo-26.06.01",
}  # fmt: skip


def case(**cells: str) -> Case:
    return read_case({**ROW, **cells})


@pytest.mark.parametrize(("cells", "precision", "recipe"), [
    ({}, "fp8", "mxfp8"), ({"precision": "nvfp4"}, "nvfp4", "delayed"),
    ({"precision": "fp8", "fp8_recipe": "tensorwise"}, "fp8", "tensorwise"),
    ({"precision": "fp8"}, "fp8", "mxfp8"), ({"precision": "fp8", "gpu": "H100"}, "fp8", "tensorwise"),
    ({"precision": "nvfp4", "fp8_recipe": "nvfp4"}, "nvfp4", "delayed"),
    ({"precision": "fp8", "software": "transformer-engine"}, "fp8", "delayed"), ({"precision": "fp8cs"}, "fp8", "tensorwise"),
    ({"precision": "FP8-MX"}, "fp8", "mxfp8"), ({"precision": "blockwise"}, "fp8", "blockwise"),
])  # fmt: skip
def test_formats(cells: dict[str, str], precision: str, recipe: str) -> None:
    numerics = case(**cells).scenario.numerics
    assert (numerics.precision, numerics.fp8_recipe) == (precision, recipe)


def test_a_format_that_nothing_is_known_of_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="precision='fp6' is not one of bf16"):
        case(precision="fp6")
    scenario = case().scenario
    gpu = scenario.cluster.gpu
    for unmeasured in ("fp8", "fp4"):  # the first is scaled by mxfp8, the second has no rate at all
        numerics = scenario.numerics if unmeasured == "fp8" else replace(scenario.numerics, precision="nvfp4")
        job = TrainingJob.of(replace(scenario, numerics=numerics))
        job.__dict__["gpu"] = replace(job.gpu, quantised={"fp8": replace(job.gpu.quantised["fp8"], recipe={"delayed": 1.0})})
        with pytest.raises(InputError, match=f"what {gpu.id} reaches in"):
            _ = job.reached


OSS = {"model": "gpt-oss-120b", "software": "nemo-25.11", "gpu": "B200", "gpus": "64", "pp": "1", "vpp": "1", "gbs": "512"}


@pytest.mark.parametrize(("cells", "expected"), [
    ({"moe_dispatcher": "hybridep", "cuda_graph_scope": "attn", **OSS}, {"dispatcher": "hybridep", "cuda_graphs": {"attn"}}),
    ({"overlap": "overlap-moe-expert-parallel-comm", "software": "nemo-26.02"}, {"ep_overlap": True}),
    ({"overlap": "tp-comm-overlap"}, {"ep_overlap": False}), ({"ep_overlap": "0"}, {"ep_overlap": False}),
    ({"overlap": "tp-comm-overlap", "ep_overlap": "1"}, {"ep_overlap": True}),
    ({"cuda_graph": "0"}, {"cuda_graphs": set()}), ({"cuda_graph_scope": "none"}, {"cuda_graphs": set()}),
    ({"cuda_graph": "full_iteration"}, {"cuda_graphs": {"full_iteration"}}),
    ({"cuda_graph": "local", "moe_routing": "tokendrop"}, {"cuda_graphs": {"full"}}),
    ({"cuda_graph": "1", "cuda_graph_scope": "attn,moe_router"}, {"cuda_graphs": {"attn", "moe_router"}}),
    ({"cuda_graph": "1", "software": "transformer-engine"}, {"cuda_graphs": {"attn", "moe_router", "moe_preprocess"}}),
    ({"moe_dispatcher": "all-to-all"}, {"dispatcher": "alltoall"}),
    ({"fused_experts": "0", "fp8_attention": "1", "fp8_output": "0"},
     {"fused_experts": False, "fp8_attention": True, "fp8_output": False}),
    ({"fused_experts": "1", "fp8_attention": "0", "fp8_output": "1"},
     {"fused_experts": True, "fp8_attention": False, "fp8_output": True}),
    ({"offload": "activations", "offload_layers": "20"}, {"offload_layers": 20}),
    ({"offload": "activations"}, {"offload_layers": 60}), ({"offload": "optimizer"}, {"offload_layers": 0}),
    ({"offload": "optimizer", "offload_layers": "20"}, {"offload_layers": 20}),
    ({"offload_layers": "3"}, {"offload_layers": 3}), ({"offload_layers": "0"}, {"offload_layers": 0}),
])  # fmt: skip
def test_a_switch_is_what_the_row_says(cells: dict[str, str], expected: dict[str, Any]) -> None:
    found = case(**cells)
    settings = found.scenario.settings(found.plan)
    assert {name: getattr(settings, name) for name in expected} == expected


ASKED = {
    "model": "model", "seq": "seq_length", "gpu": "gpu", "gpus": "gpus", "gbs": "global_batch_size", "software": "software"
}  # fmt: skip


@pytest.mark.parametrize("change", [
    {}, {"software": ""}, {"software": "nemo-25.11"}, {"software": "transformer-engine", "precision": "bf16"}, {"seq": ""},
    {"software": "megatron-lm-2022", "model": "gpt3-22b", "gpu": "A100", "precision": "fp16", "tp": "2", "ep": "1"},
    {"model": "llama3-70b", "ep": "1", "vpp": "1", "tp": "4", "precision": "fp8", "gpu": "H100", "seq": "8192"},
    {"model": "llama3-70b", "ep": "1", "vpp": "1", "tp": "2", "precision": "", "gpu": "H100", "gbs": "", "seq": ""},
    {"model": "qwen3-30b-a3b", "pp": "1", "vpp": "1", "ep": "8", "gpus": "16", "gpu": "H100", "precision": "bf16"},
])  # fmt: skip
def test_what_a_row_leaves_open_is_what_a_question_takes(change: dict[str, str]) -> None:
    row = {**ROW, "fsdp": "", **change}
    asked: dict[str, Any] = {name: int(row[key]) if row[key].isdigit() else row[key] for key, name in ASKED.items() if row[key]}
    numerics = {"precision": row["precision"] or None}
    question = understand(Request(**asked, numerics=numerics)).scenario
    found = read_case(row, question.calibration)
    assert replace(question, given=found.scenario.given) == found.scenario
    degrees = ",".join(f"{key}={row[key]}" for key in ("tp", "pp", "vpp", "ep", "mbs"))
    plan = question.read_plan(degrees)
    assert found.plan == plan.replace(first=found.plan.first, last=found.plan.last)
    assert found.scenario.settings(plan) == question.settings(plan)


def test_the_usual_software_is_that_of_the_calibrations_own_runs() -> None:
    mine = OwnRuns(runs=9, log_sd=0.1, degrees_of_freedom=8.0)
    own = Entry(architecture="blackwell", generation="megatron-core", factors=Factors(), own=mine)
    blank = {**ROW, "software": "", "fsdp": ""}
    named = [read_case(blank, Calibration(version="mine", entries=entries)).scenario.software.name for entries in ((), (own,))]
    assert named == [load_stack(newest_release()).name, DEFAULT_STACK]


DENSE = {**ROW, "model": "llama3-70b", "ep": "", "pp": "8", "vpp": "10", "tp": "1", "gpus": "32", "seq": "4096", "gbs": "32"}


@pytest.mark.parametrize(("cells", "packed", "peft", "modules", "rank"), [
    ({}, None, "none", 4, 8), ({"task": "pretrain"}, None, "none", 4, 8), ({"task": "sft"}, None, "none", 4, 8),
    ({"task": "finetune", "packed_length": "200"}, 200, "none", 4, 8), ({"task": "lora"}, None, "lora", 4, 8),
    ({"task": "peft", "lora_rank": "32"}, None, "lora", 4, 32),
    ({"peft": "lora", "packed_length": "512", "lora_target_modules": "linear_qkv,linear_fc1"}, 512, "lora", 2, 8),
    ({"task": "sft", "packed_length": "4096"}, None, "none", 4, 8),
    ({"task": "lora", "software": "transformer-engine"}, None, "lora", 4, 8),
])  # fmt: skip
def test_fine_tuning(cells: dict[str, str], packed: int | None, peft: str, modules: int, rank: int) -> None:
    found = read_case({**DENSE, **cells})
    numerics = found.scenario.numerics
    assert (found.scenario.workload.packed_length, numerics.peft, numerics.lora_rank) == (packed, peft, rank)
    assert len(numerics.lora_target_modules) == modules
    tuned = cells.get("task", "pretrain") != "pretrain"
    assert any("packed_length" in said for said in sentences(found.assumed)) is (tuned and "packed_length" not in cells)


def test_packed_samples_and_frozen_weights_take_less_time() -> None:
    def step(**cells: str) -> float:
        found = read_case({**DENSE, **cells})
        return float(estimate_step_time(found.scenario, found.scenario.layouts([found.plan]), [NONE]).step_seconds[0, 0])

    packing = {"packed_length": "200"}
    whole, packed, every = step(), step(task="sft", **packing), step(task="lora", **packing)
    adapters = step(task="lora", lora_target_modules="linear_qkv", **packing)
    assert 0.75 * whole < packed < 0.97 * whole and adapters < 0.8 * packed and adapters < every
    with pytest.raises(InputError, match="lora_target_modules='linear_q'"):
        step(task="lora", lora_target_modules="linear_q")
    with pytest.raises(InputError, match="packed_length"):
        step(task="sft", packed_length="0.5")


def test_a_cell_of_model_parallel_overlap_leaves_data_parallelism_alone() -> None:
    time = case(overlap="overlap-moe-expert-parallel-comm").scenario.software.time
    assert time.overlap_grad_reduce and time.overlap_param_gather
    time = case(overlap="overlap-grad-reduce").scenario.software.time
    assert time.overlap_grad_reduce and not time.overlap_param_gather


def test_layouts_give_stages_and_are_refused_where_they_break_a_rule() -> None:
    plan = case(pipeline_layout="Et*4|(t*4|)*14tmL").plan
    assert (plan.vpp, plan.first, plan.last) == (4, 16, 13)
    blank = case(pipeline_layout="Et*4|(t*4|)*14tmL", vpp="")
    assert blank.plan == plan and "vpp 4, as pipeline_layout has it" in sentences(blank.assumed)
    assert not any("vpp 1" in said for said in sentences(blank.assumed))
    two = case(pipeline_layout="Et*4|(t*4|)*14tmL", pp="2", vpp="").plan
    assert (two.vpp, two.first, two.last) == (8, 32, 29)
    for layout, says in (("Et*4|(t*4|)*6tmL", "vpp"), ("Et*3|(t*4|)*14tmL", "NV031"), ("xyz", "cannot be read")):
        with pytest.raises(InputError, match=says):
            case(pipeline_layout=layout)


def test_a_format_that_the_gpu_lacks_is_refused_with_what_to_say() -> None:
    with pytest.raises(InputError, match=r"mxfp8 recipe needs compute capability 10 .*h100.* has 9"):
        case(gpu="H100")


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"software": "megatron-lm-2022", "gpu": "A100", "precision": "fp8"}, "has no fp8"),
        ({"software": "nemo-26.06.01", "gpu": "V100", "gpu_mem_gb": "32", "precision": "fp16"}, "needs compute capability"),
        ({"software": "megatron-lm-2022", "gpu": "A100", "precision": "bf16", "model": "deepseek-v3.2"}, "sparse attention"),
    ],
)
def test_a_row_that_its_software_cannot_run_is_refused_as_a_question_is(cells: dict[str, str], why: str) -> None:
    with pytest.raises(InputError, match=why):
        case(**cells)


def test_switches_that_decide_a_mixture_are_named_where_the_row_does_not_say_them() -> None:
    words = ("dispatcher", "graphs", "EP overlap", "experts", "attention in fp8", "priced as nemo-26.06")
    said = sentences(case().assumed)
    assert all(any(word in text for text in said) for word in words)
    cells = {"moe_dispatcher": "alltoall", "cuda_graph": "0", "overlap": "none", "fused_experts": "0", "fp8_attention": "0"}
    assert not any(word in text for text in sentences(case(**cells).assumed) for word in words[:-1])
    assert not any("dispatcher" in text for text in sentences(read_case(DENSE).assumed))


def test_a_dispatcher_that_gives_way_is_said_with_what_it_costs() -> None:
    said = sentences(case(moe_dispatcher="deepep").assumed)
    assert any("as deepep does not run where links join more than one board" in text for text in said)
    assert "CUDA graphs none (--cuda-graphs)" in said, "a graph of the full iteration needs sizes that are known"
    assert not any("does not run" in text for text in sentences(case(moe_dispatcher="hybridep").assumed))


def test_a_hybrid_with_another_depth_or_size_keeps_its_mix() -> None:
    cut = {"pp": "1", "vpp": "", "ep": "8", "gpus": "8", "gbs": "64"}
    nano = case(**cut, model="nemotron-3-nano-26layers").scenario.model
    assert (nano.num_layers, nano.hybrid_layer_pattern) == (26, "MEMEM*EMEMEM*EMEMEM*EMEMEM")
    sized = case(**cut, model="qwen3.5-122b-a10b-60b").scenario.model
    assert total_parameters(sized) == pytest.approx(60e9, rel=0.04) and sized.num_layers == 46
    assert {kind: sized.layer_kinds.count(kind) for kind in ("gdn", "attention", "moe")} == {
        "gdn": 17,
        "attention": 6,
        "moe": 23,
    }
    deep = case(**cut, model="nemotron-3-super-176layers").scenario.model
    super_ = case(**cut, model="nemotron-3-super").scenario.model
    assert all(deep.layer_kinds.count(kind) == 2 * super_.layer_kinds.count(kind) for kind in set(super_.layer_kinds))
    assert case(**cut, model="qwen3-next-80b-a3b", layers="48").scenario.model.num_layers == 96, "as checkpoints count"
    assert case(**cut, model="qwen3-next-80b-a3b-12layers").scenario.model.hybrid_layer_pattern == "GEGEGE*E" * 3 + "/*E"
    with pytest.raises(InputError, match="2 layers cannot hold the 3 kinds"):
        case(**cut, model="nemotron-3-nano-2layers")


def test_a_depth_or_a_size_behind_a_name_is_that_model() -> None:
    cut = case(model="deepseek-v3-16layers").scenario.model
    assert (cut.num_layers, cut.moe_ffn_hidden_size, sum(cut.moe_pattern)) == (16, 2048, 13)
    sized = case(model="qwen3-30b-a3b-15b", pp="1", vpp="", ep="8", gpus="8").scenario.model
    assert total_parameters(sized) == pytest.approx(15e9, rel=0.03) and sized.num_moe_experts == 128
    assert case(model="deepseek-v3-16layers", layers="8").scenario.model.num_layers == 8


@pytest.mark.parametrize(("model", "reached"), [
    ("deepseek-v3-0.1b", "2.44 B"), ("deepseek-v3-1b", "2.44 B"), ("deepseek-v3-10b", "15.1 B"), ("llama3-70b-0.5b", "2.96 B"),
    ("deepseek-v3-9000b", "1.37e+03 B"),
])  # fmt: skip
def test_a_size_that_no_depth_reaches_leaves_the_row_empty_and_one_that_is_near_is_said(model: str, reached: str) -> None:
    found = predict_rows([{**ROW, "model": model, "pp": "1", "vpp": "", "ep": "8", "gpus": "8"}])[0]
    assert found.step_seconds is None and f"it has {reached} parameters" in found.note
    near = case(model="qwen3-30b-a3b-14.9b", pp="1", vpp="", ep="8", gpus="8")
    size = f"{total_parameters(near.scenario.model) / 1e9:.3g} B parameters"
    assert any(f"layers, {size} (qwen3-30b-a3b-14.9b)" in text for text in sentences(near.assumed))


def test_a_recipe_of_fp8_that_contradicts_the_precision_is_an_error_or_said() -> None:
    with pytest.raises(InputError, match="precision=mxfp8 and fp8_recipe=tensorwise contradict each other"):
        case(fp8_recipe="tensorwise")
    assert "precision bf16, which has no fp8_recipe mxfp8" in sentences(case(precision="bf16", fp8_recipe="mxfp8").assumed)
    assert case(fp8_recipe="MXFP8").scenario.numerics == case().scenario.numerics


@pytest.mark.parametrize("text", [
    "overlap-grad-reduce, overlap-moe-expert-parallel-comm", "--overlap-grad-reduce --overlap-moe-expert-parallel-comm",
    "overlap_grad_reduce+Overlap_moe_expert_parallel_comm",
])  # fmt: skip
def test_spellings_of_overlaps(text: str) -> None:
    plain = {**ROW, "overlap": "overlap-grad-reduce+overlap-moe-expert-parallel-comm"}
    found = predict_rows([plain, {**plain, "overlap": text}])
    assert found[0] == found[1] and "is none of" not in found[0].note
    time = case(overlap=text).scenario.software.time
    assert (time.overlap_grad_reduce, time.overlap_param_gather) == (True, False)


def test_layers_of_a_hybrid_are_counted_as_the_table_counts_them() -> None:
    known = {"model": "qwen3-next-80b-a3b-24layers", "pp": "1", "vpp": "", "ep": "8", "gpus": "8"}
    said = sentences(case(**known).assumed)
    assert any("layers 24, not 48" in text for text in said) and not any("96" in text for text in said)


SPELLINGS = ("selective(layernorm+moe_act)", "selective(layernorm, moe_act)", "selective:moe_act+layernorm")


@pytest.mark.parametrize("text", SPELLINGS)
def test_spellings_of_recomputed_modules(text: str) -> None:
    assert str(case(recompute=text).plan.recompute) == "selective:layernorm+moe_act"


@pytest.mark.parametrize(
    ("software", "tp", "sp"),
    [
        ("transformer-engine", "2", True),
        ("nemo-24.09", "2", True),
        ("nemo-26.06", "2", True),
        ("transformer-engine", "1", False),
        ("torch-eager", "2", True),
        ("megatron-deepspeed-2023", "2", False),
        ("megatron-lm-2022", "2", True),
    ],
)
def test_an_empty_cell_of_sp_is_on_where_the_software_has_it(software: str, tp: str, sp: bool) -> None:
    shape = {"model": "llama3-8b", "gpu": "h100", "gpus": "8", "tp": tp, "pp": "1", "vpp": "", "ep": "1", "sp": ""}
    assert case(**shape, software=software, precision="bf16", recompute="none").plan.sp is sp


def test_recomputation_and_offload_cells() -> None:
    found = case(recompute="selective(layernorm,moe_act)", offload="activations")
    assert str(found.plan.recompute) == "selective:layernorm+moe_act"
    assert not any("offload none" in text for text in sentences(found.assumed))


def test_what_offload_of_activations_leaves_out_is_said() -> None:
    assert any("NV036" in said for said in sentences(case(offload="activations").assumed)), "four stages"
    one = sentences(case(offload="activations", offload_layers="20", pp="1", vpp="").assumed)
    assert any("host link assumed" in said for said in one) and not any("NV036" in said for said in one)
    assert not any("offload" in said for said in sentences(case().assumed))


@pytest.mark.parametrize(
    ("name", "fsdp", "stack"),
    [
        ("Unsloth 2026.4", "", "torch-eager"),
        ("our-FSDP2-trainer", "", "torch-eager"),
        ("MyTrainer", "3", "torch-eager"),
        ("zero3-runner", "", "deepspeed"),
        ("torchtitan-fork-x", "3", "torchtitan"),
        ("Megatron-SWIFT 9", "", newest_release()),
        ("MyTrainer", "", newest_release()),
        ("deepspeed", "", "deepspeed"),
    ],
)
def test_software_that_nobody_knows_is_priced_as_the_generic_stack_of_its_kind(name, fsdp, stack):
    row = {"model": "llama3-8b", "gpu": "h200", "gpus": "8", "tp": "1", "pp": "1", "mbs": "1", "gbs": "8", "seq": "4096"}
    case = read_case({**row, "software": name, "fsdp": fsdp})
    assert case.scenario.software.name == stack
    named = [one for one in case.assumed if one.field == "software" and "is not known" in one.why]
    assert len(named) == (name != stack)
    assert all(repr(name) in one.why for one in named)


def test_runs_of_the_schedule_are_said_alike() -> None:
    """A cell and a field of a question: each run has a bubble of its own; Megatron's schedule takes all micro-batches."""
    cells = {
        "model": "llama3-8b",
        "gpu": "H100",
        "gpus": "8",
        "precision": "bf16",
        "vpp": "1",
        "ep": "1",
        "gbs": "64",
        "fsdp": "2",
    }
    once, four = (case(**cells, software="torchtitan", schedule_calls=calls) for calls in ("", "4"))
    asked = Request(model="llama3-8b", gpus=8, gpu="h100", software="torchtitan", seq_length=4096, global_batch_size=64)
    assert understand(replace(asked, schedule_calls=4)).scenario.workload == four.scenario.workload
    assert understand(asked).scenario.workload == once.scenario.workload
    bubbles = []
    for one in (once, four):
        found = estimate_step_time(one.scenario, one.scenario.layouts([one.plan]), [NONE], detail=True)
        bubbles.append(float(found.parts["pipeline_bubble_seconds"][0, 0]))
    assert bubbles[1] == pytest.approx(4 * bubbles[0])
    with pytest.raises(InputError, match=r"--schedule-calls 4: the pipeline of nemo-26\.06\.01.* all micro-batches"):
        case(schedule_calls="4")
    with pytest.raises(InputError, match="schedule_calls=0"):
        understand(replace(asked, schedule_calls=0))
