"""Names that megatron-core takes for granted although Transformer Engine is not installed.

With megatron-core 0.16.1: `moe_utils` asks `te_general_gemm is not None` without ever having imported it, multi-latent
attention tests `isinstance(..., TELinear)` with TELinear None, and output-discarding recomputation asks Transformer Engine
whether fp8 is on. 0.19.2 needs the last one only.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Any
from unittest import mock

import megatron.core.tensor_parallel.random as megatron_random
import megatron.core.transformer.moe.moe_utils as moe_utils
import megatron.core.transformer.multi_latent_attention as multi_latent_attention


def transformer_engine_is_there() -> bool:
    """Whether Transformer Engine can be imported."""
    return importlib.util.find_spec("transformer_engine") is not None


class _NoFp8:
    @staticmethod
    def is_fp8_enabled() -> bool:
        return False


def _no_context(**_: Any) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


@contextlib.contextmanager
def without_engine() -> Iterator[None]:
    """megatron-core's local layers work without Transformer Engine; nothing is changed where it is installed."""
    with contextlib.ExitStack() as stack:
        if not transformer_engine_is_there():
            stack.enter_context(mock.patch.object(moe_utils, "te_general_gemm", None, create=True))
            stack.enter_context(mock.patch.object(multi_latent_attention, "HAVE_TE", False))
            stack.enter_context(mock.patch.object(megatron_random, "FP8GlobalStateManager", _NoFp8, create=True))
            for name in ("fp8_autocast", "activation_recompute_forward"):
                stack.enter_context(mock.patch.object(megatron_random, name, _no_context, create=True))
        yield
