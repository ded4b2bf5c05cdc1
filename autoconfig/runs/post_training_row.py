"""One row of a table of post-training runs as a job and a placement; measured columns, `kind` and `notes` are never read."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil, log2

from autoconfig.memory_model.serving import weights_bytes
from autoconfig.planning.resolve import DEFAULT_GPU
from autoconfig.post_training.frameworks import OTHER_FRAMEWORK, Framework, load_algorithm, load_framework, section
from autoconfig.post_training.generation import share_that_holds
from autoconfig.post_training.job import LEAST_TOKENS, PassBatch, Placement, PostTrainingJob
from autoconfig.post_training.passes import PACKED, USUAL_LORA_RANK, asked_batch, stage_ends
from autoconfig.post_training.samples.lengths import ResponseLengths
from autoconfig.post_training.weight_sync import load_method
from autoconfig.runs.post_training_model import read_policy
from autoconfig.runs.table import WORDS, Row, cell, number
from autoconfig.specs.errors import InputError, UnknownNameError, UnsupportedError
from autoconfig.specs.hardware.cluster import GpuSpec, load_gpu
from autoconfig.specs.layouts import divisors
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.plan import NONE, Recompute, TrainPlan
from autoconfig.specs.remarks import Remark, note
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import module_formats

SECONDS = ("step", "gen", "logprob", "ref", "values", "reward", "train_actor", "train_critic", "train", "weight_sync")
RATES = ("tokens_per_s", "tokens_per_s_per_gpu", "samples_per_s", "mfu", "peak_mem_gb")
NEVER_READ = frozenset({*(f"{name}_s" for name in SECONDS), *RATES, "id", "source", "source_ref", "kind", "notes"})
NOTHING = ("n/a", "na", "nan", "?", "-", "null", "unknown")
"""Cells that say nothing."""
THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")
TOKENS = LEAST_TOKENS
"""A micro-batch of at least so many is one of tokens (verl's ppo_max_token_len_per_gpu), else of sequences."""
USUAL_TOKENS_PER_GPU = 8192
GRADIENT_STATE_BYTES = 6.0
"""16-bit weights and fp32 gradients of a parameter on every data-parallel rank; 12 bytes of optimizer state are shared."""

FULL = Recompute.parse("full")
EAGER_ENGINES = ("hf", "megatron")
"""Training modules that generate: no CUDA graphs."""


@dataclass(frozen=True, kw_only=True)
class PostTrainingCase:
    """What a row asks."""

    job: PostTrainingJob
    placement: Placement
    assumed: tuple[Remark, ...] = field(default=())
    missing: frozenset[str] = frozenset()
    """Of model, gpu, batch and lengths, what the row does not say: its prediction is a guess there."""
    recompute_assumed: bool = False
    """Recomputation is not said: all of it is as good a guess."""
    offload_assumed: bool = False
    """Whether the optimizer's state is on the host is not said."""
    engine_assumed: bool = False
    """The engines' plan is not said."""
    tokens_assumed: bool = False
    """The size of a micro-batch is not said: one that fits is as good a guess as the usual one."""


class _RunRow:
    """A row, and what had to be assumed of it."""

    def __init__(self, row: Row) -> None:
        self.row = {key: text for key, text in row.items() if key not in NEVER_READ}
        self.assumed: list[Remark] = []
        self.missing: set[str] = set()

    def text(self, name: str) -> str:
        """Empty for a word that says that nothing is known; `none` is an answer of some columns."""
        found = cell(self.row, name)
        return "" if found.lower() in NOTHING else found

    def count(self, name: str) -> int | None:
        value = self.positive(name)
        return max(1, round(value)) if value is not None else None

    def positive(self, name: str) -> float | None:
        """A number above 0, thousands with commas or without; None for another or for none."""
        text = self.text(name)
        if text.lower() in ("", "none"):
            return None
        value = number({name: text.replace(",", "") if THOUSANDS.fullmatch(text) else text}, name)
        return value if value is not None and value > 0 else None

    def assume(self, text: str, missing: str = "") -> None:
        self.assumed.append(note(text))
        self.missing |= {missing} if missing else set()


def read_case(row: Row) -> PostTrainingCase:
    """The case of a row. Raises InputError where it names no policy model or no number of GPUs, CellError for odd numbers."""
    r = _RunRow(row)
    if not r.text("policy_model"):
        raise InputError("cell policy_model is empty")
    policy = _model(r, "policy_model", "model")
    framework = _framework(r)
    gpu = _gpu(r)
    job = _job(r, policy, framework, gpu)
    placement = _placement(r, job)
    return PostTrainingCase(
        job=job,
        placement=placement,
        assumed=tuple(r.assumed),
        missing=frozenset(r.missing),
        tokens_assumed=r.count("micro_batch") is None,
        recompute_assumed=not r.text("recompute"),
        offload_assumed=not r.text("offload"),
        engine_assumed=not r.text("rollout_plan"),
    )


def _framework(r: _RunRow) -> Framework:
    try:
        return load_framework(r.text("framework"))
    except UnknownNameError:
        r.assume(f"framework {r.text('framework')[:40] or '(none)'} priced as other")
        return load_framework(OTHER_FRAMEWORK)


def _gpu(r: _RunRow) -> GpuSpec:
    """The first GPU of a cell that is known (`H100/H800`). Raises UnknownNameError."""
    text = r.text("gpu")
    if not text:
        r.assume(f"gpu {DEFAULT_GPU}", "gpu")
    for name in text.split("/"):
        with suppress(UnknownNameError, UnsupportedError):
            return load_gpu(name or DEFAULT_GPU)
    return load_gpu(text)


def _job(r: _RunRow, policy: ModelSpec, framework: Framework, gpu: GpuSpec) -> PostTrainingJob:
    try:
        algorithm = load_algorithm(r.text("algorithm"))
    except UnknownNameError:
        algorithm = load_algorithm("grpo")
        r.assume("algorithm grpo")
    prompts, group, kept = _batch(r, framework)
    prompt, responses = _lengths(r, framework.total_tokens, algorithm.response_tokens)
    minibatch = r.count("train_batch")
    if minibatch is None:
        minibatch = kept or prompts * group
        r.assume("one optimizer step")
    elif framework.minibatch_in_prompts:
        minibatch *= group
    return PostTrainingJob(
        policy=policy,
        algorithm=algorithm,
        framework=framework,
        gpu=gpu,
        prompts=prompts,
        group=group,
        prompt_tokens=prompt,
        responses=responses,
        minibatch=min(minibatch, kept or prompts * group),
        kept=kept,
        longest_prompt=r.count("prompt_len_max") or 0,
        critic=_other_model(r, "critic_model", policy) if algorithm.critic else None,
        reward=_other_model(r, "reward_model", policy),
        reference=_other_model(r, "ref_model", policy),
        lora_rank=_adapters(r),
        attention_kernel=_attention_kernel(r),
        sync_method=_sync_method(r),
        training_format="fp8" if r.text("precision_train").lower() == "fp8" else "bf16",
    )


def _sync_method(r: _RunRow) -> str:
    """How new weights reach engines; empty: as the framework does. Raises InputError for a method that is not known."""
    name = r.text("sync_method")
    if name:
        load_method(name)
    return name


def _attention_kernel(r: _RunRow) -> str:
    """The kernel of the row. Raises InputError for one that no table knows."""
    kernel = r.text("attention_kernel")
    known = WORDS["attention_kernel"][0]
    if kernel and kernel not in known:
        raise InputError(f"attention_kernel {kernel[:40]!r}: use {', '.join(known)}")
    return kernel


def _adapters(r: _RunRow) -> int:
    """Rank of the adapters: the plan's (`lora=16`), or the usual where the algorithm names LoRA (`GRPO-LoRA`); 0: none."""
    if said := _degrees(r.text("train_plan")).get("lora"):
        return said
    if "lora" not in r.text("algorithm").lower():
        return 0
    r.assume(f"adapters of rank {USUAL_LORA_RANK}")
    return USUAL_LORA_RANK


def _model(r: _RunRow, column: str, missing: str = "") -> ModelSpec:
    """The model that a cell names; where only its size is known, `missing` is what the row does not say. Raises
    UnknownNameError."""
    name = r.text(column)
    model, likeness = read_policy(name)
    if likeness == "of this shape":
        r.assume(f"{column} {name[:60]} priced as {model.name}")
    elif likeness == "nearest in size":
        r.assume(f"architecture of {name[:60]} not known: priced as {model.name}, nearest in size", missing)
    return model


def _other_model(r: _RunRow, column: str, policy: ModelSpec) -> ModelSpec | None:
    text = r.text(column).lower()
    if text in ("rule", "none", ""):
        return policy if column == "critic_model" else None
    return policy if text.startswith("same") else _model(r, column)


def _batch(r: _RunRow, framework: Framework) -> tuple[int, int, int]:
    """(prompts, group, samples kept of them; 0: all) of a step."""
    prompts, group, samples = r.count("prompts_per_step"), r.count("group_size"), r.count("samples_per_step")
    if group is None and prompts and samples and samples % prompts == 0:
        group = samples // prompts
    if group is None:
        usual = 1 if r.text("algorithm").lower() in ("ppo", "sft", "dpo", "rlhf (ppo)") else framework.group
        group = max(size for size in divisors(samples or usual) if size <= usual)
        r.assume(f"group {group}", "batch" if samples is None else "")
    if prompts is None and samples is None:
        prompts = framework.prompts
        r.assume(f"{prompts} prompts a step", "batch")
    if prompts is None:
        return max(1, round((samples or 1) / group)), group, 0
    return prompts, group, samples if samples and samples < prompts * group else 0


def _lengths(r: _RunRow, total_tokens: int, usual_response: int) -> tuple[float, ResponseLengths]:
    usual = section("lengths")
    prompt, most_prompt = r.positive("prompt_len_mean"), r.positive("prompt_len_max")
    if prompt is None:
        prompt = float(min(usual["prompt_tokens"], most_prompt or usual["prompt_tokens"]))
        r.assume(f"prompts of {prompt:g} tokens")
    mean, cap, whole = r.positive("response_len_mean"), r.positive("response_len_max"), r.positive("seq_len_mean")
    if mean is None and whole is not None:
        prompt = min(prompt, whole / 2.0)
        mean = whole - prompt
    if mean is None and cap is None and total_tokens:
        cap = max(total_tokens - prompt, 1.0)
        r.assume(f"prompt and response of at most {total_tokens:,} tokens together")
    if mean is None:
        mean = float(usual_response or usual["response_tokens"])
        if cap:
            mean = min(usual["response_share_of_cap"] * cap, float(usual["response_tokens_at_most"]))
        r.assume(f"responses of {mean:g} tokens", "lengths")
    if cap is None:
        cap = 2.0 ** ceil(log2(1.25 * (mean + prompt))) - prompt
        r.assume(f"responses of at most {cap:g} tokens")
    mean = max(min(mean, cap), 1.0)
    return prompt, ResponseLengths(mean=mean, cap=max(round(cap), ceil(mean)), sigma=_sigma(mean, cap))


def _sigma(mean: float, cap: float) -> float:
    """Spread by how far the cap is from the mean: 0 where all responses have the cap's length."""
    if mean >= 0.99 * cap:
        return 0.0
    return 1.0 if cap >= 16_384 else 0.6


def _placement(r: _RunRow, job: PostTrainingJob) -> Placement:
    gpus, train, rollout, critic = (r.count(n) for n in ("gpus", "gpus_train", "gpus_rollout", "gpus_critic"))
    if gpus and not train and (roles := _roles(r.text("placement"), gpus)):
        train, critic, rollout = roles["actor"], roles["critic"], roles.get("engines")
        r.assume("GPUs of " + ", ".join(f"{name} {count}" for name, count in roles.items()))
    split = bool(train and rollout)
    total = gpus or ((train or 0) + (rollout or 0) + (critic or 0))
    if not total:
        raise InputError("cell gpus is empty")
    own = train if train and (split or critic) else total
    plan = train_plan(r, job, own)
    engine = engine_plan(r, job, rollout if split and rollout else own)
    staleness, engine_name = _staleness(r.text("sync_mode")), r.text("rollout_engine").lower()
    tokens, forward = _micro_tokens(r, job)
    logprobs = r.count("logprob_micro_batch")
    share = r.positive("gpu_mem_util")
    given = share if share is not None and share <= 1.0 else None
    placement = Placement(
        train=(plan if tokens else plan.replace(mbs=min(r.count("micro_batch") or 1, 64))).replace(offload=_cpu_optimizer(r)),
        engine=engine,
        colocated=not split,
        staleness=staleness,
        critic_gpus=critic or 0,
        tokens_per_gpu=tokens,
        forward=asked_batch(job, logprobs, packs=bool(tokens)) if logprobs else PassBatch(tokens_per_gpu=forward),
        memory_share=given or job.framework.memory_share,
        offload=r.text("offload").lower() not in ("false", "none"),
        cuda_graphs=job.framework.graphs(r.text("framework"), engine_name) and engine_name not in EAGER_ENGINES,
        continuous=engine_name not in (*EAGER_ENGINES, "deepspeed-inference"),
    )
    if given is None:
        placement = replace(placement, memory_share=share_that_holds(job, placement))
        r.assume(f"memory share {placement.memory_share:g}")
    return placement


ROLES = ("reference", "reward", "actor", "critic", "engines")
"""In the order of OpenRLHF's flags."""


def _roles(placement: str, gpus: int) -> dict[str, int]:
    """GPUs of each role of a split that is a ratio of all (`split 1:1:2:2:2`, without engines `1:1:4:2`); empty for others."""
    found = re.search(r"(?<![\d:])\d+(?::\d+){3,4}(?![\d:])", placement)
    parts = [int(part) for part in found[0].split(":")] if found else []
    if not all(parts) or sum(parts) != gpus:
        return {}
    return dict(zip(ROLES, parts, strict=False))


def _cpu_optimizer(r: _RunRow) -> float:
    """Share of the optimizer state that stays on the host and is updated there: `optimizer fraction 0.5` (Megatron's
    optimizer_cpu_offload), `adam` (DeepSpeed's adam_offload). What waits there between phases is another thing."""
    text = r.text("offload").lower()
    if text == "adam":
        return 1.0
    found = re.fullmatch(r"optimizer fraction (0|1|[01]?\.\d+|1\.0+)", text)
    return min(float(found[1]), 1.0) if found else 0.0


def _staleness(mode: str) -> int:
    mode = mode.lower()
    if "async" not in mode:
        return 0
    return 1 if "1" in mode or "one" in mode else 2


def _micro_tokens(r: _RunRow, job: PostTrainingJob) -> tuple[int, int]:
    """(tokens of a packed micro-batch, the same of forward passes); 0 where sequences are padded."""
    micro = r.count("micro_batch")
    if micro is not None and micro >= TOKENS:
        return micro, micro
    packs = job.framework.tokens_per_gpu
    if micro is None:
        usual = packs or USUAL_TOKENS_PER_GPU
        tokens = max(usual, round(job.tokens))
        r.assume(f"packed micro-batches of {tokens:,} tokens")
        return tokens, tokens
    if packs or job.framework.removes_padding:
        tokens = max(round(micro * (packs or job.tokens / PACKED)), round(job.tokens))
        return tokens, tokens
    return 0, 0


def _degrees(text: str) -> dict[str, int]:
    """`tp=4,pp=2`, `TP32xDP8`, `sp=4,fsdp=8`, `tp=1 (8 engines)` as numbers by lower-case key."""
    found = re.findall(r"(tp|pp|cp|ep|dp|sp|vpp|fsdp|etp|lora|last_layers)\s*+=?\s*+(\d+)", text.lower())
    return {key: int(value) for key, value in found if int(value) > 0}


def train_plan(r: _RunRow, job: PostTrainingJob, gpus: int) -> TrainPlan:
    """The plan of the row; what it leaves out fills the GPUs."""
    text, back_end = r.text("train_plan"), r.text("train_backend").lower()
    given = _degrees(text)
    shards = "fsdp" in back_end or "fsdp" in text.lower() or "zero" in back_end or "dtensor" in back_end
    if not back_end and not given:
        shards = True
        r.assume("fully sharded training")
    recompute = _recompute(r, job, shards)
    if shards:
        tp, cp = given.get("tp", 1), given.get("cp", given.get("sp", 1))
        if gpus % (tp * cp):
            tp, cp = 1, 1
        stage = 3 if gpus // tp > 1 else 0
        return TrainPlan(tp=tp, cp=cp, pp=1, dp=gpus // (tp * cp), mbs=1, fsdp=stage, dist_opt=False, recompute=recompute)
    if not given and "dp" not in text:
        given = _smallest(job, gpus)
        r.assume("training plan " + ",".join(f"{key}={value}" for key, value in given.items()))
    tp, pp, cp = (given.get(key, 1) for key in ("tp", "pp", "cp"))
    dp = max(1, gpus // (tp * pp * cp))
    ends = stage_ends(job.policy, pp, given.get("last_layers"))
    return TrainPlan(
        tp=tp,
        pp=pp,
        cp=cp,
        dp=dp,
        mbs=1,
        vpp=given.get("vpp", 1),
        ep=min(given.get("ep", 1), tp * cp * dp) if job.policy.is_moe else 1,
        sp=tp > 1,
        first=ends[0],
        last=ends[1],
        dist_opt=True,
        recompute=recompute,
    )


def _recompute(r: _RunRow, job: PostTrainingJob, shards: bool) -> Recompute:
    text = r.text("recompute").lower()
    if text in ("none", "false", "no", "0"):
        return NONE
    if not text and ("fsdp" if shards else "megatron") not in job.framework.recomputes:
        r.assume("no recomputation")
        return NONE
    if not text:
        r.assume("full recomputation")
    return FULL


def _smallest(job: PostTrainingJob, gpus: int) -> dict[str, int]:
    """The least model parallelism whose state takes under half of a GPU."""
    parameters = float(total_parameters(job.policy))
    node = min(job.gpu.gpus_per_node, gpus)
    best = {"tp": 1}
    for pp in [p for p in (1, 2, 4, 8, 16) if gpus % p == 0 and p <= job.policy.num_layers]:
        for tp in [t for t in divisors(node) if t <= 8 and gpus % (t * pp) == 0 and job.policy.num_attention_heads % t == 0]:
            dp = gpus // (tp * pp)
            best = {"tp": tp, "pp": pp}
            spread = min(dp, job.policy.num_moe_experts or 1) if job.policy.is_moe else 1
            if job.policy.is_moe:
                best["ep"] = max(d for d in divisors(dp * tp) if (job.policy.num_moe_experts or 1) % d == 0)
                spread = best["ep"]
            if parameters * (GRADIENT_STATE_BYTES / spread + 12.0 / dp) / (tp * pp) < 0.5 * job.gpu.memory_bytes:
                return best
    return best


def engine_plan(r: _RunRow, job: PostTrainingJob, gpus: int) -> EnginePlan:
    """The rollout engines of the row; the smallest tp whose weights take under half of the engine's share where it says
    none."""
    given = _degrees(r.text("rollout_plan"))
    weights = "fp8" if r.text("precision_rollout").lower() == "fp8" else "bf16"
    tp, pp = given.get("tp"), given.get("pp", 1)
    if tp is None:
        tp = _engine_tp(job, gpus)
        r.assume(f"engines of tp {tp}")
    tp, node = min(tp, gpus), job.gpu.link_domain_size
    while job.policy.num_attention_heads % tp or (tp > node and tp % node):
        tp -= 1
    return EnginePlan(tp=tp, pp=pp, weights=weights, kv="bf16", replicas=max(1, gpus // (tp * pp)))


def _engine_tp(job: PostTrainingJob, gpus: int) -> int:
    formats = module_formats(job.policy, "bf16", job.gpu)
    sizes = [t for t in (1, 2, 4, 8, 16, 32, 64) if t <= gpus and job.policy.num_attention_heads % t == 0]
    for tp in sizes:
        if weights_bytes(job.policy, EnginePlan(tp=tp), formats) < 0.3 * job.gpu.memory_bytes:
            return tp
    return sizes[-1]
