"""NeMo-RL: GRPO configurations in YAML, laid over the shipped grpo_math_1B.yaml (`defaults:`)."""

from __future__ import annotations

from autoconfig.formats.post_training.run import RlRun, in_bf16, model_value, node_split, sample_dynamically
from autoconfig.maps.tree import Section
from autoconfig.planning.export_files import MARK, remark
from autoconfig.post_training.job import PassBatch
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.plan import NONE, Recompute
from autoconfig.specs.remarks import Effect, note

VERSION = "0.7.0"
WRITTEN = ("grpo", "dapo")
BASE = {
    "policy.model_name": "Qwen/Qwen2.5-1.5B",
    "policy.max_total_sequence_length": 512,
    "policy.train_micro_batch_size": 4,
    "policy.train_global_batch_size": 512,
    "policy.dtensor_cfg.enabled": True,
    "policy.sequence_packing.enabled": True,
    "policy.generation.vllm_cfg.gpu_memory_utilization": 0.6,
    "grpo.num_prompts_per_step": 32,
    "grpo.num_generations_per_prompt": 16,
    "cluster.gpus_per_node": 1,
    "cluster.num_nodes": 1,
}
"""What a file over grpo_math_1B.yaml need not say: the values of that file at v0.7.0 (NVIDIA-NeMo/RL)."""
OTHER_TRAINERS = ("ppo", "dpo", "sft", "rm", "distillation")
"""Sections of its other trainers' files (examples/configs of v0.7.0)."""
MEGATRON, DTENSOR = "policy.megatron_cfg", "policy.dtensor_cfg"
GENERATION = "policy.generation"
LOGPROBS = "policy.logprob_batch_size"
BATCH_VARIANT_TP = 4
"""From so much tensor parallelism on, logits differ with the batch (lm_policy.py of v0.7.0)."""
ENGINES = {
    "vllm": ("vllm_cfg", "tensor_parallel_size", "pipeline_parallel_size", "gpu_memory_utilization", "enforce_eager"),
    "sglang": ("sglang_cfg", "tp_size", "pp_size", "mem_fraction_static", "disable_cuda_graph"),
    "trtllm": ("trtllm_cfg", "tensor_parallel_size", "pipeline_parallel_size", "gpu_memory_utilization", "enforce_eager"),
    "megatron": ("mcore_generation_config", "tensor_model_parallel_size", "pipeline_model_parallel_size", "share", "eager"),
}
"""policy.generation.backend -> its section, and in it tp, pp, share of memory, eager (grpo_math_1B_sglang.yaml of v0.7.0)."""


