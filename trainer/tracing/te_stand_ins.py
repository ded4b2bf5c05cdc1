"""Stand-ins for Transformer Engine's modules that save, allocate and free what Transformer Engine does, and compute nothing.

For traces on fake tensors only: outputs have the right shape and no values. They plug into megatron-core's own layer spec
through its `BackendSpecProvider`, so that everything between them is megatron-core's code.

What each keeps for backward (read in Transformer Engine 2.x, transformer_engine/pytorch/module and attention; held to the
measured SimuMax B200 runs by tests/trainer/test_formula_against_trace.py):

| stand-in | saved | allocated for a while |
|---|---|---|
| LayerNormLinear | norm input, its statistics, norm output (with SP the local part) | with SP the gathered norm output |
| ColumnParallelLinear | input (with SP the local part) | the same |
| RowParallelLinear | input | with SP the whole output in forward, the gathered gradient in backward |
| DotProductAttention | q, k, v, output, fp32 logsumexp; by a2a or all-gather another output (note) | fp32 accumulator of dq |
| GroupedLinear | input | - |
| fused SwiGLU, GELU | input | - |
| every weight gradient | added to main_grad; a dummy of the weight's shape is cached for autograd | |

Note: attention kernels that are batch-first keep their output in that order too (`copies_output`). fp8 is not stood in for.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import megatron.core.transformer.moe.experts as experts
import torch
from autoconfig.trainer.tracing.stand_in import StandIn, fp32
from megatron.core.transformer.mlp import MLPSubmodules
from torch.autograd import Function


class DummyWeightGradients:
    """One buffer per weight shape and type, kept for the whole run (module/base.py get_dummy_wgrad), and the workspaces."""

    buffers: ClassVar[dict[Any, torch.Tensor]] = {}

    @classmethod
    def of(cls, weight: torch.Tensor) -> torch.Tensor:
        key = (tuple(weight.shape), weight.dtype)
        if key not in cls.buffers:
            cls.buffers[key] = weight.new_empty(weight.shape)
        return cls.buffers[key]

    @classmethod
    def workspace(cls, like: torch.Tensor, size: int) -> None:
        if size and "workspace" not in cls.buffers:
            cls.buffers["workspace"] = torch.empty(size, dtype=torch.uint8, device=like.device)


def _weight_gradient(weight: torch.Tensor) -> torch.Tensor:
    """With fused accumulation the gradient goes to main_grad and autograd gets the dummy, else a fresh one."""
    if getattr(weight, "main_grad", None) is None:
        return weight.new_empty(weight.shape)
    weight.grad_added_to_main_grad = True
    return DummyWeightGradients.of(weight)


def _rows(x: torch.Tensor, factor: int, width: int, *, divide: bool = False) -> torch.Tensor:
    """An empty tensor like x with `factor` times (or a `factor`-th of) its rows and another width."""
    rows = x.shape[0] // factor if divide else x.shape[0] * factor
    return x.new_empty((rows, *x.shape[1:-1], width))


class _ColumnLinear(Function):
    """y = norm(x) W: the norm's statistics and output are saved, the gathered output is not."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, norm_weight: Any, norm_bias: Any, gather: int) -> Any:
        ctx.gather, ctx.has_bias, ctx.norm = gather, bias is not None, norm_weight is not None
        saved = [x, weight]
        normed = x
        if norm_weight is not None:
            normed = torch.empty_like(x)
            saved += [normed, norm_weight, norm_bias, *_statistics(x, norm_bias)]
        total = _rows(normed, gather, x.shape[-1]) if gather > 1 else normed
        out = total.new_empty((*total.shape[:-1], weight.shape[0]))
        ctx.save_for_backward(*saved)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight, *norm = ctx.saved_tensors
        total = _rows(x, ctx.gather, x.shape[-1]) if ctx.gather > 1 else None
        dx = gradient.new_empty((*gradient.shape[:-1], x.shape[-1]))
        if ctx.gather > 1:
            scattered = torch.empty_like(x)
        dw = _weight_gradient(weight)
        db = weight.new_empty(weight.shape[0]) if ctx.has_bias else None
        del total
        if ctx.gather > 1:
            dx = scattered
        if not ctx.norm:
            return dx, dw, db, None, None, None
        _, norm_weight, norm_bias, *_ = norm
        through = torch.empty_like(x)
        dbeta = None if norm_bias is None else torch.empty_like(norm_bias)
        return through, dw, db, torch.empty_like(norm_weight), dbeta, None


