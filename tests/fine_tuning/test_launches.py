"""Fine-tuning behind accelerate, torchrun, deepspeed and `trl sft`, in axolotl's YAML and in files of transformers' arguments,
with the files that these name beside them."""

import pytest
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.remarks import sentences

from autoconfig.formats.check import check_file, read_any, read_file
from autoconfig.formats.edit import changed
from autoconfig.maps.table import load_map
from autoconfig.megatron.check import check
from autoconfig.megatron.check_input import CheckRequest

SFT = "sft.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2 --max_length 4096 --dtype bfloat16"
GIVEN = CheckRequest(gpu="h100-sxm-80gb")
FILES = {
    "fsdp.yaml": "distributed_type: FSDP\nnum_processes: 8\nnum_machines: 1\nfsdp_config:\n  fsdp_version: 2\n"
    "  fsdp_reshard_after_forward: false\n  fsdp_activation_checkpointing: true\n",
    "zero.yaml": "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config:\n  deepspeed_config_file: conf/ds.json\n",
    "conf/ds.json": '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}, "bf16": {"enabled": "auto"}}',
    "sft.yaml": "model_name_or_path: Qwen/Qwen2.5-7B\nmax_length: 8192\nper_device_train_batch_size: 1\nuse_peft: true\n",
}


def read(text, given=GIVEN, files=FILES):
    return read_any(f"#!/bin/bash\n{text}\n", given, files.get)


FULL, PLAIN = "recompute=full:uniform:1", "recompute=full:uniform:1,dist_opt=0"
ACCELERATE = "accelerate launch"


@pytest.mark.parametrize(
    ("command", "gpus", "micro_batch", "plan", "software"),
    [
        (f"{ACCELERATE} --num_processes 1 {SFT}", 1, 2, PLAIN, "torch-eager"),
        (f"{ACCELERATE} --multi_gpu --num_processes 4 {SFT}", 4, 2, PLAIN, "torch-eager"),
        (f"{ACCELERATE} --config_file fsdp.yaml {SFT}", 8, 2, f"{FULL},fsdp=2", "torch-eager"),
        (f"{ACCELERATE} --config_file fsdp.yaml --num_processes 16 {SFT}", 16, 2, f"{FULL},fsdp=2", "torch-eager"),
        (f"{ACCELERATE} --config_file zero.yaml {SFT}", 4, 2, f"{FULL},fsdp=2,offload=1.0", "deepspeed"),
        (f"{ACCELERATE} --use_deepspeed --zero_stage 3 --num_processes 8 {SFT}", 8, 2, f"{FULL},fsdp=3", "deepspeed"),
        (f"{ACCELERATE} --use_fsdp --fsdp_version 2 --num_processes 8 {SFT}", 8, 2, f"{FULL},fsdp=3", "torch-eager"),
        (f"torchrun --nproc_per_node 4 {SFT} --deepspeed conf/ds.json", 4, 2, f"{FULL},fsdp=2,offload=1.0", "deepspeed"),
        (f"deepspeed --num_gpus 4 {SFT} --deepspeed zero3.json", 4, 2, f"{FULL},fsdp=3", "deepspeed"),
        (f"python {SFT} --gradient_checkpointing false", 1, 2, "recompute=none,dist_opt=0", "torch-eager"),
        ("trl sft --config sft.yaml --num_processes 2", 2, 1, PLAIN, "torch-eager"),
        ("trl sft --config sft.yaml --accelerate_config zero2 --num_processes 2", 2, 1, f"{FULL},fsdp=2", "deepspeed"),
        ("trl sft --config sft.yaml --accelerate_config fsdp.yaml", 8, 1, f"{FULL},fsdp=2", "torch-eager"),
        ("trl sft --config sft.yaml --per_device_train_batch_size 4 --num_processes 2", 2, 4, PLAIN, "torch-eager"),
    ],
)
def test_launches_are_read(command, gpus, micro_batch, plan, software):
    found = read(command)
    assert str(found.plan) == f"tp=1,pp=1,dp={gpus},mbs={micro_batch},sp=0,{plan}"
    assert found.question.scenario.model.name == "qwen2.5-7b" and not found.unknown
    assert found.question.scenario.software.name == software
    assert found.question.scenario.workload.seq_length == (8192 if "sft.yaml" in command else 4096)


