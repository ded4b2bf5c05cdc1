"""Megatron-LM's arguments of every year as a question and a plan; what our export writes reads back to the same plan."""

from pathlib import Path

import pytest
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.remarks import sentences
from autoconfig.specs.run_settings import GivenSettings
from tables import listed, tabled

from autoconfig.megatron.argument_list import (
    known_arguments,
    name_hint,
    not_modelled_arguments,
    refused_arguments,
    split_arguments,
)
from autoconfig.megatron.flag_table import _rows
from autoconfig.megatron.read import read_arguments
from autoconfig.megatron.read_model import read_pattern
from autoconfig.megatron.read_vocabulary import model_in
from autoconfig.training.plan_rules import layout_chunks, split_of_layout

SMALL = (
    "--num-layers 8 --hidden-size 256 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 --vocab-size 1000 "
)
BASE = SMALL + "--micro-batch-size 1 --global-batch-size 16 --bf16 "


def read(text, gpus=8, **overrides):
    return read_arguments((BASE + text).split(), cluster_of(load_gpu("a100-80gb"), gpus), **overrides)


def test_the_page_says_how_many_names_there_are():
    page = (Path(__file__).parents[2] / "docs" / "check.md").read_text(encoding="utf-8")
    assert f"holds {len(known_arguments()):,} names" in page


def test_the_table_is_whole_and_sorted():
    known = known_arguments()
    assert len(known) > 1_000 and list(known) == sorted(known)
    for argument in known.values():
        assert argument.values in ("0", "1", "2", "?", "*", "+") and 2020 <= argument.first_year <= 2026
    for name in (
        "--tensor-model-parallel-size",
        "--model-parallel-size",
        "--checkpoint-activations",
        "--zero-stage",
        "--lr",
        "--recompute-modules",
        "--pipeline-model-parallel-layout",
        "--data-path",
        "--batch-size",
    ):
        assert name in known


@tabled
def test_plans_of_every_year(text, plan):
    assert str(read(text).plan) == plan


@tabled
def test_models_take_megatrons_defaults(text, field, value):
    found = getattr(read(text).scenario.model, field)
    assert (list(found) if isinstance(found, tuple) else found) == value


@tabled
def test_numerics_take_megatrons_defaults(text, field, value):
    assert getattr(read(text).scenario.numerics, field) == value


@tabled
def test_switches_are_read(text, dispatcher, graphs, overlap):
    given = read(f"--num-experts 8 --expert-model-parallel-size 2 {text}").scenario.given
    assert given.fused_experts == ("op-fuser" in text)
    assert (given.dispatcher, sorted(given.cuda_graphs), given.ep_overlap) == (dispatcher, graphs, overlap)


def test_older_software_and_dense_models_say_nothing_of_experts():
    assert read("").scenario.given == GivenSettings()
    dense = GivenSettings(cuda_graphs=frozenset(), fp8_attention=False, fp8_output=False, offload_layers=0)
    assert read("--attention-backend flash").scenario.given == dense


@tabled
def test_contradictions_and_odd_values_are_errors(text, says):
    with pytest.raises(InputError) as error:
        read(text)
    assert says in str(error.value)


@pytest.mark.parametrize(
    "text",
    ["--hybrid-mlp-ratio 0.3", "--yaml-cfg a.yaml", "--fp4-format e2m1 --fp4-recipe other"],
)
def test_what_cannot_be_checked_is_refused(text):
    with pytest.raises(UnsupportedError):
        read(text)


def test_unknown_arguments_are_listed_and_known_ones_never():
    found = read("--new-switch --new-value 3 --lr 1e-4 --data-path 0.3 a 0.7 b --log-interval 1 stray --no-load-optim -x")
    assert sentences(found.unknown) == ("--new-switch", "--new-value 3", "-x", "stray")
    assert found.ignored == ("--lr", "--data-path", "--log-interval", "--no-load-optim")
    assert split_arguments(["--tensor_model_parallel_size=4"]).whole("--tensor-model-parallel-size") == 4


def test_overrides_win():
    found = read("", model_name="llama3-8b", seq_length=1024, global_batch_size=64, software="nemo-25.11")
    assert found.scenario.model.name == "llama3-8b" and found.scenario.workload.seq_length == 1024
    assert found.scenario.workload.global_batch_size == 64 and found.scenario.software.name == "nemo-25.11"


def test_layouts():
    assert layout_chunks("Et*2|(t*2|)*2,t*3|tL") == ["Ett", "tt", "tt", "ttt", "tL"]
    split = split_of_layout("Et|(tt|)*30mL", 8, 61, 1)
    assert split.vpp == 4 and split.layers == (7, 8, 8, 8, 8, 8, 8, 6) and not split.broken
    assert split.ends(61) == (7, 6)
    assert split_of_layout("[['embedding','decoder'],['decoder','loss']]", 2, 2, 0).layers == (1, 1)
    assert split_of_layout("Et|tL", 2, 3, 0).broken == ("NV031",)
    assert split_of_layout("E|tt|tt|L", 4, 4, 0).ends(4) == (None, None)
    assert split_of_layout("E|tt|ttt|L", 4, 5, 0).ends(5) == (1, 2)
    assert read_pattern("([0]*3+[1]*58)", "--x") == [0] * 3 + [1] * 58


