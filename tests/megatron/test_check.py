"""`autoconfig check`: the verdict on a file, the nearest legal plan and the better plan."""

import json

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.remarks import sentences
from check_help import LEGAL, checked, script
from jsonschema import Draft202012Validator
from tables import tabled

from autoconfig.megatron.check import check, target
from autoconfig.megatron.check_input import CheckRequest, read_check
from autoconfig.megatron.edit import improved_text
from autoconfig.megatron.export import plan_text
from autoconfig.planning.schemas import schema
from autoconfig.training.nearest import changed_keys, nearest_legal
from autoconfig.training.price import violations


def test_a_legal_plan_is_priced_and_a_better_one_named(autoconfig, tmp_path):
    (tmp_path / "run.sh").write_text(script(LEGAL))
    result = autoconfig.run("check", str(tmp_path / "run.sh"), "--gpu", "a100-80gb")
    assert result.exit_code == 0
    for part in ("Legal.", "Fits:", "Peak by stage", "Better", "faster", "--tensor-model-parallel-size", "Assumed:"):
        assert part in result.stdout, part
    body = autoconfig.json("check", str(tmp_path / "run.sh"), "--gpu", "a100-80gb")
    Draft202012Validator(schema("check")).validate(body)
    assert body["legal"] and body["fits"] and body["better"]["speedup"] > 1
    line = next(number for number, text in enumerate(script(LEGAL).splitlines(), 1) if "--tensor-model-parallel-size 8" in text)
    assert body["better"]["changes"][0] == {"flag": "--tensor-model-parallel-size", "old": ["8"], "new": ["1"], "line": line}
    assert body["ignored_arguments"] == ["--lr"]


def test_an_illegal_plan_names_the_rule_and_the_nearest_legal_plan(autoconfig, tmp_path):
    (tmp_path / "run.sh").write_text(script("--pipeline-model-parallel-size 8 --micro-batch-size 3 --global-batch-size 64"))
    result = autoconfig.run("check", str(tmp_path / "run.sh"), "--json")
    body = json.loads(result.stdout)
    Draft202012Validator(schema("check")).validate(body)
    assert result.exit_code == 2 and [rule["rule"] for rule in body["rejected_by"]] == ["NV007"]
    (change,) = body["nearest_legal"]["changes"]
    assert change == {"flag": "--micro-batch-size", "old": ["3"], "new": ["4"], "line": body["rejected_by"][0]["line"]}
    assert body["report"] is None and body["better"] is not None
    text = autoconfig.run("check", str(tmp_path / "run.sh")).stdout
    assert "Not legal" in text and "NV007" in text and "nearest legal plan" in text


def test_a_plan_that_does_not_fit_ends_in_3(autoconfig, tmp_path):
    (tmp_path / "run.sh").write_text(script("--micro-batch-size 64 --global-batch-size 512"))
    result = autoconfig.run("check", str(tmp_path / "run.sh"), "--json", "--gpu", "a100-40gb")
    body = json.loads(result.stdout)
    Draft202012Validator(schema("check")).validate(body)
    assert result.exit_code == 3 and body["legal"] and body["fits"] is False and body["better"]["memory"]


def test_a_plan_that_alone_fits_is_not_said_to_be_none(autoconfig, tmp_path):
    """The optimizer of the file is in the host's memory; the search keeps it on the GPU."""
    model = (
        "--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --group-query-attention --num-query-groups 8 --swiglu "
        "--ffn-hidden-size 28672 --seq-length 4096 --max-position-embeddings 4096 --vocab-size 128256 --bf16 "
    )
    plan = (
        "--tensor-model-parallel-size 8 --sequence-parallel --micro-batch-size 1 --global-batch-size 256 "
        "--use-distributed-optimizer --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 "
        "--optimizer-cpu-offload --optimizer-offload-fraction 1.0 --use-precision-aware-optimizer"
    )
    (tmp_path / "run.sh").write_text(f"torchrun --nproc-per-node 8 pretrain_gpt.py {model} {plan}")
    shown = autoconfig.run("check", str(tmp_path / "run.sh"))
    assert shown.exit_code == 0 and "Fits: " in shown.stdout
    assert "No other plan fits." in shown.stdout and "No plan fits." not in shown.stdout


@pytest.mark.parametrize("text", ["echo hello", "torchrun 'cut", '{"kind": 3}', '["--num-layers", 3', "--num-layers"])
def test_bad_input_ends_in_2_with_a_message(autoconfig, tmp_path, text):
    (tmp_path / "run.sh").write_text(text)
    result = autoconfig.run("check", str(tmp_path / "run.sh"))
    assert result.exit_code == 2 and result.stdout == "" and result.stderr.startswith("error: ")
    assert autoconfig.run("check", str(tmp_path)).exit_code == 2
    assert autoconfig.run("check", str(tmp_path / "run.sh"), "--set", "x").exit_code == 2