def test_what_lies_elsewhere_is_asked_for():
    for command, says in (
        (f"accelerate launch --config_file other.yaml {SFT}", "--set fsdp=full_shard"),
        ("trl sft --config other.yaml --num_processes 2", r"the settings stand in other\.yaml"),
        ("trl sft --config sft.yaml --accelerate_config mine.yaml", "use one of TRL's own, single_gpu"),
        (f"accelerate launch {SFT}", "number of GPUs is not known"),
        (f"torchrun --nproc_per_node 4 {SFT} --deepspeed mine.json", "does not say its ZeRO stage"),
    ):
        with pytest.raises(InputError, match=says):
            read(command)
    for command, says in (
        (f"accelerate launch dpo.py {SFT[7:]}", r"dpo\.py: training on preferences.*rl --algorithm dpo` plans it"),
        (f"accelerate launch mine.py {SFT[7:]} --beta 0.1", "beta: training on preferences"),
        (f"trl grpo {SFT[7:]}", "trl grpo: training on preferences or rewards"),
    ):
        with pytest.raises(UnsupportedError, match=says):
            read(command)
    with pytest.raises(InputError, match=r"zero\.yaml beside it cannot be read"):
        read(f"accelerate launch --config_file zero.yaml {SFT}", files={"zero.yaml": "a: [b"})


def test_files_are_opened_in_the_folder_of_the_one_that_names_them(tmp_path):
    (tmp_path / "run" / "conf").mkdir(parents=True)
    for name, text in FILES.items():
        (tmp_path / "run" / name).write_text(text)
    (tmp_path / "outside.yaml").write_text(FILES["fsdp.yaml"])
    script = tmp_path / "run" / "go.sh"
    script.write_text(f"accelerate launch --config_file zero.yaml {SFT}\n")
    assert read_file(script, GIVEN).plan.offload == 1.0
    script.write_text(f"accelerate launch --config_file /etc/somewhere/zero.yaml {SFT}\n")
    assert read_file(script, GIVEN).plan.offload == 1.0  # by its name, beside the script
    script.write_text(f"accelerate launch --config_file ../outside.yaml {SFT}\n")
    with pytest.raises(InputError, match="which is not beside this one"):
        read_file(script, GIVEN)
    assert check_file(tmp_path / "run" / "sft.yaml", CheckRequest(gpu="h100-sxm-80gb", gpus=1)).report.fits


HUGGING_FACE = """output_dir: out
model_name_or_path: Qwen/Qwen2.5-7B
bf16: true
per_device_train_batch_size: 1
gradient_checkpointing: false
model_max_length: 1024
"""


@pytest.mark.parametrize(
    ("more", "plan", "software"),
    [
        ("fsdp: full_shard auto_wrap\n", "recompute=none,fsdp=3", "torch-eager"),
        (
            "fsdp: [full_shard]\nfsdp_config: {version: 2, reshard_after_forward: false}\n",
            "recompute=none,fsdp=2",
            "torch-eager",
        ),
        ("fsdp: true\nfsdp_config:\n  activation_checkpointing: true\n", "recompute=full:uniform:1,fsdp=3", "torch-eager"),
        ("fsdp: full_shard\nfsdp_config: fsdp.json\n", "recompute=full:uniform:1,fsdp=3", "torch-eager"),
        ("deepspeed: conf/ds.json\n", "recompute=none,fsdp=2,offload=1.0", "deepspeed"),
        ("deepspeed: {zero_optimization: {stage: 1}}\n", "recompute=none", "deepspeed"),
    ],
)
def test_arguments_of_transformers_in_a_file_of_their_own(more, plan, software):
    files = {**FILES, "fsdp.json": '{"fsdp_activation_checkpointing": true}'}
    found = read_any(HUGGING_FACE + more, CheckRequest(gpu="h200", gpus=8), files.get)
    assert str(found.plan) == f"tp=1,pp=1,dp=8,mbs=1,sp=0,{plan}" and found.question.scenario.software.name == software
    better = check(found).better
    words = {change.flag for change in check(found).changes}
    assert better is None or not any("accelerate.yaml" in flag for flag in words), words


