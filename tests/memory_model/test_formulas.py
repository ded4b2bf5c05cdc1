"""Every part against the formula that its line of docs/memory_model.md prints, in numbers: small models whose sizes are all
different, 16-bit and fp32, with and without sequence parallelism.

A row of formulas.json: function, model and changes of it or of the stack, formula in the page's letters (small_models.symbols).
"""

import inspect
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from autoconfig.memory_model import activations, cross, experts, graphs, recurrent, state, transients_unfused
from autoconfig.memory_model.activations import Shape
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.scenario import Numerics
from autoconfig.specs.software.software import StackMemory
from small_models import ENCODER_TOKENS, MODELS, symbols

MODULES = (activations, cross, experts, graphs, recurrent, state, transients_unfused)
PLANS = (
    {"mbs": 1, "tp": 1, "sp": 0, "cp": 1, "ep": 1, "etp": 1, "pp": 1},
    {"mbs": 3, "tp": 4, "sp": 1, "cp": 2, "ep": 2, "etp": 2, "pp": 5},
    {"mbs": 2, "tp": 4, "sp": 0, "cp": 1, "ep": 16, "etp": 1, "pp": 2},
    {"mbs": 1, "tp": 12, "sp": 1, "cp": 4, "ep": 4, "etp": 3, "pp": 1},
)
NUMERICS = {
    "16 bits, dropout": Numerics(attention_dropout=0.1, hidden_dropout=0.1, moe_imbalance=1.5),
    "16 bits": Numerics(attention_dropout=0.0, hidden_dropout=0.0, moe_capacity_factor=1.25),
    "fp32": Numerics(precision="fp32", attention_dropout=0.0, hidden_dropout=0.0),
    "fp8": Numerics(precision="fp8", attention_dropout=0.0, hidden_dropout=0.0),
}
ROWS = json.loads(Path(__file__).with_name("formulas.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("function", "kind", "changes", "formula"), ROWS)
def test_the_part_is_what_its_line_says(function: str, kind: str, changes: dict[str, Any], formula: str) -> None:
    module, _, name = function.rpartition(".")
    places = [one for one in MODULES if one.__name__.endswith(module)] if module else MODULES
    part = next(getattr(place, name) for place in places if hasattr(place, name))
    spec = {field: value for field, value in changes.items() if field in ModelSpec.__dataclass_fields__}
    model = ModelSpec(**{**MODELS[kind], **spec})
    stack = StackMemory(**{field: value for field, value in changes.items() if field not in spec and field != "gpu"})
    for plan, numerics in itertools.product(PLANS, NUMERICS):
        shape, encoder = (
            Shape.of(seq_length=length, **{key: value for key, value in plan.items() if key != "pp"})
            for length in (240, ENCODER_TOKENS)
        )
        letters = symbols(model, NUMERICS[numerics], plan, 240)
        given = {
            "model": model, "numerics": NUMERICS[numerics], "stack": stack, "shape": shape, "encoder": encoder,
            "vocab": letters["V"], "pp": plan["pp"], "ffn": model.ffn_hidden_size, "depths": 3,
            "gpu": load_gpu(changes.get("gpu", "h100")), "kind": "dense", "matrix": "linear_fc2",
            "inside": 777.0, "parts": {"expert_inside": 900.0, "expert_activation": 800.0}, "logits": 555.0,
        }  # fmt: skip
        asked = {key: given[key] for key in inspect.signature(part).parameters}
        assert float(part(**asked)) == pytest.approx(float(eval(formula, {}, letters)), rel=1e-12), (plan, numerics, formula)
