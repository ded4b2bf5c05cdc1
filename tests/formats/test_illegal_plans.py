"""Plans that are not legal, in files of every format: a verdict with a sentence, whatever words the file has for the cure."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from autoconfig.cli.main import EXIT_BAD_INPUT, EXIT_NOTHING_FITS, cli

TESTS = Path(__file__).parents[1]
PUBLIC = sorted([*(TESTS / "formats" / "files").iterdir(), *(TESTS / "megatron" / "scripts").iterdir()])
ALWAYS_LEGAL = {"gpt_neox_2021_13b_zero3.yml", "llama_factory_2024_llama3_8b_badam.yaml", "swift_2025_qwen3_32b_lora.sh"}
"""One GPU at a time holds the whole model: legal on any number."""
COMMANDS = {
    "shown": ["check"],
    "json": ["check", "--json"],
    "improved": ["check", "--apply-to", "OUT"],
    "explained": ["explain"],
    "converted": ["convert", "--format", "megatron-yaml"],
}
NANOTRON = """
parallelism: {dp: 2, pp: 3, tp: 1, expert_parallel_size: 1, pp_engine: 1f1b, tp_mode: ALL_REDUCE}
tokens: {micro_batch_size: 3, batch_accumulation_per_replica: 1, sequence_length: 4096}
optimizer: {zero_stage: 0, accumulate_grad_in_fp32: true}
model:
  dtype: bfloat16
  model_config: {is_llama_config: true, hidden_act: silu, hidden_size: 4096, intermediate_size: 14336, num_hidden_layers: 16,
    num_attention_heads: 32, num_key_value_heads: 8, max_position_embeddings: 8192, tie_word_embeddings: false,
    vocab_size: 128256}
"""
TORCHTITAN = """
[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 8
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 3
pipeline_parallel_degree = 3
"""
PRIMUS = """
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: llama3.1_70B.yaml
    overrides: {tensor_model_parallel_size: 3, pipeline_model_parallel_size: 3, micro_batch_size: 1, global_batch_size: 128,
      seq_length: 8192, max_position_embeddings: 8192}
"""


def _ran(command, path, *options, tmp_path):
    words = [str(tmp_path / "out") if word == "OUT" else word for word in COMMANDS[command]]
    result = CliRunner().invoke(cli, [words[0], str(path), *words[1:], *options])
    if "pass --set vocab_size=N" in result.output:
        result = CliRunner().invoke(cli, [words[0], str(path), *words[1:], *options, "--set", "vocab_size=50257"])
    odd = None if isinstance(result.exception, SystemExit) else result.exception
    assert odd is None, f"{path.name}: {odd!r}"
    return result


@pytest.mark.parametrize("gpus", ["3", "7"])
@pytest.mark.parametrize("path", PUBLIC, ids=lambda path: path.name)
def test_a_number_of_gpus_that_does_not_divide_ends_with_a_sentence(path, gpus, tmp_path):
    result = _ran("shown", path, "--gpus", gpus, "--gpu", "h100-sxm-80gb", tmp_path=tmp_path)
    if path.name not in ALWAYS_LEGAL:
        assert result.exit_code in (EXIT_BAD_INPUT, EXIT_NOTHING_FITS)
        said = ("Not legal", "error: ", "Does not fit", "No verdict on memory")
        assert any(text in result.output for text in said)


def test_most_of_them_are_verdicts(tmp_path):
    ran = [_ran("shown", path, "--gpus", "7", "--gpu", "h100-sxm-80gb", tmp_path=tmp_path).output for path in PUBLIC]
    assert sum("Not legal" in output for output in ran) >= 30


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("text", "options"),
    [(NANOTRON, []), (TORCHTITAN, ["--gpus", "72"]), (PRIMUS, ["--gpus", "72"])],
    ids=["nanotron", "torchtitan", "primus"],
)
def test_layers_that_do_not_divide_and_no_words_for_uneven_stages(command, text, options, tmp_path):
    path = tmp_path / ("train.toml" if text is TORCHTITAN else "train.yaml")
    path.write_text(text)
    result = _ran(command, path, *options, tmp_path=tmp_path)
    assert result.exit_code in (EXIT_BAD_INPUT, EXIT_NOTHING_FITS, 0 if command == "converted" else EXIT_BAD_INPUT)
    assert result.output.strip()


def test_the_nearest_plan_is_one_that_nanotron_can_say(tmp_path):
    """One micro-batch is too few for 3 stages; 16 layers do not divide over these, and nanotron has no words for 5, 6 and 5."""
    path = tmp_path / "train.yaml"
    path.write_text(NANOTRON)
    answer = json.loads(_ran("json", path, tmp_path=tmp_path).output)
    assert not answer["legal"]
    assert answer["nearest_legal"]["plan"]["decoder_first_pipeline_num_layers"] is None
    line = next(number for number, text in enumerate(NANOTRON.splitlines(), 1) if "pp: 3" in text)
    assert {"flag": "parallelism.pp", "old": ["3"], "new": ["2"], "line": line} in answer["nearest_legal"]["changes"]