def test_files_of_llm_foundry_are_no_files_of_accelerate():
    text = "max_seq_len: 2048\ndevice_train_microbatch_size: 1\nfsdp_config:\n  sharding_strategy: FULL_SHARD\n"
    with pytest.raises(UnsupportedError, match="llm-foundry"):
        read_any(text, CheckRequest(gpus=8))


AXOLOTL = "base_model: Qwen/Qwen2.5-14B\nsequence_len: 2048\nmicro_batch_size: 2\nbf16: auto\ngradient_checkpointing: true\n"


def axolotl(more):
    return read_any(AXOLOTL + more, CheckRequest(gpu="h100-sxm-80gb", gpus=8))


@pytest.mark.parametrize(
    ("more", "peft", "frozen", "optimizer", "masters"),
    [
        ("", "none", "bf16", "adamw", True),
        ("optimizer: adamw_bnb_8bit\n", "none", "bf16", "adam8bit", True),
        ("adapter: lora\nlora_r: 8\nlora_target_linear: true\n", "lora", "bf16", "adamw", False),
        ("adapter: lora\nlora_r: 8\nload_in_8bit: true\nlora_target_modules: [q_proj]\n", "lora", "int8", "adamw", False),
        (
            "adapter: qlora\nlora_r: 8\nload_in_4bit: true\noptimizer: paged_adamw_8bit\n",
            "lora",
            "nf4",
            "paged_adam8bit",
            False,
        ),
        ("fsdp: [full_shard, auto_wrap]\nfsdp_config: {fsdp_version: 2}\n", "none", "bf16", "adamw", False),
    ],
)
def test_axolotl_says_what_it_trains(more, peft, frozen, optimizer, masters):
    found = axolotl(more)
    numerics = found.question.scenario.numerics
    assert (numerics.peft, numerics.frozen_dtype, numerics.optimizer, numerics.weights_are_masters) == (
        peft,
        frozen,
        optimizer,
        masters,
    )
    assert found.plan.recompute.granularity == "full" and not found.unknown


def test_what_axolotl_has_that_no_formula_prices_is_named_or_refused():
    for more, says in (
        ("rl: dpo", r"rl \(line 6\) is dpo"),
        ("unfrozen_parameters: [lm_head]", "unfrozen_parameters"),
        ("context_parallel_size: 2", "context_parallel_size"),
        ("adapter: llama-adapter", "read are lora, qlora"),
    ):
        with pytest.raises(UnsupportedError, match=says):
            axolotl(f"{more}\n")
    assert "context_parallel_size" not in str(axolotl("context_parallel_size: 1\n").unknown)
    assert "wait in CPU memory" in str(sentences(axolotl("gradient_checkpointing: offload\n").not_modelled))
    adapters, losses = (
        "adapter: lora\nlora_r: 8\nlora_target_linear: true\n",
        ("cut_cross_entropy", "chunked_cross_entropy", "tf32"),
    )
    cut, chunks, whole = (check(axolotl(f"{adapters}{name}: true\n")).report.peak_bytes for name in losses)
    assert cut < chunks < whole


def test_a_better_plan_is_said_and_written_in_axolotls_words():
    found = check(axolotl("adapter: lora\nlora_r: 8\nlora_target_linear: true\n"))
    flags = {change.flag for change in found.changes}
    names = load_map("axolotl").more
    assert flags <= {*names["words"].values(), *names["same"], "gradient checkpointing"} and found.better is not None
    assert "micro_batch_size: 1\n" in changed(AXOLOTL, [c for c in found.changes if c.flag == "micro_batch_size"] or [
        type(found.changes[0])(flag="micro_batch_size", old=("2",), new=("1",))])  # fmt: skip


