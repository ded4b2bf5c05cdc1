"""What of a run of post-training cannot run, whatever a framework's parser lets through."""

from __future__ import annotations

from autoconfig.formats.post_training.run import RlRun
from autoconfig.post_training.job import PassBatch, Placement, PostTrainingJob
from autoconfig.post_training.passes import microbatches, priced, scenario_of
from autoconfig.specs.errors import AutoconfigError
from autoconfig.training.plan_rules import broken_rules
from autoconfig.training.rules import RULES

OF_CONTEXT_PARALLEL = {"NV054", "AC026", "AC027"}
"""Rules on the attention of context parallelism: sharded trainers bring their own (ring_flash_attn of OpenRLHF, Ulysses)."""
OF_LAYERS = {"NV024", "NV044"}
"""Rules on layers that divide over stages and chunks."""
ASSERTING = ("verl", "nemo-rl")
"""Frameworks that assert that micro-batches divide a rank's samples and hold the longest: verl/workers/engine/utils.py and
verl/utils/seqlen_balancing.py of 0.9.1, nemo_rl/distributed/batched_data_dict.py of v0.7.0 (make_microbatch_iterator,
shard_by_batch_size)."""
ENGINES = ("vllm", "sglang", "trtllm", "hf", "megatron")


def broken(run: RlRun) -> list[str]:
    """Return what cannot run, before any model is looked at: each with what was given and what is allowed."""
    wrong, plan = [*run.refused, *_broken_engines(run)], run.placement.train
    ranks = plan.tp * plan.pp * plan.cp
    if run.train_gpus % ranks:
        wrong.append(f"tp x pp x cp is {ranks}, which does not divide {run.train_gpus} GPUs of training")
    wrong += _uneven_updates(run, run.prompts * run.group, 0 if run.train_gpus % ranks else plan.dp)
    if run.group < 2 and run.compares:
        wrong.append(f"{run.algorithm} compares responses of one prompt, and there is {run.group}: use a group of 2 or more")
    return wrong


def _broken_engines(run: RlRun) -> list[str]:
    """Return what of engines and their GPUs cannot be."""
    wrong, engine, gpus, share = [], run.placement.engine, run.engine_gpus, run.placement.memory_share
    size = engine.tp * engine.pp * run.engine_dp
    if not 0.0 < share < 1.0:
        wrong.append(f"the engine's share of memory is {share:g}: use a share above 0 and below 1")
    if run.engine not in ENGINES:
        wrong.append(f"the engine {run.engine[:40]!r} does not exist: use {', '.join(ENGINES[:3])}")
    if gpus % size:
        wrong.append(f"an engine takes {size} GPUs, and {gpus} do not hold whole ones: use a divisor of them")
    elif run.engine_dp > 1 and run.gpus_per_node % engine.tp:
        wrong.append(f"engines of {run.engine_dp} data-parallel ranks: tp {engine.tp} does not divide a node's GPUs")
    elif run.engines is not None and run.engines * size != gpus:
        wrong.append(f"{run.engines} engines of {size} GPUs take {run.engines * size}, and generation has {gpus}")
    return wrong


def _uneven_updates(run: RlRun, samples: int, dp: int) -> list[str]:
    """Return what of mini-batches does not divide: the `samples` of a step, and over `dp` ranks (0: GPUs do not divide into
    ranks)."""
    if run.minibatch > samples:
        return [f"the mini-batch of {run.minibatch:,} samples is above the {samples:,} samples of a step"]
    if samples % run.minibatch:
        return [f"the mini-batch of {run.minibatch:,} samples does not divide the {samples:,} samples of a step"]
    if dp and run.minibatch % dp:
        return [f"the mini-batch of {run.minibatch:,} samples does not divide over {dp} data-parallel ranks"]
    return _uneven_micro_batches(run, samples, dp) if dp and run.framework in ASSERTING else []


def _uneven_micro_batches(run: RlRun, samples: int, dp: int) -> list[str]:
    """Return micro-batches that do not divide what each of `dp` ranks has, or hold no longest sample: of training and of
    passes."""
    wrong, longest, placement, cp = [], run.prompt_cap + run.response_cap, run.placement, run.placement.train.cp
    tokens = placement.tokens_per_gpu
    training = PassBatch(tokens_per_gpu=tokens) if tokens else PassBatch(mbs=placement.train.mbs)
    batches = {training: ("", run.minibatch // dp, "mini-batch")}
    passes = {"log-probabilities: ": None if run.no_policy_pass else placement.forward}
    for name, batch in {**passes, "the reference: ": placement.reference_forward}.items():
        if batch is not None:
            batches.setdefault(batch, (name, samples // dp, "step"))
    for batch, (name, each, of) in batches.items():
        if 0 < batch.tokens_per_gpu * cp < longest:
            wrong.append(
                f"{name}a packed micro-batch holds {batch.tokens_per_gpu * cp:,} tokens, and the longest sample takes "
                f"{longest:,}: use {-(-longest // cp):,} or more on a GPU"
            )
        elif not batch.tokens_per_gpu and batch.mbs and each % batch.mbs:
            count = f"{batch.mbs} samples do not divide the {each:,} of a rank's {of}"
            wrong.append(f"{name}micro-batches of {count}: use a divisor")
    return wrong


def broken_of_model(run: RlRun, job: PostTrainingJob, placement: Placement) -> list[str]:
    """Return what of the plans the model does not allow: rules of Megatron-LM and of engines."""
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
        rules -= OF_CONTEXT_PARALLEL
    odd = plan.pp > 1 and plan.first is None and plan.last is None and model.num_layers % plan.pp
    rules -= OF_LAYERS if odd else set()
    wrong = [f"training plan {plan}: {rule.text}" for rule in RULES if rule.id in rules]
    wrong += [f"{model.num_layers} layers do not divide over {plan.pp} pipeline stages"] if odd else []
    if job.algorithm.generates and model.num_attention_heads % placement.engine.tp:
        wrong.append(f"engines of tp {placement.engine.tp}: it does not divide {model.num_attention_heads} attention heads")
    return wrong
