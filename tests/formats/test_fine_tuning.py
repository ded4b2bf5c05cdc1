"""Adapters and packed sequences: their defaults, and the files of what trains them (tests/judge asks the real parsers)."""

import json
from dataclasses import replace

import pytest
import yaml
from autoconfig.specs.errors import GIB, InputError, UnsupportedError
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.remarks import sentences
from autoconfig.specs.scenario import LORA_MODULES
from tables import tabled

from autoconfig.formats.check import check_file, read_any
from autoconfig.formats.export import export_texts
from autoconfig.formats.fine_tuning import fine_tuning_texts, trainer_texts
from autoconfig.formats.projections import BY_TYPE, modules_named, named_modules
from autoconfig.megatron.check import check
from autoconfig.megatron.check_input import CheckRequest
from autoconfig.training.price import Money, report_plan
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
    assert sum("as adapters are trained" in text for text in sentences(found.assumed)) == 2
    assert any("adapters of rank 8 (--lora-rank)" in text for text in sentences(found.assumed))
    assert question(peft="none").scenario.workload.seq_length == 8192
    given = question(seq_length=1024, global_batch_size=16, lora_rank=4)
    assert (given.scenario.workload.seq_length, given.scenario.workload.global_batch_size) == (1024, 16)
    assert not any("adapters" in text for text in sentences(given.assumed))


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


def test_a_run_over_the_tokens_asked_for_has_their_steps():
    """2e8 tokens in steps of 2,048 x 128 are 762.9 steps."""
    scenario, plan = question().scenario, parse_plan("tp=1,mbs=2,recompute=full:uniform:1", 4)
    assert scenario.workload.tokens_per_step == 2048 * 128
    found = export_texts(scenario, plan, report_plan(scenario, plan, Money(tokens=2e8)), "megatron")
    assert overrides(found["overrides.txt"])["train.train_iters"] == "763"
    assert yaml.safe_load(found["sft.yaml"])["max_steps"] == 763
    assert read_any(found["sft.yaml"], CheckRequest()).plan == plan.replace(dist_opt=False)
    without = export_texts(scenario, plan, report_plan(scenario, plan), "megatron")
    assert "train_iters" not in without["overrides.txt"] and "max_steps" not in without["sft.yaml"]


NAMES = {
    "phi3-mini": "qkv_proj o_proj gate_up_proj down_proj", "phi4-14b": "qkv_proj o_proj gate_up_proj down_proj",
    "falcon-7b": "query_key_value self_attention.dense mlp.dense_h_to_4h mlp.dense_4h_to_h",
    "gpt-neox-20b": "query_key_value attention.dense mlp.dense_h_to_4h mlp.dense_4h_to_h",
    "opt-13b": "q_proj k_proj v_proj out_proj fc1 fc2", "gpt-j-6b": "q_proj k_proj v_proj out_proj fc_in fc_out",
    "nemotron4-15b": "q_proj k_proj v_proj o_proj up_proj down_proj", "granite4-micro-3b": "all-linear",
}  # fmt: skip


@pytest.mark.parametrize(("model", "names"), NAMES.items())
def test_layers_have_the_names_of_their_family(model, names):
    scenario = understand(request_of({"model": model, "gpus": 4, "gpu": "h200", "peft": "lora"})).scenario
    files = trainer_texts(scenario, parse_plan("tp=1,mbs=1,fsdp=3", 4), "trl")
    assert yaml.safe_load(files["sft.yaml"])["lora_target_modules"] == names.split()
    again = read_any(files["sft.yaml"], CheckRequest()).question.scenario
    assert again.numerics.lora_target_modules == LORA_MODULES


def config(folder, **values):
    """A config.json of a small model."""
    usual = {"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 16,
             "vocab_size": 32000, "intermediate_size": 4096, "max_position_embeddings": 4096}  # fmt: skip
    (folder / "config.json").write_text(json.dumps({**usual, **values}))
    return str(folder / "config.json")


