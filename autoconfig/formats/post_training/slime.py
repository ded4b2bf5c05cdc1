"""slime: arguments of Megatron-LM, SGLang's behind `--sglang-`, and its own, of `train.py` and `train_async.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from autoconfig.formats.post_training.run import RlRun, sample_dynamically
from autoconfig.maps.tree import Section
from autoconfig.megatron.argument_list import known_arguments
from autoconfig.post_training.frameworks import load_algorithm
from autoconfig.post_training.job import LEAST_PROMPT, PassBatch
from autoconfig.specs.errors import InputError
from autoconfig.specs.plan import NONE, Recompute
from autoconfig.specs.remarks import Effect, Remark, note

VERSION = "0.3.1"
ESTIMATORS = {
    **{"grpo": "grpo", "gspo": "grpo", "cispo": "dapo", "ppo": "ppo"},
    **{"reinforce_plus_plus": "rloo", "reinforce_plus_plus_baseline": "rloo"},
}
"""--advantage-estimator -> our algorithm."""
OTHERS = ("sglang_", "router_")
"""Beginnings of SGLang's arguments, which slime takes as SGLang has them (slime/backends/sglang_utils/arguments.py)."""
ELSEWHERE = re.compile(r"\$\{?\w*ARGS\b")
"""Words that stand for arguments of another file: `${MODEL_ARGS[@]}` of scripts/models."""
OF_ANOTHER_FILE = "arguments of a file that the script sources ($MODEL_ARGS) are not read: the model is that of --hf-checkpoint"
RESPONSE = 1024
"""Cap where --rollout-max-response-len is not given, which leaves it to SGLang."""
SHARE = 0.85
"""--sglang-mem-fraction-static where it is not given: SGLang computes it, near this on GPUs of 80 GB and more."""


def own_keys(names: Iterable[str]) -> list[str]:
    """Those that are no argument of Megatron-LM or SGLang."""
    megatron = {name.lstrip("-").replace("-", "_") for name in known_arguments()}
    return [name for name in names if name not in megatron and not name.startswith(OTHERS)]


