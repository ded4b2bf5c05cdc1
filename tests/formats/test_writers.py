"""What is written reads back to the same plan; what a format cannot say is refused with a list; translation between them."""

import json
import random
from pathlib import Path

import pytest
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.plan import parse_plan
from jsonschema import Draft202012Validator
from tables import tabled

from autoconfig.formats.check import read_any
from autoconfig.formats.convert import FORMATS, convert, write_plan
from autoconfig.formats.writers.table import WRITERS
from autoconfig.megatron.check_input import CheckRequest
from autoconfig.planning.schemas import schema
from autoconfig.training.question import request_of, understand
from autoconfig.training.rank import rank
from autoconfig.training.space import Constraints

SMALL = {"model": "llama3-8b", "gpus": 16, "gpu": "h100", "seq_length": 4096, "global_batch_size": 64}
QUESTIONS = {
    "dense": SMALL,
    "torch": {**SMALL, "model": "llama3.1-8b", "software": "torchtitan"},
    "zero": {**SMALL, "gpus": 8, "gpu": "h200", "software": "deepspeed"},
    "moe": {**SMALL, "model": "qwen3-30b-a3b", "gpus": 32, "global_batch_size": 256},
    "fp8": {**SMALL, "precision": "fp8"},
    "lora": {**SMALL, "peft": "lora", "software": "torch-eager"},
}
OF = {
    "deepspeed": ("zero",), "accelerate": ("zero", "torch"), "torchtitan": ("torch",), "nanotron": ("dense",),
    "megatron-yaml": ("dense", "moe", "fp8"), "primus": ("dense", "moe", "fp8"), "bridge": ("dense", "moe", "fp8"),
    "ms-swift": ("dense", "moe"), "trl": ("lora",),
}  # fmt: skip
"""Questions whose plans each format can say; `transformer-config` is Python, which is not read back."""


def plans_of(name, form, count, seed):
    """(scenario, some legal plans of the question that the format can say)."""
    question = understand(request_of({"architecture": {}, "software": WRITERS[form].software, **QUESTIONS[name]}))
    wish = WRITERS[form].wish
    if form in ("deepspeed", "accelerate", "torchtitan"):
        wish = Constraints(fixed={"fsdp": frozenset({0, 2, 3}), **wish.fixed})
    ranking = rank(question.scenario, wish, 0.0)
    rng = random.Random(seed)
    found = []
    for position in rng.sample(range(len(ranking.row)), len(ranking.row)):
        plan = ranking.plan(position)
        if not WRITERS[form].refused(question.scenario, plan):
            found.append(plan)
        if len(found) == count:
            break
    return question.scenario, found


def read_back(form, scenario, plan):
    settings = {}
    given = {"gpus": scenario.cluster.num_gpus, "gpu": scenario.cluster.gpu.id}
    if form in ("deepspeed", "accelerate"):
        given |= {"model": scenario.model.name, "seq_length": scenario.workload.seq_length}
        settings["recompute"] = str(plan.recompute)
    if form == "accelerate":
        given["global_batch_size"] = scenario.workload.global_batch_size
        settings["micro_batch_size"] = str(plan.mbs)
    return read_any(write_plan(scenario, plan, form).text, CheckRequest(**given, settings=settings))


def check_round_trips(form, name, count, seed):
    scenario, plans = plans_of(name, form, count, seed)
    assert plans, "no plan of the question can be said"
    for plan in plans:
        found = read_back(form, scenario, plan)
        again = found.question.scenario
        assert found.kind == form
        assert found.plan == plan, str(plan)
        assert again.workload == scenario.workload and again.numerics.precision == scenario.numerics.precision
        assert again.numerics.grad_reduce_dtype == scenario.numerics.grad_reduce_dtype or form == "accelerate"
        shape = ("num_layers", "hidden_size", "ffn_hidden_size", "num_query_groups", "num_moe_experts", "vocab_size")
        assert [getattr(again.model, key) for key in shape] == [getattr(scenario.model, key) for key in shape]
        assert not found.unknown and not found.not_modelled


@pytest.mark.parametrize(("form", "name"), [(form, name) for form, names in OF.items() for name in names])
def test_written_files_read_back_to_the_same_plan(form, name):
    check_round_trips(form, name, 10, 1)