def test_a_plan_file_is_checked_as_it_is(scenario_of, autoconfig, tmp_path):
    scenario = scenario_of("dense")
    plan = parse_plan("tp=2,pp=1,mbs=1,sp=1", 8)
    (tmp_path / "plan.json").write_text(plan_text(scenario, plan, None))
    body = autoconfig.json("check", str(tmp_path / "plan.json"))
    assert body["kind"] == "plan" and body["short"] == str(plan) and body["legal"]
    written = tmp_path / "better.json"
    assert autoconfig.run("check", str(tmp_path / "plan.json"), "--apply-to", str(written)).exit_code == 0
    assert autoconfig.json("check", str(written))["short"] == body["better"]["short"]
    assert autoconfig.run("check", str(tmp_path / "plan.json"), "--gpus", "9").exit_code == 2


@pytest.mark.parametrize("name", ["dense", "odd", "moe", "mla"])
@tabled
def test_the_nearest_legal_plan_is_legal_and_near(scenario_of, name, text):
    scenario = scenario_of(name)
    plan = parse_plan(text, 8)
    found = nearest_legal(scenario, plan)
    assert found is not None and not violations(scenario, found)
    if not violations(scenario, plan):
        assert found == plan
    assert len(changed_keys(found, plan)) <= 5
    if text == "tp=2,pp=2,mbs=5" and name == "dense":
        assert changed_keys(found, plan) == ["mbs"] and found.mbs == 4


def test_a_variable_that_the_script_does_not_read_is_refused():
    text = script(LEGAL).replace("--nproc_per_node 8", "--nproc_per_node 8 --nnodes ${NNODES:-1}")
    assert checked(text, settings={"NNODES": "2"})[0].source.question.scenario.cluster.num_gpus == 16
    with pytest.raises(InputError, match="--set NODES: the script reads no variable of this name; did you mean NNODES"):
        checked(text, settings={"NODES": "2"})


def test_unknown_arguments_stand_in_the_closing_line_and_slips_below_the_verdict(autoconfig, tmp_path):
    (tmp_path / "run.sh").write_text(script(f"{LEGAL} --my-flag 3 --seqlength 4"))
    lines = autoconfig.run("check", str(tmp_path / "run.sh"), "--gpu", "a100-80gb").stdout.strip().splitlines()
    text = " ".join(lines)
    assert lines[-1] == "Unknown arguments, not taken into account: --my-flag 3"
    slip = "Left out of this verdict, as Megatron-LM does not know it: --seqlength 4: did you mean --seq-length?"
    assert text.index(" Legal. ") < text.index(slip) < text.index("No verdict on memory: not known is --my-flag, --seqlen")


@pytest.mark.parametrize("name", ["--kaimm-offload-activation-ratio", "--param-dtype", "--masters", "--wonder-optimizer"])
def test_an_argument_that_nothing_knows_leaves_memory_open_whatever_its_name(name):
    answer, _ = checked(script(f"{LEGAL} {name} 1 $NOTHING"))
    assert answer.source.undecided == (name,) and answer.better is None
    with pytest.raises(InputError, match=f"--apply-to: no plan .* beside what is not known: {name}$"):
        target(answer)
    assert checked(script(f"{LEGAL} $NOTHING"))[0].source.undecided == ()


def test_the_caller_may_say_that_arguments_have_no_effect(autoconfig, tmp_path):
    (tmp_path / "run.sh").write_text(script(f"{LEGAL} --my-logger x --masters 3"))
    ask = ("check", str(tmp_path / "run.sh"), "--gpu", "a100-80gb", "--without-effect", "my_logger", "--without-effect")
    text = " ".join(autoconfig.run(*ask[:-1]).stdout.split())
    assert "No verdict on memory: not known is --masters," in text and "(--without-effect --masters says: nothing)" in text
    assert "Unknown" not in autoconfig.run(*ask, "--masters").stdout
    edited = tmp_path / "better.sh"
    assert autoconfig.run(*ask, "--masters", "--apply-to", str(edited)).exit_code == 0 and "--my-logger x" in edited.read_text()
    message = "--without-effect tp: no argument that is unknown; those are --my-logger, --masters"
    assert message in autoconfig.run(*ask, "tp").output