def read(section: Section, *, ahead: bool) -> RlRun:
    """The run; arguments that are not there have the defaults of slime 0.3.1. `ahead`: train_async.py generates a step ahead.
    Raises InputError."""
    estimator = section.word("advantage_estimator") or "grpo"
    if estimator not in ESTIMATORS:
        raise InputError(f"--advantage-estimator {estimator[:40]!r}: use {', '.join(ESTIMATORS)}")
    reference = section.flag("use_kl_loss") or bool(section.number("kl_coef"))
    algorithm = "dapo" if ESTIMATORS[estimator] == "grpo" and not reference else ESTIMATORS[estimator]
    model = section.word("hf_checkpoint")
    if model is None:
        raise InputError("--hf-checkpoint is not in the file: say --model NAME")
    nodes, each = section.count("actor_num_nodes") or 1, section.count("actor_num_gpus_per_node") or 8
    together = section.flag("colocate")
    rollout = section.whole("rollout_num_gpus") or 0
    if not together and rollout < 1:
        raise InputError("--rollout-num-gpus is not given, nor --colocate: slime has no GPU that generates; give one of them")
    prompts, group = section.count("rollout_batch_size"), section.count("n_samples_per_prompt") or 1
    if prompts is None:
        raise InputError("--rollout-batch-size is not given, which slime requires: the prompts of a step")
    samples = prompts * group
    steps = section.count("num_steps_per_rollout")
    minibatch = max(1, samples // steps) if steps else section.count("global_batch_size") or samples
    response, context = section.count("rollout_max_response_len"), section.count("rollout_max_context_len") or 0
    usual = max(1, context - LEAST_PROMPT) if context else RESPONSE
    cap = response or usual
    dynamic = section.flag("use_dynamic_batch_size")
    tokens = section.count("max_tokens_per_gpu") or 0 if dynamic else 0
    run = RlRun(
        framework="slime",
        version=VERSION,
        back_end="megatron",
        model=model,
        algorithm=algorithm,
        nodes=nodes,
        gpus_per_node=each,
        prompts=prompts,
        group=group,
        minibatch=minibatch,
        prompt_cap=section.count("rollout_max_prompt_len") or (context - cap if context > cap else LEAST_PROMPT),
        response_cap=cap,
        rollout_gpus=0 if together else rollout,
        critic_gpus=nodes * each if algorithm == "ppo" and not together else 0,
        tokens_per_gpu=tokens,
        mbs=section.count("micro_batch_size") or 1,
        removes_padding=True,
        reference_waits=True,
        offload=section.flag("offload_train", "offload", default=together) and not section.flag("no_offload_train"),
        staleness=int(ahead),
        compares=estimator in ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline"),
        no_policy_pass=section.flag("use_rollout_logprobs"),
        no_reference=not reference and load_algorithm(algorithm).reference_passes > 0,
    )
    run.algorithm_word = estimator if estimator != algorithm else ""
    run.notes += [] if response else [Remark("--rollout-max-response-len", cap, "not given")]
    _engine(section, run)
    _megatron(section, run)
    _samples(section, run, dynamic=dynamic, together=together)
    return run


def _samples(section: Section, run: RlRun, *, dynamic: bool, together: bool) -> None:
    """Micro-batches and what is sampled; what slime refuses of both (slime/utils/arguments.py, train_async.py)."""
    if dynamic and run.tokens_per_gpu:
        run.forward = PassBatch(tokens_per_gpu=section.count("log_probs_max_tokens_per_gpu") or run.tokens_per_gpu)
    elif dynamic:
        run.refused.append("--use-dynamic-batch-size wants --max-tokens-per-gpu")
    if run.staleness and together:
        run.refused.append("train_async.py does not run with --colocate: engines want GPUs of their own (--rollout-num-gpus)")
    if section.has("dynamic_sampling_filter_path"):
        more = section.count("over_sampling_batch_size")
        sample_dynamically(run, more / run.prompts if more and more > run.prompts else None)
    if section.flag("use_opd"):
        run.notes.append(note("--use-opd: the teacher's pass and memory are not priced", Effect.MORE_MEMORY))


def _engine(section: Section, run: RlRun) -> None:
    """SGLang's arguments; an engine's GPUs are its tensor-parallel ranks (slime/backends/sglang_utils/sglang_engine.py)."""
    share = section.number("sglang_mem_fraction_static")
    run.engine, run.memory_share = "sglang", SHARE if share is None else share
    run.engine_pp = section.count("sglang_pp_size", "sglang_pipeline_parallel_size") or 1
    run.engine_tp = max(1, (section.count("rollout_num_gpus_per_engine") or 1) // run.engine_pp)
    run.graphs = not section.flag("sglang_disable_cuda_graph")
    run.engine_sleeps = section.flag("offload_rollout", "offload", default=True) and not section.flag("no_offload_rollout")


def _megatron(section: Section, run: RlRun) -> None:
    """Megatron-LM's arguments of the plan."""
    run.tp = section.count("tensor_model_parallel_size") or 1
    run.pp = section.count("pipeline_model_parallel_size") or 1
    run.vpp = section.count("num_virtual_stages_per_pipeline_rank") or 1
    run.cp = section.count("context_parallel_size") or 1
    run.ep = section.count("expert_model_parallel_size") or 1
    run.etp = section.count("expert_tensor_parallel_size") or (run.tp if run.ep > 1 else 0)
    run.first = section.count("decoder_first_pipeline_num_layers")
    run.last = section.count("decoder_last_pipeline_num_layers")
    granularity = section.word("recompute_granularity")
    if granularity == "full":
        method = section.word("recompute_method") or "uniform"
        run.recompute = Recompute.parse(f"full:{method}:{section.count('recompute_num_layers') or 1}")
    elif granularity == "selective":
        modules = section.get("recompute_modules") or ["core_attn"]
        names = modules if isinstance(modules, list) else [modules]
        run.recompute = Recompute.parse("selective:" + "+".join(str(name) for name in names))
    else:
        run.recompute = NONE
    if section.flag("optimizer_cpu_offload"):
        fraction = section.number("optimizer_offload_fraction")
        run.cpu_optimizer = 1.0 if fraction is None else min(max(fraction, 0.0), 1.0)
