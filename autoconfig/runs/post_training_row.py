"""One row of a table of post-training runs as a job and a placement; measured columns, `kind` and `notes` are never read."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil, log2

from autoconfig.post_training.frameworks import OTHER_FRAMEWORK, Framework, load_algorithm, load_framework, section
from autoconfig.post_training.generation import share_that_holds
from autoconfig.post_training.job import LEAST_TOKENS, PassBatch, Placement, PostTrainingJob, plan_on
from autoconfig.post_training.passes import PACKED, USUAL_LORA_RANK, asked_batch, stage_ends
from autoconfig.post_training.question import USUAL_TOKENS_PER_GPU, usual_mean
from autoconfig.post_training.samples.lengths import ResponseLengths
from autoconfig.post_training.space import engine_weights
from autoconfig.post_training.weight_sync import load_method
from autoconfig.runs.cells import RunRow
from autoconfig.runs.post_training_model import read_policy
from autoconfig.runs.table import NO, CellError, Row, number
from autoconfig.specs.errors import InputError, UnknownNameError, UnsupportedError
from autoconfig.specs.hardware.cluster import DEFAULT_GPU, GpuSpec, load_gpu
from autoconfig.specs.layouts import divisors
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.plan import NONE, Recompute, TrainPlan
from autoconfig.specs.remarks import Remark
from autoconfig.specs.serve_plan import EnginePlan

GRADIENT_STATE_BYTES = 6.0
"""16-bit weights and fp32 gradients of a parameter on every data-parallel rank; 12 bytes of optimizer state are shared."""

FULL = Recompute.parse("full")
EAGER_ENGINES = ("hf", "megatron")
"""Training modules that generate: no CUDA graphs."""


PLACING = ("recompute", "micro_batch", "offload", "rollout_plan")
"""Columns that say what fits."""


@dataclass(frozen=True, kw_only=True)
class PostTrainingCase:
    """What a row asks."""

    job: PostTrainingJob
    placement: Placement
    assumed: tuple[Remark, ...] = field(default=())
    missing: frozenset[str] = frozenset()
    """Of model, gpu, batch and lengths, what the row does not say: its prediction is a guess there."""
    unsaid: frozenset[str] = frozenset()
    """Of PLACING, the columns that are empty: another value that fits is as good a guess as the usual one."""


class _PostTrainingRow(RunRow):
    """A row, what had to be assumed of it, and which of that makes its prediction a guess."""

    def __init__(self, row: Row) -> None:
        super().__init__("post_training", row)
        self.missing: set[str] = set()

    def guess(self, why: str, missing: str) -> None:
        """Remark what was taken for something that decides the step (PostTrainingCase.missing)."""
        self.assume(why)
        self.missing.add(missing)


def read_case(row: Row) -> PostTrainingCase:
    """Return the case of a row. Raises InputError where it names no policy model or no number of GPUs, CellError for odd
    numbers."""
    cells = _PostTrainingRow(row)
    if not cells.text("policy_model"):
        raise InputError("cell policy_model is empty")
    job = _job(cells, _model(cells, "policy_model", "model"), _framework(cells), _gpu(cells))
    placement = _placement(cells, job)
    return PostTrainingCase(
        job=job,
        placement=placement,
        assumed=tuple(cells.assumed),
        missing=frozenset(cells.missing),
        unsaid=frozenset(column for column in PLACING if not cells.text(column)),
    )


def _framework(row: RunRow) -> Framework:
    try:
        return load_framework(row.text("framework"))
    except UnknownNameError:
        row.assume(f"framework {row.text('framework')[:40] or '(none)'} priced as other")
        return load_framework(OTHER_FRAMEWORK)


def _gpu(row: _PostTrainingRow) -> GpuSpec:
    """Return the first GPU of a cell that is known (`H100/H800`). Raises UnknownNameError."""
    text = row.text("gpu")
    if not text:
        row.guess(f"gpu {DEFAULT_GPU}", "gpu")
    for name in text.split("/"):
        with suppress(UnknownNameError, UnsupportedError):
            return load_gpu(name or DEFAULT_GPU)
    return load_gpu(text)


def _job(row: _PostTrainingRow, policy: ModelSpec, framework: Framework, gpu: GpuSpec) -> PostTrainingJob:
    try:
        algorithm = load_algorithm(row.text("algorithm"))
    except UnknownNameError:
        algorithm = load_algorithm("grpo")
        row.assume("algorithm grpo")
    prompts, group, samples = _batch(row, framework)
    prompt, responses = _lengths(row, framework.total_tokens, algorithm.response_tokens)
    minibatch = row.count("train_batch")
    if minibatch is None:
        minibatch = samples or prompts * group
        row.assume("one optimizer step")
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
        minibatch=min(minibatch, samples or prompts * group),
        kept=samples,
        longest_prompt=max(1, round(row.number("prompt_len_max") or 0)) if row.text("prompt_len_max") else 0,
        critic=_other_model(row, "critic_model", policy) if algorithm.critic else None,
        reward=_other_model(row, "reward_model", policy),
        reference=_other_model(row, "ref_model", policy),
        lora_rank=_adapters(row),
        attention_kernel=row.text("attention_kernel"),
        sync_method=_sync_method(row),
        training_format="fp8" if row.text("precision_train") == "fp8" else "bf16",
    )


def _sync_method(row: RunRow) -> str:
    """Return how new weights reach engines; empty: as the framework does. Raises InputError for a method that is not known."""
    name = row.text("sync_method")
    if name:
        load_method(name)
    return name


def _adapters(row: RunRow) -> int:
    """Return the rank of the adapters: the plan's (`lora=16`), or the usual where the algorithm names LoRA (`GRPO-LoRA`);
    0: none."""
    if rank := _degrees(row.text("train_plan")).get("lora"):
        return rank
    if "lora" not in row.text("algorithm").lower():
        return 0
    row.assume(f"adapters of rank {USUAL_LORA_RANK}")
    return USUAL_LORA_RANK


def _model(row: _PostTrainingRow, column: str, missing: str = "") -> ModelSpec:
    """Return the model that a cell names; where only its size is known, `missing` is what the row does not say. Raises
    UnknownNameError."""
    name = row.text(column)
    model, likeness = read_policy(name)
    if likeness == "of this shape":
        row.assume(f"{column} {name[:60]} priced as {model.name}")
    elif likeness == "nearest in size":
        row.assume(f"architecture of {name[:60]} not known: priced as {model.name}, nearest in size")
        row.missing |= {missing} if missing else set()
    return model


def _other_model(row: _PostTrainingRow, column: str, policy: ModelSpec) -> ModelSpec | None:
    text = row.text(column).lower()
    if text in ("rule", "none", ""):
        return policy if column == "critic_model" else None
    return policy if text.startswith("same") else _model(row, column)


def _batch(row: _PostTrainingRow, framework: Framework) -> tuple[int, int, int]:
    """Return (prompts, group, samples of them that are trained on; 0: all) of a step."""
    prompts, group, samples = (row.count(name) for name in ("prompts_per_step", "group_size", "samples_per_step"))
    if group is None:
        even = prompts and samples and samples % prompts == 0
        group = (samples or 0) // (prompts or 1) if even else _usual_group(row, framework, samples)
    if prompts is None and samples is not None:
        return max(1, round(samples / group)), group, 0
    if prompts is None:
        prompts = framework.prompts
        row.guess(f"{prompts} prompts a step", "batch")
    return prompts, group, samples if samples and samples < prompts * group else 0


ALIKE = 0.99
"""Share of the cap from which on, as a mean, all responses have the cap's length."""
ALONE = ("ppo", "sft", "dpo", "rlhf (ppo)")
"""Algorithms that take one response to a prompt."""


