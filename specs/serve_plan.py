"""ServePlan: one deployment, and its short form, the notation that every serving table prints and every option reads.

    tp=4,weights=fp8,kv=fp8,batch=256,tokens=8192
    adp=8,ep=8,weights=fp8,kv=fp8,batch=512,tokens=8192,replicas=2
    prefill(tp=2,weights=fp8,kv=fp8,batch=4,tokens=8192,replicas=3)+decode(tp=2,weights=fp8,kv=fp8,batch=512,tokens=512)

Reading back what was printed gives the same plan (property-tested).
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from autoconfig.specs.errors import PlanError, UnknownKeyError, UnknownNameError
from autoconfig.specs.plan import read_short_form
from autoconfig.specs.software.engine import KV_BYTES, WEIGHT_BYTES, kv_format, weight_format

MAX_VALUE = 10_000_000
SHORT_TO_LONG = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "ep": "expert_parallel_size",
    "adp": "attention_data_parallel_size",
    "weights": "weight_format",
    "kv": "kv_cache_format",
    "batch": "max_batch_size",
    "tokens": "max_num_tokens",
    "replicas": "num_replicas",
}
NUMBERS = ("tp", "pp", "ep", "adp", "batch", "tokens", "replicas")


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """One kind of engine instance and how many of it."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    """Ranks that share the experts out, of the tp x adp ranks of a stage."""
    adp: int = 1
    """Attention data parallelism: ranks of a stage that hold whole attention and serve their own sequences."""
    weights: str = "bf16"
    kv: str = "bf16"
    batch: int = 256
    """Sequences that one instance runs at once, all its attention ranks and pipeline stages together."""
    tokens: int = 8192
    """Tokens of one iteration of one attention rank."""
    replicas: int = 1

    def __post_init__(self) -> None:
        for key in NUMBERS:
            value = getattr(self, key)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_VALUE:
                raise PlanError(f"{key}={value!r} must be a whole number from 1 to {MAX_VALUE:,}")
        if self.weights not in WEIGHT_BYTES or self.kv not in KV_BYTES:
            raise PlanError(
                f"weights={self.weights},kv={self.kv}: weights are one of {', '.join(WEIGHT_BYTES)}; "
                f"kv of {', '.join(KV_BYTES)}"
            )
        if (self.tp * self.adp) % self.ep:
            raise PlanError(f"ep={self.ep} must divide tp x adp = {self.tp * self.adp}")

    @property
    def size(self) -> int:
        """GPUs of one instance."""
        return self.tp * self.pp * self.adp

    @property
    def gpus(self) -> int:
        """GPUs of all instances."""
        return self.tp * self.pp * self.adp * self.replicas

    def replace(self, **changes: object) -> EnginePlan:
        """A copy with some fields changed; checked again."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def __str__(self) -> str:
        parts = [f"tp={self.tp}"]
        parts += [f"{key}={getattr(self, key)}" for key in ("pp", "ep", "adp") if getattr(self, key) != 1]
        parts += [f"weights={self.weights}", f"kv={self.kv}", f"batch={self.batch}", f"tokens={self.tokens}"]
        return ",".join(parts + ([f"replicas={self.replicas}"] if self.replicas != 1 else []))


@dataclass(frozen=True, kw_only=True)
class ServePlan:
    """A deployment: instances that do both phases, or prefill instances that hand their cache to decode instances."""

    decode: EnginePlan
    prefill: EnginePlan | None = None

    @property
    def gpus(self) -> int:
        """GPUs of the whole deployment."""
        return self.decode.gpus + (self.prefill.gpus if self.prefill else 0)

    def __str__(self) -> str:
        return f"prefill({self.prefill})+decode({self.decode})" if self.prefill else str(self.decode)


def parse_engine_keys(text: str) -> dict[str, object]:
    """`"tp=4,kv=fp8"` as {"tp": 4, "kv": "fp8"}: only the keys given. Raises PlanError with what is allowed."""

    def value_of(key: str, value: str) -> object:
        if key in NUMBERS:
            if not re.fullmatch(r"[0-9]{1,9}", value):
                raise PlanError(f"plan {text!r}: {key}={value} is no whole number")
            return int(value)
        try:
            return weight_format(value) if key == "weights" else kv_format(value)
        except UnknownNameError as error:
            raise UnknownKeyError(error.kind, value, error.known, text) from None

    return read_short_form(text, SHORT_TO_LONG, value_of)


def parse_serve_plan(text: str) -> ServePlan:
    """A plan from its short form; keys left out have their defaults. Raises PlanError."""
    wanted = text.strip()
    match = re.fullmatch(r"prefill\((?P<prefill>[^()]*)\)\s*\+\s*decode\((?P<decode>[^()]*)\)", wanted)
    if match:
        prefill = EnginePlan(**parse_engine_keys(match["prefill"]))  # type: ignore[arg-type]
        return ServePlan(prefill=prefill, decode=EnginePlan(**parse_engine_keys(match["decode"])))  # type: ignore[arg-type]
    if "(" in wanted or not wanted:
        raise PlanError(f"plan {text!r}: write tp=4,batch=256,... or prefill(...)+decode(...)")
    return ServePlan(decode=EnginePlan(**parse_engine_keys(wanted)))  # type: ignore[arg-type]
