"""OpenRLHF: flags of `openrlhf.cli.train_ppo_ray` (dotted since 0.10)."""

from __future__ import annotations

from dataclasses import replace

from autoconfig.formats.post_training.keys import likeliest_version
from autoconfig.formats.post_training.run import RlRun, model_line, node_split, sample_dynamically, score_by
from autoconfig.maps.tree import Section
from autoconfig.planning.export_files import MARK, quoted, remark
from autoconfig.post_training.job import PassBatch
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.plan import NONE, Recompute
from autoconfig.specs.remarks import note

VERSION = "0.11.2"
ESTIMATORS = {
    "gae": "ppo",
    "reinforce": "rloo",
    "rloo": "rloo",
    "reinforce_baseline": "rloo",
    "group_norm": "grpo",
    "dr_grpo": "dapo",
}
"""--algo.advantage.estimator -> our algorithm."""
COMPARING = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
"""Estimators that need two responses of a prompt or more."""
CLASSIC = {
    "pretrain": "actor.model_name_or_path", "reward_pretrain": "reward.model_name_or_path",
    "remote_rm_url": "reward.remote_url", "actor_num_nodes": "actor.num_nodes", "critic_num_nodes": "critic.num_nodes",
    "ref_num_nodes": "ref.num_nodes", "reward_num_nodes": "reward.num_nodes",
    "actor_num_gpus_per_node": "actor.num_gpus_per_node", "critic_num_gpus_per_node": "critic.num_gpus_per_node",
    "ref_num_gpus_per_node": "ref.num_gpus_per_node", "reward_num_gpus_per_node": "reward.num_gpus_per_node",
    "colocate_all_models": "train.colocate_all", "colocate_actor_ref": "train.colocate_actor_ref",
    "colocate_critic_reward": "train.colocate_critic_reward", "async_train": "train.async_enable",
    "async_queue_size": "train.async_queue_size", "train_batch_size": "train.batch_size",
    "micro_train_batch_size": "train.micro_batch_size", "use_dynamic_batch": "train.dynamic_batch_enable",
    "train_max_tokens_per_gpu": "train.max_tokens_per_gpu", "rollout_batch_size": "rollout.batch_size",
    "rollout_max_tokens_per_gpu": "rollout.max_tokens_per_gpu",
    "micro_rollout_batch_size": "rollout.micro_batch_size", "n_samples_per_prompt": "rollout.n_samples_per_prompt",
    "max_new_tokens": "rollout.max_new_tokens", "generate_max_len": "rollout.max_new_tokens", "max_len": "data.max_len",
    "prompt_data": "data.prompt_dataset", "vllm_num_engines": "vllm.num_engines",
    "vllm_tensor_parallel_size": "vllm.tensor_parallel_size", "vllm_gpu_memory_utilization": "vllm.gpu_memory_utilization",
    "vllm_enable_sleep": "vllm.enable_sleep", "enforce_eager": "vllm.enforce_eager", "zero_stage": "ds.zero_stage",
    "adam_offload": "ds.adam_offload", "ring_attn_size": "ds.ring_attn_size",
    "ds_tensor_parallel_size": "ds.tensor_parallel_size", "deepspeed_enable_sleep": "ds.enable_sleep",
    "packing_samples": "ds.packing_samples", "lora_rank": "ds.lora.rank",
    "gradient_checkpointing": "actor.gradient_checkpointing_enable", "advantage_estimator": "algo.advantage.estimator",
    "init_kl_coef": "algo.kl.init_coef", "dynamic_filtering": "algo.dynamic_filtering_enable",
}  # fmt: skip
"""Flags of releases before 0.10, which have no dots, and what 0.11.2 calls them: those that say something of placement."""
CAPS, CAP = ("prompt_max_len", "generate_max_len"), 1024
"""Flags of releases before 0.9, and the tokens of one that is not given."""
CLASSIC_VERSIONS = ("0.5.9", "0.6.4", "0.7.5", "0.8.11", "0.9.10")
"""Releases whose keys are known and have no dots, oldest first; the first has a train_ppo without Ray, too."""
CAPPED = CLASSIC_VERSIONS[:-1]
"""Those with these caps."""
ASSERTING = CLASSIC_VERSIONS[:2]
"""Those that assert that prompts and GPUs of engines divide (train of openrlhf/cli/train_ppo_ray.py)."""
HF_SHARE = 0.3
"""Of a GPU's memory for weights and cache of Hugging Face generate, as of a TRL file without vLLM."""
SHARE, OLDEST_SHARE, TOGETHER_SHARE = 0.95, 0.9, 0.4
"""Of memory for an engine where it is not given; in 0.5, and there where all models share GPUs and it is 0.9 or more."""
PACKED_TOKENS = 16192
"""--train.max_tokens_per_gpu where it is not given (openrlhf/cli/train_ppo_ray.py of 0.8.11 to 0.11.2)."""
MICRO, CLASSIC_MICRO = (1, 1), (4, 8)
"""Samples of a micro-batch of training and of passes where they are not given, in 0.11.2 and before 0.10 (the same file)."""
WRITTEN = {"ppo": "gae", "rloo": "rloo", "grpo": "group_norm", "dapo": "dr_grpo"}