class _RowLinear(Function):
    """y = x W, then reduced (in place) or scattered over the tensor-parallel ranks."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, scatter: int) -> Any:
        ctx.scatter, ctx.has_bias = scatter, bias is not None
        ctx.save_for_backward(x, weight)
        out = x.new_empty((*x.shape[:-1], weight.shape[0]))
        return _rows(out, scatter, weight.shape[0], divide=True) if scatter > 1 else out

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight = ctx.saved_tensors
        total = _rows(gradient, ctx.scatter, gradient.shape[-1]) if ctx.scatter > 1 else gradient
        dx = torch.empty_like(x)
        dw = _weight_gradient(weight)
        db = weight.new_empty(weight.shape[0]) if ctx.has_bias else None
        del total
        return dx, dw, db, None


class _GroupedLinear(Function):
    """One GEMM per local expert over consecutive rows of one input."""

    @staticmethod
    def forward(ctx: Any, x: Any, out_features: int, *weights: Any) -> Any:
        ctx.save_for_backward(x, *weights)
        return x.new_empty((*x.shape[:-1], out_features))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, *weights = ctx.saved_tensors
        dx = torch.empty_like(x)
        return dx, None, *(_weight_gradient(weight) for weight in weights)


class _Attention(Function):
    """softmax(q k^T) v without the scores. `exchange` is how context parallelism moves keys and values."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, cp: int, exchange: str, copies: bool) -> Any:
        heads, width = q.shape[-2], v.shape[-1]
        out = q.new_empty((*q.shape[:-1], width))
        statistics = fp32(q, q.shape[1], heads, q.shape[0])
        ctx.cp, ctx.exchange = cp, exchange
        if cp > 1 and exchange == "a2a":  # heads / cp of the whole sequence: the same bytes
            q, k, v = (torch.empty_like(x) for x in (q, k, v))
            ctx.save_for_backward(q, k, v, out, statistics)
            return torch.empty_like(out)
        if cp > 1 and exchange == "p2p":
            blocks = [k.new_empty(k.numel() + v.numel()) for _ in range(2)]
            del blocks
        elif cp > 1:
            whole = [_rows(x, cp, x.shape[-1]) for x in (k, v)]
            del whole
        ctx.save_for_backward(q, k, v, out, statistics)
        return torch.empty_like(out) if copies or (cp > 1 and exchange == "allgather") else out

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        q, k, v, out, _ = ctx.saved_tensors
        moved = torch.empty_like(out) if ctx.cp > 1 and ctx.exchange == "a2a" else gradient
        accumulator = fp32(q, *q.shape)
        grown = ctx.cp if ctx.cp > 1 and ctx.exchange == "allgather" else 1
        held = [_rows(x, grown, x.shape[-1]) for x in (k, v)] if grown > 1 else []
        if ctx.cp > 1 and ctx.exchange == "p2p":
            held = [k.new_empty(k.numel() + v.numel()) for _ in range(2)]
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        del accumulator, moved, held
        if ctx.cp > 1 and ctx.exchange == "a2a":
            dq, dk, dv = torch.empty_like(dq), torch.empty_like(dk), torch.empty_like(dv)
        return dq, dk, dv, None, None, None


