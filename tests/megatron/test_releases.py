"""Arguments that megatron-core refuses at its start, whatever the plan, by release; `make judge` puts them to its parser."""

from dataclasses import replace

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.remarks import sentences
from tables import tabled

from autoconfig.formats.check import read_any
from autoconfig.megatron.check import check, file_violations, target
from autoconfig.megatron.check_input import CheckRequest, read_check
from autoconfig.megatron.refusals import RELEASES, pairs

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
            sentences(before.question.assumed)
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
    assert [violation.rule for violation in answer.violations] == ["AC034"]
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


def test_every_row_names_a_release_and_its_source():
    assert {pair.since for pair in pairs()} <= set(RELEASES)
    assert all(pair.relation in ("needs", "excludes") and ".py:" in pair.source for pair in pairs())