@tabled
def test_a_config_has_the_names_of_its_own_type(tmp_path, kind, more, names):
    given = {"model": config(tmp_path, model_type=kind, **more), "gpus": 2, "peft": "lora"}
    scenario = understand(request_of({**given, "like": "llama" if kind == "own" else None})).scenario
    written = trainer_texts(scenario, parse_plan("tp=1,mbs=1", 2), "trl")["sft.yaml"]
    assert yaml.safe_load(written)["lora_target_modules"] == names


def test_names_are_read_from_either_end():
    gpt2 = load_model("llama3-8b").replace(name="own", model_type="gpt2")
    assert modules_named(gpt2, {"c_proj"}) == (("linear_proj", "linear_fc2"), [])
    assert modules_named(gpt2, {"transformer.h.0.attn.c_proj", "q_proj"}) == (("linear_proj",), ["q_proj"])
    assert named_modules(gpt2, ("linear_fc2", "linear_qkv")) == ["mlp.c_proj", "attn.c_attn"]


def test_a_plan_in_parallel_is_a_recipe_of_megatron_bridge():
    found = texts("tp=2,pp=2,mbs=1", lora_target_modules="linear_qkv", packed_length=300)
    assert set(found) == {"overrides.txt"}
    said = overrides(found["overrides.txt"])
    assert (said["peft.dim"], said["peft.alpha"], said["peft.target_modules"]) == ("8", "16", "[linear_qkv]")
    assert said["dataset.packed_sequence_specs.packed_sequence_size"] == said["dataset.seq_length"] == "2048"
    assert said["model.tensor_model_parallel_size"] == "2" and said["train.global_batch_size"] == "128"
    tuned = overrides(texts("tp=2,pp=2,mbs=1", peft="none", packed_length=300)["overrides.txt"])
    assert not any(name.startswith("peft.") for name in tuned)
    assert said["model.apply_rope_fusion"] == tuned["model.apply_rope_fusion"] == "true"
    assert "model.apply_rope_fusion" not in overrides(texts("tp=2,pp=2,mbs=1", packed_length=None)["overrides.txt"])


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


def test_a_search_of_adapters_exports_what_it_names_bridge(autoconfig, tmp_path):
    folder = tmp_path / "run"
    asked = ("search", "--model", "llama3-8b", "--gpus", "8", "--peft", "lora", "--top", "1", "--export", str(folder))
    assert autoconfig.run(*asked, "--format", "bridge").exit_code == 0
    assert "peft.dim=8" in (folder / "overrides.txt").read_text()
    refused = autoconfig.run(*asked, "--force", "--format", "nanotron")
    assert refused.exit_code == 2 and "--export writes Megatron-Bridge's overrides for adapters" in refused.stderr


def test_what_trl_gets_fits_with_layers_that_hold_more(autoconfig, tmp_path):
    folder = tmp_path / "run"
    asked = ("--model", "llama3-8b", "--gpus", "8", "--gpu", "a100-40gb", "--seq-length", "4096", "--peft", "lora")
    made = autoconfig.run("search", *asked, "--export", str(folder))
    first = json.loads((folder / "plan.json").read_text())["plan"]
    own = yaml.safe_load((folder / "sft.yaml").read_text())["per_device_train_batch_size"]
    assert own <= first["micro_batch_size"] and first["fsdp"] == 0, "whole weights on each GPU leave TRL's layers no room"
    assert "note: sft.yaml has tp=1" in made.stdout and ",fsdp=3: TRL's layers" in made.stdout
    assert "search --format trl" in made.stdout
    checked = autoconfig.run("check", str(folder / "sft.yaml"), "--gpu", "a100-40gb")
    assert checked.exit_code == 0 and "Fits:" in checked.stdout and "software torch-eager" in " ".join(checked.stdout.split())
    text = (folder / "sft.yaml").read_text()
    large = text.replace(f"batch_size: {own}", f"batch_size: {4 * own}")
    assert large != text
    assert not check(read_any(large, CheckRequest(gpu="a100-40gb", gpus=8))).report.fits
    with pytest.raises(InputError, match=r"read are q_proj"):
        read_any(text.replace("q_proj", "qq_proj"), CheckRequest())


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
    with pytest.raises(UnsupportedError, match=r"Megatron-Bridge cannot say fsdp=3; TRL cannot say experts of mixtral"):
        texts("tp=1,mbs=1,fsdp=3", model="mixtral-8x7b", gpus=8)


