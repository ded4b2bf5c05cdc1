"""Recompute: which activations are thrown away in forward and computed again in backward."""

from __future__ import annotations

from dataclasses import dataclass

from autoconfig.specs.errors import PlanError

OP = "op"
"""torchtitan's selective activation checkpointing by operator (`selective_ac_option = "op"`): the layer is run again, but what
attention and every second matrix product put out is kept (torchtitan/distributed/activation_checkpoint.py, 2024 and 2025)."""
MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts", OP)
"""What selective recomputation can name, in the order in which it is printed: Megatron's --recompute-modules that this project
prices, and `op`."""


@dataclass(frozen=True)
class Recompute:
    """`none`, `selective:MODULE+MODULE`, `full:uniform:N` or `full:block:N`."""

    granularity: str = "none"
    """none, selective or full (Megatron's --recompute-granularity)."""
    modules: tuple[str, ...] = ()
    method: str = ""
    """uniform or block with full recomputation (--recompute-method)."""
    num_layers: int = 0
    """uniform: layers per checkpoint; block: layers recomputed per virtual stage (--recompute-num-layers)."""

    def __post_init__(self) -> None:
        if self.granularity == "selective":
            unknown = [m for m in self.modules if m not in MODULES]
            if unknown or not self.modules:
                raise PlanError(f"recompute modules {'+'.join(self.modules) or '(none)'}: allowed are {', '.join(MODULES)}")
            object.__setattr__(self, "modules", tuple(m for m in MODULES if m in self.modules))
        elif self.granularity == "full":
            if self.method not in ("uniform", "block") or self.num_layers < 1:
                raise PlanError(f"full recomputation is full:uniform:N or full:block:N with N at least 1, not {self}")
        elif self.granularity != "none":
            raise PlanError(
                f"recompute {self.granularity!r}: use none, selective:MODULE+MODULE, full:uniform:N or full:block:N"
            )

    @property
    def by_operator(self) -> bool:
        """Whole layers are run again but for the outputs of some operators."""
        return OP in self.modules

    def __str__(self) -> str:
        if self.granularity == "selective":
            return "selective:" + "+".join(self.modules)
        if self.granularity == "full":
            return f"full:{self.method}:{self.num_layers}"
        return "none"

    @classmethod
    def parse(cls, text: str) -> Recompute:
        """Read what `str()` prints; `selective` alone means core_attn and `full` alone uniform, 1 layer. Raises PlanError."""
        head, _, rest = text.strip().partition(":")
        if head == "none" and not rest:
            return NONE
        if head == "selective":
            return cls("selective", tuple(rest.split("+")) if rest else ("core_attn",))
        if head == "full":
            method, _, count = (rest or "uniform:1").partition(":")
            if not count:
                count = "1"
            if not (count.isascii() and count.isdigit() and len(count) < 7):
                raise PlanError(f"recompute {text!r}: {count!r} is not a number of layers")
            return cls("full", (), method, int(count))
        raise PlanError(
            f"recompute {text!r}: use none, selective:MODULE+MODULE, full:uniform:N or full:block:N "
            f"(modules: {', '.join(MODULES)})"
        )


NONE = Recompute()
