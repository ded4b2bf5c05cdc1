"""bitsandbytes' own classes: {"kind", "shapes", ...} as JSON lines in, the bytes that they keep out.

kind linear: `frozen` nf4, nf4_single or int8 and the shapes (rows, columns) of linear layers -> {"bytes", "tables"}: of the
quantised weights with all that belongs to them, and of the tables that every matrix has alike. kind optimizer: `name` and
numbers of elements -> {"gpu", "paged"}: of both moments with their scales. Runs where tests/judge/test_rl_exports.py finds its
parsers (.venv-judge-rl), on the CPU.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Any

CLASSES = {"adam8bit": "AdamW8bit", "paged_adam8bit": "PagedAdamW8bit"}


def size(tensor: Any) -> int:
    """Its bytes."""
    return int(tensor.numel() * tensor.element_size())


def matrix(frozen: str, rows: int, columns: int) -> tuple[int, int]:
    """(bytes of one linear layer's weight, those of them that every matrix has)."""
    torch, bnb = import_module("torch"), import_module("bitsandbytes")
    weight = torch.zeros(rows, columns, dtype=torch.bfloat16)
    if frozen == "int8":
        weights, scales, _ = bnb.functional.int8_vectorwise_quant(weight.to(torch.float16))
        return size(weights) + size(scales), 0
    words = {"compress_statistics": frozen == "nf4", "quant_type": "nf4"}
    layer = bnb.nn.Linear4bit(columns, rows, bias=False, **words)
    layer.weight = bnb.nn.Params4bit(weight, requires_grad=False, module=layer, **words)
    layer = layer.to("cpu")
    data, state = layer.weight.data, layer.weight.quant_state
    common = size(state.code) + (size(state.offset) + size(state.state2.code) if state.nested else 0)
    return size(data) + size(state.absmax) + common + (size(state.state2.absmax) if state.nested else 0), common


def summed(size_of: Callable[..., tuple[int, int]], cases: Iterable[tuple[int, ...]]) -> tuple[int, int]:
    """Both sizes of all cases together; those that are alike are made once."""
    both = [(count * one, count * other) for case, count in Counter(cases).items() for one, other in [size_of(*case)]]
    return sum(one for one, _ in both), sum(other for _, other in both)


def linear(frozen: str, shapes: list[list[int]]) -> dict[str, int]:
    """Bytes of all layers, and of the tables."""
    whole, tables = summed(partial(matrix, frozen), map(tuple, shapes))
    return {"bytes": whole, "tables": tables}


def state_of(name: str, count: int) -> tuple[int, int]:
    """(bytes on the GPU, bytes in pages) of one tensor's moments."""
    torch, bnb = import_module("torch"), import_module("bitsandbytes")
    parameter = torch.nn.Parameter(torch.zeros(count))
    built = getattr(bnb.optim, CLASSES[name])([parameter])
    parameter.grad = torch.zeros(count)
    if built.is_paged:  # pages need a driver: the tensor that would be one has the same size
        built.get_state_buffer = lambda p, dtype=torch.float32: torch.zeros_like(p, dtype=dtype, requires_grad=False)
    built.init_state(built.param_groups[0], parameter, 0, 0)
    sizes = {key: size(value) for key, value in built.state[parameter].items() if torch.is_tensor(value)}
    paged = sum(count for key, count in sizes.items() if built.is_paged and key in ("state1", "state2"))
    return sum(count for key, count in sizes.items() if not key.startswith("qmap")) - paged, paged


def optimizer(name: str, elements: list[int]) -> dict[str, int]:
    """Bytes of the moments of all tensors."""
    gpu, paged = summed(partial(state_of, name), ((count,) for count in elements))
    return {"gpu": gpu, "paged": paged}


def main() -> None:
    """Answers line by line."""
    for line in sys.stdin:
        case = json.loads(line)
        kind = case.pop("kind")
        answer = linear(**case) if kind == "linear" else optimizer(**case)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
