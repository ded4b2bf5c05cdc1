"""Names that megatron-core takes for granted although Transformer Engine is not installed.

With megatron-core 0.16.1: `moe_utils` asks `te_general_gemm is not None` without ever having imported it, and multi-latent
attention tests `isinstance(..., TELinear)` with TELinear None. 0.19.2 needs neither.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from unittest import mock

import megatron.core.transformer.moe.moe_utils as moe_utils
import megatron.core.transformer.multi_latent_attention as multi_latent_attention


def transformer_engine_is_there() -> bool:
    """Whether Transformer Engine can be imported."""
    return importlib.util.find_spec("transformer_engine") is not None


@contextlib.contextmanager
def without_engine() -> Iterator[None]:
    """megatron-core's local layers work without Transformer Engine; nothing is changed where it is installed."""
    with contextlib.ExitStack() as stack:
        if not transformer_engine_is_there():
            stack.enter_context(mock.patch.object(moe_utils, "te_general_gemm", None, create=True))
            stack.enter_context(mock.patch.object(multi_latent_attention, "HAVE_TE", False))
        yield