def _usual_group(row: _PostTrainingRow, framework: Framework, samples: int | None) -> int:
    """Return the framework's responses to a prompt, or the most up to them that divide the samples."""
    usual = 1 if row.text("algorithm").lower() in ALONE else framework.group
    group = max(size for size in divisors(samples or usual) if size <= usual)
    if samples is None:
        row.guess(f"group {group}", "batch")
    else:
        row.assume(f"group {group}")
    return group


def _lengths(row: _PostTrainingRow, total_tokens: int, usual_response: int) -> tuple[float, ResponseLengths]:
    """Return the tokens of a prompt and of responses. `total_tokens`: at most, of both together; `usual_response`: of the
    algorithm."""
    usual = section("lengths")
    prompt, most_prompt = row.number("prompt_len_mean"), row.number("prompt_len_max")
    if prompt is None:
        prompt = float(min(usual["prompt_tokens"], most_prompt or usual["prompt_tokens"]))
        row.assume(f"prompts of {prompt:g} tokens")
    mean, cap, whole = row.number("response_len_mean"), row.number("response_len_max"), row.number("seq_len_mean")
    if mean is None and whole is not None:
        prompt = min(prompt, whole / 2.0)
        mean = whole - prompt
    if mean is None and cap is None and total_tokens:
        cap = max(total_tokens - prompt, 1.0)
        row.assume(f"prompt and response of at most {total_tokens:,} tokens together")
    if mean is None:
        mean = usual_mean(cap) if cap else float(usual_response or usual["response_tokens"])
        row.guess(f"responses of {mean:g} tokens", "lengths")
    if cap is None:
        cap = 2.0 ** ceil(log2(1.25 * (mean + prompt))) - prompt
        row.assume(f"responses of at most {cap:g} tokens")
    mean = max(min(mean, cap), 1.0)
    lengths = ResponseLengths.around(mean, max(round(cap), ceil(mean)))
    return prompt, replace(lengths, sigma=0.0) if mean >= ALIKE * cap else lengths


