"""What a file of post-training asks, in words that all frameworks share: as a run, then as a job and its placement."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from autoconfig.maps.read import Reading, holds
from autoconfig.maps.table import Map, load_map
from autoconfig.maps.tree import NotKnown
from autoconfig.planning.resolve import read_model
from autoconfig.post_training.frameworks import Algorithm, load_algorithm, load_framework, section
from autoconfig.post_training.job import (
    AS_TRAINING,
    RECURRENT,
    PassBatch,
    Placement,
    PostTrainingJob,
    plan_on,
    require_decoder,
)
from autoconfig.post_training.passes import PACKED
from autoconfig.post_training.question import usual_mean
from autoconfig.post_training.samples.lengths import ResponseLengths
from autoconfig.post_training.samples.rollout import ONE_TURN, Agents
from autoconfig.specs.errors import FileError, InputError
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model, model_aliases
from autoconfig.specs.plan import NONE, Recompute
from autoconfig.specs.remarks import Effect, Remark, note
from autoconfig.specs.serve_plan import EnginePlan

OF_PLAN = ("tp", "pp", "vpp", "cp", "ep", "mbs", "first", "last")
"""Words of the maps that are fields of a plan of training."""


@dataclass(kw_only=True)
class RlRun:
    """What a framework's file asks of a job, where its parts run, and facts that decide whether it can."""

    framework: str
    version: str
    back_end: str
    """megatron or fsdp (PyTorch's FSDP, DTensor, DeepSpeed ZeRO-3)."""
    model: str
    """As the file names it."""
    algorithm: str
    """Ours, whose passes it has."""
    algorithm_said: str
    """The file's word for it, where it is another."""
    prompts: int
    group: int
    minibatch: int
    """Samples of an optimizer step."""
    prompt_cap: int
    """Most tokens, as files give no means."""
    response_cap: int
    means: tuple[float, float] | None = None
    """Tokens of a prompt and a response, as a remark of our own files has them."""
    agents: Agents = ONE_TURN
    """As a remark of our own files has them."""
    many_turns: bool = False
    """The file says that samples have several turns."""
    lora_rank: int = 0
    scorer: str | None = None
    """A reward model on the GPUs of training, as the file names it."""
    dynamic_sampling: bool = False
    """Prompts are sampled in rounds until enough are kept."""
    no_policy_pass: bool = False
    """The engines' own log-probabilities are those of the old policy: no pass of the trainer takes them."""
    no_reference: bool = False
    """No term asks for a reference model, which is then not loaded."""
    compares: bool = False
    """The advantage is that over other responses of the prompt."""
    pads_to: str | None = None
    """Whose longest padded sequences are as long as; None: as the framework's release."""
    placement: Placement
    """Micro-batches are as the file says them, and experts whole on a GPU where `etp` is not known."""
    etp: int | None
    """None: as tp where there are experts (megatron.core.parallel_state.initialize_model_parallel)."""
    nodes: int
    """Of training."""
    gpus_per_node: int
    removes_padding: bool = False
    """A micro-batch of so many sequences holds their tokens alone; else they are padded."""
    engine: str
    engine_gpus: int
    """On which engines run, their own or those of training."""
    engine_dp: int = 1
    """Data-parallel ranks of one engine."""
    engines: int | None = None
    """Number of engines; None: as many as the GPUs hold."""
    engine_mode_said: bool = True
    """Whether engines run CUDA graphs is of the file, or of a release that is known."""
    other_keys: tuple[str, ...] = ()
    """Keys of the file that a trainer beside the usual one takes."""
    refused: list[str] = field(default_factory=list)
    """What the framework's own checks of its configuration raise at."""
    notes: list[Remark] = field(default_factory=list)
    """What was assumed."""

    @property
    def train_gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def gpus(self) -> int:
        """Return the GPUs of all."""
        own = 0 if self.placement.colocated else self.engine_gpus
        return self.train_gpus + own + self.placement.critic_gpus


