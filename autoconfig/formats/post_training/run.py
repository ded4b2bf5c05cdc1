"""A run of post-training in words that all frameworks share, and what of it cannot run whatever a parser lets through."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from autoconfig.formats.tree import NotKnown
from autoconfig.planning.resolve import read_model
from autoconfig.post_training.frameworks import load_algorithm, load_framework, section
from autoconfig.post_training.job import RECURRENT, Placement, PostTrainingJob, prompt_room, require_decoder
from autoconfig.post_training.lengths import ResponseLengths
from autoconfig.post_training.passes import PACKED, microbatches, priced, scenario_of
from autoconfig.specs.errors import AutoconfigError, FileError
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import hub_id, load_model, model_aliases
from autoconfig.specs.plan import NONE, Recompute, TrainPlan
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.training.plan_rules import broken_rules
from autoconfig.training.rules import RULES

ASKED = "the model: a folder, or its id on the hub"
PLACEHOLDER = "CHECKPOINT"
"""Of a model that is to be given."""
OF_MEGATRON_ATTENTION = "NV054"
"""Rule on the attention of context parallelism: sharded trainers bring their own (ring_flash_attn of OpenRLHF, Ulysses)."""
ENGINES = ("vllm", "sglang", "trtllm", "hf", "megatron")


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
    graphs: bool = True
    tokens_per_gpu: int = 0
    """Of a packed micro-batch; 0: `mbs` sequences."""
    mbs: int = 1
    removes_padding: bool = False
    """A micro-batch of `mbs` sequences holds their tokens alone; else they are padded."""
    staleness: int = 0
    lora_rank: int = 0
    compares: bool = False
    """The advantage is that over other responses of the prompt."""
    no_reference: bool = False
    """No term asks for a reference model, which is then not loaded."""
    other_keys: tuple[str, ...] = ()
    """Keys of the file that a trainer beside the usual one takes."""
    checkpoint: str = ""
    """What a file that is written names as the model; empty: not known, and asked for."""
    notes: list[str] = field(default_factory=list)
    """What was assumed."""

    @property
    def train_gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def engine_gpus(self) -> int:
        return self.rollout_gpus or self.train_gpus


def broken(run: RlRun) -> list[str]:
    """What cannot run, before any model is looked at: each with what was given and what is allowed."""
    found, samples = [], run.prompts * run.group
    size, ranks = run.engine_tp * run.engine_pp * run.engine_dp, run.tp * run.pp * run.cp
    if not 0.0 < run.memory_share < 1.0:
        found.append(f"the engine's share of memory is {run.memory_share:g}: use a share above 0 and below 1")
    if run.engine not in ENGINES:
        found.append(f"the engine {run.engine[:40]!r} does not exist: use {', '.join(ENGINES[:3])}")
    if run.engine_gpus % size:
        found.append(f"an engine takes {size} GPUs, and {run.engine_gpus} do not hold whole ones: use a divisor of them")
    elif run.engine_dp > 1 and run.gpus_per_node % run.engine_tp:
        found.append(f"engines of {run.engine_dp} data-parallel ranks: tp {run.engine_tp} does not divide a node's GPUs")
    elif run.engines and run.engines * size != run.engine_gpus:
        found.append(f"{run.engines} engines of {size} GPUs take {run.engines * size}, and generation has {run.engine_gpus}")
    if run.train_gpus % ranks:
        found.append(f"tp x pp x cp is {ranks}, which does not divide {run.train_gpus} GPUs of training")
    if run.minibatch > samples:
        found.append(f"the mini-batch of {run.minibatch:,} samples is above the {samples:,} samples of a step")
    elif samples % run.minibatch:
        found.append(f"the mini-batch of {run.minibatch:,} samples does not divide the {samples:,} samples of a step")
    elif run.train_gpus % ranks == 0 and run.minibatch % (run.train_gpus // ranks):
        dp = run.train_gpus // ranks
        found.append(f"the mini-batch of {run.minibatch:,} samples does not divide over {dp} data-parallel ranks")
    elif run.framework == "verl" and not run.tokens_per_gpu and run.minibatch * ranks // run.train_gpus % run.mbs:
        each = run.minibatch * ranks // run.train_gpus  # verl/workers/engine/utils.py of 0.9.1 asserts it
        found.append(f"micro-batches of {run.mbs} samples do not divide the {each:,} of a rank's mini-batch: use a divisor")
    longest = run.prompt_cap + run.response_cap
    if run.framework in ("verl", "nemo-rl") and 0 < run.tokens_per_gpu * run.cp < longest:
        found.append(
            f"a packed micro-batch holds {run.tokens_per_gpu * run.cp:,} tokens, and the longest sample takes {longest:,}: "
            f"use {-(-longest // run.cp):,} or more on a GPU"
        )
    if run.group < 2 and run.compares:
        found.append(f"{run.algorithm} compares responses of one prompt, and there is {run.group}: use a group of 2 or more")
    return found


def broken_of_model(run: RlRun, job: PostTrainingJob, placement: Placement) -> list[str]:
    """What of the plans the model does not allow: rules of Megatron-LM and of engines."""
    model, plan = job.policy, placement.train
    cut = microbatches(job, plan, job.trained / job.updates, placement.tokens_per_gpu)
    ready = priced(cut, plan)
    try:
        scenario = scenario_of(job, ready, model, cut)
        batch = cut.whole * cut.count * plan.dp
        rules = set(broken_rules(scenario, [ready], [plan.world_size], [batch])[0])
    except AutoconfigError as error:
        return [str(error)]
    if plan.fsdp:
        rules -= {OF_MEGATRON_ATTENTION}
    found = [f"training plan {plan}: {rule.text}" for rule in RULES if rule.id in rules]
    if plan.pp > 1 and plan.first is None and plan.last is None and model.num_layers % plan.pp:
        found = [text for text in found if "layers" not in text]
        found.append(f"{model.num_layers} layers do not divide over {plan.pp} pipeline stages")
    if job.algorithm.generates and model.num_attention_heads % placement.engine.tp:
        found.append(f"engines of tp {placement.engine.tp}: it does not divide {model.num_attention_heads} attention heads")
    return found


def job_of(
    run: RlRun,
    gpu: GpuSpec,
    prompt: int | None,
    response: int | None,
    like: str | None = None,
    *,
    download: bool = False,
) -> PostTrainingJob:
    """The job; mean lengths that are not given are assumed and noted. Raises InputError for unknown names and odd lengths."""
    policy, notes = _policy(run.model, like, download)
    run.notes += notes
    require_decoder(policy)
    run.notes += [RECURRENT] if policy.is_hybrid else []
    algorithm, usual = load_algorithm(run.algorithm), section("lengths")
    algorithm = replace(algorithm, reference_passes=0) if run.no_reference else algorithm
    if prompt is None:
        prompt = min(usual["prompt_tokens"], run.prompt_cap)
        run.notes.append(f"prompts of {prompt:,} tokens on average")
    if response is None:
        response = max(1, min(round(usual["response_share_of_cap"] * run.response_cap), usual["response_tokens_at_most"]))
        run.notes.append(f"responses of {response:,} tokens on average")
    sigma = 1.0 if run.response_cap >= 16_384 else 0.6
    return PostTrainingJob(
        policy=policy,
        algorithm=algorithm,
        framework=load_framework(run.framework),
        gpu=gpu,
        prompts=run.prompts,
        group=run.group,
        prompt_tokens=float(prompt),
        longest_prompt=run.prompt_cap,
        responses=ResponseLengths(mean=float(response), cap=run.response_cap, sigma=sigma),
        minibatch=run.minibatch,
        critic=policy if algorithm.critic else None,
        gpus_per_node=run.gpus_per_node if run.nodes > 1 else None,
        lora_rank=run.lora_rank,
    )


def _policy(name: str, like: str | None, download: bool) -> tuple[ModelSpec, list[str]]:
    """The model, and what of it was assumed: of a folder that is on another machine, the catalogue's whose name it has."""
    try:
        return read_model(name, local_files=True, like=like, download=download)
    except FileError:
        found = named_by(name)
        if found is None or like is not None:
            raise
        return load_model(found), [f"{name[:80]} is not on this machine: read as {found}, by its name"]


