"""A log of Megatron-LM carries the plan: the arguments that it prints.

The whole log here is what megatron-core 0.19.2 printed of our export of tp=4,pp=4,vpp=5,mbs=1,sp=1 for Llama 3 70B on 64 GPUs;
`make judge` asks the same of every export."""

import gzip
from pathlib import Path

import pytest
from autoconfig.specs.errors import InputError

from autoconfig.evidence.read import read_files, read_texts
from autoconfig.formats.check import check_file, read_any, read_file
from autoconfig.formats.recognise import recognise
from autoconfig.megatron.check_input import CheckRequest

LOG = Path(__file__).parent / "megatron_core_0.19_llama3_70b.txt"
OLD = """\
using world size: 8, data-parallel-size: 1, tensor-model-parallel size: 2, pipeline-model-parallel size: 4
using torch.float16 for parameters ...
------------------------ arguments ------------------------
  accumulate_allreduce_grads_in_fp32 .............. False
  bf16 ............................................ False
  bias_gelu_fusion ................................ True
  checkpoint_activations .......................... True
  checkpoint_num_layers ........................... 1
  data_parallel_size .............................. 1
  distribute_checkpointed_activations ............. False
  DDP_impl ........................................ local
  encoder_seq_length .............................. 2048
  ffn_hidden_size ................................. 20480
  fp16 ............................................ True
  global_batch_size ............................... 1024
  hidden_size ..................................... 5120
  kv_channels ..................................... 128
  max_position_embeddings ......................... 2048
  micro_batch_size ................................ 1
  num_attention_heads ............................. 40
  num_layers ...................................... 40
  num_layers_per_virtual_pipeline_stage ........... None
  params_dtype .................................... torch.float16
  pipeline_model_parallel_size .................... 4
  rank ............................................ 0
  seed ............................................ 1234
  seq_length ...................................... 2048
  tensor_model_parallel_size ...................... 2
  tokenizer_type .................................. GPT2BPETokenizer
  vocab_file ...................................... gpt2-vocab.json
  world_size ...................................... 8
-------------------- end of arguments ---------------------
> building GPT2BPETokenizer tokenizer ...
 > padded vocab (size: 50257) with 175 dummy tokens (new size: 50432)
"""
"""Of September 2021, shortened to what counts."""
STEPS = "".join(
    f" iteration {step:8d}/    1000 | consumed samples: {step * 512:12d} | elapsed time per iteration (ms): 7120.3 | "
    f"learning rate: 1.5E-04 | global batch size:   512 | lm loss: 2.3E+00 |\n"
    for step in range(1, 2001)
)
GPU = CheckRequest(gpu="h100-sxm-80gb")


def test_the_newest_log_is_read_whole():
    text = LOG.read_text(encoding="utf-8")
    assert recognise(text)[0] == "megatron-log"
    found = read_any(text, GPU)
    assert str(found.plan) == "tp=4,pp=4,vpp=5,dp=4,mbs=1,sp=1,recompute=none"
    scenario = found.question.scenario
    model = scenario.model
    assert (model.num_layers, model.hidden_size, model.num_query_groups, model.vocab_size) == (80, 8192, 8, 128256)
    assert (scenario.cluster.num_gpus, scenario.workload.global_batch_size, scenario.workload.seq_length) == (64, 512, 8192)
    assert not found.unknown and not found.not_modelled and not found.refused
    assert any("names that the log prints" in note for note in found.notes)


def test_a_log_of_2021():
    found = read_any(OLD, CheckRequest(gpu="a100-80gb"))
    assert str(found.plan) == "tp=2,pp=4,dp=1,mbs=1,sp=0,recompute=full:uniform:1,dist_opt=0"
    assert found.question.scenario.model.vocab_size == 50257  # which a later line says
    assert found.question.scenario.numerics.precision == "fp16"


@pytest.mark.parametrize("packed", [False, True])
def test_a_long_log_is_checked_by_its_arguments(tmp_path, packed):
    """In front of them other ranks have spoken; behind them are more bytes than any launch script has."""
    text = "[W] a warning of torchrun\n" * 3000 + OLD.replace("\n", "\r\n") + STEPS * 4
    assert len(text) > 1_000_000
    path = tmp_path / ("run.log.gz" if packed else "run.log")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert read_file(path, GPU).plan == read_any(OLD, GPU).plan
    assert check_file(path, GPU).source.question.scenario.cluster.num_gpus == 8
    (plan,) = read_files([path]).plans
    assert plan.world_size == 8 and plan.values["vocab_size"] == "50257"


def test_two_plans_in_one_log_are_refused_and_a_restart_is_not(tmp_path):
    again = OLD.replace(
        "seed ............................................ 1234", "seed ............................................ 7"
    )
    assert len(read_texts({"log": OLD + STEPS + again}).plans) == 1
    other = OLD.replace(
        "tensor_model_parallel_size ...................... 2", "tensor_model_parallel_size ...................... 4"
    )
    with pytest.raises(InputError, match=r"two plans, at lines 3 and .* tensor_model_parallel_size"):
        read_texts({"log": OLD + STEPS + other})
    (path := tmp_path / "run.log").write_text(OLD + other)
    with pytest.raises(InputError, match="two plans"):
        read_file(path, GPU)


def test_lines_of_eight_ranks_between_the_arguments():
    mixed = "".join(
        f"{line}\n[rank{number % 8}]: NCCL INFO cudaDriverVersion 12040\n" for number, line in enumerate(OLD.splitlines())
    )
    assert read_any(mixed, GPU).plan == read_any(OLD, GPU).plan
    ranked = "".join(f"{0}: {line}\n" for line in OLD.splitlines())
    assert read_any(ranked, GPU).plan == read_any(OLD, GPU).plan


def test_a_log_that_is_cut_off_in_its_arguments():
    """What is there is read; what the answer needs and is missing is named."""
    cut = OLD[: OLD.index("  seq_length")]
    with pytest.raises(InputError, match="megatron-log file"):
        read_any(cut, GPU)


@pytest.mark.parametrize(
    ("name", "value", "left"),
    [
        ("num_query_groups", "1", True),  # without group_query_attention
        ("moe_router_topk", "2", True),  # without experts
        ("v_head_dim", "128", True),  # without latent attention
        ("some_forks_own_argument", "17", False),
        ("inference_dynamic_batching_buffer_guaranteed_fraction", " 0.2", False),  # no dots behind a long name
    ],
)
def test_what_a_switch_leaves_without_effect_is_left_out(name, value, left):
    off = "group_query_attention .......................... False\n  num_experts ..................................... None\n"
    off += "  multi_latent_attention .......................... False\n"
    dots = f"{'.' * (48 - len(name))} " if len(name) < 48 else ""
    found = read_any(OLD.replace("  bf16 ..", f"  {off}  {name} {dots}{value}\n  bf16 .."), GPU)
    assert found.question.scenario.model == read_any(OLD, GPU).question.scenario.model and not found.unknown
    assert any(name in note for note in found.notes) is (not left and name.startswith("some"))
