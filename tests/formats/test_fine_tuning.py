"""Adapters and packed sequences: their defaults, and the files of what trains them (tests/judge asks the real parsers)."""

import json

import pytest
import yaml
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.plan import parse_plan

from autoconfig.formats.check import read_any
from autoconfig.formats.fine_tuning import fine_tuning_texts
from autoconfig.formats.writers.words import PROJECTIONS
from autoconfig.megatron.check import check
from autoconfig.megatron.check_input import CheckRequest
from autoconfig.training.question import request_of, understand

LORA = {"model": "llama3-8b", "gpus": 4, "peft": "lora"}


def question(**changes):
    return understand(request_of({**LORA, **changes}))


def texts(plan, **changes):
    scenario = question(**changes).scenario
    return fine_tuning_texts(scenario, parse_plan(plan, scenario.cluster.num_gpus))


def overrides(text):
    return dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))


def test_adapters_have_a_sequence_and_a_batch_of_their_own():
    found = question()
    workload = found.scenario.workload
    assert (workload.seq_length, workload.global_batch_size) == (2048, 128)
    assert sum("as adapters are trained" in text for text in found.assumed) == 2
    assert any("adapters of rank 8 (--lora-rank)" in text for text in found.assumed)
    assert question(peft="none").scenario.workload.seq_length == 8192
    given = question(seq_length=1024, global_batch_size=16, lora_rank=4)
    assert (given.scenario.workload.seq_length, given.scenario.workload.global_batch_size) == (1024, 16)
    assert not any("adapters" in text for text in given.assumed)


@pytest.mark.parametrize("field", [{"lora_rank": 8}, {"lora_target_modules": "linear_qkv"}])
def test_fields_of_adapters_without_adapters_are_refused(field):
    with pytest.raises(InputError, match="none trains all weights"):
        question(peft="none", **field)


def test_one_gpu_holds_the_model_trl_trains_it():
    found = texts("tp=1,mbs=2,recompute=full:uniform:1", lora_rank=16, lora_target_modules="linear_qkv,linear_fc2")
    assert set(found) == {"overrides.txt", "sft.yaml", "accelerate.yaml"}
    sft, launch = yaml.safe_load(found["sft.yaml"]), yaml.safe_load(found["accelerate.yaml"])
    assert (sft["lora_r"], sft["lora_alpha"]) == (16, 32)
    assert sft["lora_target_modules"] == ["q_proj", "k_proj", "v_proj", "down_proj"]
    assert (sft["per_device_train_batch_size"], sft["gradient_accumulation_steps"]) == (2, 16)
    assert sft["gradient_checkpointing"] is True and sft["max_length"] == 2048 and sft["packing"] is False
    assert launch["distributed_type"] == "MULTI_GPU" and launch["num_processes"] == 4
    assert yaml.safe_load(texts("tp=1,mbs=1,fsdp=3")["accelerate.yaml"])["fsdp_config"]["fsdp_reshard_after_forward"] is True


@pytest.mark.parametrize("model", ["phi3-mini", "phi4-14b", "t5-3b"])
def test_layers_with_names_of_their_own_get_no_trl_file(model):
    scenario = understand(request_of({"model": model, "gpus": 4, "gpu": "h100", "peft": "lora"})).scenario
    assert "sft.yaml" not in fine_tuning_texts(scenario, parse_plan("tp=1,mbs=1", 4))


def test_a_plan_in_parallel_is_a_recipe_of_megatron_bridge():
    found = texts("tp=2,pp=2,mbs=1", lora_target_modules="linear_qkv", packed_length=300)
    assert set(found) == {"overrides.txt"}
    said = overrides(found["overrides.txt"])
    assert (said["peft.dim"], said["peft.alpha"], said["peft.target_modules"]) == ("8", "16", "[linear_qkv]")
    assert said["dataset.packed_sequence_specs.packed_sequence_size"] == said["dataset.seq_length"] == "2048"
    assert said["model.tensor_model_parallel_size"] == "2" and said["train.global_batch_size"] == "128"
    tuned = overrides(texts("tp=2,pp=2,mbs=1", peft="none", packed_length=300)["overrides.txt"])
    assert not any(name.startswith("peft.") for name in tuned)


