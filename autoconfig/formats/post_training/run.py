"""A run of post-training in words that all frameworks share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

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
    prompt_room,
    require_decoder,
)
from autoconfig.post_training.passes import PACKED
from autoconfig.post_training.samples.lengths import ResponseLengths
from autoconfig.post_training.samples.rollout import ONE_TURN, Agents
from autoconfig.specs.errors import FileError, InputError
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import hub_id, load_model, model_aliases
from autoconfig.specs.plan import NONE, Recompute, TrainPlan
from autoconfig.specs.remarks import Effect, Remark, note
from autoconfig.specs.serve_plan import EnginePlan

ASKED = "the model: a folder, or its id on the hub"
TURNS = "Planned for samples of {:d} turns: tools of {:g} s, spread {:g}, {:d} tokens, {:d} sandboxes, prefix {}"
LENGTHS = "Planned for prompts of {:.0f} and responses of {:.0f} tokens on average"
PLACEHOLDER = "CHECKPOINT"
"""Of a model that is to be given."""


@dataclass(kw_only=True)
class RlRun:
    """What a framework's file asks; lengths are caps, as files give no means."""

    framework: str
    version: str
    back_end: str
    """megatron or fsdp (PyTorch's FSDP, DTensor, DeepSpeed ZeRO-3)."""
    model: str
    """As the file names it, or of the plan."""
    algorithm: str
    """Ours, whose passes it has."""
    nodes: int
    """Of training."""
    gpus_per_node: int
    prompts: int
    group: int
    minibatch: int
    """Samples of an optimizer step."""
    prompt_cap: int
    response_cap: int
    rollout_gpus: int = 0
    """GPUs of engines alone; 0: they share those of training."""
    critic_gpus: int = 0
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    """0: as tp where there are experts (megatron.core.parallel_state.initialize_model_parallel)."""
    first: int | None = None
    last: int | None = None
    recompute: Recompute = NONE
    cpu_optimizer: float = 0.0
    offload: bool = True
    reference_waits: bool = False
    """The reference is offloaded, be training or not."""
    engine: str = "vllm"
    engine_tp: int = 1
    engine_pp: int = 1
    engine_dp: int = 1
    """Data-parallel ranks of one engine."""
    engines: int = 0
    """Number of engines; 0: as many as the GPUs hold."""
    memory_share: float = 0.5
    engine_sleeps: bool = True
    """Its memory is free while training has its GPUs."""
    graphs: bool = True
    tokens_per_gpu: int = 0
    """Of a packed micro-batch; 0: `mbs` sequences."""
    mbs: int = 1
    removes_padding: bool = False
    """A micro-batch of `mbs` sequences holds their tokens alone; else they are padded."""
    pads_to: str = ""
    """Whose longest padded sequences are as long as; empty: as the framework's release."""
    forward: PassBatch = AS_TRAINING
    """Of log-probabilities, as the file says it: `mbs` sequences hold their tokens alone where `removes_padding`."""
    reference_forward: PassBatch | None = None
    staleness: int = 0
    lora_rank: int = 0
    sharding: int = 3
    """Of back end fsdp: 3 shards weights too, 2 gradients and optimizer state."""
    compares: bool = False
    """The advantage is that over other responses of the prompt."""
    scorer: str = ""
    """A reward model on the GPUs of training, as the file names it; empty: none."""
    dynamic_sampling: bool = False
    """Prompts are sampled in rounds until enough are kept."""
    engine_mode_said: bool = True
    """Whether engines run CUDA graphs is of the file, or of a release that is known."""
    no_policy_pass: bool = False
    """The engines' own log-probabilities are those of the old policy: no pass of the trainer takes them."""
    no_reference: bool = False
    """No term asks for a reference model, which is then not loaded."""
    other_keys: tuple[str, ...] = ()
    """Keys of the file that a trainer beside the usual one takes."""
    experts: bool = False
    """Of the model of a file that is written."""
    prompt_mean: float = 0.0
    """Tokens, as a remark of our own files has them; 0: not said."""
    response_mean: float = 0.0
    agents: Agents = ONE_TURN
    """Of a file that is written, or as a remark of our own files has them."""
    many_turns: bool = False
    """The file says that samples have several turns."""
    refused: list[str] = field(default_factory=list)
    """What the framework's own checks of its configuration raise at."""
    checkpoint: str = ""
    """What a file that is written names as the model; empty: not known, and asked for."""
    notes: list[Remark] = field(default_factory=list)
    """What was assumed."""
    algorithm_word: str = ""
    """The file's for `algorithm`, where it is another."""

    @property
    def train_gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def algorithm_said(self) -> str:
        """Return the algorithm as the file names it."""
        return self.algorithm_word or self.algorithm

    @property
    def engine_gpus(self) -> int:
        return self.rollout_gpus or self.train_gpus


