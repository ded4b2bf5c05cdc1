"""Model FLOPs in the conventions of publications."""

from __future__ import annotations

from autoconfig.rules import Setting
from specs.parameters import model_flops_per_token

CONVENTIONS = ("causal", "full", "full+recompute")


def flops_per_step(setting: Setting, convention: str = "causal") -> float:
    """FLOPs of one step as a publication counts them; blank, or a word that is none of CONVENTIONS, means causal.

    `full+recompute` counts one more forward pass of the layers and the output layer once (Narayanan et al. 2021, equation 3:
    96 B s l h^2 (1 + s/6h + V/16lh)).
    """
    model, seq = setting.model, setting.workload.seq_length
    tokens, frozen = setting.workload.tokens_per_step, setting.numerics.peft != "none"
    convention = convention.strip().lower()
    if convention != "full+recompute":
        known = convention if convention in CONVENTIONS else "causal"
        return tokens * model_flops_per_token(model, seq, known, frozen=frozen)
    head = 6.0 * model.vocab_size * model.hidden_size
    layers = model_flops_per_token(model, seq, "full") - head
    return tokens * (layers * 4 / 3 + head)
