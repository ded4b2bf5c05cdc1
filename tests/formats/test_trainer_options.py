"""Options of Hugging Face's Trainer and of what is built on it: what decides is read, refused or named."""

import json
import re

import pytest
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.remarks import sentences
from autoconfig.time_model.step.rows import optimizer_bytes_per_parameter
from tables import tabled

from autoconfig.formats.check import read_any
from autoconfig.formats.convert import convert
from autoconfig.megatron.check import check
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


@tabled
def test_words_of_fsdp_shard(fsdp, stage, offload):
    found = swift(f"--fsdp {fsdp}")
    assert (found.plan.fsdp, found.plan.offload) == (stage, offload)
    assert found.question.scenario.software.name == "torch-eager"


def test_other_words_of_fsdp_are_refused():
    with pytest.raises(InputError, match="read are full_shard"):
        swift("--fsdp hybrid_shard")


@tabled
def test_which_layers_have_adapters(options, modules):
    numerics = swift(f"--train_type lora {options}").question.scenario.numerics
    assert numerics.peft == "lora" and set(numerics.lora_target_modules) == set(modules)


def test_layers_with_adapters_in_the_words_of_llama_factory():
    for text, modules in (("all", 4), ("q_proj,v_proj,k_proj", 1), ("o_proj, down_proj", 2)):
        numerics = factory(f"finetuning_type: lora\nlora_target: {text}\n").question.scenario.numerics
        assert len(numerics.lora_target_modules) == modules


def test_only_what_is_known_to_change_nothing_is_called_without_effect():
    found = swift("--logging_steps 5 --warmup_ratio 0.05 --learning_rate 1e-4 --brand_new_memory_trick 3 --system 'a: b: c'")
    assert sentences(found.unknown) == ("brand_new_memory_trick 3",)
    assert {"logging_steps", "warmup_ratio", "learning_rate", "system"} <= set(found.ignored)


@tabled
def test_what_matters_and_is_not_priced_is_named(option, says):
    found = swift(option)
    assert says in " ".join(sentences(found.not_modelled)) and not found.unknown
    assert not swift("--optim adamw_torch_fused --attn_impl flash_attn --quant_bits 0 --use_liger_kernel false").not_modelled


def trl(options):
    return read_any(f"{TRL}use_peft: true\nlora_r: 8\ndtype: bfloat16\n{options}", CheckRequest(gpu="h100-sxm-80gb", gpus=1))


@pytest.mark.parametrize(
    ("reader", "options", "frozen"),
    [
        (swift, "--train_type lora --quant_bits 4", "nf4"),
        (swift, "--train_type lora --quant_bits 4 --quant_method bnb --bnb_4bit_use_double_quant false", "nf4_single"),
        (swift, "--train_type lora --quant_bits 8", "int8"),
        (factory, "finetuning_type: lora\nbf16: true\nquantization_bit: 4\n", "nf4"),
        (factory, "finetuning_type: lora\nfp16: true\nquantization_bit: 4\ndouble_quantization: false\n", "nf4_single"),
        (factory, "finetuning_type: lora\nbf16: true\nquantization_bit: 8\nquantization_method: bitsandbytes\n", "int8"),
        (trl, "load_in_4bit: true\n", "nf4_single"),
        (trl, "load_in_4bit: true\nuse_bnb_nested_quant: true\nbnb_4bit_quant_type: nf4\n", "nf4"),
        (trl, "load_in_8bit: true\n", "int8"),
        (trl, "load_in_4bit: false\n", "bf16"),
        (swift, "--train_type full --quant_bits 4", "bf16"),
        (factory, "finetuning_type: lora\nbf16: true\nquantization_bit: 4\nquantization_method: hqq\n", "bf16"),
        (factory, "finetuning_type: lora\nquantization_bit: 4\n", "bf16"),
    ],
)
def test_weights_that_bitsandbytes_freezes(reader, options, frozen):
    """Double quantisation is the default of ms-swift and LLaMA-Factory, not of TRL; other methods, fp32 and training of all
    weights are named."""
    found = reader(options)
    assert found.question.scenario.numerics.frozen_dtype == frozen and not found.unknown
    named = any("weights in fewer bits" in text for text in sentences(found.not_modelled))
    assert named == (frozen == "bf16" and "false" not in options)