def test_the_software_of_a_script_without_new_arguments_is_explained_and_its_optimizer_sharded():
    plan = "--tensor-model-parallel-size 2 --sequence-parallel --micro-batch-size 1 --global-batch-size 64"
    old = script(plan).replace("--vocab-size 50257 ", "--vocab-file gpt2-vocab.json ")
    newer, _ = checked(old, gpu="h100")
    assert newer.source.question.scenario.software.name == "transformer-engine"
    assert any("h100-sxm-80gb is newer" in text for text in sentences(newer.source.question.assumed))
    answer, _ = checked(old)
    assert answer.source.question.scenario.software.name == "megatron-lm-2022"
    said = " ".join(sentences(answer.source.question.assumed))
    assert "the newest is --sequence-parallel, of 2022" in said and "--software transformer-engine" in said
    assert checked(f"{old.strip()} --transformer-impl local\n")[0].source.question.scenario.software.name == "megatron-lm-2022"
    local, _ = checked(f"{old.strip()} --transformer-impl local\n", gpu="h100")
    assert local.source.question.scenario.software.name == "megatron-local"
    assert answer.better is not None and answer.better.plan.dist_opt
    assert any(change.flag == "--use-distributed-optimizer" for change in answer.changes)


def test_megatron_fsdp_is_not_held_to_the_rules_of_torch_fsdp2(autoconfig, tmp_path):
    """The judge takes it with expert parallelism and the distributed optimizer; nothing is proposed that would edit it."""
    text = script(
        "--micro-batch-size 1 --global-batch-size 64 --num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 8 "
        "--use-distributed-optimizer --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params "
        "--ckpt-format fsdp_dtensor"
    )
    answer, asked = checked(text)
    assert not answer.violations and answer.report is not None and answer.source.plan.fsdp == 3 and answer.source.plan.ep == 8
    assert answer.better is None and answer.nearest is None and not answer.changes
    with pytest.raises(InputError, match="Megatron-FSDP"):
        improved_text(answer, asked)
    (tmp_path / "run.sh").write_text(text)
    shown = " ".join(autoconfig.run("check", str(tmp_path / "run.sh"), "--gpu", "h100").stdout.split())
    assert "legality as Megatron has it, priced as torch FSDP2 of ZeRO stage 3" in shown
    assert "No other plan" in shown and "fits" in shown.lower() and "--use-torch-fsdp2" not in shown
    torch, _ = checked(text.replace("--use-megatron-fsdp", "--use-torch-fsdp2").replace("fsdp_dtensor", "torch_dist"))
    assert [violation.rule for violation in torch.violations] == ["NV100"]


FSDP = "--use-megatron-fsdp --data-parallel-sharding-strategy"


@pytest.mark.parametrize(("arguments", "broken"), [
    (f"{FSDP} optim_grads_params --ckpt-format fsdp_dtensor --fp8-format hybrid --fp8-param-gather", []),
    (f"{FSDP} optim --ckpt-format fsdp_dtensor --optimizer sgd", []),
    (f"{FSDP} optim_grads_params", ["NV102"]),
    (f"{FSDP} optim --ckpt-format fsdp_dtensor --optimizer muon", ["NV102"]),
    (f"{FSDP} no_shard --ckpt-format fsdp_dtensor --init-model-with-meta-device", ["NV105"]),
    (f"{FSDP} optim --ckpt-format fsdp_dtensor --fsdp-manual-registration", ["NV108"]),
    ("--use-custom-fsdp", []),
])  # fmt: skip
def test_megatron_fsdp_has_rules_of_its_own(arguments, broken):
    """tests/judge/test_serving_export.py puts the same arguments to megatron-core."""
    text = script(f"--micro-batch-size 1 --global-batch-size 64 {arguments}")
    answer = check(read_check(text, CheckRequest(gpu="h100", software="transformer-engine")))
    assert [violation.rule for violation in answer.violations] == broken


def test_megatron_fsdp_wants_more_than_one_connection():
    text = script(f"--micro-batch-size 1 --global-batch-size 64 {FSDP} optim --ckpt-format fsdp_dtensor")
    assert not checked(text)[0].violations
    broken, _ = checked(text.replace("torchrun", "export CUDA_DEVICE_MAX_CONNECTIONS=1\ntorchrun"))
    assert [violation.rule for violation in broken.violations] == ["NV102"] and "CUDA_DEVICE" in broken.violations[0].text


