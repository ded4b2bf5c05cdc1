"""TrainPlan and its short form, the one notation that every table prints and every command reads.

    tp=4,pp=8,vpp=6,mbs=2,sp=1,recompute=none

Reading back what was printed gives the same plan (property-tested).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from autoconfig.specs.errors import PlanError, UnknownKeyError

OP = "op"
"""torchtitan's selective activation checkpointing by operator (`selective_ac_option = "op"`): the layer is run again, but what
attention and every second matrix product put out is kept (torchtitan/distributed/activation_checkpoint.py, 2024 and 2025)."""
OUTPUT_DISCARDING = ("layernorm", "mla_up_proj", "moe_act")
"""Modules of selective recomputation whose outputs are discarded (megatron-core, CheckpointWithoutOutput)."""
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


MAX_DEGREE = 1_000_000

SHORT_TO_LONG = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "dp": "data_parallel_size",
    "mbs": "micro_batch_size",
    "sp": "sequence_parallel",
    "recompute": "recompute",
    "first": "decoder_first_pipeline_num_layers",
    "last": "decoder_last_pipeline_num_layers",
    "dist_opt": "use_distributed_optimizer",
    "fsdp": "fsdp",
    "offload": "optimizer_offload_fraction",
}
"""Keys of the short form -> Megatron's long names (used in JSON, Python and exported files)."""

DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "mbs")
ENDS = ("first", "last")
SHARDING = ("dist_opt", "fsdp", "offload")
"""Keys of numbers that divide the work, of layers at the ends, of how state is shared; `sp` and `recompute` are the others."""


@dataclass(frozen=True, kw_only=True)
class TrainPlan:
    """How one training run is laid out. Field names are the short keys; `SHORT_TO_LONG` gives Megatron's."""

    tp: int
    pp: int
    dp: int
    mbs: int
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    sp: bool = False
    recompute: Recompute = NONE
    first: int | None = None
    """Layers of the first pipeline stage where stages are uneven."""
    last: int | None = None
    dist_opt: bool = True
    """Optimizer state sharded over data-parallel ranks (ZeRO-1, Megatron's distributed optimizer)."""
    fsdp: int = 0
    """0 off; 2 gradients sharded too (ZeRO-2); 3 weights too (FSDP, ZeRO-3)."""
    offload: float = 0.0
    """Share of the optimizer state kept in CPU memory."""

    def __post_init__(self) -> None:
        for key in (*DEGREES, *ENDS):
            if key in DEGREES or getattr(self, key) is not None:
                _check_degree(key, getattr(self, key))
        if self.fsdp not in (0, 2, 3):
            raise PlanError(f"fsdp={self.fsdp}: use 0 (off), 2 (gradients and optimizer state) or 3 (weights too)")
        if not 0.0 <= self.offload <= 1.0:
            raise PlanError(f"offload={self.offload}: use a share from 0 to 1")

    def __str__(self) -> str:
        return format_plan(self)

    @property
    def world_size(self) -> int:
        """GPUs that the plan occupies: tp x pp x cp x dp."""
        return self.tp * self.pp * self.cp * self.dp

    def replace(self, **changes: object) -> TrainPlan:
        """A copy with some fields changed; checked again."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def _check_degree(key: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_DEGREE:
        raise PlanError(f"{key}={value!r} must be a whole number from 1 to {MAX_DEGREE:,}")


def format_plan(plan: TrainPlan) -> str:
    """The short form: tp, pp, dp, mbs, sp and recompute always, everything else where it is not the default."""
    parts = [f"tp={plan.tp}", f"pp={plan.pp}"]
    parts += [f"{key}={getattr(plan, key)}" for key in ("vpp", "cp", "ep", "etp") if getattr(plan, key) != 1]
    parts += [f"dp={plan.dp}", f"mbs={plan.mbs}", f"sp={int(plan.sp)}", f"recompute={plan.recompute}"]
    parts += [f"{key}={getattr(plan, key)}" for key in ENDS if getattr(plan, key) is not None]
    if plan.dist_opt == bool(plan.fsdp):
        parts.append(f"dist_opt={int(plan.dist_opt)}")
    if plan.fsdp:
        parts.append(f"fsdp={plan.fsdp}")
    if plan.offload:
        parts.append(f"offload={plan.offload!r}")
    return ",".join(parts)


def check_commas(text: str) -> None:
    """Raises PlanError where a value holds another `key=`: the keys of a short form are separated by commas."""
    if any(part.count("=") > 1 for part in text.split(",")):
        mended = re.sub(r"[\s;|&,]+(?=[A-Za-z_]+\s*=)", ",", re.sub(r"(?<!\s)\s*+=\s*+", "=", text.strip()))
        hint = f"; write it with commas: {mended}" if all(part.count("=") == 1 for part in mended.split(",")) else ""
        raise PlanError(f"plan {text!r} has no comma between its keys{hint or '; write it like tp=8,pp=8,mbs=1'}")


_WORDS = {
    **{"tensor": "tp", "pipeline": "pp", "data": "dp", "context": "cp", "expert": "ep", "sequence": "sp", "virtual": "vpp"},
    **{"micro": "mbs", "batch": "mbs", "checkpoint": "recompute", "activation": "recompute", "zero": "fsdp"},
}
"""How others' words for a key begin -> the key."""


