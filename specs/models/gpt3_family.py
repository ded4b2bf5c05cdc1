"""A GPT-3-style architecture for a bare number of parameters, interpolated from the published family.

Sources: Brown et al. 2020 (arXiv:2005.14165), Table 2.1; Narayanan et al. 2021 (arXiv:2104.04473), Table 1. Sizes that these
tables hold get their layers and width; others get the shape between their neighbours whose total is nearest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoconfig.specs.errors import InputError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import total_parameters

MIN_PARAMETERS = 10e6
MAX_PARAMETERS = 100e12
VOCAB_SIZE = 51_200
SEQ_LENGTH = 2_048


@dataclass(frozen=True)
class _Shape:
    parameters: float
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    source: str


_BROWN = "Brown et al. 2020, Table 2.1"
_NARAYANAN = "Narayanan et al. 2021, Table 1"
_FAMILY = (
    _Shape(125e6, 12, 768, 12, _BROWN),
    _Shape(350e6, 24, 1024, 16, _BROWN),
    _Shape(760e6, 24, 1536, 16, _BROWN),
    _Shape(1.3e9, 24, 2048, 16, _BROWN + " (24 heads of 128 there do not make 2048: 16 taken)"),
    _Shape(2.7e9, 32, 2560, 32, _BROWN),
    _Shape(6.7e9, 32, 4096, 32, _BROWN),
    _Shape(13e9, 40, 5120, 40, _BROWN + " (width 5140 there is not 40 x 128: 5120 taken)"),
    _Shape(18.4e9, 40, 6144, 48, _NARAYANAN),
    _Shape(39.1e9, 48, 8192, 64, _NARAYANAN),
    _Shape(76.1e9, 60, 10240, 80, _NARAYANAN),
    _Shape(145.6e9, 80, 12288, 96, _NARAYANAN),
    _Shape(175e9, 96, 12288, 96, _BROWN),
    _Shape(310.1e9, 96, 16384, 128, _NARAYANAN),
    _Shape(529.6e9, 105, 20480, 128, _NARAYANAN),
    _Shape(1008e9, 128, 25600, 160, _NARAYANAN),
)
_BATCHES = (
    (1.7e9, 512),
    (3.6e9, 512),
    (7.5e9, 512),
    (18.4e9, 1024),
    (39.1e9, 1536),
    (76.1e9, 1792),
    (145.6e9, 2304),
    (310.1e9, 2160),
    (529.6e9, 2520),
    (1008e9, 3072),
)
_TOLERANCE = 0.03
_UNEVEN = 0.05
"""Preference for depths that 4 pipeline stages divide, in units of relative depth."""


def gpt3_style(params: float) -> ModelSpec:
    """A GPT-3-style model of about `params` parameters (51,200 padded words, sequence 2,048, learned positions, GeLU, tied).

    Raises InputError outside 10 million to 100 trillion.
    """
    if not (isinstance(params, (int, float)) and MIN_PARAMETERS <= params <= MAX_PARAMETERS):
        raise InputError(
            f"a model of {_size_name(params)} parameters is outside 10m to 100t (10 million to 100 trillion); "
            "write sizes like 350m, 13b or 1.5t"
        )
    shape = next((s for s in _FAMILY if math.isclose(s.parameters, params, rel_tol=1e-3)), None) or _interpolated(params)
    return _model(shape, f"gpt3-style-{_size_name(params)}", params)


def _model(shape: _Shape, name: str, params: float) -> ModelSpec:
    batch = min(_BATCHES, key=lambda known: abs(math.log(known[0] / params)))
    return ModelSpec(
        name=name,
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_attention_heads,
        num_query_groups=shape.num_attention_heads,
        kv_channels=shape.hidden_size // shape.num_attention_heads,
        ffn_hidden_size=4 * shape.hidden_size,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=SEQ_LENGTH,
        default_seq_length=SEQ_LENGTH,
        default_global_batch_size=batch[1],
        sources={
            "*": shape.source,
            "vocab_size": "Narayanan et al. 2021, section 5: V = 51,200, s = 2,048",
            "default_global_batch_size": f"that of the {batch[0] / 1e9:g}B model of Narayanan et al. 2021, Table 1",
        },
    )


def _interpolated(params: float) -> _Shape:
    """Layers near the family's line in log-log; width a multiple of the head size, so that the total is nearest `params`.

    Among shapes within 3 % the one nearest the family's depth wins; if none is, the nearest total wins.
    """
    wanted_layers = _layers_on_the_line(params)
    head = 32 if params < 50e6 else 64 if params < 1e9 else 128
    heads_step = 8 if params >= 5e9 else 4 if params >= 2e9 else 2 if params >= 3e8 else 1
    low, high = max(1, math.floor(wanted_layers * 0.75)), math.ceil(wanted_layers * 1.3) + 1
    step = 2 if wanted_layers >= 12 else 1
    candidates: list[tuple[tuple[bool, float], _Shape]] = []
    for layers in range(-(-low // step) * step, high + step, step):
        ideal = _width_for(params, layers) / (head * heads_step)
        for count in {max(1, math.floor(ideal)), max(1, math.ceil(ideal))}:
            heads = count * heads_step
            shape = _Shape(
                params,
                layers,
                heads * head,
                heads,
                "interpolated between the published GPT-3 and Megatron sizes "
                f"({_BROWN}; {_NARAYANAN}): depth on their line, head size {head}, width to meet the total",
            )
            error = abs(total_parameters(_model(shape, "candidate", params)) / params - 1)
            distance = abs(math.log(layers / wanted_layers)) + error + (_UNEVEN if layers % 4 and wanted_layers >= 12 else 0)
            candidates.append(((error > _TOLERANCE, error if error > _TOLERANCE else distance), shape))
    return min(candidates, key=lambda pair: pair[0])[1]


def _layers_on_the_line(params: float) -> float:
    """Depth between the two neighbours of `params` in log-log; outside the family, the line of its last (first) four."""
    points = [(math.log(s.parameters), math.log(s.num_layers)) for s in _FAMILY]
    at = math.log(params)
    upper = next((i for i, point in enumerate(points) if point[0] >= at), len(points) - 1)
    upper = max(upper, 1)
    (x0, y0), (x1, y1) = points[upper - 1], points[upper]
    if at > x1:
        x0, y0 = points[-4]
    elif at < x0:
        x1, y1 = points[3]
    return max(1.0, math.exp(y0 + (y1 - y0) * (at - x0) / (x1 - x0)))


def _width_for(params: float, layers: int) -> float:
    """Positive root h of 12 l h^2 + (13 l + V + s) h = P (Narayanan et al. 2021, equation 2)."""
    linear = 13 * layers + VOCAB_SIZE + SEQ_LENGTH
    return (math.sqrt(linear**2 + 48 * layers * params) - linear) / (24 * layers)


def _size_name(params: float) -> str:
    for factor, suffix in ((1e12, "t"), (1e9, "b"), (1e6, "m")):
        if params >= factor:
            return f"{params / factor:.6g}{suffix}"
    return f"{params:g}"