def test_fsdp_overlaps_by_itself_and_says_so():
    """Gradients are reduced beside the backward whether --overlap-grad-reduce is given or not: the price is the same."""
    plain = f"--micro-batch-size 1 --global-batch-size 64 {FSDP} optim_grads_params --ckpt-format fsdp_dtensor"
    off, on = checked(script(plain))[0], checked(script(f"{plain} --overlap-grad-reduce --overlap-param-gather"))[0]
    assert off.report.step_seconds == on.report.step_seconds
    said = " ".join(sentences(on.source.question.assumed))
    assert "buys nothing" not in said and "--overlap-grad-reduce: priced as overlapped with or without it" in said


def test_torch_fsdp2_gathers_in_bf16_whatever_fp8_param_gather_says():
    batch = "--micro-batch-size 1 --global-batch-size 64 --untie-embeddings-and-output-weights --fp8-format hybrid"
    torch = f"{batch} --use-torch-fsdp2"
    asked = {"gpu": "h100", "software": "transformer-engine"}
    with_, without = (
        check(read_check(script(f"{torch} {more}"), CheckRequest(**asked))) for more in ("--fp8-param-gather", "")
    )
    assert with_.report.step_seconds == without.report.step_seconds and with_.report.peak_bytes == without.report.peak_bytes
    assert any("switched off by Megatron-LM under torch FSDP2" in text for text in sentences(with_.source.question.assumed))
    other = check(read_check(script(f"{batch} --fp8-param-gather {MEGATRON}"), CheckRequest(**asked)))
    assert other.report.peak_bytes < with_.report.peak_bytes


def test_a_gpu_without_a_recipe_of_fp8_gets_no_verdict():
    text = script("--micro-batch-size 1 --global-batch-size 64 --fp8-format e4m3 --fp8-recipe mxfp8")
    with pytest.raises(InputError, match="mxfp8 recipe needs compute capability 10"):
        read_check(text, CheckRequest(gpu="h100"))
    assert read_check(text, CheckRequest(gpu="b200")).question.scenario.numerics.fp8_recipe == "mxfp8"


MEGATRON = f"{FSDP} optim_grads_params --ckpt-format fsdp_dtensor"


OVERLAPS = "--overlap-grad-reduce --overlap-param-gather"


BEST = "--use-distributed-optimizer --attention-backend auto --micro-batch-size 4 --global-batch-size 512"


def test_missing_overlaps_are_named_priced_and_written(autoconfig, tmp_path):
    (tmp_path / "run.sh").write_text(script(BEST))
    body = autoconfig.json("check", str(tmp_path / "run.sh"), "--gpu", "h100")
    Draft202012Validator(schema("check")).validate(body)
    missing = body["missing_overlap"]
    assert [one["flag"] for one in missing] == OVERLAPS.split() and all(one["saved_seconds"] > 0 for one in missing)
    shown = autoconfig.run("check", str(tmp_path / "run.sh"), "--gpu", "h100").stdout
    assert "Not given: --overlap-grad-reduce would save" in shown
    (tmp_path / "given.sh").write_text(script(f"{BEST} {OVERLAPS}"))
    other = autoconfig.json("check", str(tmp_path / "given.sh"), "--gpu", "h100")
    saved = sum(one["saved_seconds"] for one in missing)
    assert other["missing_overlap"] == []
    assert body["report"]["step_seconds"] - other["report"]["step_seconds"] == pytest.approx(saved)
    done = autoconfig.run("check", str(tmp_path / "run.sh"), "--gpu", "h100", "--apply-to", str(tmp_path / "new.sh"))
    assert done.exit_code == 0 and OVERLAPS in " ".join((tmp_path / "new.sh").read_text().split())
    again = autoconfig.json("check", str(tmp_path / "new.sh"), "--gpu", "h100")
    assert again["missing_overlap"] == [] and again["better"] is None


def test_an_exported_script_remembers_its_gpu(tmp_path, autoconfig):
    done = autoconfig.run("export", "--model", "llama3-8b", "--gpus", "8", "--gpu", "b200", "--output", str(tmp_path / "out"),
               "tp=1,pp=1,dp=8,mbs=1,sp=0")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    for name in ("train.sh", "train.sbatch", "plan.json"):
        found = autoconfig.run("check", str(tmp_path / "out" / name)).stdout
        assert "b200-180gb" in found and "of 172.4" in found, name


@tabled
def test_the_gpu_that_slurm_is_asked_for_is_priced(line, named, gpu, said):
    text = script(LEGAL).replace("#!/bin/bash\n", f"#!/bin/bash\n#SBATCH {line}\n")
    question = read_check(text, CheckRequest(gpu=named)).question
    assert question.scenario.cluster.gpu.id == gpu
    about = " ".join(one for one in sentences(question.assumed) if one.startswith("GPU"))
    assert said in about and bool(said) == bool(about)