def dotted(section: Section, wanted: str | None = None) -> tuple[Section, str]:
    """The section with classic flags under their names of 0.11.2, and the release that it is for: the wanted one, or of those
    without dots the newest that takes most of its flags."""
    if not any(name in section.flat for name in CLASSIC):
        return section, VERSION
    version = wanted if wanted in CLASSIC_VERSIONS else likeliest_version("openrlhf", section.flat, CLASSIC_VERSIONS)
    found = {CLASSIC.get(name, name): value for name, value in section.flat.items()}
    capped = any(name in section.flat for name in CAPS)
    if capped or version in CAPPED:
        prompt, response = (section.count(name) or CAP for name in CAPS)
        found |= {"data.max_len": prompt + response, "rollout.max_new_tokens": response}
    section.used.update(CLASSIC)
    return replace(section, values=found), version


def read(section: Section, wanted: str | None = None, alone: int | None = None) -> RlRun:
    """The run; flags that are not there have the defaults of the release. `alone`: GPUs of train_ppo without Ray, on which all
    models are, and generate by themselves. Raises InputError."""
    given, (section, version) = section, dotted(section, wanted or (CLASSIC_VERSIONS[0] if alone else None))
    run = _run(section, version)
    if alone:
        run.nodes, run.gpus_per_node = node_split(alone, 8)
        run.rollout_gpus, run.critic_gpus, run.engine, run.engine_tp, run.engines = 0, 0, "hf", 1, 0
        run.offload, run.memory_share = False, HF_SHARE
        together = True
    else:
        together = section.flag("train.colocate_all")
        if version in ASSERTING:
            _asserted(section, run, version)
    _note(section, run, together, alone=bool(alone))
    given.used.update(section.used)
    return run


def _asserted(section: Section, run: RlRun, version: str) -> None:
    """What train_ppo_ray.py of 0.5 and 0.6 asserts, on top of the rest."""
    actor, engines = run.train_gpus, run.engines
    if run.prompts % actor:
        run.refused.append(f"--rollout_batch_size {run.prompts:,} does not divide over the actor's {actor:,} GPUs")
    if not engines and (section.whole("ds.zero_stage") or 0) == 3:
        run.refused.append("--zero_stage 3 wants --vllm_num_engines above 0")
    if engines and actor % engines and (version == ASSERTING[0] or engines % actor):
        which = "a divisor" if version == ASSERTING[0] else "a divisor or a multiple"
        run.refused.append(f"--vllm_num_engines {engines} and the actor's {actor} GPUs: use {which} of them")
    if run.critic_gpus and actor % run.critic_gpus:
        run.refused.append(f"the actor's {actor} GPUs are no multiple of the critic's {run.critic_gpus}")


