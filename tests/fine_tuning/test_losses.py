"""Words of trainers for losses that hold no logits, a part of them, or one copy, and what does not run with DeepSpeed."""

import csv

import pytest
from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.software.software import LOSS_BYTES

from autoconfig.formats.check import read_any
from autoconfig.megatron.check_input import CheckRequest

ASKED = CheckRequest(gpu="h100-sxm-80gb", gpus=1)
AXOLOTL = "base_model: Qwen/Qwen2.5-7B\nsequence_len: 1024\nmicro_batch_size: 1\nbf16: true\n"
SWIFT = "swift sft --model Qwen/Qwen2.5-7B --max_length 1024 --train_type lora {}\n"
FACTORY = "model_name_or_path: Qwen/Qwen2.5-7B\nstage: sft\nfinetuning_type: full\ncutoff_len: 64\nbf16: true\n"


def per_logit(text):
    return read_any(text, ASKED).question.scenario.software.memory.loss_bytes_per_logit


@pytest.mark.parametrize(
    ("more", "held"),
    [
        ("plugins:\n  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin\n", 0.0),
        ("plugins:\n  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin\ncut_cross_entropy: false\n", 12.0),
        ("cut_cross_entropy: true\n", 0.0),
        ("plugins:\n  - axolotl.integrations.liger.LigerPlugin\nliger_cross_entropy: true\n", LOSS_BYTES["in_place"]),
        ("plugins:\n  - axolotl.integrations.liger.LigerPlugin\nliger_fused_linear_cross_entropy: true\n", 0.0),
        ("chunked_cross_entropy: true\n", 2 + 4 + 4 / 8),  # logits, every log-softmax, the last fp32 copy
        ("chunked_cross_entropy: true\ntorch_compile: true\n", 2 + 12 / 8),
        ("", 12.0),
    ],
)
def test_losses_of_axolotl(more, held):
    assert per_logit(AXOLOTL + more) == held


def test_cut_cross_entropy_of_ms_swift():
    assert per_logit(SWIFT.format("--use_cce true")) == 0.0 < per_logit(SWIFT.format("--use_cce false"))


def test_a_loss_that_nobody_knows_leaves_memory_open():
    for key in ("wonder_cross_entropy", "use_wonder_cce"):
        assert read_any(f"{AXOLOTL}{key}: true\n", ASKED).undecided == (key,)


@pytest.mark.parametrize("key", ["use_galore", "use_apollo"])
def test_what_llama_factory_does_not_start_with_deepspeed_is_refused(key):
    """LLaMA-Factory's hparams/parser.py: GaLore and APOLLO are incompatible with DeepSpeed."""
    with pytest.raises(UnsupportedError, match=rf"{key} .*with deepspeed: LLaMA-Factory stops"):
        read_any(f"{FACTORY}{key}: true\ndeepspeed: ds_z2_config.json\n", ASKED)
    assert read_any(f"{FACTORY}{key}: true\n", ASKED).needs_less


@pytest.mark.parametrize(
    ("word", "like"),
    [("cce", "fused"), ("Liger", "fused"), ("cut-cross-entropy", "fused"), ("chunked_nll", "fused"), ("eager", "plain")],
)
def test_words_of_others_for_the_loss_of_a_row(word, like, autoconfig, tmp_path):
    rows = [
        {"model": "llama3-8b", "gpu": "h100-sxm-80gb", "gpus": 8, "mbs": 1, "software": "torch-eager", "loss": loss}
        for loss in (word, like, "wonder")
    ]
    table, out = tmp_path / "runs.csv", tmp_path / "out.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    assert autoconfig.run("predict", str(table), "--output", str(out)).exit_code == 0
    with out.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert found[0]["pred_peak_mem_gib"] == found[1]["pred_peak_mem_gib"] != ""
    assert found[2]["pred_peak_mem_gib"] == "" and "cell loss='wonder' is none of plain" in found[2]["pred_note"]
