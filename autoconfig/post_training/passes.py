"""Seconds of training and of forward-only passes of a step, by the training model on packed or padded sequences."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from autoconfig.planning.calibration_file import shipped
from autoconfig.post_training.frameworks import section
from autoconfig.post_training.job import AS_TRAINING, LEAST_TOKENS, PassBatch, Placement, PostTrainingJob
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import cluster_of
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import StackOptions, load_stack, with_options
from autoconfig.time_model.predict import estimate_step_time, forward_seconds

USUAL_LORA_RANK = 32
"""Of adapters whose rank is not said: verl's published LoRA scripts use 32 and 64."""
PACKED = 0.9
"""Filled share of a packed micro-batch: sequences are whole (first-fit of lengths near a fourth of the bin; Krell et al. 2021,
arXiv:2107.02027, packs text to more than 0.9)."""


@dataclass(frozen=True, kw_only=True)
class Microbatches:
    """`count` micro-batches of `sequences` sequences of `seq_length` tokens on each data-parallel rank."""

    count: int
    sequences: float
    seq_length: int
    """As the ranks of tensor and context parallelism share it."""
    tokens: float
    """Mean of a sequence, of which `seq_length` is a multiple of these ranks."""

    @property
    def whole(self) -> int:
        """Sequences as the whole number that is priced."""
        return max(1, round(self.sequences))

    @property
    def scale(self) -> float:
        """Tokens of the run over tokens priced."""
        return self.sequences / self.whole * self.tokens / self.seq_length