def _run(section: Section, version: str) -> RlRun:
    """Of train_ppo_ray; without what _note adds."""
    estimator = section.word("algo.advantage.estimator") or "gae"
    if estimator not in ESTIMATORS:
        raise InputError(f"--algo.advantage.estimator {estimator[:40]!r}: use {', '.join(ESTIMATORS)}")
    algorithm = ESTIMATORS[estimator]
    if algorithm == "grpo" and section.number("algo.kl.init_coef") == 0:
        algorithm = "dapo"
    nodes, each = section.count("actor.num_nodes") or 1, section.count("actor.num_gpus_per_node") or 8
    engines = section.whole("vllm.num_engines") or 0
    tp = section.count("vllm.tensor_parallel_size") or 1
    together, asynchronous = section.flag("train.colocate_all"), section.flag("train.async_enable")
    colocated = (together and not asynchronous) or engines == 0
    critic = (section.count("critic.num_nodes") or 1) * (section.count("critic.num_gpus_per_node") or 8)
    apart = algorithm == "ppo" and not together
    longest = section.count("data.max_len") or 2048
    response = min(section.count("rollout.max_new_tokens") or 1024, longest)
    dynamic, usual = section.flag("train.dynamic_batch_enable"), MICRO if version == VERSION else CLASSIC_MICRO
    group = section.count("rollout.n_samples_per_prompt") or 1
    model = section.word("actor.model_name_or_path")
    if model is None:
        raise InputError("--actor.model_name_or_path is not in the file: say --model NAME")
    run = RlRun(
        framework="openrlhf",
        version=version,
        back_end="fsdp",
        model=model,
        algorithm=algorithm,
        nodes=nodes,
        gpus_per_node=each,
        rollout_gpus=0 if colocated else engines * tp,
        critic_gpus=critic if apart else 0,
        prompts=section.count("rollout.batch_size") or 1024,
        group=group,
        minibatch=section.count("train.batch_size") or 128,
        prompt_cap=max(1, longest - response),
        response_cap=response,
        tp=section.count("ds.tensor_parallel_size") or 1,
        cp=section.count("ds.ring_attn_size") or 1,
        recompute=Recompute.parse("full") if section.flag("actor.gradient_checkpointing_enable") else NONE,
        cpu_optimizer=1.0 if section.flag("ds.adam_offload") else 0.0,
        offload=section.flag("ds.enable_sleep"),
        engine="vllm" if engines else "hf",
        engine_tp=tp,
        engines=engines,
        memory_share=_share(section, version, together=together),
        graphs=not section.flag("vllm.enforce_eager"),
        tokens_per_gpu=(section.count("train.max_tokens_per_gpu") or PACKED_TOKENS) if dynamic else 0,
        mbs=section.count("train.micro_batch_size") or usual[0],
        removes_padding=section.flag("ds.packing_samples"),
        staleness=max(section.whole("train.async_queue_size") or 1, 1) if asynchronous else 0,
        compares=estimator in COMPARING,
        lora_rank=max(section.whole("ds.lora.rank") or 0, 0),
        reference_waits=section.flag("ref.offload", "ref_reward_offload"),
        sharding=_stage(section),
    )
    run.algorithm_word = estimator if algorithm == "dapo" else ""
    run.engine_sleeps, run.forward = section.flag("vllm.enable_sleep"), _forward(section, dynamic, usual[1])
    return run


def _note(section: Section, run: RlRun, together: bool, *, alone: bool) -> None:
    """What is priced as another or not at all, and what train_ppo_ray.py asserts of GPUs that roles share."""
    if not alone and (together or section.flag("train.colocate_actor_ref")):
        own = run.nodes, run.gpus_per_node
        reference = section.count("ref.num_nodes") or 1, section.count("ref.num_gpus_per_node") or 8
        if run.algorithm != "dapo" and section.number("algo.kl.init_coef") != 0 and reference != own:
            asked = f"{own[0]} x {own[1]} and {reference[0]} x {reference[1]}"
            run.refused.append(f"actor and reference share GPUs, and have {asked}: give both the same")
    stage = section.whole("ds.zero_stage")
    if (2 if stage is None else stage) not in (2, 3):
        run.notes.append(note(f"ZeRO stage {stage} is priced as stage 2, which needs less memory"))
    if section.has("reward.model_name_or_path"):
        score_by(run, section.flat["reward.model_name_or_path"], beside=together)
    if not together and not section.flag("train.colocate_actor_ref") and section.number("algo.kl.init_coef") != 0:
        run.notes.append(note("the reference model has GPUs of its own: it is priced on those of the actor"))
    if section.flag("algo.dynamic_filtering_enable"):
        sample_dynamically(run, None)


def _forward(section: Section, dynamic: bool, usual: int) -> PassBatch:
    """The micro-batch of the passes over what was generated (openrlhf/trainer/ppo_utils; defaults of train_ppo_ray.py)."""
    if dynamic:
        tokens = section.count("rollout.max_tokens_per_gpu") or section.count("train.max_tokens_per_gpu") or PACKED_TOKENS
        return PassBatch(tokens_per_gpu=tokens)
    return PassBatch(mbs=section.count("rollout.micro_batch_size") or usual)


def _share(section: Section, version: str, *, together: bool) -> float:
    value, oldest = section.number("vllm.gpu_memory_utilization"), version == CLASSIC_VERSIONS[0]
    share = (OLDEST_SHARE if oldest else SHARE) if value is None else value
    return TOGETHER_SHARE if oldest and together and OLDEST_SHARE <= share < 1.0 else share