@pytest.mark.parametrize("kind", ["full", "lora"])
@pytest.mark.parametrize(
    ("word", "optimizer"),
    [
        ("adamw_bnb_8bit", "adam8bit"),
        ("adamw_8bit", "adam8bit"),
        ("paged_adamw_8bit", "paged_adam8bit"),
        ("adamw_torch", "adamw"),
    ],
)
def test_moments_in_8_bits(kind, word, optimizer):
    for found in (
        swift(f"--train_type {kind} --optim {word}"),
        factory(f"finetuning_type: {kind}\nbf16: true\noptim: {word}\n"),
    ):
        assert found.question.scenario.numerics.optimizer == optimizer and not found.not_modelled
        paged = any("paged moments are counted in host memory" in text for text in sentences(found.question.assumed))
        assert paged == (optimizer == "paged_adam8bit")


def test_what_stays_beside_weights_of_4_bits_is_named_where_it_is_wide():
    wide = read_any(f"{TRL}use_peft: true\nload_in_4bit: true\n", CheckRequest(gpu="h100-sxm-80gb", gpus=1))
    assert any("are loaded in float32" in text for text in sentences(wide.not_modelled))
    assert not trl("load_in_4bit: true\n").not_modelled


def test_experts_in_4_bits_are_named():
    text = FACTORY.format(options="finetuning_type: lora\nbf16: true\nquantization_bit: 4\nlora_target: q_proj,v_proj\n")
    found = read_any(text.replace("Qwen2.5-7B", "Qwen3-30B-A3B"), CheckRequest(gpu="h100-sxm-80gb", gpus=8))
    assert found.question.scenario.numerics.frozen_dtype == "bf16"
    assert any("weights in fewer bits" in text for text in sentences(found.not_modelled))


def state_bytes(found):
    """Weights, gradients and optimizer state of the one stage."""
    parts = check(found).report.stages[0].parts
    return sum(parts[name] for name in ("weight_bytes", "gradient_bytes", "optimizer_bytes"))


def test_weights_loaded_in_16_bits_keep_their_states_in_16_bits():
    """8 bytes a parameter: weight, gradient, two moments (torch/optim/adam.py makes them like the parameter)."""
    narrow = swift("--train_type full")
    parameters = total_parameters(narrow.question.scenario.model)
    assert state_bytes(narrow) == pytest.approx(8 * parameters, rel=1e-6)
    assert "8 bytes a parameter" in " ".join(sentences(narrow.question.assumed)) and not narrow.not_modelled
    assert optimizer_bytes_per_parameter(narrow.question.scenario.numerics, narrow.question.scenario.software.time) == 12 + 26
    wide = swift("--train_type full --torch_dtype float32 --bf16 true")
    assert state_bytes(wide) >= 16 * parameters
    for options in ("--train_type full --deepspeed zero2", "--train_type full --fsdp full_shard", "--train_type lora"):
        assert not swift(options).question.scenario.numerics.weights_are_masters
    assert factory("finetuning_type: full\npure_bf16: true\n").question.scenario.numerics.weights_are_masters
    assert not factory("finetuning_type: full\nbf16: true\n").question.scenario.numerics.weights_are_masters
    trl = TRL + "per_device_train_batch_size: 1\ndtype: bfloat16\n"
    assert read_any(trl, CheckRequest(gpu="h100-sxm-80gb", gpus=8)).question.scenario.numerics.weights_are_masters


def test_weights_kept_in_16_bits_are_written_for_trl_and_read_back():
    request = CheckRequest(gpu="h100-sxm-80gb", gpus=8)
    of_trl = TRL + "per_device_train_batch_size: 1\ndtype: bfloat16\n"
    for text in (of_trl, FACTORY.format(options="finetuning_type: full\npure_bf16: true\n")):
        found = convert(text, request, "trl")
        assert "\ndtype: bfloat16\n" in found.written.text
        again = read_any(found.written.text, request)
        assert again.question.scenario.numerics == found.source.question.scenario.numerics
        assert again.plan == found.source.plan
        with pytest.raises(UnsupportedError, match="weights_are_masters"):
            convert(text, request, "accelerate")