def test_every_layer_with_adapters_has_its_names():
    assert all(tuple(names) == LORA_MODULES for names in BY_TYPE.values())


TRL = ("search", "--model", "llama3-8b", "--format", "trl", "--force")


@tabled
def test_what_a_search_for_trl_ranks_is_what_it_writes_and_what_check_reads(autoconfig, tmp_path, more):
    """The first plan, sft.yaml with the accelerate.yaml beside it, and plan.json are the same run: step and peak."""
    done = autoconfig.run(*TRL, *more, "--json", "--export", str(tmp_path / "run"))
    assert done.exit_code == 0 and "priced as software torch-eager" in done.stderr, done.stderr
    first = json.loads(done.stdout)["plans"][0]
    for name in ("sft.yaml", "plan.json"):
        again = check_file(tmp_path / "run" / name, CheckRequest()).report
        assert again.step_seconds == pytest.approx(first["step_seconds"], rel=1e-9), name
        assert again.peak_bytes / GIB == pytest.approx(first["memory"]["peak_gib"], rel=1e-9), name
    said = yaml.safe_load((tmp_path / "run" / "sft.yaml").read_text())
    launch = yaml.safe_load((tmp_path / "run" / "accelerate.yaml").read_text())
    sharded = launch.get("fsdp_config", {}).get("fsdp_activation_checkpointing", False)
    assert said["gradient_checkpointing"] + sharded == ("recompute=full" in first["short"])  # both at once: the Trainer raises
    assert "overrides.txt" not in {path.name for path in (tmp_path / "run").iterdir()}


def test_the_accelerate_file_beside_it_is_read_and_said(autoconfig, tmp_path):
    folder = tmp_path / "run"
    asked = ("--model", "llama3-70b", "--gpus", "8", "--gpu", "h100", "--peft", "lora")  # one GPU does not hold the weights
    autoconfig.run("search", *asked, "--format", "trl", "--export", str(folder))
    sft, launch = folder / "sft.yaml", folder / "accelerate.yaml"
    assert check_file(sft, CheckRequest()).source.plan.fsdp == 3
    text = launch.read_text()
    launch.write_text(text.replace("fsdp_reshard_after_forward: true", "fsdp_reshard_after_forward: false"))
    found = check_file(sft, CheckRequest()).source
    assert found.plan.fsdp == 2 and any("as accelerate.yaml beside it says" in one for one in sentences(found.question.assumed))
    launch.write_text(text.replace("distributed_type: FSDP", "distributed_type: MULTI_GPU"))
    advised = autoconfig.run("check", str(sft), "--apply-to", str(tmp_path / "new.yaml"))
    assert advised.exit_code == 2 and "the sharding stands in accelerate.yaml; `autoconfig search --model" in advised.stderr
    launch.write_text("model_type: llama\n")
    with pytest.raises(InputError, match=r"accelerate\.yaml beside it, which was written with it, cannot be used"):
        check_file(sft, CheckRequest())
    launch.unlink()
    alone = check_file(sft, CheckRequest())
    assert alone.source.plan.fsdp == 3 and any(
        "accelerate needs it" in text for text in sentences(alone.source.question.assumed)
    )


def test_what_bitsandbytes_keeps_is_priced_as_transformers_and_searched_unsharded(autoconfig):
    """No Megatron stack has it; accelerate's shards neither, so that a search for TRL is held to weights on every GPU."""
    for more in ({"frozen_dtype": "nf4"}, {"optimizer": "adam8bit"}, {"weights_are_masters": True}):
        asked = {"model": "llama3-8b", "gpus": 4, **more}
        found = understand(request_of(asked))
        assert found.scenario.software.name == "torch-eager" and any("(--software)" in one for one in sentences(found.assumed))
        with pytest.raises(InputError, match=r"is not Megatron's, as which nemo-26.04 is priced.*--software torch-eager"):
            understand(request_of({**asked, "software": "nemo-26.04"}))
        words = [word for name, value in more.items() for word in (f"--{name.replace('_', '-')}", value) if word is not True]
        run = autoconfig.run("search", "--model", "llama3-8b", "--gpus", "4", "--gpu", "h200", "--format", "trl", *words)
        assert run.exit_code == 0 and ", fsdp=0," in run.stderr, run.stderr
    assert (
        understand(request_of({**LORA, "peft": "none", "weights_are_masters": True})).scenario.numerics.grad_reduce_dtype
        == "bf16"
    )
    for odd in ({"peft": "lora"}, {"precision": "fp16"}, {"grad_reduce_dtype": "fp32"}):
        with pytest.raises(InputError, match="is of training all weights in bf16"):
            understand(request_of({"model": "llama3-8b", "gpus": 4, "weights_are_masters": True, **odd}))


