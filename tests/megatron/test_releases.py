"""Arguments that megatron-core refuses at its start, whatever the plan, by release; `make judge` puts them to its parser."""

from dataclasses import replace

import pytest
from autoconfig.specs.errors import InputError
from tables import tabled

from autoconfig.formats.check import read_any
from autoconfig.megatron.argument_list import RELEASES, pairs
from autoconfig.megatron.check import check, file_violations, target
from autoconfig.megatron.check_input import CheckRequest, read_check

MODEL = "--num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 --bf16"
PLAIN = f"{MODEL} --vocab-size 1000 --micro-batch-size 1 --global-batch-size 64 --use-distributed-optimizer"
ASKED = CheckRequest(gpu="h100", gpus=8, software="transformer-engine")


def read(text, **asked):
    return read_check(f"{PLAIN} {text}", replace(ASKED, **asked))


@tabled
def test_what_megatron_refuses_is_not_legal_from_a_release_on(refused, rule, says, since, taken):
    found = read(refused)
    assert [(violation.rule, says in violation.text) for violation in found.refused] == [(rule, True)]
    assert set(found.refused) <= set(file_violations(found))
    assert not read(taken).refused
    at = RELEASES.index(since)
    assert [violation.rule for violation in read(refused, core_release=since).refused] == [rule]
    if at:
        before = read(refused, core_release=f"core_v{RELEASES[at - 1]}.0")
        assert not before.refused and f"refused since core {since}, and this is {RELEASES[at - 1]}" in str(
            before.question.assumed
        )
        assert f"--core-release {RELEASES[at - 1]} is before" in found.refused[0].text
    assert not read(refused, gpu="b200", software="megatron-lm-2022").refused


def test_what_a_megatron_of_its_year_took_is_not_refused():
    """--recompute-num-layers had 1 as default until the autumn of 2023 (tag 23.06); a script with no argument of later was
    called illegal on a GPU newer than it. Where the software, a release or a newer argument is named, it is refused."""
    text = "--recompute-granularity full --recompute-method uniform"
    found = read(text, software=None)
    assert not found.refused and str(found.plan.recompute) == "full:uniform:1"
    for more, asked in (("--use-mcore-models", {}), ("", {"software": "transformer-engine"}), ("", {"core_release": "0.5"})):
        assert [violation.rule for violation in read(f"{text} {more}", **{"software": None, **asked}).refused] == ["NV111"]


def test_no_plan_is_proposed_that_would_be_refused_too():
    answer = check(read("--deterministic-mode --cross-entropy-loss-fusion"))
    assert [violation.rule for violation in answer.violations] == ["AC025"]
    assert (answer.report, answer.nearest, answer.better, answer.fixes) == (None, None, None, ())
    with pytest.raises(InputError, match="--apply-to: another plan would be refused, too; change this first: --deterministic"):
        target(answer)
    both = check(read("--deterministic-mode --cross-entropy-loss-fusion --tensor-model-parallel-size 3"))
    assert len(both.violations) > 1 and both.nearest is not None


def test_a_release_is_one_of_megatron_core():
    for release in ("0.20", "1", "0.3", ""):
        with pytest.raises(InputError, match=r"use a release from 0\.4 to 0\.19"):
            read("", core_release=release)
    with pytest.raises(InputError, match="--core-release is for megatron-core, and the software is megatron-lm-2022"):
        read("", software="megatron-lm-2022", core_release="0.12")
    with pytest.raises(InputError, match="--core-release is for megatron-core, and this file is for another trainer"):
        read_any(
            '{"train_micro_batch_size_per_gpu": 1, "train_batch_size": 8}',
            replace(ASKED, model="llama3-8b", seq_length=64, core_release="0.12", software=None),
        )
    older = read("", gpu="a100-80gb", software=None)
    assert older.question.scenario.software.name == "megatron-lm-2022"
    named = read("", gpu="a100-80gb", software=None, core_release="0.12")
    assert named.question.scenario.software.name == "transformer-engine"


def test_a_condition_that_is_not_known_refuses_nothing():
    text = "if [ -f /x ]; then MORE=--overlap-param-gather-with-optimizer-step; fi\n"
    text += f"torchrun --nproc-per-node 8 pretrain_gpt.py {PLAIN} $MORE"
    found = read_check(text, replace(ASKED, gpus=None))
    assert not found.refused


def test_every_row_names_a_release_and_its_source():
    assert {pair.since for pair in pairs()} <= set(RELEASES)
    assert all(pair.relation in ("needs", "excludes") and ".py:" in pair.source for pair in pairs())


def test_a_launcher_with_a_megatron_of_its_own_is_not_held_to_the_newest():
    text = (
        "work_group: amd\nmodules:\n  pre_trainer:\n    framework: megatron\n    config: pre_trainer.yaml\n"
        "    model: llama2_7B.yaml\n    overrides:\n      micro_batch_size: 1\n      global_batch_size: 64\n"
        "      seq_length: 4096\n      max_position_embeddings: 4096\n      cross_entropy_loss_fusion: true\n"
        "      cross_entropy_fusion_impl: te\n"
    )
    found = read_any(text, CheckRequest(gpu="h100", gpus=8))
    assert not found.refused and "since core 0.19, and this is the launcher's own Megatron-LM" in str(found.question.assumed)
    named = read_any(text, CheckRequest(gpu="h100", gpus=8, core_release="0.19"))
    assert [violation.rule for violation in named.refused] == ["AC025"]


def test_what_a_model_named_elsewhere_has_is_not_missing():
    """GLM-4.5 Air's positions and scores come from its catalogue entry, not from absent arguments with Megatron's defaults."""
    text = (
        "NPROC_PER_NODE=8 megatron sft --model ZhipuAI/GLM-4.5-Air --max_length 2048 --mtp_num_layers 1 "
        "--moe_router_enable_expert_bias true --expert_model_parallel_size 8 {}"
    )
    assert not read_any(text.format(""), CheckRequest(gpu="h200")).refused
    said = read_any(text.format("--moe_router_score_function softmax"), CheckRequest(gpu="h200")).refused
    assert [violation.rule for violation in said] == ["AC025"]


def test_a_program_that_is_none_of_megatrons_gets_no_verdict_with_a_model_named():
    """DeepSpeedExamples finetune_zero3.py was taken for Megatron-LM in fp32 where --model and --seq-length were given."""
    text = (
        "deepspeed --num_gpus 1 finetune_zero3.py --deepspeed_config=c.json --model_name phi-4 --num_train_epochs 1 --lr 1e-5 "
        "--batch_size 4 --weight_decay 0.01 --output_dir o --seed 42 --max_length 4096 --log_interval 1 --bench_steps 10"
    )
    with pytest.raises(InputError, match=r"finetune_zero3\.py is none of Megatron-LM: it does not know 5 of its 11 options"):
        read_check(text, CheckRequest(gpu="h100", model="llama3-8b", seq_length=2048))
    with pytest.raises(InputError, match="this starts Primus"):
        read_any("bash runner/primus-cli direct -- train pretrain --config a.yaml --lr 1", CheckRequest(gpu="h100"))
