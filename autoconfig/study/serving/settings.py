"""What a study of serving is about, as it is kept in the storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from autoconfig.serving.request import ServeRequest
from autoconfig.specs.errors import InputError
from autoconfig.study.settings import MeasuredQuestion

ENGINES = ("megatron", "vllm")
"""Engines that jobs can run (specs.job.ENGINES): names of specs/catalogue/engines."""
NOT_MEASURED = (
    "rate", "prefix_hit", "draft_tokens", "acceptance", "isl_stddev", "osl_stddev", "trace", "kv_memory_ratio", "chunked",
    "include",
)  # fmt: skip
"""Fields of a ServeRequest that rounds of equal requests do not have."""
SHOWN_ONLY = (
    "top", "simulate", "price", "local_files", "goal", "disaggregated", "imbalance", "calibration",
)  # fmt: skip
"""Fields that a study does not read, or that change what is printed and not which jobs run."""


@dataclass(frozen=True, kw_only=True)
class ServingSettings(MeasuredQuestion):
    """Everything that decides which jobs a study of serving runs. A step is a round: `batch` requests at once."""

    kind: ClassVar[str] = "inference"
    request_type: ClassVar[type] = ServeRequest
    shown_only: ClassVar[tuple[str, ...]] = SHOWN_ONLY

    request: ServeRequest
    steps: int = 3
    warmup_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        request, plain = self.request, ServeRequest(model="", gpus=1)
        if request.engine not in ENGINES:
            raise InputError(f"--engine {request.engine}: --profile measures {' or '.join(ENGINES)}")
        for name in NOT_MEASURED:
            none = (getattr(plain, name), 0.0) if name == "acceptance" else (getattr(plain, name),)  # 0 drafts accept nothing
            if getattr(request, name) not in none:
                option = "chunked-prefill" if name == "chunked" else name.replace("_", "-")
                raise InputError(f"--{option}: --profile measures rounds of equal requests at once; leave it out")
        if request.isl is None or request.osl is None:
            raise InputError("--isl and --osl: a study says how many tokens its requests have")
        if request.osl < 2:
            raise InputError(f"--osl {request.osl}: a time per output token takes at least 2 of them")
        if not isinstance(request.model, str):
            raise InputError("--profile takes a model by its name or file")

    @property
    def engine(self) -> str:
        """One of ENGINES."""
        return str(self.request.engine)

    @property
    def metrics(self) -> dict[str, str]:
        """Both ends of the trade-off."""
        return {"output tokens/s/GPU": "maximize", "TPOT (seconds)": "minimize"}