SFT_YAML = """model_name_or_path: Qwen/Qwen2.5-7B
dtype: bfloat16
max_length: 2048
per_device_train_batch_size: 4
gradient_checkpointing: false
use_peft: true
"""
SFT_COMMAND = (
    "accelerate launch --num_processes 2 trl/scripts/sft.py --model_name_or_path meta-llama/Llama-3.1-8B --dtype bfloat16 "
    "--max_length 4096 --per_device_train_batch_size 2 --gradient_checkpointing True --use_peft"
)


@pytest.mark.parametrize(("text", "gpus", "vocabulary"), [(SFT_YAML, 1, 152_064), (SFT_COMMAND, 2, 128_256)])
def test_trl_holds_no_logits_and_releases_before_1_7_do(text, gpus, vocabulary):
    """torch's own loss holds 12 bytes of each logit of 8,192 tokens: fp32 log-softmax, its gradient and that of its input."""
    request = CheckRequest(gpu="h200", gpus=gpus)
    own, plain = (
        check(read_any(text, replace(request, switches=switches))).report.peak_bytes for switches in ({}, {"loss": "plain"})
    )
    logits = 12 * 8192 * vocabulary
    assert 0.8 * logits < plain - own <= logits  # at its other moments the run holds less than at the loss


def test_an_export_for_trl_says_nothing_of_its_loss(autoconfig, tmp_path):
    """Its default needs no key and no kernels of Liger; `check` and `explain` of the file's plan have the search's figures."""
    folder = tmp_path / "run"
    asked = ("--model", "qwen2.5-7b", "--gpus", "1", "--gpu", "h100", "--peft", "lora", "--seq-length", "2048")
    made = autoconfig.run("search", *asked, "--format", "trl", "--export", str(folder), "--json")
    first = json.loads(made.stdout)["plans"][0]
    assert "liger" not in (folder / "sft.yaml").read_text()
    checked = check_file(folder / "sft.yaml", CheckRequest(gpu="h100")).report
    assert checked.peak_bytes / GIB == pytest.approx(first["memory"]["peak_gib"], rel=1e-9)
    explained = autoconfig.run("explain", *asked, "--software", "torch-eager", "--loss", "fused", first["short"], "--json")
    assert json.loads(explained.stdout)["memory"]["peak_gib"] == pytest.approx(first["memory"]["peak_gib"], rel=1e-9)


@pytest.mark.parametrize(
    "words", [("--gpus", "4", "--gpu", "4090"), ("--gpus", "1", "--gpu", "a100-80gb", "--fix", "offload=1")]
)
def test_an_export_with_offload_is_read_as_it_was_priced(autoconfig, tmp_path, words):
    """accelerate's file says DeepSpeed's buckets, the trainer's the loss: one does not undo the other."""
    folder = tmp_path / "run"
    asked = ("--model", "qwen2.5-7b", *words, "--format", "trl")
    first = autoconfig.json("search", *asked, "--export", str(folder))["plans"][0]
    assert first["plan"]["optimizer_offload_fraction"] == 1
    read = check_file(folder / "sft.yaml", CheckRequest(gpu=words[3], gpus=int(words[1]))).report
    assert read.peak_bytes / GIB == pytest.approx(first["memory"]["peak_gib"], rel=1e-9)
    assert read.step_seconds == pytest.approx(first["step_seconds"], rel=1e-9)
