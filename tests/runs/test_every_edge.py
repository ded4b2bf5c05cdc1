"""What decides a run can be said in every edge alike: options, Python, HTTP, cells of tables; and it changes the answer."""

import json

import pytest
from autoconfig.api.wire import bodies
from autoconfig.specs.errors import GIB, InputError

from autoconfig import keywords
from autoconfig.formats.check import read_any
from autoconfig.megatron.check import check
from autoconfig.megatron.check_input import CheckRequest
from autoconfig.runs.cells import columns
from autoconfig.runs.predict import predict_rows, read_table
from autoconfig.runs.predict_post_training import predict_rows as predict_post_training
from autoconfig.runs.table import columns_of, names_of
from autoconfig.training.price import report_plan
from autoconfig.training.question import plan_of, request_of, understand
from tests.post_training.rl_question import answered

ASKED = {"model": "llama3-8b", "gpu": "h100", "gpus": 8, "seq_length": 4096, "global_batch_size": 64}
CELLS = {"seq_length": "seq", "global_batch_size": "gbs"}

TORCH, DEEPSPEED = {"software": "torch-eager"}, {"software": "deepspeed"}
FP8 = {"software": "transformer-engine", "precision": "fp8"}
EXPERTS = {"model": "qwen3-30b-a3b", "gpu": "b200"}
ONE = "tp=1,mbs=1"
FIELDS = {
    "fp8_param_gather": (True, FP8, ONE),
    "fp8_attention": (True, {**FP8, "gpu": "b200", "precision": "mxfp8"}, ONE),
    "fused_experts": (True, {**EXPERTS, "software": "nemo-26.04", "precision": "mxfp8"}, "tp=1,ep=8,mbs=1"),
    "activation_offload": (True, {"software": "transformer-engine"}, ONE),
    "moe_imbalance": (2.5, EXPERTS, "tp=1,ep=8,mbs=1"),
    "compile": (True, TORCH, "tp=1,mbs=1,fsdp=3"),
    "loss": ("fused", TORCH, "tp=1,mbs=2,fsdp=3"),
    "optimizer": ("adafactor", TORCH, ONE),
    "optimizer_in_backward": (True, DEEPSPEED, "tp=1,mbs=8"),
    "master_weights": ("none", TORCH, ONE),
    "frozen_dtype": ("nf4", {**TORCH, "peft": "lora"}, ONE),
    "zero_stage": (3, DEEPSPEED, ONE),
    "zero_bucket": (500_000_000, DEEPSPEED, "tp=1,mbs=1,fsdp=2"),
    "async_tp": (True, {"software": "torchtitan"}, "tp=4,mbs=1,fsdp=3"),
    "expandable_segments": (False, {"software": "transformer-engine"}, ONE),
}
"""Field -> value, the rest of the question, a plan for which it matters."""
OTHERS = {
    "optimizer": ("muon", "adam8bit", "paged_adam8bit"),
    "loss": ("plain", "chunked"),
    "frozen_dtype": ("int8", "fp8"),
    "zero_stage": (0, 2),
}


def figures(asked, plan):
    """Seconds, bytes and the limit of one plan."""
    question = understand(request_of({**ASKED, **asked}))
    report = report_plan(question.scenario, plan_of(question, plan))
    return [report.step_seconds, report.peak_bytes, report.limit_bytes]


def cells(asked, plan):
    """The same question as a row."""
    row = {CELLS.get(name, name): str(value) for name, value in {**ASKED, **asked}.items()}
    return row | dict(part.split("=") for part in plan.split(","))


@pytest.mark.parametrize("name", FIELDS)
def test_every_edge_has_the_field(autoconfig, name):
    assert name in {field.name for field in bodies.fields.QUESTION}
    assert name in keywords.QuestionKeywords.__annotations__ and name in bodies.ExplainBody.model_fields
    assert f"--{name.replace('_', '-')}" in autoconfig.run("explain", "--help-all").stdout
    assert name in columns_of("training")


@pytest.mark.parametrize("name", FIELDS)
def test_the_field_changes_the_answer_in_a_question_and_in_a_cell_alike(name):
    value, rest, plan = FIELDS[name]
    without = figures(rest, plan)
    for one in (value, *OTHERS.get(name, ())):
        asked = figures({**rest, name: one}, plan)
        assert asked != without or (name, one) in {("loss", "plain"), ("zero_stage", 0)}, one
        found = predict_rows([cells({**rest, name: one}, plan)])[0]
        assert [found.step_seconds, found.peak_gib * GIB] == pytest.approx(asked[:2], rel=1e-9), (one, found.note)


def test_passes_for_log_probabilities_have_a_micro_batch_of_their_own():
    assert "logprob_micro_batch" in keywords.RlKeywords.__annotations__ and "logprob_micro_batch" in columns_of("post_training")
    asked = {"model": "qwen2.5-7b", "gpus": 8, "gpu": "h100", "response_length": 1024, "prompt_length": 512, "top": 1}
    plain, small = (answered({**asked, "logprob_micro_batch": size}).ranked[0] for size in (None, 1024))
    assert small.phases.logprob > plain.phases.logprob


