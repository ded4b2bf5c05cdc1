"""What a trainer's file leaves out has that trainer's default; what no reader knows of it is named."""

import pytest
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.remarks import Effect, sentences

from autoconfig.formats.check import read_any
from autoconfig.megatron.check_input import CheckRequest

NANOTRON = """
model:
  model_config: {is_llama_config: true, hidden_size: 256, num_hidden_layers: 4, num_attention_heads: 4,
    num_key_value_heads: 4, intermediate_size: 512, max_position_embeddings: 1024, vocab_size: 1024, hidden_act: silu}
parallelism: {dp: 4, tp: 1, pp: 1}
optimizer: {accumulate_grad_in_fp32: true, zero_stage: 0}
tokens: {sequence_length: 1024, micro_batch_size: 4, batch_accumulation_per_replica: 16}
"""
TITAN = """
[model]
name = "qwen3_custom"
flavor = "0.6B"
vocab_size = 50432
[training]
local_batch_size = 2
seq_len = 1024
[parallelism]
tensor_parallel_degre = 2
disable_loss_parallel = true
[activation_checkpoint]
"""
ACCELERATE = """
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config: {offload_param_device: %s}
mixed_precision: bf16
num_processes: 8
"""


def read(text, **request):
    return read_any(text, CheckRequest(**{"gpu": "h100-sxm-80gb", **request}))


def test_nanotron_computes_in_bf16():
    """ModelArgs.__post_init__ (nanotron/config/config.py); read as fp32 before."""
    assert read(NANOTRON).question.scenario.numerics.precision == "bf16"
    other = NANOTRON.replace("model:\n", "model:\n  dtype: float32\n")
    assert read(other).question.scenario.numerics.precision == "fp32"


def test_torchtitan_checkpoints_by_operator():
    """selective_ac_option is "op" since 2025 (torchtitan/config/job_config.py); "2", the default before, no plan says."""
    asked = {"model": "qwen3-0.6b", "gpus": 8}
    for text in (TITAN, TITAN.replace("[activation_checkpoint]\n", "")):
        assert str(read(text, **asked).plan.recompute) == "selective:op"
    with pytest.raises(UnsupportedError, match=r"selective 2: .*--set activation_checkpoint\.selective_ac_option=op"):
        read(f'{TITAN}selective_ac_option = "2"\n', **asked)


@pytest.mark.parametrize(
    ("said", "layers", "loss"),
    [
        ("", False, 12.0),
        ("[compile]\nenable = true", True, 4.0),
        ('[compile]\nenable = true\ncomponents = ["model"]', True, 12.0),
        ('[compile]\nenable = true\ncomponents = ["loss"]', False, 4.0),
        ("[training]\ncompile = true", True, 4.0),
    ],
)
def test_torchtitans_compiled_parts_keep_what_the_partitioner_keeps(said, layers, loss):
    """torchtitan/config/job_config.py: compile.components is ["model", "loss"]; eager torch keeps log-softmax (4) of logits
    that nobody holds any more, and makes two fp32 gradients (8); a compiled loss keeps its 16-bit logits and writes their
    gradient."""
    text = TITAN.replace("[training]\n", said + "\n") if said.startswith("[training]") else f"{TITAN}{said}\n"
    memory = read(text, model="qwen3-0.6b", gpus=8).question.scenario.software.memory
    assert memory.loss_bytes_per_logit == loss
    assert (memory.norm_input_bytes, memory.gated_activation_extra_bytes) == ((2.0, 0.0) if layers else (2.0, 2.0))


def test_torchtitans_foreign_keys_are_named():
    found = read(f'{TITAN}mode = "full"\n', model="qwen3-0.6b", gpus=8)
    assert sentences(found.unknown) == ("model.vocab_size 50432", "parallelism.tensor_parallel_degre 2")
    stages = 'pipeline_parallel_degree = 2\npipeline_parallel_split_points = ["layers.4"]'
    with pytest.raises(UnsupportedError, match="pipeline_parallel_split_points: stages of the file's own"):
        read(TITAN.replace("tensor_parallel_degre = 2", stages) + 'mode = "full"\n', model="qwen3-0.6b", gpus=8)


