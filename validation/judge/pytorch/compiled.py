"""What torch.compile keeps of a block and of a loss, by torch's own min-cut partitioner, before our memory model.

    .venv-judge/bin/python -m validation.judge.pytorch.compiled

The joint graphs of torchtitan's block and of its cross entropy are cut as inductor does (aot_autograd with
min_cut_rematerialization_partition and inductor's decompositions), on fake tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from autoconfig.memory_model.predict import estimate_memory
from autoconfig.specs.software.software import LOSS_BYTES, StackOptions, with_options
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode

from validation.judge.pytorch.fake import torchtitan
from validation.judge.pytorch.jobs import TorchPlan
from validation.judge.pytorch.plans import MIB, SEED, drawn, scenario_of

ACTIVATIONS = (
    "norm_inputs",
    "norm_outputs",
    "norm_statistics",
    "query_key_value",
    "attention_scores",
    "attention_output",
    "mlp_inside",
)
COUNT = 12
GRADIENT = 2.0
"""Of a compiled loss's bytes a logit: those that backward writes."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Bytes of a block or of a loss."""

    name: str
    partitioned: int
    ours: float

    @property
    def error(self) -> float:
        """Ours over the partitioner's, less 1."""
        return self.ours / self.partitioned - 1.0


def saved_bytes(function: Callable[..., torch.Tensor], parameters: Sequence[torch.Tensor], *inputs: torch.Tensor) -> int:
    """Bytes between the forward and the backward graph, inputs among them; parameters and views of them apart."""
    sizes: dict[Any, int] = {}

    def forward(graph: Any, _: Any) -> Any:
        nodes = list(graph.graph.nodes)
        own = [node for node in nodes if node.op == "placeholder"][: len(parameters)]
        for node in nodes[-1].args[0][1:]:  # the first is the function's own
            base = _viewed(node)
            if base not in own:
                sizes[base] = node.meta["val"].untyped_storage().nbytes()
        return graph

    compiled = aot_function(
        function,
        fw_compiler=forward,
        bw_compiler=lambda graph, _: graph,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    compiled(list(parameters), *inputs)
    return sum(sizes.values())


def _viewed(node: Any) -> Any:
    while isinstance(node.target, torch._ops.OpOverload) and node.target.is_view:
        node = node.args[0]
    return node


def block(plan: TorchPlan) -> Kept:
    """torchtitan's compiled block."""
    modules = torchtitan("models.llama3.model.model")
    arguments = torchtitan("models.llama3.model.args").TransformerModelArgs(
        dim=plan.hidden, n_heads=plan.heads, n_kv_heads=plan.kv_heads, multiple_of=256, max_seq_len=plan.sequence
    )
    with torch.device("meta"):
        module = modules.TransformerBlock(0, arguments)
    names = [name for name, _ in module.named_parameters()]

    def run(weights: Sequence[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        *own, angles = weights
        partitioned: torch.Tensor = torch.func.functional_call(module, dict(zip(names, own, strict=True)), (x, angles, None))
        return partitioned

    scaling = arguments.rope_scaling_args
    with FakeTensorMode(allow_non_fake_inputs=True):
        weights = [torch.empty(one.shape, dtype=torch.bfloat16, requires_grad=True) for one in module.parameters()]
        angles = modules.precompute_freqs_cis(plan.hidden // plan.heads, plan.sequence, arguments.rope_theta, scaling)
        x = torch.empty(plan.micro_batch, plan.sequence, plan.hidden, dtype=torch.bfloat16, requires_grad=True)
        partitioned = saved_bytes(run, [*weights, angles], x)
    scenario = scenario_of(plan)
    scenario = replace(scenario, software=with_options(scenario.software, StackOptions(compiled=True)))
    read = scenario.read_plan(plan.text)
    memory = estimate_memory(scenario, scenario.layouts([read]), [read.recompute], detail=True)
    ours = sum(float(memory.parts[name][0, 0, 0]) for name in ACTIVATIONS) / plan.layers
    return Kept(name=f"block of {plan}", partitioned=partitioned, ours=ours)


def loss(plan: TorchPlan) -> Kept:
    """torchtitan's compiled cross entropy."""
    function = torchtitan("components.loss").cross_entropy_loss
    shape = (plan.micro_batch, plan.sequence)
    with FakeTensorMode(allow_non_fake_inputs=True):
        logits = torch.empty(*shape, plan.vocabulary, dtype=torch.bfloat16, requires_grad=True)
        labels = torch.empty(*shape, dtype=torch.int64)
        partitioned = saved_bytes(lambda _, logits, labels: function(logits, labels), [], logits, labels)
    ours = (LOSS_BYTES["compiled"] - GRADIENT) * plan.micro_batch * plan.sequence * plan.vocabulary
    return Kept(name=f"loss of {plan}", partitioned=partitioned, ours=ours)


def compiled(count: int, seed: int) -> list[Kept]:
    """Blocks and losses of torchtitan's plans on one rank of tensors and pipelines, dense ones in place of mixtures."""
    plans = [plan for plan in drawn(2 * count, seed) if plan.framework == "torchtitan"]
    alone = [replace(plan, tp=1, pp=1, recompute="none", layers=2, experts=0, ep=1) for plan in plans]
    return [kept for plan in alone for kept in (block(plan), loss(plan))]


def table(results: Sequence[Kept]) -> str:
    """A line each."""
    lines = ["| compiled | partitioner, MiB | ours | error |", "|---|---|---|---|"]
    for one in results:
        lines.append(f"| {one.name} | {one.partitioned / MIB:,.1f} | {one.ours / MIB:,.1f} | {100 * one.error:+.1f} % |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    print(table(compiled(COUNT, SEED)))


if __name__ == "__main__":
    main()
