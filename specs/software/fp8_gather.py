"""Where weights are kept and gathered in fp8: one rule, for memory, time and what is exported."""

from __future__ import annotations

import numpy as np
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.numerics import Numerics
from autoconfig.specs.software.software import SoftwareStack


def gathers_fp8(numerics: Numerics, stack: SoftwareStack, fsdp: Number) -> Number:
    """Whether fp8_param_gather holds in a plan (scalar fsdp), or in each of many (a column).

    Megatron-LM switches it off under torch FSDP2 and gathers in bf16 (megatron/training/arguments.py of 0.19.2, validate_args:
    "FSDP2 FP8 param gather is not supported yet in TE 2.0"). Megatron-FSDP keeps it (core/distributed/fsdp).
    """
    return numerics.fp8_param_gather & (np.equal(fsdp, 0) | stack.supports_fp8_param_gather_with_fsdp)
