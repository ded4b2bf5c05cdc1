"""What a row of a table of runs leaves unsaid and its software or its model decides."""

from __future__ import annotations

import pytest
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.software.software import load_stack

from autoconfig.runs.training_model import read_numerics
from autoconfig.runs.training_row import even_ends


@pytest.mark.parametrize(
    ("model", "pp", "ends"),
    [
        ("qwen3-235b-a22b", 8, (11, 11)),  # 94 layers and embedding and loss: 96 / 8
        ("llama3.1-405b", 8, (15, 15)),  # 126 and 2: 128 / 8
        ("deepseek-v3", 16, (4, 1)),  # Megatron-Bridge's layouts: 61 layers
        ("deepseek-v3", 4, (16, 13)),
        ("deepseek-v3", 8, (8, 5)),
        ("gpt3-175b", 8, (None, None)),
        ("deepseek-v3", 1, (None, None)),
    ],
)
def test_ends_of_uneven_stages(model: str, pp: int, ends: tuple[int | None, int | None]) -> None:
    assumed: list[str] = []
    assert even_ends(load_model(model), pp, assumed) == ends
    assert bool(assumed) == (ends[0] is not None)


@pytest.mark.parametrize(
    ("fsdp", "given", "found"), [("3", "", "bf16"), ("hsdp", "", "bf16"), ("0", "", "fp32"), ("3", "fp32", "fp32")]
)
def test_gradients_under_megatron_fsdp(fsdp: str, given: str, found: str) -> None:
    row = {"fsdp": fsdp, "grad_dtype": given, "precision": "bf16", "model": "llama3-8b"}
    assert read_numerics(row, load_stack("transformer-engine"), []).grad_reduce_dtype == found
    assert read_numerics({**row, "grad_dtype": ""}, load_stack("llm-foundry-fsdp"), []).grad_reduce_dtype != ""


@pytest.mark.parametrize("name", ["nemo-26.02", "nemo-26.04", "megatron-bridge"])
def test_later_releases_are_read_as_the_last_one_known(name: str) -> None:
    assert load_stack(name).name == "nemo-25.11"