def read(section: Section) -> RlRun:
    """The run; what the file leaves out has the value of grpo_math_1B.yaml. Raises InputError, and UnsupportedError for what
    trains otherwise."""
    if other := next((name for name in OTHER_TRAINERS if section.has(name) and not section.has("grpo")), ""):
        raise UnsupportedError(
            f"this NeMo-RL file trains by {other} (its section `{other}`): configurations of GRPO are read, and "
            f"`autoconfig rl --algorithm {other} --framework nemo-rl` plans it"
        )
    missing = [key for key in BASE if not section.has(key)]
    for key in missing:
        section.flat[key] = BASE[key]
    megatron = section.flag(f"{MEGATRON}.enabled")
    at = MEGATRON if megatron else DTENSOR
    if not megatron and not section.flag(f"{DTENSOR}.enabled"):
        raise InputError(f"neither {MEGATRON}.enabled nor {DTENSOR}.enabled is true: nothing trains")
    nodes, each, rollout = section.count("cluster.num_nodes") or 1, section.count("cluster.gpus_per_node") or 1, 0
    if not section.flag(f"{GENERATION}.colocated.enabled", default=True):
        own = section.count(f"{GENERATION}.colocated.resources.gpus_per_node") or each
        rollout = (section.count(f"{GENERATION}.colocated.resources.num_nodes") or 1) * own
    total, group = nodes * each, section.count("grpo.num_generations_per_prompt") or 16
    left = total - rollout
    if left < 1:
        raise InputError(f"generation takes {rollout} of {total} GPUs: none is left for training")
    (longest, prompt), kl = _caps(section), section.number("loss_fn.reference_policy_kl_penalty")
    micro = section.count("policy.train_micro_batch_size") or 1
    packs = section.flag("policy.sequence_packing.enabled") or section.flag("policy.dynamic_batching.enabled")
    train_nodes, train_each = node_split(left, each)
    run = RlRun(
        framework="nemo-rl",
        version=VERSION,
        back_end="megatron" if megatron else "fsdp",
        model=section.word("policy.model_name") or "",
        algorithm="grpo" if kl is None or kl > 0 else "dapo",
        nodes=train_nodes,
        gpus_per_node=train_each,
        rollout_gpus=rollout,
        prompts=section.count("grpo.num_prompts_per_step") or 32,
        group=group,
        minibatch=section.count("policy.train_global_batch_size") or 512,
        prompt_cap=prompt,
        response_cap=max(1, longest - prompt),
        tp=section.count(f"{at}.tensor_model_parallel_size", f"{at}.tensor_parallel_size") or 1,
        pp=(section.count(f"{at}.pipeline_model_parallel_size") or 1) if megatron else 1,
        cp=section.count(f"{at}.context_parallel_size") or 1,
        ep=section.count(f"{at}.expert_model_parallel_size", f"{at}.expert_parallel_size") or 1,
        recompute=Recompute.parse("full") if section.flag(f"{at}.activation_checkpointing") else NONE,
        tokens_per_gpu=_tokens(section, micro * longest) if packs else 0,
        mbs=micro,
        staleness=_age(section),
        compares=True,
        lora_rank=_lora_rank(section, megatron),
        notes=[note(f"{len(missing)} keys as in grpo_math_1B.yaml")] if missing else [],
    )
    run.algorithm_word = "grpo"
    _ends(section, run)
    _engine(section, run)
    _passes(section, run, packs, micro)
    return run


def _passes(section: Section, run: RlRun, packs: bool, micro: int) -> None:
    """Micro-batches of log-probabilities, and what nemo_rl/models/policy/lm_policy.py of v0.7.0 asserts of them."""
    given = section.flat.get(LOGPROBS)
    each = micro if given is None or str(given).startswith("$") else section.count(LOGPROBS) or micro
    longest = run.prompt_cap + run.response_cap
    run.forward = PassBatch(tokens_per_gpu=_tokens(section, each * longest, "logprob")) if packs else PassBatch(mbs=each)
    forced, samples = section.flag("loss_fn.force_on_policy_ratio"), run.prompts * run.group
    run.no_policy_pass = forced and section.number("grpo.seq_logprob_error_threshold") is None  # nemo_rl/algorithms/opd.py
    if forced and samples != run.minibatch:  # nemo_rl/algorithms/grpo.py
        run.refused.append(
            f"loss_fn.force_on_policy_ratio wants one update of a step: train_global_batch_size is {run.minibatch:,}, and the "
            f"samples of a step are {samples:,}"
        )
    if run.tp >= BATCH_VARIANT_TP and each != micro and not forced:
        why = (  # its published recipes set the variable
            f"{LOGPROBS} {each} and policy.train_micro_batch_size {micro} differ at tp {run.tp}: from tp {BATCH_VARIANT_TP} on "
            "NeMo-RL starts with NRL_IGNORE_TP_ACCURACY_CHECK=1 in its environment alone"
        )
        run.notes.append(note(why, Effect.NOTHING))