@pytest.mark.soak
@pytest.mark.parametrize(("form", "name"), [(form, name) for form, names in OF.items() for name in names])
def test_written_files_read_back_to_the_same_plan_long(form, name, pytestconfig):
    check_round_trips(form, name, 50, None)


@tabled
def test_what_a_format_cannot_say_is_refused_with_a_list(form, plan, says):
    scenario = understand(request_of(QUESTIONS["dense"])).scenario
    with pytest.raises(UnsupportedError) as error:
        write_plan(scenario, parse_plan(plan, 16), form)
    assert says in str(error.value) and f"{form} cannot say" in str(error.value)


SCRIPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 "
    "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --rotary-base 500000 --untie-embeddings-and-output-weights --disable-bias-linear "
    "--seq-length 8192 --max-position-embeddings 8192 --vocab-size 128256 --bf16 --micro-batch-size 1 --global-batch-size 128 "
    "--tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --transformer-impl transformer_engine\n"
)


@pytest.mark.parametrize("form", ["megatron", "plan", "megatron-yaml", "primus", "bridge", "ms-swift", "nanotron"])
def test_translations_lose_only_what_they_list(form):
    found = convert(SCRIPT, CheckRequest(), form)
    again = read_any(found.written.text, CheckRequest(gpus=None if form == "plan" else 8, software=None))
    assert again.plan == found.source.plan
    before, after = found.source.question.scenario, again.question.scenario
    assert after.workload == before.workload and after.model.num_layers == 32
    assert after.model.vocab_size == 128256


def test_translation_at_every_edge(autoconfig, tmp_path):
    (tmp_path / "run.sh").write_text(SCRIPT)
    target = tmp_path / "model_config.yaml"
    done = autoconfig.run("convert", str(tmp_path / "run.sh"), "--format", "megatron-yaml", "--output", str(target))
    assert done.exit_code == 0 and "MODEL_ARGS" in target.read_text() and "not in the file: 8 GPUs" in done.stderr
    again = autoconfig.run("convert", str(tmp_path / "run.sh"), "--format", "megatron-yaml", "--output", str(target))
    assert again.exit_code == 2 and "--force" in again.stderr
    body = autoconfig.json("convert", str(tmp_path / "run.sh"), "--format", "megatron-yaml")
    Draft202012Validator(schema("convert")).validate(body)
    assert body["text"] == target.read_text() and body["kind"] == "script"
    refused = autoconfig.run("convert", str(tmp_path / "run.sh"), "--format", "deepspeed")
    assert refused.exit_code == 2 and "sp=True" in refused.stderr
    import autoconfig as package

    found = package.convert(tmp_path / "run.sh", format="primus")
    assert "tensor_model_parallel_size: 2" in found.written.text and found.format == "primus"
    with pytest.raises(InputError, match="use one of"):
        package.convert(tmp_path / "run.sh", format="other")


MIXTURE = (
    f"{SCRIPT.strip()} --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 4096 --expert-model-parallel-size 4 "
    "--moe-grouped-gemm --moe-token-dispatcher-type alltoall "
)


def test_switches_that_a_format_does_not_say_are_listed():
    """Balanced routing, and the overlaps that a plan takes as the software has them."""
    balanced = f"{MIXTURE} --moe-router-force-load-balancing"
    for text, form, said in (
        (balanced, "megatron", True), (balanced, "primus", True), (balanced, "plan", True), (MIXTURE, "megatron", False),
    ):  # fmt: skip
        lost = convert(text, CheckRequest(), form).unsaid
        assert any("--moe-router-force-load-balancing" in line for line in lost) == said
    off = [line for line in convert(SCRIPT, CheckRequest(), "plan").unsaid if "overlap" in line]
    assert [line.split()[0] for line in off] == ["--overlap-grad-reduce", "--overlap-param-gather"]
    on = f"{SCRIPT.strip()} --overlap-grad-reduce --overlap-param-gather"
    assert not [line for line in convert(on, CheckRequest(), "plan").unsaid if "overlap" in line]


