"""PyTorch's own memory tracker before our memory model: plans of torchtitan and transformers, drawn by a seed.

    .venv-judge/bin/python -m validation.judge.pytorch.plans --count 60 --seed 35

Models of torchtitan 0.2.2 and transformers under its own parallelize functions, torch's fully_shard, activation checkpoints and
AdamW run one step on fake tensors (fake.py). The table has, for every plan and its worst rank, the tracker's peak and
ours, both allocated bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from autoconfig.memory_model.predict import MOMENTS, estimate_memory
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import loss_parallel

from validation.judge.pytorch.fake import Tracker, fake_rank, torchtitan

MIB = 2**20
NEAR, FAR = 0.03, 0.08
RECOMPUTE = {"none": "none", "full": "full:uniform:1", "selective": "selective:op"}
WIDTHS = ((1024, 8, 2), (1024, 16, 16), (1536, 12, 4), (2048, 16, 4), (2048, 32, 8))
"""Hidden size, heads, key/value heads."""


@dataclass(frozen=True, kw_only=True)
class TorchPlan:
    """One job; tokens are of one rank and micro-batch."""

    framework: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    vocabulary: int
    sequence: int
    micro_batch: int
    ranks: int
    accumulation: int = 1
    recompute: str = "none"
    reduce: str = "fp32"
    reshard: bool = True
    tied: bool = False
    tp: int = 1

    @property
    def ffn(self) -> int:
        """As torchtitan's Llama rounds it."""
        return 256 * -(-int(8 * self.hidden / 3) // 256)

    @property
    def text(self) -> str:
        """In our words."""
        sharding = f"tp={self.tp},sp={int(self.tp > 1)},fsdp={3 if self.reshard else 2}"
        return f"{sharding},mbs={self.micro_batch},recompute={RECOMPUTE[self.recompute]}"

    def __str__(self) -> str:
        name = f"{self.framework} {self.layers} x {self.hidden}, vocabulary {self.vocabulary}, {self.ranks} ranks"
        more = f", {self.micro_batch} x {self.sequence}, {self.accumulation} micro-batches, {self.recompute}, {self.reduce}"
        options = (f", tp {self.tp}" * (self.tp > 1), ", gathered" * (not self.reshard), ", tied" * self.tied)
        return name + more + "".join(options)


def drawn(count: int, seed: int) -> Iterator[TorchPlan]:
    """Plans of every kind in turn, their sizes by chance."""
    chance = random.Random(seed)
    for number in range(count):
        hidden, heads, kv_heads = chance.choice(WIDTHS)
        framework = ("torchtitan", "transformers")[number % 2]
        ranks, tp = chance.choice((2, 4, 8, 16, 64)), chance.choice((1, 1, 2, 4)) if framework == "torchtitan" else 1
        modes = ("none", "full", "selective") if framework == "torchtitan" else ("none", "full")
        yield TorchPlan(
            framework=framework,
            layers=chance.randint(2, 8),
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            vocabulary=chance.choice((2048, 8192, 32000, 65536, 128256)),
            sequence=chance.choice((256, 512, 1024, 2048, 4096)),
            micro_batch=chance.choice((1, 2, 4)),
            ranks=ranks,
            accumulation=chance.choice((1, 1, 2)),
            recompute=modes[number // 2 % len(modes)],
            reduce=chance.choice(("fp32", "bf16")),
            reshard=chance.random() > 0.25,
            tp=tp if ranks > tp and kv_heads % tp == 0 else 1,
            tied=framework == "transformers" and chance.random() > 0.5,
        )


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
    copies = plan.ranks // plan.tp
    return Scenario(
        model=model,
        cluster=cluster_of(load_gpu("h100"), plan.ranks),
        numerics=Numerics(attention_dropout=0.0, hidden_dropout=0.0, grad_reduce_dtype=plan.reduce),
        software=load_stack("torchtitan" if plan.framework == "torchtitan" else "torch-eager"),
        workload=Workload(seq_length=plan.sequence, global_batch_size=plan.micro_batch * copies * plan.accumulation),
    )


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Bytes of one plan."""

    plan: TorchPlan
    tracked: float
    predicted: float
    moment: str

    @property
    def error(self) -> float:
        """Predicted over tracked, less 1."""
        return self.predicted / self.tracked - 1.0


def compare(plan: TorchPlan) -> Compared:
    """Both peaks."""
    scenario = scenario_of(plan)
    read = scenario.read_plan(plan.text)
    found = estimate_memory(scenario, scenario.layouts([read]), [read.recompute], detail=True)
    assert found.moment is not None
    moment = MOMENTS[int(found.moment[0, 0, 0])]
    return Compared(plan=plan, tracked=tracked(plan), predicted=float(found.peak_bytes[0, 0]), moment=moment)


def tracked(plan: TorchPlan) -> int:
    """The tracker's peak of one step of the real modules, once the optimizer has its state."""
    with fake_rank(0, plan.ranks) as mode:
        model = _torchtitan_model(plan) if plan.framework == "torchtitan" else _transformers_model(plan)
        with mode:
            model.to_empty(device="cpu")
            if plan.framework == "torchtitan":
                model.freqs_cis = model._precompute_freqs_cis()
            fused = plan.framework == "torchtitan"
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused or None)
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            optimizer.zero_grad()
            shape = (plan.micro_batch, plan.sequence)
            tokens, labels = (torch.randint(0, plan.vocabulary, shape) for _ in range(2))
            tracker = Tracker()
            tracker.track_external(model, optimizer, tokens, labels)
            # as torchtitan's train.py: with tensor parallelism the loss runs on each rank's part of the vocabulary
            with loss_parallel() if plan.tp > 1 else contextlib.nullcontext(), tracker:
                for _ in range(plan.accumulation):
                    tracker.reset_mod_stats()
                    _loss(plan, model, tokens, labels).backward()
                optimizer.step()
            return tracker.peak()


def _loss(plan: TorchPlan, model: Any, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss alone: neither trainer holds the logits when backward begins."""
    if plan.framework == "torchtitan":
        return torchtitan("components.loss").cross_entropy_loss(model(tokens), labels)
    return model(input_ids=tokens, labels=labels, use_cache=False).loss


def _torchtitan_model(plan: TorchPlan) -> Any:
    parallelize = torchtitan("models.llama3.infra.parallelize")
    # the CPU's flash attention has a name of its own in the list of operators whose outputs are kept
    parallelize._op_sac_save_list.add(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default)
    modules = torchtitan("models.llama3.model.model")
    arguments = torchtitan("models.llama3.model.args").TransformerModelArgs(
        dim=plan.hidden, n_layers=plan.layers, n_heads=plan.heads, n_kv_heads=plan.kv_heads, vocab_size=plan.vocabulary,
        multiple_of=256, max_seq_len=plan.sequence,
    )  # fmt: skip
    job = torchtitan("config.job_config").JobConfig()
    job.training.seq_len, job.training.local_batch_size = plan.sequence, plan.micro_batch
    job.training.mixed_precision_reduce = {"fp32": "float32", "bf16": "bfloat16"}[plan.reduce]
    job.activation_checkpoint.mode, job.activation_checkpoint.selective_ac_option = plan.recompute, "op"
    job.parallelism.fsdp_reshard_after_forward = "default" if plan.reshard else "never"
    dims = torchtitan("distributed").ParallelDims(
        dp_shard=plan.ranks // plan.tp, dp_replicate=1, cp=1, tp=plan.tp, pp=1, ep=1, etp=1, world_size=plan.ranks
    )
    with torch.device("meta"):
        model = modules.Transformer(arguments)
    return parallelize.parallelize_llama(model, dims, job)


def _transformers_model(plan: TorchPlan) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM  # type: ignore[import-not-found]
    from transformers.models.llama import modeling_llama  # type: ignore[import-not-found]

    # what it finds for sequences without padding by looking at values
    modeling_llama.create_causal_mask = lambda *_, **__: None
    config = LlamaConfig(
        hidden_size=plan.hidden, num_hidden_layers=plan.layers, num_attention_heads=plan.heads,
        num_key_value_heads=plan.kv_heads, vocab_size=plan.vocabulary, intermediate_size=plan.ffn,
        max_position_embeddings=plan.sequence, tie_word_embeddings=plan.tied, attn_implementation="sdpa",
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.train()
    if plan.recompute == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[plan.reduce]
    )
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy, reshard_after_forward=plan.reshard)
    fully_shard(model, mp_policy=policy, reshard_after_forward=plan.reshard)
    return model


def table(results: Sequence[Compared]) -> str:
    """A line for every plan, and how many are near."""
    lines = ["| plan | tracker, MiB | ours | error | our moment |", "|---|---|---|---|---|"]
    for found in results:
        sizes = f"{found.tracked / MIB:,.0f} | {found.predicted / MIB:,.0f} | {100 * found.error:+.1f} %"
        lines.append(f"| {found.plan} | {sizes} | {found.moment} |")
    near, far = (sum(abs(found.error) <= limit for found in results) for limit in (NEAR, FAR))
    return "\n".join([*lines, "", f"{near} of {len(results)} within {NEAR:.0%}, {far} within {FAR:.0%}"])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=35)
    given = parser.parse_args()
    start = time.monotonic()
    print(table([compare(plan) for plan in drawn(given.count, given.seed)]))
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