def named_by(folder: str) -> str | None:
    """The catalogue's model whose name ends the path."""
    known, parts = model_aliases(), re.sub(r"[\s_-]+", "-", folder.strip().lower()).strip("/").split("/")
    ends = {alias.rpartition("/")[2]: name for alias, name in known.items()}
    return known.get("/".join(parts[-2:])) or known.get(parts[-1]) or ends.get(parts[-1])


def dynamic_sampling(times: float | None) -> str:
    """The note on prompts that are sampled beyond those that train; `times`: as many, where the file says it."""
    more = f" {times:g} times the prompts" if times else " more prompts than train"
    return f"dynamic sampling: responses of{more} are generated where some are dropped; those that train alone are priced"


def in_bf16(key: str) -> str:
    """The note on numbers of fewer bits than are priced."""
    return f"{key}: fewer bits than the bf16 that is priced, which takes more memory and time"


def reward_model(name: object) -> str:
    """The note on a reward model that the file starts, with its name as it is written there."""
    shown = name.text if isinstance(name, NotKnown) else str(name or "not named")
    return f"a reward model ({shown[:80]}): neither its memory nor its time is priced"


def placement_of(run: RlRun, tokens: float) -> Placement:
    """The placement of a run that `broken` lets through; `tokens` of a usual sample, which a micro-batch must hold."""
    dp = run.train_gpus // (run.tp * run.pp * run.cp)
    fsdp = run.back_end == "fsdp" and run.train_gpus > 1
    packed = run.tokens_per_gpu or (round(run.mbs * tokens / PACKED) if run.removes_padding else 0)
    return Placement(
        train=TrainPlan(
            tp=run.tp,
            pp=run.pp,
            vpp=run.vpp,
            cp=run.cp,
            ep=run.ep,
            etp=run.etp,
            dp=dp,
            mbs=1 if packed else run.mbs,
            sp=run.tp > 1,
            first=run.first,
            last=run.last,
            recompute=run.recompute,
            dist_opt=run.back_end != "fsdp",
            fsdp=3 if fsdp else 0,
            offload=run.cpu_optimizer,
        ),
        engine=EnginePlan(
            tp=run.engine_tp, pp=run.engine_pp, replicas=max(1, run.engine_gpus // (run.engine_tp * run.engine_pp))
        ),
        colocated=not run.rollout_gpus,
        staleness=run.staleness,
        critic_gpus=run.critic_gpus,
        tokens_per_gpu=max(packed, round(tokens)) if packed else 0,
        memory_share=run.memory_share,
        offload=run.offload and not run.rollout_gpus,
        reference_waits=run.reference_waits,
        cuda_graphs=run.graphs,
        continuous=run.engine != "hf",
    )


def checkpoint_of(job: PostTrainingJob) -> str:
    """The folder or hub's id of the policy; empty where neither the caller nor the catalogue says it."""
    return job.checkpoint or ("" if job.policy.model_type else hub_id(job.policy.name))


def run_of(job: PostTrainingJob, placement: Placement, version: str) -> RlRun:
    """The run of a planned placement."""
    plan, engine, node = placement.train, placement.engine, job.gpus_per_node or job.gpu.gpus_per_node
    gpus = plan.world_size
    nodes, each = (gpus // node, node) if gpus % node == 0 else (1, gpus)
    return RlRun(
        framework=job.framework.name,
        version=version,
        back_end="fsdp" if plan.fsdp or not plan.dist_opt else "megatron",
        model=job.policy.name,
        checkpoint=checkpoint_of(job),
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
        tp=plan.tp,
        pp=plan.pp,
        vpp=plan.vpp,
        cp=plan.cp,
        ep=plan.ep,
        etp=plan.etp,
        first=plan.first,
        last=plan.last,
        recompute=plan.recompute,
        cpu_optimizer=plan.offload,
        offload=placement.offload,
        engine_tp=engine.tp,
        engine_pp=engine.pp,
        engines=engine.replicas,
        memory_share=placement.memory_share,
        graphs=placement.cuda_graphs,
        tokens_per_gpu=placement.tokens_per_gpu,
        mbs=plan.mbs,
        staleness=placement.staleness,
        lora_rank=job.lora_rank,
    )


def model_line(run: RlRun) -> str:
    """Of a script: MODEL, which the caller may set."""
    return f'MODEL="${{MODEL:-{run.checkpoint}}}"' if run.checkpoint else f'MODEL="${{MODEL:?give {ASKED}}}"'


def model_value(run: RlRun) -> str:
    """Of a YAML file: the checkpoint, or that it is to be given."""
    return run.checkpoint or f"{PLACEHOLDER}  # give {ASKED}"


def node_split(gpus: int, per_node: int) -> tuple[int, int]:
    """(nodes, GPUs of each)."""
    return (gpus // per_node, per_node) if gpus % per_node == 0 else (1, gpus)