def _engine(section: Section, run: RlRun) -> None:
    """What the engine's own section says; Megatron's has the degrees of training where it says none."""
    run.engine = section.word(f"{GENERATION}.backend") or "vllm"
    name, tp, pp, share, eager = ENGINES.get(run.engine, ENGINES["vllm"])
    own, usual = f"{GENERATION}.{name}", (run.tp, run.pp) if run.engine == "megatron" else (1, 1)
    run.engine_tp, run.engine_pp = section.count(f"{own}.{tp}") or usual[0], section.count(f"{own}.{pp}") or usual[1]
    run.memory_share = section.number(f"{own}.{share}", f"{GENERATION}.vllm_cfg.gpu_memory_utilization") or 0.0
    run.graphs = not section.flag(f"{own}.{eager}")
    if section.flag(f"{MEGATRON}.fp8_cfg.enabled") and run.back_end == "megatron":
        run.notes.append(in_bf16(f"{MEGATRON}.fp8_cfg"))
    if str(section.flat.get(f"{own}.precision", "")).startswith(("fp8", "nvfp4")):
        run.notes.append(in_bf16(f"{own}.precision"))


def _lora_rank(section: Section, megatron: bool) -> int:
    """Of adapters, where they are trained; 0: all parameters are."""
    at = f"{MEGATRON}.peft" if megatron else f"{DTENSOR}.lora_cfg"
    return (section.count(f"{at}.dim") or 8) if section.flag(f"{at}.enabled") else 0