def _gpus(row: RunRow) -> tuple[int, int | None, int]:
    """Return the GPUs of training, of engines that have their own, and of the critic, with what of them a ratio in `placement`
    leaves open. Raises InputError where no number is given."""
    total, train, engines, critic = (row.count(name) for name in ("gpus", "gpus_train", "gpus_rollout", "gpus_critic"))
    if total and not train and (roles := _roles(row.text("placement"), total)):
        train, critic, engines = roles["actor"], roles["critic"], roles.get("engines")
        row.assume("GPUs of " + ", ".join(f"{name} {count}" for name, count in roles.items()))
    total = total or sum(count or 0 for count in (train, engines, critic))
    if not total:
        raise InputError("cell gpus is empty")
    if not train or not (engines or critic):
        return total, None, critic or 0
    return train, engines, critic or 0


def _placement(row: RunRow, job: PostTrainingJob) -> Placement:
    """Return the plans of training and engines, and what of their GPUs each takes."""
    gpus, engines, critic = _gpus(row)
    plan = train_plan(row, job, gpus).replace(offload=_cpu_optimizer(row))
    engine = engine_plan(row, job, engines or gpus)
    tokens = _micro_tokens(row, job)
    plan = plan.replace(mbs=1 if tokens else min(row.count("micro_batch") or 1, 64))
    logprobs, share, engine_name = row.count("logprob_micro_batch"), row.number("gpu_mem_util"), row.text("rollout_engine")
    placement = Placement(
        train=plan,
        engine=engine,
        colocated=not engines,
        staleness=_staleness(row.text("sync_mode")),
        critic_gpus=critic,
        tokens_per_gpu=tokens,
        forward=asked_batch(job, logprobs, packs=bool(tokens)) if logprobs else PassBatch(tokens_per_gpu=tokens),
        memory_share=share or job.framework.memory_share,
        offload=row.text("offload") not in ("false", "none"),
        cuda_graphs=job.framework.graphs(row.text("framework"), engine_name) and engine_name not in EAGER_ENGINES,
        continuous=engine_name not in (*EAGER_ENGINES, "deepspeed-inference"),
    )
    if share is None:
        placement = replace(placement, memory_share=share_that_holds(job, placement))
        row.assume(f"memory share {placement.memory_share:g}")
    return placement


ROLES = ("reference", "reward", "actor", "critic", "engines")
"""In the order of OpenRLHF's flags."""


def _roles(placement: str, gpus: int) -> dict[str, int]:
    """Return the GPUs of each role of a split that is a ratio of all (`split 1:1:2:2:2`, without engines `1:1:4:2`); empty for
    others."""
    for word in placement.split():
        parts = [int(part) for part in word.split(":") if part.isascii() and part.isdigit()]
        if len(parts) == word.count(":") + 1 and len(parts) in (4, 5) and all(parts) and sum(parts) == gpus:
            return dict(zip(ROLES, parts, strict=False))
    return {}


def _cpu_optimizer(row: RunRow) -> float:
    """Return the share of the optimizer state that stays on the host and is updated there: `optimizer fraction 0.5` (Megatron's
    optimizer_cpu_offload), `adam` (DeepSpeed's adam_offload). What waits there between phases is another thing. Raises
    CellError."""
    text = row.text("offload")
    share = text.removeprefix("optimizer fraction ")
    if share == text:
        return 1.0 if text == "adam" else 0.0
    value = number({"offload": share}, "offload")
    if value is None or not 0.0 <= value <= 1.0:
        raise CellError(f"cell offload={text[:40]!r}: optimizer fraction is from 0 to 1")
    return value


def _staleness(mode: str) -> int:
    """Return how many steps the engines' weights are behind."""
    if "async" not in mode:
        return 0
    return 1 if "1" in mode or "one" in mode else 2


def _micro_tokens(row: RunRow, job: PostTrainingJob) -> int:
    """Return the tokens of a packed micro-batch of training and of passes: from LEAST_TOKENS on a cell is these (verl's
    ppo_max_token_len_per_gpu), below it samples; 0 where sequences are padded."""
    micro, packs = row.count("micro_batch"), job.framework.tokens_per_gpu
    if micro is None:
        tokens = max(packs or USUAL_TOKENS_PER_GPU, round(job.tokens))
        row.assume(f"packed micro-batches of {tokens:,} tokens")
        return tokens
    if micro >= LEAST_TOKENS:
        return micro
    removes = packs or job.framework.removes_padding
    return max(round(micro * (packs or job.tokens / PACKED)), round(job.tokens)) if removes else 0