def test_logits_are_held_without_ligers_kernels():
    plain, fused = (check(swift(f"--train_type full --use_liger_kernel {word}")) for word in ("false", "true"))
    names = [answer.source.question.scenario.software.name for answer in (plain, fused)]
    assert names == ["deepspeed", "transformers-deepspeed"]
    trl = TRL + "per_device_train_batch_size: 1\nuse_liger_kernel: true\n"
    assert "Liger" in str(sentences(read_any(trl, CheckRequest(gpu="h100-sxm-80gb", gpus=8)).not_modelled))
    logits = 2048 * plain.source.question.scenario.model.vocab_size
    assert plain.report.peak_bytes - fused.report.peak_bytes > 2 * logits


OF_ZERO = {
    "deepspeed": '{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "bf16": {"enabled": true}, '
    '"zero_optimization": {"stage": 2}}',
    "accelerate": "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n"
    "deepspeed_config: {zero_stage: 2, gradient_accumulation_steps: 2}\n",
    "llama-factory": "stage: sft\nfinetuning_type: full\ndeepspeed: ds_z2_config.json\ncutoff_len: 8192\nbf16: true\n"
    "model_name_or_path: llama3-70b\nper_device_train_batch_size: 4\ngradient_accumulation_steps: 2\n",
}
"""Files that a Trainer and DeepSpeed share, of ZeRO-2 and micro-batches of 4."""
WAYS = {
    "deepspeed": ("zero_optimization.stage 3", "train_micro_batch_size_per_gpu 1", "offload_optimizer", "grad_accum_dtype"),
    "accelerate": ("deepspeed_config.zero_stage 3", "per_device_train_batch_size (of the trainer) 1", "offload_"),
    "llama-factory": ("ZeRO stage (deepspeed) 3", "per_device_train_batch_size 1", "offload_", "finetuning_type: lora"),
}
"""What the remedies of each name, in the file's own words."""


def zero(kind, model="llama3-70b", **settings):
    given = {"micro_batch_size": "4", **settings} if kind == "accelerate" else settings
    length = None if kind == "llama-factory" else 8192
    asked = CheckRequest(model=model, gpus=8, gpu="h100-sxm-80gb", seq_length=length, settings=given)
    return read_any(OF_ZERO[kind], asked)


@pytest.mark.parametrize("kind", OF_ZERO)
def test_remedies_are_what_the_file_can_say(kind):
    found = check(zero(kind))
    text = "\n".join(map(str, found.remedies))
    assert found.source.kind == kind and found.better is None
    assert not re.search(r"--fix|--peft|--exp-avg|--grad-reduce|\b(tp|pp|vpp|mbs|sp)=", text), text
    assert all(way in text for way in WAYS[kind]), text
    assert all((r.plan.tp, r.plan.pp) == (1, 1) for r in found.remedies if r.fits)
    assert any(r.fits and r.plan.recompute.granularity == "full" for r in found.remedies)


SHARDS = "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen2.5-7B-Instruct --max_length 2048 {}\n"


def shards(options):
    return read_any(SHARDS.format(options), CheckRequest(gpu="h100-sxm-80gb"))


def test_adapters_of_megatron_swift():
    found = shards("--tuner_type lora --lora_rank 16 --tensor_model_parallel_size 2")
    numerics = found.question.scenario.numerics
    assert (numerics.peft, numerics.lora_rank, len(numerics.lora_target_modules), found.plan.tp) == ("lora", 16, 4, 2)
    some = shards("--train_type lora --target_modules linear_qkv linear_proj").question.scenario.numerics
    assert (some.lora_rank, set(some.lora_target_modules)) == (8, {"linear_qkv", "linear_proj"})
    assert check(found).report.peak_bytes < check(shards("--tuner_type full --tensor_model_parallel_size 2")).report.peak_bytes
    mixture = SHARDS.format("--tuner_type lora").replace("Qwen2.5-7B-Instruct", "Qwen3-30B-A3B")
    assert "adapters of experts" in str(sentences(read_any(mixture, CheckRequest(gpu="h100-sxm-80gb")).not_modelled))
    for options, says in (
        ("--tuner_type lora_llm", "full and lora are read"),
        ("--tuner_type lora --target_modules q_proj", "q_proj"),
    ):
        with pytest.raises(InputError, match=says):
            shards(options)