def _caps(section: Section) -> tuple[int, int]:
    """(most tokens of a sample, of its prompt)."""
    longest = section.count("policy.max_total_sequence_length") or 512
    prompt, most = min(max(1, longest // 4), 1024), section.flat.get(f"{GENERATION}.max_new_tokens")
    if most is not None and not str(most).startswith("$"):  # the base's is all of max_total_sequence_length
        new = section.count(f"{GENERATION}.max_new_tokens") or longest
        if new > longest:
            raise InputError(
                f"policy.max_total_sequence_length {longest:,} leaves no token for a prompt beside {GENERATION}.max_new_tokens "
                f"{new:,}: raise the first, or lower the second to at most {longest:,}"
            )
        prompt = longest - new or prompt
    return longest, prompt


def _ends(section: Section, run: RlRun) -> None:
    """What Megatron's section says beside the degrees, and what is not priced."""
    if section.flag("grpo.use_dynamic_sampling"):
        times = section.number("grpo.batch_multiplier") or 1.0
        sample_dynamically(run, times if times > 1 else None)
    if run.back_end == "megatron":
        run.etp = section.count(f"{MEGATRON}.expert_tensor_parallel_size") or 1
        run.first = section.count(f"{MEGATRON}.num_layers_in_first_pipeline_stage")
        run.last = section.count(f"{MEGATRON}.num_layers_in_last_pipeline_stage")
        if section.flag(f"{MEGATRON}.optimizer.optimizer_cpu_offload"):
            run.cpu_optimizer = min(max(section.number(f"{MEGATRON}.optimizer.optimizer_offload_fraction") or 0.0, 0.0), 1.0)


def _tokens(section: Section, usual: int, of: str = "train") -> int:
    """train_mb_tokens, or logprob_mb_tokens; where it is the base's product, micro-batch times the longest sequence."""
    for key in (f"policy.sequence_packing.{of}_mb_tokens", f"policy.dynamic_batching.{of}_mb_tokens"):
        value = section.flat.get(key)
        if value is not None and not str(value).startswith("$"):
            return section.count(key) or usual
        section.used.add(key)
    return usual


def _age(section: Section) -> int:
    if not section.flag("grpo.async_grpo.enabled"):
        return 0
    return section.count("grpo.async_grpo.max_trajectory_age_steps") or 1


def write(run: RlRun) -> dict[str, str]:
    """grpo.yaml. Raises UnsupportedError for what NeMo-RL 0.7.0's GRPO has no keys for."""
    if run.algorithm not in WRITTEN:
        raise UnsupportedError(f"NeMo-RL's run_grpo.py has no {run.algorithm}: use grpo or dapo")
    if run.critic_gpus or (run.staleness and not run.rollout_gpus):
        raise UnsupportedError("NeMo-RL generates ahead of the weights on GPUs of their own only, and GRPO has no critic")
    if run.pp > 1 and run.back_end == "fsdp":
        raise UnsupportedError("DTensor has no pipelines")
    return {"grpo.yaml": _yaml(run)}


def _yaml(run: RlRun) -> str:
    longest = run.prompt_cap + run.response_cap
    nodes, each = node_split(run.train_gpus + run.rollout_gpus, run.gpus_per_node)
    megatron = run.back_end == "megatron"
    full = str(run.recompute != NONE).lower()
    lines = [
        MARK,
        f"# {remark(run.model)}, {run.algorithm} with NeMo-RL {VERSION} on {run.train_gpus + run.rollout_gpus} GPUs.",
        "# Put it into examples/configs of the release: uv run examples/run_grpo.py --config examples/configs/grpo.yaml",
        "defaults: grpo_math_1B.yaml",
        "grpo:",
        f"  num_prompts_per_step: {run.prompts}",
        f"  num_generations_per_prompt: {run.group}",
        "  async_grpo:",
        f"    enabled: {str(run.staleness > 0).lower()}",
        f"    max_trajectory_age_steps: {max(run.staleness, 1)}",
        "loss_fn:",
        f"  reference_policy_kl_penalty: {0.01 if run.algorithm == 'grpo' else 0.0}",
        f"  use_importance_sampling_correction: {str(run.staleness > 0).lower()}",
        "policy:",
        f"  model_name: {model_value(run)}",
        f"  train_global_batch_size: {run.minibatch}",
        f"  train_micro_batch_size: {run.mbs}",
        f"  max_total_sequence_length: {longest}",
        "  sequence_packing:",
        f"    enabled: {str(run.tokens_per_gpu > 0).lower()}",
    ]
    if run.tokens_per_gpu:
        lines += [f"    train_mb_tokens: {run.tokens_per_gpu}", f"    logprob_mb_tokens: {run.tokens_per_gpu}"]
    lines += ["  dtensor_cfg:", f"    enabled: {str(not megatron).lower()}"]
    if megatron:
        lines += [
            "  make_sequence_length_divisible_by: ${policy.megatron_cfg.tensor_model_parallel_size}",
            "  megatron_cfg:",
            "    enabled: true",
            f"    tensor_model_parallel_size: {run.tp}",
            f"    pipeline_model_parallel_size: {run.pp}",
            f"    context_parallel_size: {run.cp}",
            f"    expert_model_parallel_size: {run.ep}",
            f"    num_layers_in_first_pipeline_stage: {run.first or 'null'}",
            f"    num_layers_in_last_pipeline_stage: {run.last or 'null'}",
            f"    sequence_parallel: {str(run.tp > 1).lower()}",
            f"    activation_checkpointing: {full}",
            "    optimizer:",
            f"      optimizer_cpu_offload: {str(run.cpu_optimizer > 0).lower()}",
            f"      optimizer_offload_fraction: {run.cpu_optimizer:.4g}",
        ]
    else:
        lines += [
            f"    tensor_parallel_size: {run.tp}",
            f"    context_parallel_size: {run.cp}",
            f"    sequence_parallel: {str(run.tp > 1).lower()}",
            f"    activation_checkpointing: {full}",
        ]
    return (
        "\n".join([*lines, *_generation(run, nodes, each), "cluster:", f"  gpus_per_node: {each}", f"  num_nodes: {nodes}"])
        + "\n"
    )


def _generation(run: RlRun, nodes: int, each: int) -> list[str]:
    lines = [
        "  generation:",
        f"    backend: {run.engine}",
        f"    max_new_tokens: {run.response_cap}",
        "    vllm_cfg:",
        f"      async_engine: {str(run.staleness > 0).lower()}",
        f"      tensor_parallel_size: {run.engine_tp}",
        f"      pipeline_parallel_size: {run.engine_pp}",
        f"      gpu_memory_utilization: {run.memory_share:g}",
        f"      enforce_eager: {str(not run.graphs).lower()}",
        "    colocated:",
        f"      enabled: {str(not run.rollout_gpus).lower()}",
    ]
    if run.rollout_gpus:
        own_nodes, own = node_split(run.rollout_gpus, each)
        lines += [
            "      resources:",
            f"        num_nodes: {own_nodes if nodes > 1 else 'null'}",
            f"        gpus_per_node: {own}",
        ]
    return lines