def test_accelerates_deepspeed_is_zero_2_and_weights_elsewhere_leave_the_memory_open(autoconfig, tmp_path):
    """DeepSpeedPlugin (accelerate/utils/dataclasses.py); read as stage 0 before."""
    asked = {"model": "qwen2.5-7b", "seq_length": 4096, "settings": {"micro_batch_size": "1"}}
    found = read(ACCELERATE % "none", **asked)
    assert found.plan.fsdp == 2 and any(text.startswith("recompute none") for text in sentences(found.question.assumed))
    file = tmp_path / "accelerate.yaml"
    size = ("--model", "qwen2.5-32b", "--seq-length", "4096", "--set", "micro_batch_size=1", "--gpu", "a100-40gb")
    for device, code in (("none", 3), ("cpu", 2)):
        file.write_text(ACCELERATE % device)
        run = autoconfig.run("check", str(file), *size)
        assert run.exit_code == code and ("No verdict on memory" in run.stdout) == (device == "cpu"), run.output


PRIMUS = """
modules:
  pre_trainer: {framework: megatron, model: deepseek_v3.yaml, overrides: {micro_batch_size: 1, global_batch_size: 256,
    seq_length: 4096, tensor_model_parallel_size: 1, expert_model_parallel_size: 8, %s}}
"""


def test_layers_that_predict_further_tokens_are_those_that_the_trainer_builds():
    """ms-swift builds none unless told (mtp_num_layers of megatron_args.py is None), the Trainer and torchtitan never;
    uniform groups of 4 were called illegal beside them, and null of Primus took none away."""
    swift = "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-Next-80B-A3B-Instruct --train_type full --max_length 1024 "
    told = swift + "--mtp_num_layers 1 "
    for text, depths in ((swift, 0), (told, 1), (PRIMUS % "mtp_num_layers: null", 0), (PRIMUS % "bf16: true", 1)):
        assert read(text, gpus=256).question.scenario.model.mtp_num_layers == depths
    titan = '[model]\nname = "deepseek_v3"\nflavor = "671B"\n[training]\nlocal_batch_size = 4\nseq_len = 1024\n'
    titan += '[activation_checkpoint]\nmode = "full"\n'
    assert read(titan, gpus=256).question.scenario.model.mtp_num_layers == 0


NEMO = """
trainer: {devices: 4, num_nodes: 4, precision: bf16}
model: {micro_batch_size: 1, global_batch_size: 32, tensor_model_parallel_size: 2, pipeline_model_parallel_size: 1,
  expert_model_parallel_size: 4, encoder_seq_length: 1024, max_position_embeddings: 1024, num_layers: 4, hidden_size: 512,
  ffn_hidden_size: 1024, num_attention_heads: 8, num_moe_experts: 8, moe_router_topk: 2, override_vocab_size: 32000,
  moe_token_dispatcher_type: alltoall, moe_grouped_gemm: true, moe_expert_capacity_factor: 1.0,
  moe_pad_expert_input_to_capacity: true, optim: {name: distributed_fused_adam}%s}
"""


def test_experts_of_nemo_are_what_their_fields_say():
    """NeMo hands all fields of TransformerConfig on; the dispatcher was said not to be given, the capacity not read."""
    found = read(NEMO % "")
    assert not any("dispatcher" in text for text in sentences(found.question.assumed))
    assert found.question.scenario.numerics.moe_capacity_factor == 1.0
    with pytest.raises(UnsupportedError, match="encoders and decoders with fields of their own"):
        read(NEMO % ", encoder: {num_layers: 4}")


