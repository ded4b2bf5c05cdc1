"""Every part against the formula that its line of docs/memory_model.md prints, in numbers: small models whose sizes are all
different, 16-bit and fp32, with and without sequence parallelism.

A row of formulas.json: function, model and changes of it or of the stack, formula in the page's symbols. T, h, a, d, n, f, G,
V, L, t, u, E, k, fe, R as there; q = a d, kv = max(n / t, 1) t d; w bytes of an activation (the page's 2), g8 of a GEMM's saved
input (1 in fp8), x = etp, p = pp; Q and W: channels of Gated DeltaNet's keys and values.
"""

from __future__ import annotations

import inspect
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from autoconfig.memory_model import activations, cross, experts, recurrent, state, transients_unfused
from autoconfig.memory_model.activations import Shape
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.scenario import Numerics
from autoconfig.specs.software.software import StackMemory

SIZES = {
    "name": "small", "num_layers": 4, "hidden_size": 96, "num_attention_heads": 24, "num_query_groups": 8, "kv_channels": 10,
    "ffn_hidden_size": 200, "vocab_size": 1000,
}  # fmt: skip
EXPERTS = {"num_moe_experts": 16, "moe_router_topk": 3, "moe_ffn_hidden_size": 56, "moe_shared_expert_intermediate_size": 88}
LATENT = {
    "multi_latent_attention": True, "q_lora_rank": 44, "kv_lora_rank": 36, "qk_head_dim": 14, "qk_pos_emb_head_dim": 6,
    "v_head_dim": 18,
}  # fmt: skip
HYBRID = {
    "hybrid_layer_pattern": "M*GE", "mamba_num_heads": 12, "mamba_head_dim": 20, "mamba_state_dim": 26, "mamba_num_groups": 4,
    "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 22, "linear_value_head_dim": 30, **EXPERTS,
}  # fmt: skip
GATED = {"gated_linear_unit": True, "activation": "swiglu"}
MODELS = {
    "gpt": SIZES, "gated": SIZES | GATED, "moe": SIZES | GATED | EXPERTS, "mla": SIZES | GATED | LATENT,
    "hybrid": SIZES | HYBRID, "latent moe": SIZES | EXPERTS | {"moe_latent_size": 40},
    "gpt-oss": SIZES | GATED | EXPERTS | {"attention_sinks": True, "moe_expert_bias": True},
}  # fmt: skip
MODULES = (activations, cross, experts, recurrent, state, transients_unfused)
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


def symbols(model: ModelSpec, numerics: Numerics, plan: dict[str, int], sequence: int) -> dict[str, Any]:
    """The page's letters."""
    s, b, c, t = sequence, plan["mbs"], plan["cp"], plan["tp"]
    n = model.num_query_groups
    u, tokens, w = t if plan["sp"] else 1, s * b / c, 4 if numerics.precision == "fp32" else 2
    factor = numerics.moe_capacity_factor or numerics.moe_imbalance
    return {
        "s": s, "b": b, "c": c, "t": t, "u": u, "T": tokens, "w": w, "g8": 1 if numerics.precision == "fp8" else w,
        "x": plan["etp"], "ep": plan["ep"], "p": plan["pp"], "h": model.hidden_size, "a": model.num_attention_heads, "n": n,
        "d": model.kv_channels, "q": model.num_attention_heads * model.kv_channels, "kv": max(n, t) * model.kv_channels,
        "ak": max(n, t), "f": model.ffn_hidden_size, "G": 2 if model.gated_linear_unit else 1, "V": 1024, "L": model.num_layers,
        "E": model.num_moe_experts, "k": model.moe_router_topk, "fe": model.moe_ffn_hidden_size,
        "fs": model.moe_shared_expert_intermediate_size, "l": model.moe_latent_size,
        "R": factor * plan["etp"] * model.moe_router_topk * tokens / u, "Te": 48 * b / c, "se": 48,
        "qr": model.q_lora_rank, "kvr": model.kv_lora_rank, "dn": model.qk_head_dim, "dr": model.qk_pos_emb_head_dim,
        "dv": model.v_head_dim, "H": model.mamba_num_heads, "di": model.mamba_num_heads * model.mamba_head_dim,
        "gn": model.mamba_num_groups * model.mamba_state_dim, "ns": model.mamba_state_dim, "g": model.mamba_num_groups,
        "dk": model.linear_key_head_dim, "Q": model.linear_num_key_heads * model.linear_key_head_dim,
        "Hv": model.linear_num_value_heads, "W": model.linear_num_value_heads * model.linear_value_head_dim,
        "drop": numerics.hidden_dropout > 0, "adrop": numerics.attention_dropout > 0, "max": max,
    }  # fmt: skip


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
            Shape.of(seq_length=length, **{key: value for key, value in plan.items() if key != "pp"}) for length in (240, 48)
        )
        given = {
            "model": model, "numerics": NUMERICS[numerics], "stack": stack, "shape": shape, "encoder": encoder, "vocab": 1024,
            "pp": plan["pp"], "ffn": model.ffn_hidden_size, "depths": 3, "gpu": load_gpu(changes.get("gpu", "h100")),
            "inside": 777.0, "parts": {"expert_inside": 900.0, "expert_activation": 800.0}, "logits": 555.0,
        }  # fmt: skip
        asked = {key: given[key] for key in inspect.signature(part).parameters}
        letters = symbols(model, NUMERICS[numerics], plan, 240)
        assert float(part(**asked)) == pytest.approx(float(eval(formula, {}, letters)), rel=1e-12), (plan, numerics, formula)