def test_the_formats_are_those_of_the_request_field():
    import tomllib

    table = tomllib.loads((Path(__file__).parents[2] / "autoconfig/data/request_fields.toml").read_text())
    assert tuple(table["convert"]["format"]["choices"]) == FORMATS
    assert tuple(table["output"]["format"]["choices"]) == tuple(WRITERS)


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather", "deepep"])
def test_overrides_of_bridge_say_how_tokens_are_exchanged(dispatcher):
    scenario = understand(request_of({**QUESTIONS["moe"], "dispatcher": dispatcher})).scenario
    plan = parse_plan("tp=1,pp=1,ep=8,mbs=1", 32)
    text = write_plan(scenario, plan, "bridge").text
    assert read_back("bridge", scenario, plan).question.scenario.given.dispatcher == dispatcher
    assert ("model.moe_permute_fusion=true" in text) == (dispatcher != "allgather")
    assert "moe_" not in write_plan(understand(request_of(SMALL)).scenario, parse_plan("tp=1,pp=1,mbs=1", 16), "bridge").text


@pytest.mark.parametrize(("recipe", "form"), [("blockwise", "e4m3"), ("mxfp8", "e4m3"), ("delayed", "hybrid")])
def test_the_form_of_fp8_is_the_recipes_own(recipe, form):
    scenario = understand(request_of({**SMALL, "gpu": "b200", "precision": "fp8", "fp8_recipe": recipe})).scenario
    text = write_plan(scenario, parse_plan("tp=2,pp=1,mbs=1,sp=1", 16), "transformer-config").text
    assert f"fp8='{form}'" in text.replace(" ", "") and f"fp8_recipe='{recipe}'" in text.replace(" ", "")


@tabled
def test_a_search_for_a_format_offers_what_it_can_say(autoconfig, form, more):
    asked = ("search", "--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--seq-length", "4096", "--global-batch-size",
             "64", "--top", "5", "--format", form, *more)  # fmt: skip
    run = autoconfig.run(*asked, "--json")
    plans = [parse_plan(one["short"], 8) for one in json.loads(run.stdout)["plans"]]
    scenario = understand(request_of({**SMALL, "gpus": 8, **({"software": more[1]} if more else {})})).scenario
    assert plans and not [plan for plan in plans if WRITERS[form].refused(scenario, plan)]
    assert run.stderr.startswith(f"format {form}")
    refused = autoconfig.run(*asked, "--export", "folder")
    assert refused.exit_code == 2 and "autoconfig convert plan.json" in refused.stderr


def test_a_format_and_a_fixed_key_that_it_cannot_say(autoconfig):
    run = autoconfig.run("search", "--model", "llama3-8b", "--gpus", "8", "--format", "deepspeed", "--fix", "tp=2")
    assert run.exit_code == 2 and "--format deepspeed says tp=1, and --fix asks for tp=2" in run.stderr


def test_explain_and_include_take_a_file(autoconfig, tmp_path):
    (tmp_path / "run.sh").write_text(SCRIPT)
    found = autoconfig.json("explain", str(tmp_path / "run.sh"))
    assert found["short"] == "tp=2,pp=1,dp=4,mbs=1,sp=1,recompute=none" and found["model"]["num_layers"] == 32
    asked = ("search", "--model", "llama3-8b", "--gpus", "8", "--seq-length", "8192", "--global-batch-size", "128")
    body = autoconfig.json(*asked, "--include", str(tmp_path / "run.sh"))
    assert [one["short"] for one in body["included"]] == [found["short"]]
    (tmp_path / "bad.sh").write_text(SCRIPT.replace("--bf16", "--bf16 --overlap-param-gather"))
    broken = autoconfig.run("explain", str(tmp_path / "bad.sh"), "--json")
    assert broken.exit_code == 2 and not json.loads(broken.stdout)["legal"] and "NV086" in broken.stdout
    for command in (("convert", str(tmp_path / "bad.sh"), "--format", "megatron-yaml"),
                    (*asked, "--include", str(tmp_path / "bad.sh"))):  # fmt: skip
        taken = autoconfig.run(*command)
        assert taken.exit_code == 2 and "--overlap-param-gather needs --overlap-grad-reduce" in taken.stderr
    refused = autoconfig.run("explain", str(Path(__file__)))
    assert refused.exit_code == 2 and refused.stderr.startswith("error: ")