def map_of_framework(framework: str) -> Map:
    """Return the map of a framework's files."""
    return load_map(f"rl_{framework.replace('-', '_')}")


OF_PLAN = ("tp", "pp", "vpp", "cp", "ep", "first", "last", "recompute")
"""Fields of a run that are those of its plan of training."""
RUN_FIELDS = {one.name for one in fields(RlRun)}


def run_of_fields(plan: Mapping[str, Any], framework: str, model: str, **own: Any) -> RlRun:
    """Return the run of what a file says by its map, and of `own` fields in their place; `model`: the key that names the
    model. Raises InputError where none is named."""
    if plan.get("model") is None:
        raise InputError(f"{model} is not in the file: say --model NAME")
    fields_of_map = {name: value for name, value in plan.items() if name in RUN_FIELDS}
    usual: dict[str, Any] = {
        "graphs": not plan.get("eager", False),
        "recompute": recompute_of(plan),
        "cpu_optimizer": fraction_on_cpu(plan),
        "lora_rank": max(plan.get("lora_rank", 0), 0),
    }
    if "ep" in plan:
        usual["etp"] = plan.get("etp") or (plan["tp"] if plan["ep"] > 1 else 0)
    return RlRun(**{**fields_of_map, **usual, "framework": framework, **own})


def algorithm_of(plan: Mapping[str, Any], kl: object) -> str:
    """Return the algorithm of a file; without a KL term GRPO has DAPO's set of passes."""
    return "dapo" if plan["algorithm"] == "grpo" and not kl else str(plan["algorithm"])


def recompute_of(plan: Mapping[str, Any]) -> Recompute:
    """Return what Megatron-LM's four words of recomputation say, or a switch of it."""
    if plan.get("checkpointing"):
        return Recompute.parse("full")
    if plan.get("granularity") == "full":
        return Recompute.parse(f"full:{plan.get('recompute_method') or 'uniform'}:{plan.get('recompute_layers') or 1}")
    if plan.get("granularity") == "selective":
        return Recompute.parse("selective:" + "+".join(plan.get("recompute_modules") or ["core_attn"]))
    return NONE


def fraction_on_cpu(plan: Mapping[str, Any]) -> float:
    """Return the share of the optimizer on the host; all of it where it is there and its share is not given."""
    return min(max(plan.get("optimizer_fraction", 1.0), 0.0), 1.0) if plan.get("optimizer_on_cpu") else 0.0