def _stage(section: Section) -> int:
    """What ZeRO shards, as of a plan of training: 2 gradients and optimizer state, 3 weights too."""
    return 3 if section.whole("ds.zero_stage") == 3 else 2


def write(run: RlRun) -> dict[str, str]:
    """run_openrlhf.sh. Raises UnsupportedError for what OpenRLHF has no flags for."""
    if run.algorithm not in WRITTEN:
        raise UnsupportedError(f"OpenRLHF's train_ppo_ray has no {run.algorithm}: use {', '.join(WRITTEN)}")
    if run.pp > 1 or run.back_end != "fsdp" or (run.recompute != NONE and run.recompute.granularity != "full"):
        raise UnsupportedError("OpenRLHF trains with DeepSpeed ZeRO: no pipelines, full recomputation or none")
    if run.algorithm == "ppo" and bool(run.rollout_gpus) != bool(run.critic_gpus):
        raise UnsupportedError("OpenRLHF's critic has GPUs of its own where engines have theirs, and only there")
    if run.staleness and not run.rollout_gpus:
        raise UnsupportedError("OpenRLHF generates ahead of the weights on GPUs of their own only")
    words = [f"--{name} {quoted(str(value))}" for name, value in _flags(run).items()]
    words += [f"--{name}" for name, there in _switches(run).items() if there]
    text = [
        "#!/usr/bin/env bash",
        MARK,
        f"# {remark(run.model)}, {run.algorithm} with OpenRLHF {VERSION}.",
        "# Give MODEL, PROMPTS (a dataset) and REWARD (a reward model, or the address of one).",
        "set -euo pipefail",
        model_line(run),
        "python3 -m openrlhf.cli.train_ppo_ray \\",
        '  --actor.model_name_or_path "$MODEL" \\',
        '  --data.prompt_dataset "${PROMPTS:?give PROMPTS}" \\',
        '  --reward.remote_url "${REWARD:?give REWARD}" \\',
        *[f"  {word} \\" for word in words],
        '  "$@"',
    ]
    return {"run_openrlhf.sh": "\n".join(text) + "\n"}


def _flags(run: RlRun) -> dict[str, object]:
    flags: dict[str, object] = {
        "algo.advantage.estimator": WRITTEN[run.algorithm],
        "algo.kl.init_coef": 0.0 if run.algorithm == "dapo" else 0.01,
        "actor.num_nodes": run.nodes,
        "actor.num_gpus_per_node": run.gpus_per_node,
        "ref.num_nodes": run.nodes,
        "ref.num_gpus_per_node": run.gpus_per_node,
        "data.max_len": run.prompt_cap + run.response_cap,
        "rollout.max_new_tokens": run.response_cap,
        "rollout.batch_size": run.prompts,
        "rollout.n_samples_per_prompt": run.group,
        "train.batch_size": run.minibatch,
        "train.micro_batch_size": run.mbs,
        "rollout.micro_batch_size": run.mbs,
        "ds.zero_stage": 3,
        "ds.tensor_parallel_size": run.tp,
        "ds.ring_attn_size": run.cp,
        "vllm.num_engines": run.engines,
        "vllm.tensor_parallel_size": run.engine_tp,
        "vllm.gpu_memory_utilization": f"{run.memory_share:g}",
    }
    if run.critic_gpus:
        nodes, each = node_split(run.critic_gpus, run.gpus_per_node)
        flags |= {"critic.num_nodes": nodes, "critic.num_gpus_per_node": each}
    if run.tokens_per_gpu:
        flags |= {"train.max_tokens_per_gpu": run.tokens_per_gpu, "rollout.max_tokens_per_gpu": run.tokens_per_gpu}
    if run.lora_rank:
        flags["ds.lora.rank"] = run.lora_rank
    if run.staleness:
        flags["train.async_queue_size"] = run.staleness
    return flags


def _switches(run: RlRun) -> dict[str, bool]:
    return {
        "ds.packing_samples": bool(run.tokens_per_gpu) or run.cp > 1,
        "train.dynamic_batch_enable": bool(run.tokens_per_gpu),
        "actor.gradient_checkpointing_enable": run.recompute != NONE,
        "ds.adam_offload": run.cpu_optimizer > 0,
        "train.colocate_all": not run.rollout_gpus and not run.critic_gpus,
        "train.colocate_actor_ref": bool(run.rollout_gpus or run.critic_gpus),
        "ds.enable_sleep": run.offload,
        "vllm.enable_sleep": not run.rollout_gpus,
        "vllm.enforce_eager": not run.graphs,
        "train.async_enable": run.staleness > 0,
    }
