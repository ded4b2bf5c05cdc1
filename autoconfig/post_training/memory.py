"""Bytes of one GPU and of one host in each phase of a step, and whether the step fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, log2
from statistics import NormalDist

import numpy as np

from autoconfig.memory_model.predict import CUDA_CONTEXT_BYTES, estimate_memory, fit_probability, headroom_bytes
from autoconfig.memory_model.serving import activation_bytes
from autoconfig.memory_model.tables import least_state_bytes
from autoconfig.post_training.frameworks import section
from autoconfig.post_training.generation import Rollout
from autoconfig.post_training.job import AS_TRAINING, PassBatch, Placement, PostTrainingJob
from autoconfig.post_training.micro_batches import fullest, largest_of
from autoconfig.post_training.passes import Microbatches, pass_plan, scenario_of
from autoconfig.specs.errors import GIB
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import expert_gemms, layer_parameters, total_parameters
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import load_engine

ASLEEP_BYTES = 1.5 * GIB
"""What a sleeping engine keeps on the GPU: context, communicators and CUDA graphs (vLLM's sleep mode frees weights and cache).
The round figure of an engine beside both; an assumption, no log of a sleeping engine is behind it."""

HOSTED, PINNED = 16.0 / 12.0, 0.5
"""Bytes of an optimizer on the host over those that it frees on the GPU: fp32 weights, both moments, and there fp32 gradients
too (Megatron-LM, megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py: cpu_copy_map_grad; DeepSpeed,
estimate_zero2_model_states_mem_needs: 16 bytes a parameter). Of these, the share that Megatron-LM pins tensor by tensor:
weights and gradients (the same file: pin_memory; moments are made by torch.optim.Adam as ordinary memory)."""
KILLED_AT = 0.95
"""Share of a node's memory at which Ray kills workers (its memory monitor, RAY_memory_usage_threshold)."""
BESIDE, BESIDE_SPREAD = 1.25, 0.08
"""What a node's host holds over the state that is counted here, mean and standard deviation: processes of workers and engines,
Ray's object store, data. Of three reports that print it: 1,000 GiB where 768 are counted (THUDM/slime issue 1851), 984 of 767
(vllm-project/vime issue 56), both Qwen3-30B-A3B with its optimizer on the host, and 445 of 386 (OpenRLHF issue 171, actor and
critic of 13B)."""
OVERRUN_CHANCE = 0.1
"""Chance to get through DRAWN micro-batches of different samples whose largest is just within the GPU, be they padded, of a
number of samples or filled up. A longer run meets longer ones, and the allocator of PyTorch keeps blocks of lengths that do not
come again (its notes on CUDA: fragmentation of dynamic shapes). By judgement: no measured series of such runs is at hand."""


def varied_bytes(device_bytes: float, varied: bool) -> float:
    """What a peak of micro-batches that differ in length is judged above the largest of DRAWN."""
    return headroom_bytes(1.0 - OVERRUN_CHANCE, device_bytes) if varied else 0.0


@dataclass(frozen=True, kw_only=True)
class PhaseMemory:
    """Peak bytes of one GPU by phase against what it has, and bytes of one host."""

    generation_bytes: float
    training_bytes: float
    device_bytes: float
    host_bytes: float
    """Training state and engine weights that wait on one node's host."""
    host_limit_bytes: float
    """What one node's host has."""
    engine_holds_a_sequence: bool
    overhead_bytes: float
    """Of one GPU's memory, what training's tensors cannot have."""
    waiting_bytes: float = 0.0
    """Of `host_bytes`, what goes there and back in a step."""
    forward_bytes: float = 0.0
    """Peak of passes of log-probabilities with micro-batches of their own; 0: they have those of training, and take less."""
    varied: bool = False
    """Micro-batches differ in the lengths of their samples, which are generated."""

    @property
    def host_holds(self) -> bool:
        """What waits on one node's host is within its memory."""
        return self.host_share <= 1.0

    @property
    def host_share(self) -> float:
        """Of the memory of one node's host, what waits there."""
        return self.host_bytes / self.host_limit_bytes

    @property
    def lacking(self) -> float:
        """The largest share that is taken of a GPU or a host; above 1 it does not fit. 1 more where no sequence is held."""
        phases = self.peak_bytes / self.device_bytes
        return max(phases, self.host_share) + (not self.engine_holds_a_sequence)

    def fit_probability(self, phase_bytes: float) -> float:
        """Chance that a phase of so many bytes does not run out of memory, as of a plan of training."""
        limit = self.device_bytes - self.overhead_bytes
        return float(fit_probability(phase_bytes - self.overhead_bytes, limit, self.device_bytes))

    @property
    def generation_fit(self) -> float:
        """Chance of generation; 0 where its engine's cache does not hold a sequence."""
        return self.fit_probability(self.generation_bytes) * self.engine_holds_a_sequence

    @property
    def training_fit(self) -> float:
        """Chance of training and of passes, over DRAWN micro-batches."""
        return self.fit_probability(max(self.training_bytes, self.forward_bytes) + varied_bytes(self.device_bytes, self.varied))

    @property
    def host_fit(self) -> float:
        """Chance that the host holds what waits there and what else is on it; 0 where it does not hold what waits."""
        if not self.host_bytes:
            return 1.0
        room = (KILLED_AT * self.host_limit_bytes / self.host_bytes - BESIDE) / BESIDE_SPREAD
        return NormalDist().cdf(room) * self.host_holds

    @property
    def chance(self) -> float:
        """Chance that no phase runs out of memory, nor the host."""
        return min(self.generation_fit, self.training_fit, self.host_fit)

    @property
    def peak_bytes(self) -> float:
        """Of the fullest phase."""
        return max(size for _, size in self.phases)

    @property
    def fullest(self) -> str:
        """Name of the fullest phase."""
        return max(self.phases, key=lambda phase: phase[1])[0]

    @property
    def phases(self) -> tuple[tuple[str, float], ...]:
        """Peak bytes of every phase."""
        passes = "a pass of log-probabilities", self.forward_bytes
        return ("generation", self.generation_bytes), ("training", self.training_bytes), passes

    @property
    def fits(self) -> bool:
        """All phases are within the GPU, what waits is within the host, and the engine's cache holds a sequence."""
        held = self.engine_holds_a_sequence and self.host_holds
        return held and self.peak_bytes <= self.device_bytes

    @property
    def host_words(self) -> str:
        """What waits on a node's host, of how much."""
        waits, most = (f"{size / GIB:,.0f}" for size in (self.host_bytes, self.host_limit_bytes))
        return f"{waits} GiB wait on the host of each node, which is taken to have {most} GiB (--host-memory)"

    @property
    def reason(self) -> str:
        """What does not fit; empty where all does."""
        if not self.engine_holds_a_sequence:
            return "the engine's share of memory does not hold its weights and a whole sequence"
        for name, value in self.phases:
            if value > self.device_bytes:
                return f"{name} takes {value / GIB:.1f} of {self.device_bytes / GIB:.1f} GiB"
        return "" if self.host_holds else self.host_words


@dataclass(frozen=True, kw_only=True)
class TrainingMemory:
    """Bytes of training on its busiest GPU: at its peak, of state between steps, and what is no tensor."""

    peak_bytes: float
    state_bytes: float
    """Without gradients where the framework frees them."""
    hosted_bytes: float
    """Of the optimizer, what stays on the host for good."""
    overhead_bytes: float


def training_memory(job: PostTrainingJob, placement: Placement, cut: Microbatches | None = None) -> TrainingMemory:
    """Of the policy, with the largest micro-batch or this one; the same for every placement of a training plan."""
    cut = cut or fullest(job, placement)
    plan = replace(placement.train, mbs=cut.whole, vpp=1)
    scenario = scenario_of(job, plan, job.policy, cut)
    if plan.fsdp and job.framework.fp32_shards:
        scenario = replace(scenario, numerics=replace(scenario.numerics, frozen_dtype="fp32"))
    estimate = estimate_memory(scenario, scenario.layouts([plan]), [plan.recompute])
    plans = [plan, replace(plan, offload=0.0)] if plan.offload else [plan]
    freed = ("fsdp" if plan.fsdp else "megatron") in job.framework.frees_gradients
    state = [float(np.asarray(least_state_bytes(scenario, scenario.layouts([one]), gradients=not freed))[0]) for one in plans]
    return TrainingMemory(
        peak_bytes=float(estimate.peak_bytes[0, 0]),
        state_bytes=state[0],
        hosted_bytes=(HOSTED + (0.0 if plan.fsdp else PINNED * HOSTED * (pinned_growth(job.policy, plan) - 1.0)))
        * (state[-1] - state[0]),
        overhead_bytes=float(job.gpu.memory_bytes) - float(estimate.limit_bytes[0]),
    )


def pinned_growth(model: ModelSpec, plan: TrainPlan) -> float:
    """Bytes that fp32 copies of a rank's weights take pinned, over their own: PyTorch's pinned allocator rounds each up to a
    power of two (ATen/core/CachingHostAllocator.h, PowerOf2Ceil). Of a layer's GEMMs, each expert's own."""
    kind = "moe" if model.is_moe else "dense"
    layer = layer_parameters(model, kind, plan.tp, plan.etp, plan.ep)
    experts = tuple(float(size) for size in expert_gemms(model, plan.etp).values()) if model.is_moe else ()
    sizes = [float(size) for size in layer.gemm_shapes[: len(layer.gemm_shapes) - len(experts)]]
    counted = [(size, 1.0) for size in sizes] + [(size, (model.num_moe_experts or 0) / plan.ep) for size in experts]
    own = sum(4.0 * size * times for size, times in counted)
    return sum(2.0 ** ceil(log2(4.0 * size)) * times for size, times in counted) / own


def _critic_bytes(job: PostTrainingJob, placement: Placement, trained: TrainingMemory) -> float:
    """State of a critic that shares the GPUs of training."""
    critic = job.critic if job.algorithm.critic and not placement.critic_gpus else None
    return trained.state_bytes * total_parameters(critic) / total_parameters(job.policy) if critic else 0.0


def training_bytes(job: PostTrainingJob, placement: Placement, trained: TrainingMemory) -> float:
    """Of training and all that is on its busiest GPU beside it."""
    return trained.peak_bytes + trained.overhead_bytes + _beside_training(job, placement, trained)


def _beside_training(job: PostTrainingJob, placement: Placement, trained: TrainingMemory) -> float:
    """Of a sleeping engine that shares the GPUs, and of reference, reward model and critic what is not offloaded."""
    awake = placement.memory_share * float(job.gpu.memory_bytes) if placement.engine_awake else ASLEEP_BYTES
    sleeping = awake if job.algorithm.generates and placement.colocated else 0.0
    reference = 0.0 if placement.reference_waits else _reference_bytes(job, placement)
    others = _reward_bytes(job, placement) + _critic_bytes(job, placement, trained)
    stays = 0.0 if placement.offload else reference + others
    return sleeping + stays


def own_passes(job: PostTrainingJob, placement: Placement) -> list[PassBatch]:
    """Micro-batches of passes of policy and reference that are not those of training, each once."""
    used = [placement.forward] if job.algorithm.policy_passes else []
    if job.algorithm.reference_passes and placement.reference_forward:
        used.append(placement.reference_forward)
    return [batch for batch in dict.fromkeys(used) if batch != AS_TRAINING]


def forward_bytes(job: PostTrainingJob, placement: Placement, trained: TrainingMemory) -> float:
    """Peak of the passes of policy and reference that have micro-batches of their own; 0 where every pass has the micro-batch
    of training."""
    held = []
    for batch in own_passes(job, placement):
        plan, tokens_per_gpu = pass_plan(placement, batch)
        held.append(
            pass_bytes(job, placement, trained, plan, largest_of(job, plan, job.trained, tokens_per_gpu, batch.samples))
        )
    return max(held, default=0.0)


def pass_bytes(
    job: PostTrainingJob, placement: Placement, trained: TrainingMemory, plan: TrainPlan, cut: Microbatches
) -> float:
    """Of a pass with these micro-batches, and all that is there beside it: state, what a layer holds in an inference engine
    (memory_model/serving: activation_bytes), and pass_bytes of every logit ([vocabulary])."""
    tokens, model = cut.whole * cut.seq_length / plan.cp, job.policy
    layer = activation_bytes(model, EnginePlan(tp=plan.tp), load_engine("vllm"), tokens)
    logits = section("vocabulary")["pass_bytes"] * tokens * model.vocab_size / plan.tp
    held = max(float(layer), float(logits) + 2.0 * tokens * model.hidden_size)
    waits = _reference_bytes(job, placement) if placement.offload or placement.reference_waits else 0.0
    state = max(_weight_bytes(job, placement), waits) if placement.offload else trained.state_bytes + waits
    return held + state + trained.overhead_bytes + _beside_training(job, placement, trained)


def _weight_bytes(job: PostTrainingJob, placement: Placement) -> float:
    """Weights of the policy on one GPU: what passes load where training waits on the host."""
    wide = placement.train.fsdp and job.framework.fp32_shards
    return (4.0 if wide else 2.0) * float(total_parameters(job.policy)) / _ranks(job.policy, placement.train)


def _ranks(model: ModelSpec, plan: TrainPlan) -> int:
    """GPUs that share the weights of a model; of a mixture those that share its experts, which are most of it."""
    if plan.fsdp == 3:
        return plan.world_size
    return plan.pp * (max(plan.tp, plan.ep * plan.etp) if model.is_moe else plan.tp)


def training_chance(job: PostTrainingJob, placement: Placement, trained: TrainingMemory) -> float:
    """Chance that training and passes do not run out of memory, 0 to 1, as `PhaseMemory.training_fit`; engines are not looked
    at."""
    limit, device = float(job.gpu.memory_bytes) - trained.overhead_bytes, float(job.gpu.memory_bytes)
    peak = max(training_bytes(job, placement, trained), forward_bytes(job, placement, trained))
    judged = peak + varied_bytes(device, job.algorithm.generates)
    return float(fit_probability(judged - trained.overhead_bytes, limit, device))


def phase_memory(
    job: PostTrainingJob, placement: Placement, generation: Rollout | None, trained: TrainingMemory | None = None
) -> PhaseMemory:
    """Peak of every phase on the busiest GPU; `trained`, where it is known already.

    Generation: the engine's share of the device, and beside it, where nothing is offloaded and both share GPUs, the state of
    training, the reference, a reward model and a critic. Training: the training model's peak, and where they share GPUs what a
    sleeping engine keeps, and of the others what is not offloaded. Host of one node: what is offloaded of all, for good or
    meanwhile.
    """
    trained = trained or training_memory(job, placement)
    overhead, device = trained.overhead_bytes, float(job.gpu.memory_bytes)
    reference = _reference_bytes(job, placement)
    hosted = trained.hosted_bytes + (reference if placement.reference_waits else 0.0)
    reference -= reference if placement.reference_waits else 0.0
    reference += _reward_bytes(job, placement)
    state = trained.state_bytes + _critic_bytes(job, placement, trained)
    engine = placement.memory_share * device if generation else 0.0
    stays = placement.colocated and not placement.offload
    waits = placement.colocated and placement.offload
    resident = state + reference + overhead if stays else CUDA_CONTEXT_BYTES if placement.colocated else 0.0
    weights = float(np.asarray(generation.memory.weights_bytes)) if generation and placement.colocated else 0.0
    per_node = min(job.gpus_per_node or job.gpu.gpus_per_node, placement.gpus)
    waiting = per_node * (state + reference) if waits else 0.0
    return PhaseMemory(
        generation_bytes=engine + resident,
        training_bytes=training_bytes(job, placement, trained),
        device_bytes=device,
        host_bytes=per_node * (weights + hosted) + waiting,
        host_limit_bytes=job.host_memory_bytes,
        waiting_bytes=waiting,
        engine_holds_a_sequence=generation is None or generation.fits,
        overhead_bytes=overhead,
        forward_bytes=forward_bytes(job, placement, trained),
        varied=job.algorithm.generates,
    )


def _reward_bytes(job: PostTrainingJob, placement: Placement) -> float:
    """16-bit weights of a reward model that shares the GPUs of training, on one of them or on its host; it is sharded as these
    are (OpenRLHF v0.5.9 get_ds_eval_config: ZeRO-3, else whole; verl v0.6.1 fsdp_workers.py RewardModelWorker: FSDP)."""
    if job.reward is None or placement.critic_gpus:
        return 0.0
    return 2.0 * float(total_parameters(job.reward)) / _ranks(job.reward, placement.train)


def _reference_bytes(job: PostTrainingJob, placement: Placement) -> float:
    """16-bit weights of the reference of one GPU, there or on its host."""
    if not job.algorithm.reference_passes or (job.lora_rank and job.reference is None):
        return 0.0  # the reference of adapters is the policy without them
    model = job.reference or job.policy
    return 2.0 * float(total_parameters(model)) / _ranks(model, placement.train)