DEEP = '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, %s}'


def deep(more):
    return read_any(DEEP % more, CheckRequest(gpu="h100-sxm-80gb", gpus=8, model="llama3.2-1b", seq_length=2048))


@tabled
def test_what_matters_in_a_deepspeed_file_is_not_without_effect(more, says):
    found = deep(more)
    assert says in " ".join(sentences(found.not_modelled)) and not found.unknown


def test_one_bit_optimizers_are_not_for_zero():
    with pytest.raises(UnsupportedError, match="one-bit optimizers are not for ZeRO"):
        deep('"optimizer": {"type": "OneBitAdam"}, "zero_optimization": {"stage": 1}')
    better = check(deep('"optimizer": {"type": "OneBitAdam"}')).better
    assert better is None or not (better.plan.fsdp or better.plan.dist_opt)


@pytest.mark.parametrize(("option", "precision"), [("", "bf16"), ("bf16: false", "fp32"), ("fp16: true", "fp16")])
def test_precision_of_trl(option, precision):
    given = CheckRequest(gpu="h100-sxm-80gb", gpus=8)
    found = read_any(f"{TRL}per_device_train_batch_size: 1\n{option}\n", given)
    assert found.question.scenario.numerics.precision == precision
    assert ("default of SFTConfig" in " ".join(sentences(found.question.assumed))) == (not option)


MODEL = {"model": "llama3-8b", "gpu": "h100-sxm-80gb", "seq_length": 4096}
FSDP = "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 16\nnum_machines: {}\n"
HYBRID = f"{FSDP}fsdp_config:\n  fsdp_sharding_strategy: HYBRID_SHARD\n"
ZERO = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": %d}}'
TITAN = (
    '[activation_checkpoint]\nmode = "none"\n[model]\nname = "llama3"\nflavor = "8B"\n'
    "[training]\nbatch_size = 1\nseq_len = 64\ndata_parallel_replicate_degree = %d\n%s"
)


def test_sharding_over_one_machine_of_one_is_over_all_gpus():
    given = {"settings": {"micro_batch_size": "1"}}
    assert read_any(HYBRID.format(1), CheckRequest(**MODEL, **given)).plan.fsdp == 3
    with pytest.raises(UnsupportedError, match="on several machines"):
        read_any(HYBRID.format(1), CheckRequest(**MODEL, **given, gpus=64))
    one = read_any(ZERO % 1, CheckRequest(**MODEL, gpus=8, global_batch_size=64))
    assert one.plan.fsdp == 3
    copies = read_any(TITAN % (8, "data_parallel_shard_degree = 1\n"), CheckRequest(gpu="h100-sxm-80gb"))
    assert (copies.plan.dp, copies.plan.fsdp) == (8, 0)


@pytest.mark.parametrize(("gpu", "code", "fits"), [("a100-40gb", 2, None), ("b200", 0, True)])
def test_weights_in_fewer_bits_that_may_fit_get_no_verdict(autoconfig, tmp_path, gpu, code, fits):
    """16-bit weights bound the memory: above the limit nothing is known, below it the run fits."""
    file = tmp_path / "run.sh"
    options = "--tuner_type lora --quant_bits 4 --quant_method hqq --max_length 1024 --per_device_train_batch_size 1"
    file.write_text(f"NPROC_PER_NODE=1 swift sft --model Qwen/Qwen2.5-32B {options} --gradient_checkpointing true\n")
    run = autoconfig.run("check", str(file), "--gpu", gpu)
    assert run.exit_code == code and ("No verdict on memory" in run.stdout) == (fits is None), run.output
    assert "Does not fit" not in run.stdout
    assert json.loads(autoconfig.run("check", str(file), "--gpu", gpu, "--json").stdout)["fits"] is fits
