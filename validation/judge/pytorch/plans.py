"""PyTorch's own memory tracker before our memory model: plans of torchtitan and transformers, drawn by a seed.

    .venv-judge/bin/python -m validation.judge.pytorch.plans

Models of torchtitan 0.2.2 and transformers under its own parallelize functions, torch's fully_shard, activation checkpoints and
AdamW run one step on fake tensors (fake.py). The table has the tracker's peak and ours on a rank of every stage, both allocated
bytes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoconfig.memory_model.peaks import MOMENTS
from autoconfig.memory_model.predict import estimate_memory
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import StackOptions, load_stack, with_options

from validation.judge.pytorch.jobs import RANK, TOP_K, TorchPlan, tracked

MIB = 2**20
COUNT, SEED = 60, 35
LOSSES = {5: "fused", 7: "chunked", 9: "eager"}
"""Of every tenth plan, all of transformers: the other ways of a loss."""
NEAR, FAR = 0.03, 0.08
ALIKE = (
    *("num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "kv_channels", "ffn_hidden_size", "vocab_size"),
    *("make_vocab_size_divisible_by", "untie_embeddings_and_output_weights"),
)
"""Fields that a mixture has as the dense model."""
WIDTHS = ((1024, 8, 2), (1024, 16, 16), (1536, 12, 4), (2048, 16, 4), (2048, 32, 8))
"""Hidden size, heads, key/value heads."""


def drawn(count: int, seed: int) -> Iterator[TorchPlan]:
    """Plans of every kind in turn, their sizes by chance: torchtitan's every other time with tensor parallelism where heads
    allow, every sixth in a pipeline; every sixth a mixture; fifths of transformers' have each of LOSSES and adapters.

    Of mixtures none is drawn with tensor parallelism, as DTensor has no rule for the CPU's attention, and none with experts on
    several ranks under selective checkpoints, whose storage does not know the exchange's fake tensors again."""
    chance = random.Random(seed)
    for number in range(count):
        hidden, heads, kv_heads = chance.choice(WIDTHS)
        framework = ("torchtitan", "transformers")[number % 2]
        titan = framework == "torchtitan"
        modes = ("none", "full", "selective") if titan else ("none", "full")
        tp, pp = (chance.choice((1, 1, 2, 4)), 2 if number % 12 == 4 else 4 if number % 12 == 10 else 1) if titan else (1, 1)
        tp = tp if kv_heads % tp == 0 else 1
        experts = 8 if number % 12 == 8 else 0
        tp = 1 if experts else tp
        micro_batches = chance.choice((1, 1, 2))
        yield TorchPlan(
            framework=framework,
            layers=pp * chance.randint(2, 4) - 2 if pp > 1 else chance.randint(2, 8),
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            vocabulary=chance.choice((2048, 8192, 32000, 65536, 128256)),
            sequence=chance.choice((256, 512, 1024, 2048, 4096)),
            micro_batch=chance.choice((1, 2, 4)),
            ranks=(ranks := tp * pp * chance.choice((2, 4, 8, 16, 64))),
            accumulation=micro_batches * pp,
            recompute=(recompute := modes[number // (12 if experts else 2) % len(modes)]),
            reduce=chance.choice(("fp32", "bf16")),
            reshard=chance.random() > 0.25,
            tp=tp,
            pp=pp,
            loss=LOSSES.get(number % 10, "plain"),
            tied=framework == "transformers" and chance.random() > 0.5,
            adapters=number % 10 == 3,
            experts=experts,
            ep=min(ranks, experts // 2) if experts and recompute != "selective" else 1,
        )


def numerics_of(plan: TorchPlan) -> Numerics:
    """Numerics of a plan; on one rank adapters step in 16 bits, as all weights are there."""
    adapters = {"peft": "lora", "lora_rank": RANK, "weights_are_masters": plan.ranks == 1} if plan.adapters else {}
    reduce = "bf16" if plan.adapters and plan.ranks == 1 else plan.reduce
    common = {"attention_dropout": 0.0, "hidden_dropout": 0.0, "moe_imbalance": 1.0}
    return Numerics(**common, grad_reduce_dtype=reduce, **adapters)  # type: ignore[arg-type]


def scenario_of(plan: TorchPlan) -> Scenario:
    """The plan as a question."""
    model = load_model("llama3-8b").replace(
        num_layers=plan.layers,
        hidden_size=plan.hidden,
        num_attention_heads=plan.heads,
        num_query_groups=plan.kv_heads,
        kv_channels=plan.hidden // plan.heads,
        ffn_hidden_size=plan.ffn,
        vocab_size=plan.vocabulary,
        make_vocab_size_divisible_by=1,
        untie_embeddings_and_output_weights=not plan.tied,
    )
    if plan.experts:
        model = load_model("qwen3-30b-a3b").replace(
            **{name: getattr(model, name) for name in ALIKE},
            num_moe_experts=plan.experts,
            moe_router_topk=TOP_K,
            moe_ffn_hidden_size=plan.hidden // 2,
        )
    copies = plan.ranks // plan.tp // plan.pp
    return Scenario(
        model=model,
        cluster=cluster_of(load_gpu("h100"), plan.ranks),
        numerics=numerics_of(plan),
        software=with_options(
            load_stack("torchtitan" if plan.framework == "torchtitan" else "torch-eager"),
            StackOptions(loss_fusion="" if plan.loss == "plain" else plan.loss),
        ),
        workload=Workload(seq_length=plan.sequence, global_batch_size=plan.micro_batch * copies * plan.accumulation),
    )


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Bytes of one plan's rank."""

    plan: TorchPlan
    stage: int
    tracked: float
    predicted: float
    moment: str

    @property
    def error(self) -> float:
        """Predicted over tracked, less 1."""
        return self.predicted / self.tracked - 1.0


def compare(plan: TorchPlan) -> list[Compared]:
    """Both peaks of a rank of each stage; the other ranks of a stage hold the same."""
    scenario = scenario_of(plan)
    read = scenario.read_plan(plan.text)
    memory = estimate_memory(scenario, scenario.layouts([read]), [read.recompute], detail=True)
    assert memory.moment is not None and memory.per_stage_bytes is not None
    return [
        Compared(
            plan=plan,
            stage=stage,
            tracked=tracked(plan, stage),
            predicted=float(memory.per_stage_bytes[0, 0, stage]),
            moment=MOMENTS[int(memory.moment[0, 0, stage])],
        )
        for stage in range(plan.pp)
    ]


def table(results: Sequence[Compared]) -> str:
    """A line for every plan, and how many are near."""
    lines = ["| plan | tracker, MiB | ours | error | our moment |", "|---|---|---|---|---|"]
    for row in results:
        sizes = f"{row.tracked / MIB:,.0f} | {row.predicted / MIB:,.0f} | {100 * row.error:+.1f} %"
        name = str(row.plan) + (f", stage {row.stage}" if row.plan.pp > 1 else "")
        lines.append(f"| {name} | {sizes} | {row.moment} |")
    near, far = (sum(abs(row.error) <= limit for row in results) for limit in (NEAR, FAR))
    return "\n".join([*lines, "", f"{near} of {len(results)} within {NEAR:.0%}, {far} within {FAR:.0%}"])


def main() -> None:
    """Print the table."""
    start = time.monotonic()
    print(table([row for plan in drawn(COUNT, SEED) for row in compare(plan)]))
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