def _norm(x: torch.Tensor, weight: Any, bias: Any) -> Any:
    """A norm on its own: input, made contiguous, and statistics are saved; the output is whoever reads it."""
    x = x.contiguous()
    saved = (x, weight, *_statistics(x, bias))
    return torch.empty_like(x), saved


def _statistics(x: torch.Tensor, norm_bias: Any) -> list[torch.Tensor]:
    """RMSNorm has one fp32 number a row, LayerNorm two."""
    return [fp32(x, *x.shape[:-1]) for _ in range(1 if norm_bias is None else 2)]


class Norm(torch.nn.Module):
    """TENorm."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.weight = _parameter((hidden_size,), config)
        self.bias = _parameter((hidden_size,), config) if config.normalization == "LayerNorm" else None
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return StandIn.apply(_norm, x, self.weight, self.bias)


class _LinearModule(torch.nn.Module):
    """What the linear stand-ins share: a weight of this rank, a bias that may be returned instead of added."""

    def __init__(self, rows: int, columns: int, config: Any, *, bias: bool, skip_bias_add: bool, expert: bool = False) -> None:
        super().__init__()
        self.config, self.returns_bias = config, bias and skip_bias_add
        self.weight = _parameter((rows, columns), config)
        self.bias = _parameter((rows,), config) if bias else None
        for parameter in self.parameters():
            parameter.allreduce = not (expert and config.expert_model_parallel_size > 1)

    def _result(self, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return out, self.bias if self.returns_bias else None

    @property
    def _added_bias(self) -> torch.Tensor | None:
        return None if self.returns_bias else self.bias


class ColumnParallelLinear(_LinearModule):
    """TEColumnParallelLinear."""

    norm_first = False

    def __init__(
        self, input_size: int, output_size: int, *, config: Any, bias: bool, skip_bias_add: bool, **options: Any
    ) -> None:
        expert = bool(options.get("is_expert"))
        tp = config.expert_tensor_parallel_size if expert else config.tensor_model_parallel_size
        super().__init__(output_size // tp, input_size, config, bias=bias, skip_bias_add=skip_bias_add, expert=expert)
        self.gather = config.tensor_model_parallel_size if config.sequence_parallel and not expert else 1
        self.norm_weight = self.norm_bias = None
        if self.norm_first:
            self.norm_weight = _parameter((input_size,), config)
            self.norm_bias = _parameter((input_size,), config) if config.normalization == "LayerNorm" else None
            for parameter in (self.norm_weight, self.norm_bias):
                if parameter is not None:
                    parameter.sequence_parallel = config.sequence_parallel

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self._result(
            _ColumnLinear.apply(x, self.weight, self._added_bias, self.norm_weight, self.norm_bias, self.gather)
        )


class LayerNormColumnParallelLinear(ColumnParallelLinear):
    """TELayerNormColumnParallelLinear."""

    norm_first = True


class RowParallelLinear(_LinearModule):
    """TERowParallelLinear."""

    def __init__(
        self, input_size: int, output_size: int, *, config: Any, bias: bool, skip_bias_add: bool, **options: Any
    ) -> None:
        expert = bool(options.get("is_expert"))
        tp = config.expert_tensor_parallel_size if expert else config.tensor_model_parallel_size
        super().__init__(output_size, input_size // tp, config, bias=bias, skip_bias_add=skip_bias_add, expert=expert)
        self.scatter = config.tensor_model_parallel_size if config.sequence_parallel and not expert else 1

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self._result(_RowLinear.apply(x, self.weight, self._added_bias, self.scatter))


class Linear(_LinearModule):
    """TELinear with a duplicated weight (MLA's down projections)."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, bias: bool, skip_bias_add: bool, **_: Any) -> None:
        super().__init__(output_size, input_size, config, bias=bias, skip_bias_add=skip_bias_add)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self._result(_ColumnLinear.apply(x, self.weight, self._added_bias, None, None, 1))


class _GroupedLinearModule(torch.nn.Module):
    def __init__(
        self, num_gemms: int, rows: int, columns: int, config: Any, *, bias: bool, skip_bias_add: bool, **_: Any
    ) -> None:
        super().__init__()
        self.returns_bias = bias and skip_bias_add
        self.num_gemms, self.rows = num_gemms, rows
        for number in range(num_gemms):
            self.register_parameter(f"weight{number}", _parameter((rows, columns), config))
            if bias:
                self.register_parameter(f"bias{number}", _parameter((rows,), config))
        for parameter in self.parameters():
            parameter.allreduce = config.expert_model_parallel_size <= 1

    def forward(self, x: torch.Tensor, tokens_per_expert: Any) -> tuple[torch.Tensor, list[torch.Tensor] | None]:
        added = [value for name, value in self.named_parameters() if not (self.returns_bias and name.startswith("bias"))]
        biases = [getattr(self, f"bias{number}") for number in range(self.num_gemms)] if self.returns_bias else None
        return _GroupedLinear.apply(x, self.rows, *added), biases


class ColumnParallelGroupedLinear(_GroupedLinearModule):
    """TEColumnParallelGroupedLinear."""

    def __init__(self, num_gemms: int, input_size: int, output_size: int, *, config: Any, **options: Any) -> None:
        super().__init__(num_gemms, output_size // config.expert_tensor_parallel_size, input_size, config, **options)


class RowParallelGroupedLinear(_GroupedLinearModule):
    """TERowParallelGroupedLinear."""

    def __init__(self, num_gemms: int, input_size: int, output_size: int, *, config: Any, **options: Any) -> None:
        super().__init__(num_gemms, output_size, input_size // config.expert_tensor_parallel_size, config, **options)


class DotProductAttention(torch.nn.Module):
    """TEDotProductAttention with a flash or cuDNN kernel."""

    exchange: ClassVar[str] = "p2p"
    workspace_bytes: ClassVar[int] = 0
    copies_output: ClassVar[bool] = False

    def __init__(self, config: Any, *_: Any, **__: Any) -> None:
        super().__init__()
        self.cp = config.context_parallel_size

    def forward(self, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> torch.Tensor:
        """[s, b, heads x value channels]. Inputs that are not one packed tensor are made contiguous."""
        DummyWeightGradients.workspace(query, self.workspace_bytes)
        packed = (query.contiguous(), key.contiguous(), value.contiguous())
        out = _Attention.apply(*packed, self.cp, self.exchange, self.copies_output)
        return out.reshape(*out.shape[:2], -1)


def _parameter(shape: tuple[int, ...], config: Any) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.empty(shape, dtype=config.params_dtype, device=torch.cuda.current_device()))


class SpecProvider:
    """megatron-core's BackendSpecProvider, with the stand-ins."""

    linear = staticmethod(lambda: Linear)
    column_parallel_linear = staticmethod(lambda: ColumnParallelLinear)
    row_parallel_linear = staticmethod(lambda: RowParallelLinear)
    fuse_layernorm_and_linear = staticmethod(lambda: True)
    column_parallel_layer_norm_linear = staticmethod(lambda: LayerNormColumnParallelLinear)
    layer_norm = staticmethod(lambda *_, **__: Norm)
    core_attention = staticmethod(lambda: DotProductAttention)
    activation_func = staticmethod(lambda: None)

    def grouped_mlp_modules(self, *_: Any, **__: Any) -> Any:
        """(class, submodules); from megatron-core 0.19 on a partial of both."""
        kind = getattr(experts, "GroupedMLPSubmodules", MLPSubmodules)
        parts = kind(linear_fc1=ColumnParallelGroupedLinear, linear_fc2=RowParallelGroupedLinear)
        if kind is MLPSubmodules:
            return experts.TEGroupedMLP, parts
        return functools.partial(experts.TEGroupedMLP, submodules=parts)
