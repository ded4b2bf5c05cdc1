"""Options of Hugging Face's Trainer and of what is built on it: what decides is read, refused or named."""

import pytest
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.plan import NONE, Recompute

from autoconfig.formats.check import read_any
from autoconfig.megatron.check_input import CheckRequest

COMMAND = "swift sft --model Qwen/Qwen2.5-7B-Instruct --max_length 2048"
SWIFT = f"NPROC_PER_NODE=4 \\\n{{before}}{COMMAND} --per_device_train_batch_size 1 {{options}}\n"
FACTORY = "model_name_or_path: Qwen/Qwen2.5-7B\nstage: sft\ncutoff_len: 2048\nper_device_train_batch_size: 1\n{options}"
TRL = "model_name_or_path: Qwen/Qwen2.5-7B\ndataset_name: d\ngradient_checkpointing: true\nmax_length: 9\n"


def swift(options, before="", **given):
    return read_any(SWIFT.format(options=options, before=before), CheckRequest(gpu="h100-sxm-80gb", **given))


def factory(options, **given):
    return read_any(FACTORY.format(options=options), CheckRequest(gpu="h100-sxm-80gb", gpus=8, **given))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SWIFT.format(options="", before="").replace("sft", "rlhf --rlhf_type dpo"), "--rlhf_type dpo: training"),
        (SWIFT.format(options="", before="megatron rlhf --rlhf_type grpo --load x #"), "--rlhf_type grpo"),
        (SWIFT.format(options="--sequence_parallel_size 8", before=""), "sequence_parallel_size is 8: a sequence over several"),
        (SWIFT.format(options="--lisa_activated_layers 2", before=""), "lisa_activated_layers is 2: part of the layers"),
        (SWIFT.format(options="--freeze_parameters_ratio 0.5", before=""), "part of the weights are frozen"),
        (SWIFT.format(options="", before="CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 "), "8 GPUs are visible and NPROC"),
        (SWIFT.format(options="", before="CUDA_VISIBLE_DEVICES=0,1 ").replace("NPROC_PER_NODE=4 ", ""), "NPROC_PER_NODE is 1"),
        (TRL + "beta: 0.01\n", "beta: training on preferences"),
        (f"{TRL}gradient_accumulation_steps: 2\nwith_tracking: true\n", "with_tracking: no option of Hugging Face"),
        (TRL + "optim: adafactor\n", "optim adafactor: another optimizer than Adam"),
        (FACTORY.format(options="finetuning_type: full\nuse_badam: true\n"), "use_badam: another optimizer than Adam"),
        (SWIFT.format(options="--train_type full --optim paged_adamw_8bit", before=""), "optim paged_adamw_8bit"),
    ],
)  # fmt: skip
def test_what_no_answer_would_be_right_for_is_refused(text, says):
    with pytest.raises(UnsupportedError) as refused:
        read_any(text, CheckRequest(gpu="h100-sxm-80gb", gpus=8))
    assert says in str(refused.value)


def test_harmless_values_of_options_that_decide_are_taken():
    found = swift("--sequence_parallel_size 1 --use_galore false --freeze_parameters_ratio 0. --lisa_activated_layers 0")
    assert found.plan.dp == 4 and not found.unknown


def test_without_its_variable_one_process_has_the_one_visible_gpu():
    one = SWIFT.format(options="", before="CUDA_VISIBLE_DEVICES=3 ").replace("NPROC_PER_NODE=4 ", "")
    assert read_any(one, CheckRequest(gpu="h100-sxm-80gb")).plan.dp == 1
    with pytest.raises(InputError, match="number of GPUs is not known"):
        read_any(one.replace("CUDA_VISIBLE_DEVICES=3 ", ""), CheckRequest(gpu="h100-sxm-80gb"))
    assert swift("", before="CUDA_VISIBLE_DEVICES=0,1,2,3 ").plan.dp == 4
    assert swift("", before="NNODES=2 ").plan.dp == 8


@pytest.mark.parametrize(
    ("fsdp", "stage", "offload"),
    [("full_shard", 3, 0.0), ("'full_shard auto_wrap offload'", 3, 1.0), ("shard_grad_op", 2, 0.0), ("fsdp2", 3, 0.0),
     ("no_shard", 0, 0.0)],
)  # fmt: skip
def test_words_of_fsdp_shard(fsdp, stage, offload):
    found = swift(f"--fsdp {fsdp}")
    assert (found.plan.fsdp, found.plan.offload) == (stage, offload)
    assert found.question.scenario.software.name == "torch-eager"