def map_of_framework(framework: str) -> Map:
    """Return the map of a framework's files."""
    return load_map(f"rl_{framework.replace('-', '_')}")


OF_RUN = {one.name for one in fields(RlRun)} - {"placement", "engines", "etp"}


def run_of_fields(framework: str, reading: Reading) -> RlRun:
    """Return the run of what a file says by its map, with what the framework's reader works out beside: `rollout_gpus`, where
    engines have their own, `staleness`, and what else a map has no key for. Raises InputError where none is named."""
    plan, algorithm = reading.fields, algorithm_of(reading.fields)
    more = map_of_framework(framework).more
    if "model" not in plan:
        raise InputError(f"{more.get('model', reading.table.entry('model').keys[0])} is not in the file: say --model NAME")
    usual = {
        "version": more.get("version"),
        "algorithm_said": plan.get("estimator", "grpo") if algorithm == "dapo" else algorithm,
        "engine": "vllm",
        "engine_gpus": plan.get("rollout_gpus") or plan["nodes"] * plan["gpus_per_node"],
    }
    said = {name: value for name, value in plan.items() if name in OF_RUN}
    own = {"framework": framework, "algorithm": algorithm, "lora_rank": max(plan.get("lora_rank", 0), 0)}
    run = RlRun(
        **{**usual, **said, **own},
        placement=_placed(plan),
        etp=plan.get("etp") if plan["back_end"] == "megatron" else 1,
        engines=plan.get("engines") or None,
        refused=[rule["says"] for rule in reading.table.more.get("broken", ()) if holds(rule["when"], plan)],
        notes=reading.not_modelled,
    )
    if run.etp is None and run.placement.train.ep > 1:
        _split_experts(run, experts=True)
    if plan.get("filters"):
        _sample_dynamically(run, plan.get("more_times") or plan.get("more_prompts", 0) / run.prompts)
    return run


def algorithm_of(plan: Mapping[str, Any]) -> str:
    """Return the algorithm of a file; without a KL term GRPO has DAPO's set of passes."""
    return "dapo" if plan["algorithm"] == "grpo" and not (plan["kl"] or plan.get("kl_reward")) else str(plan["algorithm"])


def drops_reference(plan: Mapping[str, Any]) -> bool:
    """Return whether no term asks for a reference model, which verl and slime then do not load."""
    return not (plan["kl"] or plan["kl_reward"]) and plan["algorithm"] in ("ppo", "rloo")


def _split_experts(run: RlRun, experts: bool) -> None:
    """Split experts over tp, as Megatron-Core does where a file does not say."""
    run.etp = run.placement.train.tp if experts else 1
    why = "not given: experts are split over tp too, 1 leaves them whole"
    run.notes += [Remark("expert_tensor_parallel_size", run.etp, why)] if run.etp > 1 else []


