"""What a step of post-training is asked to do, and where each part of it runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from autoconfig.post_training.frameworks import Algorithm, Framework, section
from autoconfig.post_training.samples.lengths import ResponseLengths
from autoconfig.post_training.samples.rollout import ONE_TURN, Agents
from autoconfig.specs.errors import GIB, InputError, UnsupportedError
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.serve_plan import EnginePlan

RECURRENT = "recurrent layers: states in fp32, read and written for every token at 0.8 of HBM; no run of them was measured"
"""Said of hybrids."""
USUAL_HOST_BYTES: float = section("host_memory")["node_gib"] * GIB
"""Of a node's host, where nothing is said."""
LEAST_PROMPT = 512
"""Room for prompts where only their mean is known: this, or four times the mean (frameworks drop or cut longer ones)."""


def prompt_room(mean: float) -> int:
    """Tokens that a framework's cap leaves a prompt, of the mean length."""
    return max(LEAST_PROMPT, 4 * round(mean))


def require_decoder(policy: ModelSpec) -> None:
    """Raises UnsupportedError for policies that generation does not price."""
    if policy.encoder_num_layers:
        raise UnsupportedError(f"{policy.name} has an encoder: post-training prices decoders that generate; use search")


def spread_prompts(prompts: int, gpus: int) -> int:
    """So many prompts or a few more, so that their samples divide over the GPUs."""
    odd = gpus
    while odd % 2 == 0:
        odd //= 2
    return -(-prompts // odd) * odd


LEAST_TOKENS = 1024
"""From here on the size of a micro-batch is a number of tokens, below one of samples."""


@dataclass(frozen=True, kw_only=True)
class PostTrainingJob:
    """One step: `prompts` x `group` samples are generated, scored, and trained on in mini-batches."""

    policy: ModelSpec
    logprob_micro_batch: int = 0
    """Of the policy's forward passes: samples, or from LEAST_TOKENS on tokens of one GPU; 0: that of training."""
    checkpoint: str = ""
    """Folder or hub's id that the caller gave as the policy; empty: a name of the catalogue, or neither."""
    algorithm: Algorithm
    framework: Framework
    gpu: GpuSpec
    prompts: int
    group: int = 1
    """Responses of one prompt."""
    prompt_tokens: float
    """Mean length of a prompt."""
    responses: ResponseLengths
    minibatch: int
    """Samples of one optimizer step."""
    kept: int = 0
    """Samples that dynamic sampling keeps of those generated; 0: all."""
    longest_prompt: int = 0
    """To which prompts are padded where sequences are not packed; 0: no longer than the mean."""
    critic: ModelSpec | None = None
    reward: ModelSpec | None = None
    """A model that scores responses; None: a rule."""
    reference: ModelSpec | None = None
    """Frozen model or teacher whose log-probabilities are taken; None: the policy's size."""
    gpus_per_node: int | None = None
    host_memory_bytes: float = USUAL_HOST_BYTES
    """Of one node's host."""
    training_format: str = "bf16"
    agents: Agents = ONE_TURN
    """What a sample does between its turns; its responses are all that it generates."""
    sync_method: str = ""
    """How new weights reach engines (`[weight_sync]` of data/post_training.toml); empty: as the framework does."""
    attention_kernel: str = ""
    """Of training and passes, as tables of training name it; empty: the framework's."""
    lora_rank: int = 0
    """Of adapters that are trained in place of the policy's weights; 0: all weights are trained."""

    def __post_init__(self) -> None:
        for name in ("prompts", "group", "minibatch"):
            if not 1 <= getattr(self, name) <= 2**24:
                raise InputError(f"{name.replace('_', ' ')} {getattr(self, name)}: use 1 to {2**24:,}")

    def with_prompts(self, prompts: int) -> PostTrainingJob:
        """The job with so many prompts; one optimizer step stays one."""
        minibatch = prompts * self.group if self.minibatch == self.samples else self.minibatch
        return replace(self, prompts=prompts, minibatch=minibatch)

    @property
    def samples(self) -> int:
        """Generated in a step: prompts x group."""
        return self.prompts * self.group

    @property
    def trained(self) -> int:
        """Samples that a step is trained on."""
        return self.kept or self.samples

    @property
    def tokens(self) -> float:
        """Mean tokens of a sample, prompt, response and what tools add."""
        return self.prompt_tokens + self.responses.mean + self.agents.added_tokens

    @property
    def longest(self) -> int:
        """Tokens to which a sample is padded."""
        return max(self.longest_prompt, round(self.prompt_tokens)) + self.responses.cap + self.agents.added_tokens

    @property
    def updates(self) -> float:
        """Optimizer steps of one step."""
        return max(self.trained / self.minibatch, 1.0)


@dataclass(frozen=True, kw_only=True)
class PassBatch:
    """Micro-batch of a forward-only pass; both 0: that of training."""

    tokens_per_gpu: int = 0
    """Most tokens of a packed one on one GPU; 0: samples are padded."""
    mbs: int = 0
    """Samples of a padded one."""
    samples: int = 0
    """Samples of one that holds their tokens alone, which may then be more than `tokens_per_gpu`; 0: filled up to these."""


AS_TRAINING = PassBatch()


def plan_on(gpus: int, *, sharding: int = 0, **degrees: Any) -> TrainPlan:
    """Return the plan of training that fills these GPUs: Megatron-LM's, or with a stage of `sharding` (3 shards weights too, 2
    gradients and optimizer state) one of FSDP or ZeRO, which tensor-parallel GPUs alone have none of."""
    plan = TrainPlan(**{"tp": 1, "pp": 1, "mbs": 1, **degrees}, dp=1, dist_opt=not sharding)
    return plan.replace(dp=max(1, gpus // plan.world_size), fsdp=sharding if gpus > plan.tp else 0)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Who runs where. Colocated: training and engines share all GPUs, one after the other; else each has GPUs of its own."""

    train: TrainPlan
    """Of the policy; its GPUs are its world size."""
    engine: EnginePlan
    colocated: bool = True
    staleness: int = 0
    """Steps by which generation may be ahead of the weights: 0 synchronous, 1 one step off, more fully asynchronous."""
    critic_gpus: int = 0
    """GPUs of critic and reward model where these have their own; they then run beside the actor."""
    tokens_per_gpu: int = 0
    """Most tokens of a packed micro-batch on one GPU; 0: sequences are padded, train.mbs of them to a micro-batch."""
    samples: int = 0
    """Samples of a micro-batch that holds their tokens alone, `tokens_per_gpu` on average; 0: filled up to these."""
    forward: PassBatch = AS_TRAINING
    """Of the policy's log-probabilities, and of passes that have none of their own."""
    reference_forward: PassBatch | None = None
    """Of the reference's; None: as the policy's."""
    memory_share: float = 0.6
    """Of each GPU that an engine takes (gpu_memory_utilization)."""
    offload: bool = True
    """Weights, gradients and optimizer state of training wait on the host while the engine generates."""
    reference_waits: bool = False
    """The reference waits on the host, be training offloaded or not."""
    engine_awake: bool = False
    """Engines that share the GPUs of training keep their memory meanwhile."""
    cuda_graphs: bool = True
    continuous: bool = True
    """Continuous batching; False: static batches that wait for their longest response."""

    @property
    def gpus(self) -> int:
        """Of the whole placement."""
        train = self.train.world_size
        return (train if self.colocated else train + self.engine.gpus) + self.critic_gpus