def stage_ends(model: ModelSpec, pp: int, last: int | None = None) -> tuple[int | None, int | None]:
    """Layers of first and last stage where the layers do not divide over pp, which then take fewer. Raises InputError."""
    layers = model.num_layers
    if pp == 1 or (layers % pp == 0 and last is None):
        return None, None
    middle = -(-layers // pp)
    if last is not None and pp > 2 and (layers - last) % (pp - 1) == 0:
        return None, last
    for size in (middle, middle - 1):
        rest = layers - size * (pp - 2)
        if rest >= 2:
            return rest - rest // 2, rest // 2
    raise InputError(f"{layers} layers do not divide over pp={pp}")


def microbatches(job: PostTrainingJob, plan: TrainPlan, samples: float, tokens_per_gpu: int) -> Microbatches:
    """How `samples` are cut up. Packed: as many whole sequences as fill `tokens_per_gpu` on each of cp GPUs; padded
    (tokens_per_gpu 0): mbs samples at their longest."""
    own = max(samples * job.algorithm.sequences_per_sample / plan.dp, 1.0)
    if not tokens_per_gpu:
        count = ceil(own / plan.mbs)
        longest = shared_tokens(job.longest, plan)
        return Microbatches(count=count, sequences=own / count, seq_length=longest, tokens=float(longest))
    fit = max(1.0, PACKED * tokens_per_gpu * plan.cp / job.tokens)
    count = ceil(own / fit)
    return Microbatches(
        count=count, sequences=own / count, seq_length=shared_tokens(round(job.tokens), plan), tokens=job.tokens
    )


def shared_tokens(tokens: int, plan: TrainPlan) -> int:
    """So many tokens or a few more, which tensor and context parallelism share evenly (cp in two chunks a rank)."""
    ranks = plan.tp * plan.cp * 2
    return -(-max(tokens, 1) // ranks) * ranks


def back_end_of(plan: TrainPlan) -> str:
    """What trains a plan: fsdp (of one GPU too, where nothing is left to shard) or megatron."""
    return "fsdp" if plan.fsdp or (plan.world_size == 1 and not plan.dist_opt) else "megatron"


def scenario_of(job: PostTrainingJob, plan: TrainPlan, model: ModelSpec, cut: Microbatches) -> Scenario:
    """One optimizer step of `model` as the training model asks it."""
    software = load_stack(job.framework.stacks[back_end_of(plan)])
    if (job.gpu.compute_capability or 0.0) < software.least_compute_capability:
        software = load_stack("megatron-lm-2022")
    # a loss that is fused with the output layer gives no log-probability of the sampled token: logits are held and cast to fp32
    loss = "eager" if job.algorithm.generates and not software.memory.loss_bytes_per_logit else ""
    if job.attention_kernel or loss:
        software = with_options(software, StackOptions(attention_kernel=job.attention_kernel, loss_fusion=loss))
    quantised = job.training_format == "fp8" and "fp8" in job.gpu.flops_per_s and software.supports_fp8
    longest = max(model.max_position_embeddings, cut.seq_length)
    return Scenario(
        model=model.replace(max_position_embeddings=longest),
        cluster=cluster_of(job.gpu, plan.world_size, gpus_per_node=_per_node(job, plan)),
        numerics=Numerics(
            precision="fp8" if quantised else "bf16" if "bf16" in job.gpu.flops_per_s else "fp16",
            fp8_recipe="blockwise" if quantised else "delayed",
            attention_dropout=0.0,
            hidden_dropout=0.0,
            peft="lora" if job.lora_rank else "none",
            lora_rank=job.lora_rank or USUAL_LORA_RANK,
        ),
        software=software,
        workload=Workload(seq_length=cut.seq_length, global_batch_size=cut.whole * cut.count * plan.dp),
        calibration=shipped(),
    )


def vocabulary_seconds(job: PostTrainingJob, plan: TrainPlan, tokens: float, model: ModelSpec | None = None) -> float:
    """Log-probabilities and entropy of all samples, of so many `tokens` each, beside the training model's cross entropy.

    b V / t bytes of a token on the ranks that hold the output layer, over the bandwidth (data/post_training.toml,
    `[vocabulary]`): of a small model with a large vocabulary a good part of a pass.
    """
    if not job.algorithm.generates:
        return 0.0
    logits = job.trained * tokens / (plan.dp * plan.cp) * (model or job.policy).vocab_size / plan.tp
    return float(section("vocabulary")["logit_bytes"] * logits / job.gpu.hbm_bytes_per_s)


def _per_node(job: PostTrainingJob, plan: TrainPlan) -> int:
    """Nodes of the usual size; where they do not divide a plan, the largest part of one that does, whole tensor-parallel groups
    first."""
    size = min(job.gpus_per_node or job.gpu.gpus_per_node, plan.world_size)
    fits = [n for n in range(1, size + 1) if plan.world_size % n == 0]
    return max(fits, key=lambda n: (n % plan.tp == 0, n))


def priced(cut: Microbatches, plan: TrainPlan) -> TrainPlan:
    """The plan with the micro-batch that is priced; interleaving only where the micro-batches allow it."""
    vpp = plan.vpp if cut.count % plan.pp == 0 else 1
    return replace(plan, mbs=cut.whole, vpp=vpp)


def training_seconds(job: PostTrainingJob, placement: Placement, model: ModelSpec | None = None) -> float:
    """All optimizer steps of a step on the policy (or `model`), each with its own bubble, reduction and optimizer."""
    cut = microbatches(job, placement.train, job.trained / job.updates, placement.tokens_per_gpu)
    plan = priced(cut, placement.train)
    scenario = scenario_of(job, plan, model or job.policy, cut)
    estimate = estimate_step_time(scenario, scenario.layouts([plan]), [plan.recompute])
    return float(estimate.step_seconds[0, 0]) * cut.scale * job.updates


def pass_plan(placement: Placement, batch: PassBatch) -> tuple[TrainPlan, int]:
    """(plan with the samples of a padded micro-batch of a pass, tokens of a packed one; 0: padded)."""
    if batch.tokens_per_gpu or not batch.mbs:
        return placement.train, batch.tokens_per_gpu or placement.tokens_per_gpu
    return replace(placement.train, mbs=batch.mbs), 0


def asked_batch(job: PostTrainingJob, size: int, *, packs: bool) -> PassBatch:
    """The micro-batch of a pass by its size in samples, or from LEAST_TOKENS on in tokens; a packed one holds a sample."""
    if size < LEAST_TOKENS and not packs:
        return PassBatch(mbs=size)
    tokens = size if size >= LEAST_TOKENS else size * job.tokens / PACKED
    return PassBatch(tokens_per_gpu=max(round(tokens), round(job.tokens)))


def pass_seconds(
    job: PostTrainingJob, placement: Placement, model: ModelSpec | None = None, batch: PassBatch | None = None
) -> float:
    """One forward pass of `model` (the policy) over all samples: log-probabilities, values or scores; `batch`: its
    micro-batch, that of the policy's pass where None."""
    plan, tokens = pass_plan(placement, batch or placement.forward)
    if batch is None and placement.forward == AS_TRAINING and (size := job.logprob_micro_batch):
        plan, tokens = pass_plan(placement, asked_batch(job, size, packs=bool(placement.tokens_per_gpu)))
    cut = microbatches(job, plan, job.trained, tokens)
    plan = priced(cut, plan)
    scenario = scenario_of(job, plan, model or job.policy, cut)
    return float(np.asarray(forward_seconds(scenario, scenario.layouts([plan])))[0]) * cut.scale