def test_a_key_that_nemo_has_not_is_unknown():
    """All that its reader did not ask for was said to be without effect."""
    found = read(NEMO % ", tensor_model_paralel_size: 8, native_amp_init_scale: 1, recompute: null")
    assert [remark.field for remark in found.unknown] == ["model.tensor_model_paralel_size"]
    assert "model.native_amp_init_scale" in found.ignored
    partial = read(NEMO % ", num_micro_batches_with_partial_activation_checkpoints: 1")
    assert [remark.effect for remark in partial.not_modelled] == [Effect.MORE_MEMORY]


def test_nodes_are_as_large_as_the_file_starts_processes_on_them():
    """Of 4 processes each, where a server has 8 GPUs: the links between them are a network's."""
    swift = "NPROC_PER_NODE=4 NNODES=2 megatron sft --model Qwen/Qwen2.5-7B --train_type full --max_length 1024 "
    runner = "experiment: {runner: {nnodes: 4, nproc_per_node: 4}}\nsystem: {tensor_model_parallel_size: 2}\nmodel: "
    runner += "{num_layers: 4, hidden_size: 512, num_attention_heads: 8, seq_length: 1024, max_position_embeddings: 1024, "
    runner += "micro_batch_size: 1, global_batch_size: 32}\ndata: {tokenizer: {vocab_size: 32000}}\n"
    for text, gpus in ((swift, 8), (NEMO % "", 16), (runner, 16)):
        cluster = read(text).question.scenario.cluster
        assert (cluster.num_gpus, cluster.gpus_per_node) == (gpus, 4)
    assert read(swift.replace("PROC_PER_NODE=4", "PROC_PER_NODE=8")).question.scenario.cluster.gpus_per_node == 8


NEOX = """{
  "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "seq_length": 1024, "train_micro_batch_size_per_gpu": 1,
  "make_vocab_size_divisible_by": 1,
  "tokenizer_type": "%s", "vocab-file": "%s"
}
"""


def test_gpt_neox_asks_for_a_vocabulary_that_no_name_says():
    with pytest.raises(InputError, match=r"'/data/our_words.json' \(HFTokenizer\) is not known; say --set vocab"):
        read(NEOX % ("HFTokenizer", "/data/our_words.json"), gpus=8)


@pytest.mark.parametrize("flavour", ["debugmodel", "baseline_model_1b_12rank", "16B_12rank"])
def test_a_flavour_of_torchtitan_is_no_larger_model_that_begins_alike(flavour):
    """n-getty/torchtitan_xpu: each was read as DeepSeek-V3, 671 billion parameters."""
    titan = TITAN.replace("qwen3_custom", "deepseek_v3").replace("0.6B", flavour)
    with pytest.raises(InputError, match="the catalogue does not hold it"):
        read(titan, gpus=8)


OPTIMIZED = """
trainer: {devices: 8, num_nodes: 1, precision: bf16}
model: {mcore_gpt: true, num_layers: 4, hidden_size: 256, num_attention_heads: 4, encoder_seq_length: 512,
  max_position_embeddings: 512, micro_batch_size: 1, global_batch_size: 8, optim: {name: %s}}
"""


SAID = {"vocab_size": "50257"}


@pytest.mark.parametrize(("method", "says"), [("uniform", ""), ("null", ""), ("block", "NV110")])
def test_nemos_own_selective_recomputation_takes_uniform(method, says):
    """aws-neuron/neuronx-nemo-megatron, conf/megatron_llama_70b_config.yaml: refused with Megatron-LM's rule."""
    more = "activations_checkpoint_granularity: selective, activations_checkpoint_num_layers: 1"
    text = (OPTIMIZED % "adam").replace("mcore_gpt: true", f"{more}, activations_checkpoint_method: {method}")
    if says:
        with pytest.raises(InputError, match=says):
            read(text, settings=SAID)
    else:
        assert str(read(text, settings=SAID).plan.recompute) == "selective:core_attn"
