"""Model FLOPs in the conventions of publications."""

from __future__ import annotations

from autoconfig.specs.models.parameters import model_flops_per_token
from autoconfig.specs.recompute import NONE, Recompute
from autoconfig.specs.scenario import Scenario

CONVENTIONS = ("causal", "full", "full+recompute")


def flops_per_step(scenario: Scenario, convention: str = "causal", recompute: Recompute = NONE) -> float:
    """FLOPs of one step as a publication counts them; blank, or a word that is none of CONVENTIONS, means causal.

    `full+recompute` counts what is computed: where whole layers are recomputed (`recompute`, of the plan) their forward pass
    once more and the output layer once (Narayanan et al. 2021, equation 3: 96 B s l h^2 (1 + s/6h + V/16lh)), else the same as
    `full` (InternEvo counts so: "recompute counted when on").
    """
    model, seq = scenario.model, scenario.workload.seq_length
    tokens, frozen = scenario.workload.tokens_per_step, scenario.numerics.peft != "none"
    convention = convention.strip().lower()
    if convention == "full+recompute" and recompute.granularity == "full":
        head = 6.0 * model.vocab_size * model.hidden_size
        layers = model_flops_per_token(model, seq, "full") - head
        return tokens * (layers * 4 / 3 + head)
    counted = "full" if convention in ("full", "full+recompute") else "causal"
    return tokens * model_flops_per_token(model, seq, counted, frozen=frozen)