def _placed(plan: Mapping[str, Any]) -> Placement:
    """Return the placement that the words of a file say."""
    gpus, rollout = plan["nodes"] * plan["gpus_per_node"], plan.get("rollout_gpus", 0)
    engine = EnginePlan(tp=plan["engine_tp"], pp=plan.get("engine_pp", 1))
    train = plan_on(
        gpus,
        sharding=plan.get("sharding", 3) if plan["back_end"] == "fsdp" else 0,
        **{name: plan[name] for name in OF_PLAN if plan.get(name)},
        etp=plan.get("etp") or 1,
        sp=plan.get("tp", 1) > 1,
        recompute=_recompute_of(plan),
        offload=min(max(plan.get("optimizer_fraction", 1.0), 0.0), 1.0) if plan.get("optimizer_on_cpu") else 0.0,
    )
    generates = plan.get("engine") == "hf"
    return Placement(
        train=train,
        engine=replace(engine, replicas=max(1, (rollout or gpus) // engine.gpus)),
        colocated=not rollout,
        staleness=plan.get("staleness", 0),
        critic_gpus=plan.get("critic_gpus", 0),
        tokens_per_gpu=plan.get("tokens_per_gpu", 0),
        forward=plan.get("forward", AS_TRAINING),
        reference_forward=plan.get("reference_forward"),
        memory_share=plan["memory_share"],
        offload=plan.get("offload", True) and not rollout,
        reference_waits=plan.get("reference_waits", False),
        engine_awake=not (plan.get("engine_sleeps", True) or rollout or generates),
        cuda_graphs=not plan.get("eager", False),
        continuous=not generates,
    )


def pass_of(plan: Mapping[str, Any], name: str) -> PassBatch:
    """Return the micro-batch of a pass of log-probabilities: `forward`, or `reference`."""
    if plan.get(f"{name}_dynamic", plan["dynamic"]):
        return PassBatch(tokens_per_gpu=plan[f"{name}_tokens"])
    return PassBatch(mbs=plan.get(f"{name}_samples", 0))


def _recompute_of(plan: Mapping[str, Any]) -> Recompute:
    """Return what Megatron-LM's four words of recomputation say, or a switch of it."""
    if plan.get("checkpointing"):
        return Recompute.parse("full")
    if plan.get("granularity") == "full":
        return Recompute.parse(f"full:{plan.get('recompute_method') or 'uniform'}:{plan.get('recompute_layers') or 1}")
    if plan.get("granularity") == "selective":
        return Recompute.parse("selective:" + "+".join(plan.get("recompute_modules") or ["core_attn"]))
    return NONE


def job_of(
    run: RlRun,
    gpu: GpuSpec,
    prompt: int | None,
    response: int | None,
    like: str | None = None,
    *,
    download: bool = False,
) -> PostTrainingJob:
    """Return the job; mean lengths that are not given are assumed and noted. Raises InputError for unknown names and odd
    lengths."""
    policy, remarks = _policy(run.model, like, download)
    run.notes += remarks
    require_decoder(policy)
    if run.etp is None:
        _split_experts(run, policy.is_moe)
    run.notes += [note(RECURRENT)] if policy.is_hybrid else []
    algorithm = _passes_of(run)
    prompt, response = _mean_lengths(run, prompt, response)
    cap = max(run.response_cap - run.agents.added_tokens, response)  # what tools add is part of a file's response
    framework = load_framework(run.framework)
    framework = replace(framework, pads_to=run.pads_to or framework.padded_to(run.version, run.back_end))
    return PostTrainingJob(
        policy=policy,
        algorithm=algorithm,
        framework=framework,
        gpu=gpu,
        prompts=run.prompts,
        group=run.group,
        prompt_tokens=float(prompt),
        longest_prompt=run.prompt_cap,
        responses=ResponseLengths.around(response, cap),
        agents=run.agents,
        minibatch=run.minibatch,
        critic=policy if algorithm.critic else None,
        reward=_scorer(run.scorer, policy) if run.scorer else None,
        gpus_per_node=run.gpus_per_node if run.nodes > 1 else None,
        lora_rank=run.lora_rank,
    )


def _passes_of(run: RlRun) -> Algorithm:
    """Return the run's algorithm with the passes and the rounds of sampling that it has."""
    algorithm, dapo = load_algorithm(run.algorithm), load_algorithm("dapo")
    return replace(
        algorithm,
        reference_passes=0 if run.no_reference else algorithm.reference_passes,
        policy_passes=0 if run.no_policy_pass else algorithm.policy_passes,
        rounds_spread=dapo.rounds_spread if run.dynamic_sampling else 0.0,
    )


def _mean_lengths(run: RlRun, prompt: int | None, response: int | None) -> tuple[int, int]:
    """Return the mean tokens of (a prompt, a response): as they are given, as the file says, else assumed and noted."""
    usual, means = section("lengths"), run.means if prompt is None and response is None else None
    if means and 0 < means[0] <= run.prompt_cap and 0 < means[1] <= run.response_cap:
        prompt, response = (round(length) for length in means)
        run.notes.append(note(f"prompts of {prompt:,} and responses of {response:,} tokens on average, as the file says"))
    if prompt is None:
        prompt = min(usual["prompt_tokens"], run.prompt_cap)
        run.notes.append(Remark("prompt_length", prompt, ""))
    if response is None:
        response = max(1, round(usual_mean(run.response_cap)))
        run.notes.append(Remark("response_length", response, ""))
    return prompt, response


def _policy(name: str, like: str | None, download: bool) -> tuple[ModelSpec, list[Remark]]:
    """Return the model, and what of it was assumed: of a folder that is on another machine, the catalogue's whose name it
    has."""
    try:
        return read_model(name, local_files=True, like=like, download=download)
    except FileError:
        alike = named_by(name)
        if alike is None or like is not None:
            raise
        why = f"as {name[:80]}, which is not on this machine, ends"
        return load_model(alike), [Remark("model", alike, why, Effect.EVERYTHING)]


def _scorer(name: str, policy: ModelSpec) -> ModelSpec:
    """Return the reward model of this name; the policy where the catalogue does not know it."""
    scorer = named_by(name)
    return load_model(scorer) if scorer else policy


def named_by(folder: str) -> str | None:
    """Return the catalogue's model whose name ends the path."""
    names, parts = model_aliases(), re.sub(r"[\s_-]+", "-", folder.strip().lower()).strip("/").split("/")
    ends = {alias.rpartition("/")[2]: name for alias, name in names.items()}
    return names.get("/".join(parts[-2:])) or names.get(parts[-1]) or ends.get(parts[-1])


def _sample_dynamically(run: RlRun, times: float) -> None:
    """Note that prompts are sampled beyond those that train; `times`: as many, where that is above 1."""
    more = f" {times:g} times the prompts" if times > 1 else " more prompts than train"
    why = f"responses of{more} are generated where some are dropped; those that train alone are priced"
    run.notes.append(Remark("dynamic sampling", times if times > 1 else None, why, Effect.TIME))
    run.dynamic_sampling = True


def score_by(run: RlRun, name: object, gpus: int = 0, *, beside: bool = False) -> None:
    """Note a reward model that the file starts, with its name as it is written there; `gpus`: of its own; `beside`: on the GPUs
    of training, where it is priced."""
    shown = name.text if isinstance(name, NotKnown) else str(name or "not named")
    if beside:
        run.scorer = shown
        size = "" if named_by(shown) else ", at the size of the policy"
        run.notes.append(
            note(f"a reward model ({shown[:80]}) on the GPUs of training: its weights and a pass are priced{size}")
        )
        return
    own = f" on {gpus} GPUs of its own, which are not counted" if gpus else ""
    why = f"a reward model ({shown[:80]}){own}: neither its memory nor its time is priced"
    run.notes.append(note(why, Effect.MORE_MEMORY))


def placement_of(run: RlRun, tokens: float) -> Placement:
    """Return the placement of a run that `broken` lets through; `tokens` of a usual sample, which a micro-batch must hold."""
    said, plan, reference = run.placement, run.placement.train, run.placement.reference_forward
    packed = said.tokens_per_gpu or (round(plan.mbs * tokens / PACKED) if run.removes_padding else 0)
    return replace(
        said,
        train=plan.replace(mbs=1 if packed else plan.mbs, etp=run.etp or 1),
        tokens_per_gpu=max(packed, round(tokens)) if packed else 0,
        samples=plan.mbs if packed and not said.tokens_per_gpu else 0,
        forward=_packed(said.forward, run, tokens),
        reference_forward=None if reference is None else _packed(reference, run, tokens),
    )


def _packed(batch: PassBatch, run: RlRun, tokens: float) -> PassBatch:
    """Return the micro-batch as it is priced: packed where samples lose their padding."""
    if batch.mbs and run.removes_padding and not batch.tokens_per_gpu:
        batch = PassBatch(tokens_per_gpu=round(batch.mbs * tokens / PACKED), samples=batch.mbs)
    return replace(batch, tokens_per_gpu=max(batch.tokens_per_gpu, round(tokens))) if batch.tokens_per_gpu else batch