UNKNOWN = {
    "trl": (HUGGING_FACE, "optim: shampoo_max\n", "optim"),
    "a loss": (HUGGING_FACE, "loss_chunking_kind: 3\n", "loss_chunking_kind"),
    "a quantisation": (HUGGING_FACE, "fancy_quantization: true\n", "fancy_quantization"),
    "axolotl": (AXOLOTL, "optimizer: wonder\n", "optim"),
    "deepspeed": (
        '{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "optimizer": {"type": %s}}',
        '"Wonder"',
        "optimizer.type",
    ),
    "torchtitan": (
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 2048\n[optimizer]\nname = %s\n',
        '"Wonder"',
        "optimizer.name",
    ),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_an_unknown_optimizer_loss_or_quantisation_leaves_memory_open(case, autoconfig, tmp_path):
    text, more, key = UNKNOWN[case]
    text = text % more if "%s" in text else text + more
    asked = CheckRequest(gpu="b200", gpus=8, **({"model": "llama3-8b", "seq_length": 2048} if case == "deepspeed" else {}))
    assert read_any(text, asked).undecided == (key,)
    file = tmp_path / "run.yaml"
    file.write_text(text)
    words = ("--model", "llama3-8b", "--seq-length", "2048") if case == "deepspeed" else ()
    shown = autoconfig.run("check", str(file), "--gpu", "b200", "--gpus", "8", *words)
    assert shown.exit_code == 2 and f"No verdict on memory: not known is {key}" in shown.stdout
    assert "Fits" not in shown.stdout and "Step" in shown.stdout and "Better" not in shown.stdout


MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 "
    "--max-position-embeddings 512 --vocab-size 50257 --micro-batch-size 1 --bf16 --optimizer {}\n"
)


def test_optimizers_that_are_known_to_keep_less_bound_the_memory():
    for name in ("sgd", "lion_8bit", "adalomo", "paged_lion_32bit", "galore_adamw", "muon"):
        found = read_any(f"{HUGGING_FACE}optim: {name}\n", CheckRequest(gpu="b200", gpus=8))
        assert found.needs_less and not found.undecided, name
    assert read_any(MEGATRON.format("sgd"), CheckRequest(gpu="h100")).needs_less
    assert read_any(MEGATRON.format("wonder"), CheckRequest(gpu="h100")).undecided == ("--optimizer",)


def test_explain_takes_what_a_file_leaves_open(autoconfig, tmp_path):
    file = tmp_path / "hf.yaml"
    file.write_text(HUGGING_FACE)
    asked = ("explain", str(file), "--gpu", "h200", "--gpus", "8", "--json", "--no-binds")
    plain, sharded = (autoconfig.run(*asked, *more) for more in ((), ("--set", "fsdp=full_shard")))
    assert "fsdp=3" in sharded.stdout and "fsdp=3" not in plain.stdout
    refused = autoconfig.run("explain", "--model", "llama3-8b", "--gpus", "8", "tp=1,mbs=1", "--set", "a=1")
    assert refused.exit_code == 2 and "--set is for what a FILE leaves open" in refused.stderr


def test_optimizers_that_are_sharded_by_whole_parameters_leave_memory_open():
    """megatron-core 0.19.2 deals the state of Muon out by layers: the rank with the embedding has no even share."""
    for text in ("muon --use-distributed-optimizer", "dist_muon", "lion --use-distributed-optimizer"):
        assert read_any(MEGATRON.format(text), CheckRequest(gpu="h100")).undecided == ("--optimizer",), text
    for text in ("muon", "sgd --use-distributed-optimizer", "lion"):
        found = read_any(MEGATRON.format(text), CheckRequest(gpu="h100"))
        assert found.needs_less and not found.undecided, text