def _degrees(text: str) -> dict[str, int]:
    """Return `tp=4,pp=2`, `TP32xDP8`, `sp=4,fsdp=8`, `tp=1 (8 engines)` as numbers by lower-case key."""
    pairs = re.findall(r"(tp|pp|cp|ep|dp|sp|vpp|fsdp|etp|lora|last_layers)\s*+=?\s*+(\d+)", text.lower())
    return {key: int(value) for key, value in pairs if int(value) > 0}


def train_plan(row: RunRow, job: PostTrainingJob, gpus: int) -> TrainPlan:
    """Return the plan of the row; what it leaves out fills the GPUs."""
    text, back_end = row.text("train_plan").lower(), row.text("train_backend")
    degrees = _degrees(text)
    shards = "fsdp" in text or any(word in back_end for word in ("fsdp", "zero", "dtensor"))
    if not back_end and not degrees:
        shards = True
        row.assume("fully sharded training")
    recompute = _recompute(row, job, shards)
    if shards:
        tp, cp = degrees.get("tp", 1), degrees.get("cp", degrees.get("sp", 1))
        tp, cp = (1, 1) if gpus % (tp * cp) else (tp, cp)
        return plan_on(gpus, sharding=3, tp=tp, cp=cp, recompute=recompute)
    if not degrees and "dp" not in text:
        degrees = _smallest(job, gpus)
        row.assume("training plan " + ",".join(f"{key}={value}" for key, value in degrees.items()))
    known = {key: degrees[key] for key in ("tp", "pp", "cp", "vpp") if key in degrees}
    first, last = stage_ends(job.policy, known.get("pp", 1), degrees.get("last_layers"))
    plan = plan_on(gpus, **known, sp=known.get("tp", 1) > 1, first=first, last=last, recompute=recompute)
    return plan.replace(ep=min(degrees.get("ep", 1), plan.tp * plan.cp * plan.dp)) if job.policy.is_moe else plan


def _recompute(row: RunRow, job: PostTrainingJob, shards: bool) -> Recompute:
    text = row.text("recompute")
    if text in (*NO, "none"):
        return NONE
    if not text and ("fsdp" if shards else "megatron") not in job.framework.recomputes:
        row.assume("no recomputation")
        return NONE
    if not text:
        row.assume("full recomputation")
    return FULL


def _smallest(job: PostTrainingJob, gpus: int) -> dict[str, int]:
    """Return the least model parallelism whose state takes under half of a GPU."""
    policy, node = job.policy, min(job.gpu.gpus_per_node, gpus)
    state = float(total_parameters(policy))
    depths = [pp for pp in (1, 2, 4, 8, 16) if gpus % pp == 0 and pp <= policy.num_layers]
    widths = [tp for tp in divisors(node) if tp <= 8 and policy.num_attention_heads % tp == 0]
    best = {"tp": 1}
    for pp, tp in [(pp, tp) for pp in depths for tp in widths if gpus % (tp * pp) == 0]:
        dp = gpus // (tp * pp)
        ep = math.gcd(dp * tp, policy.num_moe_experts or 1) if policy.is_moe else 1
        best = {"tp": tp, "pp": pp, **({"ep": ep} if policy.is_moe else {})}
        if state * (GRADIENT_STATE_BYTES / ep + 12.0 / dp) / (tp * pp) < 0.5 * job.gpu.memory_bytes:
            break
    return best


def engine_plan(row: RunRow, job: PostTrainingJob, gpus: int) -> EnginePlan:
    """Return the rollout engines of the row; the smallest tp whose weights take under half of the engine's share where it says
    none."""
    degrees = _degrees(row.text("rollout_plan"))
    weights = "fp8" if row.text("precision_rollout") == "fp8" else "bf16"
    tp, pp = degrees.get("tp"), degrees.get("pp", 1)
    if tp is None:
        tp = _engine_tp(job, gpus)
        row.assume(f"engines of tp {tp}")
    tp, node = min(tp, gpus), job.gpu.link_domain_size
    while job.policy.num_attention_heads % tp or (tp > node and tp % node):
        tp -= 1
    return EnginePlan(tp=tp, pp=pp, weights=weights, kv="bf16", replicas=max(1, gpus // (tp * pp)))


def _engine_tp(job: PostTrainingJob, gpus: int) -> int:
    sizes = [t for t in (1, 2, 4, 8, 16, 32, 64) if t <= gpus and job.policy.num_attention_heads % t == 0]
    return next((tp for tp in sizes if engine_weights(job.policy, job.gpu, tp) < 0.3 * job.gpu.memory_bytes), sizes[-1])