@pytest.mark.parametrize(
    ("field", "value", "rest", "said"),
    [
        ("compile", True, {}, "torch's trainers"),
        ("zero_bucket", 5, TORCH, "DeepSpeed's"),
        ("zero_bucket", 0, DEEPSPEED, "give 1 to"),
        ("loss", "Fused CE", TORCH, "use plain, chunked or fused"),
        ("zero_stage", 4, DEEPSPEED, "0 (nothing is sharded) to 3"),
        ("master_weights", "int4", TORCH, "use fp32 or none"),
        ("optimizer", "lion", TORCH, "is not one of adamw"),
        ("optimizer_in_backward", True, {"software": "nemo-26.04"}, "is not Megatron's"),
    ],
)
def test_a_field_that_the_software_or_nobody_has_is_refused(field, value, rest, said):
    with pytest.raises(InputError, match=said.replace("(", r"\(").replace(")", r"\)")):
        figures({**rest, field: value}, ONE)


CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 5632,
    "vocab_size": 50_000,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def test_a_cell_takes_a_config_beside_the_table_or_its_content(tmp_path):
    (tmp_path / "shape.json").write_text(json.dumps(CONFIG))
    asked = {**ASKED, "software": "torchtitan", "model": CONFIG}
    wanted = figures(asked, "tp=1,mbs=1,fsdp=3")
    table = tmp_path / "runs.csv"
    table.write_text(
        "config,gpu,gpus,seq,gbs,software,tp,mbs,fsdp\nshape.json,h100,8,4096,64,torchtitan,1,1,3\nno.json,h100,8,4096,64,,1,1,3\n"
    )
    found, missing = predict_rows(read_table(table))
    assert [found.step_seconds, found.peak_gib * GIB] == pytest.approx(wanted[:2], rel=1e-9)
    assert "is neither the JSON of a config.json nor the path of one" in missing.note
    row = {**cells({**asked, "model": ""}, "tp=1,mbs=1"), "fsdp": "3", "config": json.dumps(CONFIG)}
    assert predict_rows([row])[0].step_seconds == pytest.approx(wanted[0], rel=1e-9)


def test_a_row_of_post_training_says_the_micro_batch_of_its_passes():
    row = {
        "algorithm": "grpo",
        "framework": "verl",
        "policy_model": "Qwen2.5-7B",
        "gpu": "H100",
        "gpus": "8",
        "placement": "colocated",
        "prompt_len_mean": "512",
        "response_len_mean": "1024",
        "response_len_max": "2048",
        "prompts_per_step": "64",
        "group_size": "8",
    }
    plain, small = (predict_post_training([{**row, "logprob_micro_batch": size}])[0] for size in ("", "2048"))
    assert small.step.seconds > plain.step.seconds, (plain.note, small.note)


@pytest.mark.parametrize(
    ("column", "text", "words"),
    [
        ("gpus", "0", "cell gpus=0 must be at least 1"),
        ("group_size", "1.5", "cell group_size='1.5' is not a whole number"),
        ("gpu_mem_util", "80", "cell gpu_mem_util=80 must be above 0 and at most 1"),
        ("offload", "optimizer fraction 2", "optimizer fraction is from 0 to 1"),
        ("policy_model", "who knows", "unknown model 'who knows'"),
    ],
)
def test_a_cell_of_post_training_that_cannot_be_is_refused_by_its_name(column, text, words):
    row = {"policy_model": "Qwen2.5-7B", "gpu": "H100", "gpus": "8", "algorithm": "grpo", "framework": "verl"}
    refused, empty = predict_post_training([{**row, column: text}, {**row, "offload": "?", "group_size": "unknown"}])
    assert refused.step is None and words in refused.note
    assert empty.step is not None and "group" in empty.note


def test_every_column_is_declared_in_words_that_are_known():
    assert all(columns(kind) for kind in names_of("columns"))


TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[activation_checkpoint]
mode = "full"
[parallelism]
tensor_parallel_degree = 4
"""
TRAINER = (
    "model_name_or_path: Qwen/Qwen2.5-7B\nblock_size: 4096\nper_device_train_batch_size: 2\nbf16: true\nfsdp: full_shard\n"
)
ZERO = {"train_micro_batch_size_per_gpu": 1, "train_batch_size": 8, "bf16": {"enabled": True}}


def zero(**more):
    """DeepSpeed's file of ZeRO-2 with these keys."""
    return json.dumps({**ZERO, "zero_optimization": {"stage": 2, "overlap_comm": True, **more}})


FILES = {
    "async_tp": (TITAN, "enable_async_tensor_parallel = true\n"),
    "compile": (TRAINER, "torch_compile: true\n"),
    "loss": (TRAINER, "use_liger_kernel: true\n"),
    "optimizer": (TRAINER, "optim: adafactor\n"),
    "zero_bucket": (zero(reduce_bucket_size=5e8), zero(reduce_bucket_size=1e9)),
}
"""Field -> a file, and what says it in the file (of DeepSpeed the other file)."""


@pytest.mark.parametrize("name", FILES)
def test_a_file_whose_format_has_the_key_says_the_field(name):
    file, more = FILES[name]
    request = CheckRequest(gpu="h200", gpus=8, **({"model": "llama3-8b", "seq_length": 4096} if name == "zero_bucket" else {}))
    before, after = (check(read_any(text, request)) for text in (file, more if name == "zero_bucket" else file + more))
    assert (before.report.step_seconds, before.report.peak_bytes) != (after.report.step_seconds, after.report.peak_bytes)
    if name == "zero_bucket":  # 4.5 buckets of 16-bit elements at once
        assert after.report.peak_bytes - before.report.peak_bytes == 4.5 * 2 * 5e8
    if name in ("loss", "optimizer"):
        assert after.report.peak_bytes < before.report.peak_bytes
    if name in ("async_tp", "compile"):
        assert after.report.step_seconds < before.report.step_seconds
    assert not after.source.unknown