def read_short_form(text: str, known: Collection[str], value_of: Callable[[str, str], object]) -> dict[str, object]:
    """`"tp=8,sp=1"` by key, values as `value_of(key, text)` reads them. Raises PlanError for keys not among `known`."""
    check_commas(text)
    values: dict[str, object] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, equals, value = (x.strip() for x in part.partition("="))
        key = key.lower()
        if key not in known:
            meant = next((short for begin, short in _WORDS.items() if key.startswith(begin) and short in known), None)
            raise UnknownKeyError("plan key", key, known, text, meant)
        if not equals or not value:
            raise PlanError(f"plan {text!r}: {key} has no value; write {key}=...")
        if key in values:
            raise PlanError(f"plan {text!r}: {key} is given twice")
        values[key] = value_of(key, value)
    return values


def parse_keys(text: str) -> dict[str, object]:
    """`"tp=8,sp=1"` as {"tp": 8, "sp": True}: only the keys that were given. Raises PlanError with what is allowed."""
    values = read_short_form(text, SHORT_TO_LONG, _parse_value)
    if not values:
        raise PlanError("empty plan; write it like tp=8,pp=8,mbs=1,sp=1,recompute=none")
    return values


def _parse_value(key: str, text: str) -> object:
    if key == "recompute":
        return Recompute.parse(text)
    if key == "offload":
        try:
            return float(text)
        except ValueError:
            raise PlanError(f"offload={text!r} is not a number from 0 to 1") from None
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise PlanError(f"{key}={text!r} is not a whole number")
    number = int(text)
    if key in ("sp", "dist_opt"):
        if number not in (0, 1):
            raise PlanError(f"{key}={text}: use 0 or 1")
        return bool(number)
    return number


def parse_plan(text: str, num_gpus: int, *, dist_opt: bool = True, sp: bool = False) -> TrainPlan:
    """A whole plan; keys left out take the documented defaults, dp the rest of `num_gpus`. Raises PlanError.

    Defaults (docs/specs.md): tp, pp, vpp, cp, ep, etp 1; mbs 1; recompute none; even stages; dp = N / (tp pp cp); sp as given
    where tp is above 1 (a question gives 1 for stacks that have it); dist_opt as given (False for stacks without a distributed
    optimizer), and 0 where fsdp is given.
    """
    values = parse_keys(text)
    usual = {"tp": 1, "pp": 1, "mbs": 1, "dist_opt": dist_opt and not values.get("fsdp"), "sp": sp and values.get("tp", 1) != 1}
    filled = {**usual, **values}
    if "dp" not in filled:
        size = int(filled["tp"]) * int(filled["pp"]) * int(filled.get("cp", 1))  # type: ignore[call-overload]
        filled["dp"] = max(1, num_gpus // size) if size else 1
    return TrainPlan(**filled)  # type: ignore[arg-type]