def test_other_words_of_fsdp_are_refused():
    with pytest.raises(InputError, match="read are full_shard"):
        swift("--fsdp hybrid_shard")


def test_the_file_of_a_launcher_is_not_opened():
    text = SWIFT.format(options="", before="").replace("swift sft", "accelerate launch --config_file x.json swift/cli/sft.py")
    with pytest.raises(InputError, match="--set fsdp=full_shard"):
        read_any(text, CheckRequest(gpu="h100-sxm-80gb", gpus=2))
    assert read_any(text, CheckRequest(gpu="h100-sxm-80gb", gpus=2, settings={"fsdp": "full_shard"})).plan.fsdp == 3


@pytest.mark.parametrize(
    ("options", "modules"),
    [
        ("--target_modules all-linear", ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")),
        ("--target_modules q_proj k_proj v_proj", ("linear_qkv",)),
        ("--target_modules o_proj down_proj", ("linear_proj", "linear_fc2")),
    ],
)  # fmt: skip
def test_which_layers_have_adapters(options, modules):
    numerics = swift(f"--train_type lora {options}").question.scenario.numerics
    assert numerics.peft == "lora" and set(numerics.lora_target_modules) == set(modules)


def test_layers_with_adapters_in_the_words_of_llama_factory():
    for text, modules in (("all", 4), ("q_proj,v_proj,k_proj", 1), ("o_proj, down_proj", 2)):
        numerics = factory(f"finetuning_type: lora\nlora_target: {text}\n").question.scenario.numerics
        assert len(numerics.lora_target_modules) == modules


def test_only_what_is_known_to_change_nothing_is_called_without_effect():
    found = swift("--logging_steps 5 --warmup_ratio 0.05 --learning_rate 1e-4 --brand_new_memory_trick 3 --system 'a: b: c'")
    assert found.unknown == ("brand_new_memory_trick 3",)
    assert {"logging_steps", "warmup_ratio", "learning_rate", "system"} <= set(found.ignored)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--quant_bits 4", "frozen weights in fewer bits"), ("--use_liger_kernel true", "logits are never held"),
        ("--optim adafactor", "priced as Adam, of adapters alone"), ("--attn_impl eager", "scores of all pairs"),
        ("--use_galore true", "priced as Adam"),
        ("--num_labels 3", "a classifier"), ("--modules_to_save embed_tokens", "trained whole"),
    ],
)  # fmt: skip
def test_what_matters_and_is_not_priced_is_named(option, says):
    found = swift(option)
    assert says in " ".join(found.not_modelled) and not found.unknown
    assert not swift("--optim adamw_torch_fused --attn_impl flash_attn --quant_bits 0 --use_liger_kernel false").not_modelled


def test_stages_on_unlike_gpus_are_refused():
    sizes = "num_layers: 2, hidden_size: 64, num_attention_heads: 4, seq_length: 8, micro_batch_size: 1, global_batch_size: 8"
    text = f"system: {{tensor_model_parallel_size: 1, hetero: {{enable_hetero: %s}}}}\nmodel: {{{sizes}, vocab_size: 128}}\n"
    given = CheckRequest(gpu="h100-sxm-80gb", gpus=8)
    with pytest.raises(UnsupportedError, match="unlike GPUs"):
        read_any(text % "true", given)
    assert read_any(text % "false", given).plan.dp == 8


def test_no_layer_of_a_block_is_recomputed():
    text = (
        "torchrun --nproc_per_node=8 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
        "--max-position-embeddings 64 --micro-batch-size 1 --vocab-size 128 --bf16 --recompute-granularity full "
        "--recompute-method {} --recompute-num-layers 0"
    )
    assert read_any(text.format("block"), CheckRequest(gpu="h100-sxm-80gb")).plan.recompute == NONE
    with pytest.raises(InputError, match="must be at least 1"):
        read_any(text.format("uniform"), CheckRequest(gpu="h100-sxm-80gb"))


def test_weights_trained_in_16_bits_without_copies_are_named():
    assert "8 bytes a parameter" in " ".join(swift("--train_type full").not_modelled)
    for options in ("--train_type full --deepspeed zero2", "--train_type full --fsdp full_shard", "--train_type lora"):
        assert not swift(options).not_modelled
    assert "8 bytes" in " ".join(factory("finetuning_type: full\npure_bf16: true\n").not_modelled)
    assert not factory("finetuning_type: full\nbf16: true\n").not_modelled