def fields_of_run(run: RlRun) -> dict[str, Any]:
    """Return the words of the maps that a run says; None where one is not written."""
    recompute, alone = run.recompute, run.rollout_gpus > 0
    engine_nodes, engine_node_gpus = node_split(run.rollout_gpus, run.gpus_per_node) if alone else (None, None)
    return {
        **vars(run),
        "checkpointing": recompute != NONE,
        "granularity": None if recompute == NONE else recompute.granularity,
        "recompute_method": recompute.method,
        "recompute_layers": recompute.num_layers,
        "recompute_modules": f"[{','.join(recompute.modules)}]",
        "optimizer_on_cpu": run.cpu_optimizer > 0,
        "optimizer_fraction": f"{run.cpu_optimizer:g}",
        "memory_share": f"{run.memory_share:g}",
        "eager": not run.graphs,
        "engine_sleeps": not alone,
        "engine_nodes": engine_nodes,
        "engine_node_gpus": engine_node_gpus,
        "asynchronous": run.staleness > 0,
        "sp": run.tp > 1,
        "longest": run.prompt_cap + run.response_cap,
        "dynamic": run.tokens_per_gpu > 0,
    }


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
    if not run.etp:
        run.etp = run.tp if policy.is_moe else 1
        if run.etp > 1:
            run.notes.append(split_experts(run.tp))
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
    usual, own = section("lengths"), (run.prompt_mean, run.response_mean)
    if 0 < own[0] <= run.prompt_cap and 0 < own[1] <= run.response_cap and prompt is None and response is None:
        prompt, response = (round(length) for length in own)
        run.notes.append(note(f"prompts of {prompt:,} and responses of {response:,} tokens on average, as the file says"))
    if prompt is None:
        prompt = min(usual["prompt_tokens"], run.prompt_cap)
        run.notes.append(Remark("prompt_length", prompt, ""))
    if response is None:
        response = max(1, min(round(usual["response_share_of_cap"] * run.response_cap), usual["response_tokens_at_most"]))
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


def sample_dynamically(run: RlRun, times: float | None) -> None:
    """Note that prompts are sampled beyond those that train; `times`: as many, where the file says it."""
    more = f" {times:g} times the prompts" if times else " more prompts than train"
    why = f"responses of{more} are generated where some are dropped; those that train alone are priced"
    run.notes.append(Remark("dynamic sampling", times, why, Effect.TIME))
    run.dynamic_sampling = True


def split_experts(tp: int) -> Remark:
    """Return the note on a degree of experts that is null, for which Megatron-Core takes tp."""
    return Remark("expert_tensor_parallel_size", tp, "not given: experts are split over tp too, 1 leaves them whole")