SCHEDULED = SMALL + "--micro-batch-size 1 --bf16 "


@pytest.mark.parametrize("words", [["0:16 2.4B:320 12B:1536"], ["0:16", "2.4B:320", "12B:1536"], ['"0:16', '12B:1.536K"']])
def test_the_batch_of_a_schedule_is_its_last(words):
    argv = [*SCHEDULED.split(), "--step-batch-size-schedule", *words]
    cluster = cluster_of(load_gpu("a100-80gb"), 8)
    found = read_arguments(argv, cluster)
    assert found.scenario.workload.global_batch_size == 1536 and not found.unknown
    with pytest.raises(InputError, match="given together"):
        read_arguments([*argv, "--global-batch-size", "1536"], cluster)


@pytest.mark.parametrize("text", ["16", "0:0", "1B:16", "0:16 0:32", "0:x", "0:1..2"])
def test_a_schedule_that_megatron_refuses_is_refused(text):
    with pytest.raises(InputError, match="--step-batch-size-schedule"):
        read_arguments([*SCHEDULED.split(), "--step-batch-size-schedule", text], cluster_of(load_gpu("a100-80gb"), 8))


def test_a_ramp_up_is_said_to_be_ignored_by_todays_megatron():
    assert "0.19 ignores it" in " ".join(sentences(read("--rampup-batch-size 8 8 1000").assumed))


LLAMA_70B = (
    "--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --group-query-attention --num-query-groups 8 "
    "--ffn-hidden-size 28672 --swiglu --position-embedding-type rope"
)


@tabled
def test_a_vocabulary_that_no_exact_name_says_is_asked_for(more):
    """No name that is alike, no shape and no word of the file stands for it."""
    text = f"{LLAMA_70B} --seq-length 4096 --bf16 --micro-batch-size 1 --global-batch-size 16 {more}"
    with pytest.raises(InputError, match=r"the vocabulary is not known: .*pass --set vocab_size=N"):
        read_arguments(text.split(), cluster_of(load_gpu("a100-80gb"), 8))


@tabled
def test_the_vocabulary_is_that_of_the_tokenizer_by_its_exact_name(more, vocabulary, says):
    text = f"{LLAMA_70B} --seq-length 4096 --bf16 --micro-batch-size 1 --global-batch-size 16 {more}"
    found = read_arguments(text.split(), cluster_of(load_gpu("a100-80gb"), 8))
    said = [text for text in sentences(found.assumed) if text.startswith("vocabulary")]
    assert found.scenario.model.vocab_size == vocabulary and (says in said[0] if says else not said), sentences(found.assumed)


@tabled
def test_only_slips_get_a_hint(given, hint):
    assert name_hint(given) == hint


@tabled
def test_what_changes_the_model_is_used(text, field, value):
    model = read(text).scenario.model
    size = -(-model.vocab_size // model.make_vocab_size_divisible_by) * model.make_vocab_size_divisible_by
    assert (size if field == "padded_vocab" else listed(getattr(model, field))) == value


def test_what_no_formula_reads_is_named_one_by_one():
    known = set(known_arguments())
    assert set(not_modelled_arguments()) <= known
    assert {*refused_arguments("job"), *refused_arguments("model")} <= known
    assert {name for row in _rows() for name in row.names} <= known
    found = read("--fp32-residual-connection --num-distributed-optimizer-instances 1 --optimizer sgd --partition-activations")
    assert [remark.field for remark in found.not_modelled] == [
        "--partition-activations", "--fp32-residual-connection", "--optimizer",
    ]  # fmt: skip
    assert not found.ignored or set(found.ignored) == {"--num-distributed-optimizer-instances"}
    assert read("--num-distributed-optimizer-instances 2").not_modelled and not read("--optimizer adam").not_modelled


@tabled
def test_which_model_a_name_is_of(name, model):
    """Of two models in one name none is taken, nor a model whose name says no size, where more stands behind it."""
    found = model_in(name)
    assert (found.name if found else None) == model


def test_parallelism_of_another_kind_is_no_plan_of_ours():
    """axonn-ai/Megatron-AxoNN, examples/run_axonn.sh: its three kinds of tensor parallelism were called unknown, and the plan
    without them not legal."""
    with pytest.raises(UnsupportedError, match="--depth-tensor-model-parallel-size 8: a kind of parallelism"):
        read("--row-tensor-model-parallel-size 1 --depth-tensor-model-parallel-size 8")
    assert str(read("--row-tensor-model-parallel-size 1 --rollout-tensor-parallel-size 4").plan).startswith("tp=1,")


@tabled
def test_a_vocabulary_beside_a_tokenizer_that_has_another_is_said(more, is_said):
    """megatron/training/tokenizer: `_vocab_size_with_padding(tokenizer.vocab_size)`; --vocab-size is NullTokenizer's."""
    said = [text for text in sentences(read(more).assumed) if text.startswith("vocabulary 1000, which Megatron-LM")]
    assert bool(said) is is_said and all("the 32000 of Llama2Tokenizer" in text for text in said)