@pytest.mark.parametrize(("option", "precision"), [("", "bf16"), ("bf16: false", "fp32"), ("fp16: true", "fp16")])
def test_precision_of_trl(option, precision):
    given = CheckRequest(gpu="h100-sxm-80gb", gpus=8)
    found = read_any(f"{TRL}per_device_train_batch_size: 1\n{option}\n", given)
    assert found.question.scenario.numerics.precision == precision
    assert ("default of SFTConfig" in " ".join(found.question.assumed)) == (not option)


MODEL = {"model": "llama3-8b", "gpu": "h100-sxm-80gb", "seq_length": 4096}
FSDP = "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 16\nnum_machines: {}\n"
HYBRID = f"{FSDP}fsdp_config:\n  fsdp_sharding_strategy: HYBRID_SHARD\n"
COPIES = f"{FSDP}fsdp_config:\n  fsdp_version: 2\nparallelism_config:\n  parallelism_config_dp_replicate_size: 2\n"
ZERO = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": %d}}'
TITAN = (
    '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nbatch_size = 1\nseq_len = 64\n'
    "data_parallel_replicate_degree = %d\n%s"
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HYBRID.format(2), "fsdp_sharding_strategy HYBRID_SHARD on several machines"),
        (COPIES.format(2), "parallelism_config_dp_replicate_size 2"),
        (ZERO % 8, "zero_hpz_partition_size 8: hpZ holds a second copy"),
        (TITAN % (2, "data_parallel_shard_degree = 8\n"), "data_parallel_replicate_degree 2: weights"),
        (TITAN % (1, '[optimizer]\nname = "Muon"\n'), "optimizer.name Muon"),
    ],
)
def test_sharding_over_part_of_the_gpus_is_refused(text, says):
    """eminorhan/frontier-torchtitan (50284af4), train_configs/llama3_8b_n64.toml: over 32 of 512 GPUs, twice, with tp 8."""
    with pytest.raises(UnsupportedError, match=says):
        read_any(text, CheckRequest(**MODEL, global_batch_size=64, settings={"micro_batch_size": "1"}))


def test_sharding_over_one_machine_of_one_is_over_all_gpus():
    given = {"settings": {"micro_batch_size": "1"}}
    assert read_any(HYBRID.format(1), CheckRequest(**MODEL, **given)).plan.fsdp == 3
    with pytest.raises(UnsupportedError, match="on several machines"):
        read_any(HYBRID.format(1), CheckRequest(**MODEL, **given, gpus=64))
    one = read_any(ZERO % 1, CheckRequest(**MODEL, gpus=8, global_batch_size=64))
    assert one.plan.fsdp == 3
    copies = read_any(TITAN % (8, "data_parallel_shard_degree = 1\n"), CheckRequest(gpu="h100-sxm-80gb"))
    assert (copies.plan.dp, copies.plan.fsdp) == (8, 0)


def megatron_swift(options):
    command = "megatron sft --model Qwen/Qwen3-30B-A3B --max_length 4096 --sequence_parallel true"
    text = f"NPROC_PER_NODE=8 {command} --tensor_model_parallel_size 2 --expert_model_parallel_size 4 {options}\n"
    return read_any(text, CheckRequest(gpu="h100-sxm-80gb"))


def test_megatron_swift_has_defaults_of_its_own():
    """Experts are not split as tp is, tokens are exchanged by alltoall, nothing is dropped, a batch is 16."""
    found = megatron_swift("")
    scenario = found.question.scenario
    assert (found.plan.etp, found.plan.mbs, found.plan.dist_opt, scenario.workload.global_batch_size) == (1, 1, True, 16)
    assert scenario.given.dispatcher == "alltoall" and found.plan.recompute == Recompute("selective", ("core_attn",))
    assert scenario.numerics.hidden_dropout == scenario.numerics.attention_dropout == 0.0
    assert not any("default" in line for line in found.question.assumed)


def test_what_a_run_of_megatron_swift_says_counts():
    options = "--expert_tensor_parallel_size 2 --moe_token_dispatcher_type allgather --hidden_dropout 0.1"
    found = megatron_swift(f"{options} --recompute_granularity none --global_batch_size 32")
    scenario = found.question.scenario
    assert (found.plan.etp, scenario.given.dispatcher, scenario.workload.global_batch_size) == (2, "allgather", 32)
    assert (scenario.numerics.hidden_dropout, found.plan.recompute) == (0.1, NONE)