def test_overrides_are_priced_as_the_plan_that_they_say(autoconfig, tmp_path):
    """The recipe's model has no dropout, whatever Megatron-LM's arguments have by default; convert writes what export does."""
    folder = tmp_path / "run"
    assert autoconfig.run("export", "--model", "llama3-8b", "--gpus", "4", "--peft", "lora", "--output", str(folder),
                          "tp=1,mbs=2,sp=0").exit_code == 0  # fmt: skip
    peaks = [
        check(read_any((folder / name).read_text(), CheckRequest(**given))).report.peak_bytes
        for name, given in (("plan.json", {}), ("overrides.txt", {"gpus": 4}))
    ]
    assert peaks[0] == pytest.approx(peaks[1])
    advised = autoconfig.run("check", str(folder / "plan.json"))
    assert "train.micro_batch_size" in advised.stdout and advised.exit_code == 0, advised.stderr
    converted = autoconfig.run("convert", str(folder / "plan.json"), "--format", "bridge")
    assert converted.exit_code == 0 and converted.stdout == (folder / "overrides.txt").read_text()
    assert not any(path.stat().st_mode & 0o111 for path in folder.glob("*.yaml"))


def test_what_trl_gets_fits_with_layers_that_hold_more(autoconfig, tmp_path):
    folder = tmp_path / "run"
    made = autoconfig.run("search", "--model", "llama3-8b", "--gpus", "8", "--peft", "lora", "--export", str(folder))
    first = json.loads((folder / "plan.json").read_text())["plan"]["micro_batch_size"]
    own = yaml.safe_load((folder / "sft.yaml").read_text())["per_device_train_batch_size"]
    assert own < first and "note: sft.yaml has tp=1" in made.stdout
    checked = autoconfig.run("check", str(folder / "sft.yaml"))
    assert checked.exit_code == 0 and "Fits:" in checked.stdout and "software torch-eager" in " ".join(checked.stdout.split())
    text = (folder / "sft.yaml").read_text()
    large = text.replace(f"batch_size: {own}", f"batch_size: {4 * own}")
    assert large != text
    assert not check(read_any(large, CheckRequest())).report.fits
    with pytest.raises(InputError, match=r"read are q_proj"):
        read_any(text.replace("q_proj", "qq_proj"), CheckRequest())


def test_experts_have_no_adapters():
    scenario = question(model="mixtral-8x7b", gpus=8).scenario
    assert scenario.numerics.lora_target_modules == ("linear_qkv", "linear_proj")
    with pytest.raises(InputError, match=r"linear_fc1: mixtral-8x7b has experts"):
        question(model="mixtral-8x7b", gpus=8, lora_target_modules="linear_qkv,linear_fc1")


def test_the_overrides_are_read_as_adapters():
    """What `check` says of the file is what was asked: not the memory of all weights."""
    text = texts("tp=1,mbs=4", lora_rank=16, lora_target_modules="linear_qkv,linear_fc2")["overrides.txt"]
    read = read_any(text, CheckRequest(gpus=4, gpu="h100")).question.scenario.numerics
    assert (read.peft, read.lora_rank, read.lora_target_modules) == ("lora", 16, ("linear_qkv", "linear_fc2"))
    without = "\n".join(line for line in text.splitlines() if "peft.dim" not in line)
    for unsaid in (without, "run.py --recipe llama3_8b_peft_config " + " ".join(
            line for line in text.splitlines() if not line.startswith(("#", "peft.")))):  # fmt: skip
        with pytest.raises(InputError, match=r"add peft\.dim=N"):
            read_any(unsaid, CheckRequest(gpus=4, gpu="h100"))


def test_what_neither_can_is_refused_with_the_reasons():
    with pytest.raises(UnsupportedError, match=r"Megatron-Bridge cannot say fsdp=3; TRL cannot say layers of mixtral"):
        texts("tp=1,mbs=1,fsdp=3", model="mixtral-8x7b", gpus=8)


def test_every_layer_with_adapters_has_its_names():
    from autoconfig.specs.scenario import LORA_MODULES

    assert tuple(PROJECTIONS) == LORA_MODULES


def test_a_search_exports_what_trains_adapters(autoconfig, tmp_path):
    done = autoconfig.run("search", "--model", "llama3-8b", "--gpus", "2", "--gpu", "a100-80gb", "--peft", "lora", "--export",
                          str(tmp_path / "run"))  # fmt: skip
    written = {path.name for path in (tmp_path / "run").glob("[!.]*")}
    assert done.exit_code == 0 and "plan.json" in written and written & {"overrides.txt", "sft.yaml"}
    assert "LoRA of rank 8 on linear_qkv linear_proj linear_fc1 linear_fc2" in " ".join(done.stdout.split())
    command = next(line for line in done.stdout.splitlines() if line.startswith("run: "))
    assert "trl sft" in command if "sft.yaml" in written else "run_recipe.py" in command
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["numerics"]["peft"] == "lora"
    again = autoconfig.run("check", str(tmp_path / "run" / "plan.json"))
    assert again.exit_code == 0 and "LoRA of rank 8" in again.stdout
