"""Training on preferences and rewards, by the names of its programs and keys: which command plans it. No file of it is a file
of supervised training: chosen and rejected samples run together, beside the forward of a reference model, or there is a value
head and no vocabulary."""

from __future__ import annotations

import re

from autoconfig.maps.table import load_map

_OF = {
    **dict.fromkeys(("dpo", "ipo", "rpo", "sdpo"), "dpo"),
    **dict.fromkeys(("rm", "reward", "rewards", "prm"), "rm"),
    **{name: name for name in ("grpo", "rloo", "ppo", "dapo")},
    "gkd": "on-policy-distillation",
}
"""Words in names of programs, stages and subcommands -> the algorithm of `autoconfig rl --algorithm`."""
_OTHERS = frozenset({"kto", "orpo", "cpo", "simpo", "bco", "nash", "xpo", "gold", "rlhf", "slic", "kd"})
"""Those that no command plans."""
GENERATES = ("grpo", "rloo", "dapo", "ppo")
KEYS = frozenset(load_map("trl").more["of_preferences"])
"""Arguments of TRL's trainers of preferences and rewards that its SFTConfig lacks (trl 1.16 and releases before)."""


def algorithm_of(name: str) -> str:
    """Return the algorithm that the name of a program, module or subcommand says (`scripts/run_dpo.py`, `trl.scripts.dpo`,
    `reward`); empty where it says none, or supervised training."""
    stem = re.split(r"[/.]", name.lower().removesuffix(".py"))[-1]
    words = re.findall(r"[a-z]+", stem)
    return "" if "sft" in words else next((word for word in words if word in _OF or word in _OTHERS), "")


def plans(algorithm: str) -> str:
    """Return which command plans training by this algorithm, as a sentence."""
    planned = _OF.get(algorithm.lower())
    if planned is None:
        return f"no command here prices {algorithm[:40]}; of like cost is DPO: `autoconfig rl --algorithm dpo` plans that"
    reads = "`autoconfig rl check` reads TRL's configuration of it, and " if planned in GENERATES else ""
    return f"{reads}`autoconfig rl --algorithm {planned}` plans it"


def not_supervised(where: str, algorithm: str = "") -> str:
    """Return why a file is refused that trains by `algorithm`, as `where` says; empty: on preferences, and which way is not
    known."""
    why = "training on preferences or rewards compares samples and holds further models; read is supervised training"
    return f"{where}: {why}. It is not priced as that: {plans(algorithm or 'dpo')}"