def in_bf16(key: str) -> Remark:
    """Return the note on numbers of fewer bits than are priced."""
    return Remark(key, None, "fewer bits than the bf16 that is priced, which takes more memory and time", Effect.LESS_MEMORY)


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
    fsdp = run.back_end == "fsdp" and run.train_gpus > 1
    packed = run.tokens_per_gpu or (round(run.mbs * tokens / PACKED) if run.removes_padding else 0)
    reference = run.reference_forward
    return Placement(
        train=TrainPlan(
            **{name: getattr(run, name) for name in OF_PLAN},
            etp=run.etp or 1,
            dp=run.train_gpus // (run.tp * run.pp * run.cp),
            mbs=1 if packed else run.mbs,
            sp=run.tp > 1,
            dist_opt=run.back_end != "fsdp",
            fsdp=run.sharding if fsdp else 0,
            offload=run.cpu_optimizer,
        ),
        engine=EnginePlan(
            tp=run.engine_tp, pp=run.engine_pp, replicas=max(1, run.engine_gpus // (run.engine_tp * run.engine_pp))
        ),
        colocated=not run.rollout_gpus,
        staleness=run.staleness,
        critic_gpus=run.critic_gpus,
        tokens_per_gpu=max(packed, round(tokens)) if packed else 0,
        samples=run.mbs if packed and not run.tokens_per_gpu else 0,
        forward=_packed(run.forward, run, tokens),
        reference_forward=None if reference is None else _packed(reference, run, tokens),
        memory_share=run.memory_share,
        offload=run.offload and not run.rollout_gpus,
        reference_waits=run.reference_waits,
        engine_awake=not (run.engine_sleeps or run.rollout_gpus or run.engine == "hf"),
        cuda_graphs=run.graphs,
        continuous=run.engine != "hf",
    )


def _packed(batch: PassBatch, run: RlRun, tokens: float) -> PassBatch:
    """Return the micro-batch as it is priced: packed where samples lose their padding."""
    if batch.mbs and run.removes_padding and not batch.tokens_per_gpu:
        batch = PassBatch(tokens_per_gpu=round(batch.mbs * tokens / PACKED), samples=batch.mbs)
    return replace(batch, tokens_per_gpu=max(batch.tokens_per_gpu, round(tokens))) if batch.tokens_per_gpu else batch


def checkpoint_of(job: PostTrainingJob) -> str:
    """Return the folder or hub's id of the policy; empty where neither the caller nor the catalogue says it."""
    return job.checkpoint or ("" if job.policy.model_type else hub_id(job.policy.name))


def run_of(job: PostTrainingJob, placement: Placement, version: str) -> RlRun:
    """Return the run of a planned placement."""
    plan, engine, node = placement.train, placement.engine, job.gpus_per_node or job.gpu.gpus_per_node
    gpus = plan.world_size
    nodes, each = (gpus // node, node) if gpus % node == 0 else (1, gpus)
    return RlRun(
        framework=job.framework.name,
        version=version,
        back_end="fsdp" if plan.fsdp or not plan.dist_opt else "megatron",
        model=job.policy.name,
        checkpoint=checkpoint_of(job),
        experts=job.policy.is_moe,
        algorithm=job.algorithm.name,
        nodes=nodes,
        gpus_per_node=each,
        prompts=job.prompts,
        group=job.group,
        minibatch=job.minibatch,
        prompt_cap=job.longest_prompt or prompt_room(job.prompt_tokens),
        response_cap=job.responses.cap,
        rollout_gpus=0 if placement.colocated else engine.gpus,
        critic_gpus=placement.critic_gpus,
        **{name: getattr(plan, name) for name in (*OF_PLAN, "etp", "mbs")},
        cpu_optimizer=plan.offload,
        offload=placement.offload,
        engine_tp=engine.tp,
        engine_pp=engine.pp,
        engines=engine.replicas,
        memory_share=placement.memory_share,
        graphs=placement.cuda_graphs,
        tokens_per_gpu=placement.tokens_per_gpu,
        staleness=placement.staleness,
        lora_rank=job.lora_rank,
        agents=job.agents,
    )


def lengths_line(job: PostTrainingJob) -> str:
    """Return the remark of a file that is written: the mean lengths that its seconds are of, and what samples do between
    turns, which no framework has a key for."""
    a = job.agents
    turns = [a.turns, a.tool_seconds, a.tool_spread, a.tool_tokens, a.sandboxes, "kept" if a.keeps_prefix else "dropped"]
    between = f"\n# {TURNS.format(*turns)}" if a.turns > 1 else ""
    return f"# {LENGTHS.format(job.prompt_tokens, job.responses.mean)}{between}"


def said_agents(text: str) -> Agents:
    """Return what samples do between turns in a file with that remark; of others one turn."""
    number = r"(\d{1,7}(?:\.\d{1,6})?)"
    wanted = TURNS.replace("{:d}", r"(\d{1,7})").replace("{:g}", number).replace("{}", "(kept|dropped)")
    match = re.search(f"^# {wanted}$", "\n".join(text.splitlines()[:8]), re.MULTILINE)
    if match is None:
        return ONE_TURN
    turns, seconds, spread, tokens, boxes, prefix = match.groups()
    return Agents(
        turns=int(turns),
        tool_seconds=float(seconds),
        tool_spread=float(spread),
        tool_tokens=int(tokens),
        sandboxes=int(boxes),
        keeps_prefix=prefix == "kept",
    )


def said_lengths(text: str) -> tuple[float, float]:
    """Return (mean prompt, mean response) in tokens of a file with that remark; zeros of others."""
    head = "\n".join(text.splitlines()[:8])
    match = re.search("^# " + LENGTHS.replace("{:.0f}", r"(\d{1,7})") + "$", head, re.MULTILINE)
    return (float(match[1]), float(match[2])) if match else (0.0, 0.0)


def model_line(run: RlRun) -> str:
    """Return the line of a script that sets MODEL, which the caller may set."""
    return f'MODEL="${{MODEL:-{run.checkpoint}}}"' if run.checkpoint else f'MODEL="${{MODEL:?give {ASKED}}}"'


def node_split(gpus: int, per_node: int) -> tuple[int, int]:
    """Return (nodes, GPUs of each)."""
    return (gpus // per_node, per_node) if gpus % per_node == 0 else (1, gpus)
