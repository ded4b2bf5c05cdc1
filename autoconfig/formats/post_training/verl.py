"""verl: hydra overrides of `verl.trainer.main_ppo` in a shell script, with the Megatron or the FSDP back end."""

from __future__ import annotations

from autoconfig.formats.post_training.run import (
    RlRun,
    in_bf16,
    model_line,
    node_split,
    sample_dynamically,
    score_by,
    split_experts,
)
from autoconfig.maps.tree import Section
from autoconfig.planning.export_files import MARK, quoted, remark
from autoconfig.post_training.frameworks import load_algorithm, load_framework, release_numbers
from autoconfig.post_training.job import PassBatch
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.plan import NONE, Recompute
from autoconfig.specs.remarks import Effect, note

VERSION = "0.9.1"
ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
ESTIMATORS = {
    "gae": "ppo",
    "grpo": "grpo",
    "grpo_passk": "grpo",
    "rloo": "rloo",
    "reinforce_plus_plus": "rloo",
    "reinforce_plus_plus_baseline": "rloo",
    "remax": "rloo",
    "gpg": "dapo",
}
"""algorithm.adv_estimator -> our algorithm; grpo without a KL term is DAPO's set of passes."""
COMPARING = ("grpo", "grpo_passk", "rloo", "reinforce_plus_plus_baseline", "gpg")
"""Estimators that compare the responses of a prompt; of one alone they take the reward (verl/trainer/ppo/core_algos.py)."""
PADDING, MEGATRON_PADDING = "actor_rollout_ref.model.use_remove_padding", f"{ACTOR}.megatron.use_remove_padding"
"""Since 0.8.0 the first is of every back end: workers/engine_workers.py writes it over what the engine's section says; in 0.7.0
Megatron has its own (verl/workers/actor/megatron_actor.py)."""
REMOVES_FROM, ONE_SWITCH_FROM = "0.7.0", "0.8.0"
"""Releases from which padding is removed where a run does not say (verl/trainer/config/model/hf_model.yaml, false up to 0.6.1),
and from which one switch is of every back end."""
PASS = "log_prob_micro_batch_size"
WRITTEN = {"grpo": "grpo", "dapo": "grpo", "rloo": "rloo", "ppo": "gae"}
OWN_ROLLOUT = ("rollout.", "async_training.")
"""Sections of the trainers of verl/experimental with GPUs of engines alone: one step off, and fully asynchronous."""
TOOLS = '  actor_rollout_ref.rollout.multi_turn.tool_config_path="${TOOL_CONFIG:?give TOOL_CONFIG, the file of tools}" \\'
OF_A_TEACHER = (
    "distillation.enabled: verl trains by distillation here, from a teacher whose engines have GPUs of their own: files of"
    " reinforcement learning are read"
)


def back_end(section: Section, config_name: str) -> str:
    """megatron or fsdp. Raises UnsupportedError for others."""
    strategy = section.word(f"{ACTOR}.strategy", "model_engine") or ("megatron" if "megatron" in config_name else "fsdp")
    found = {"dp": "fsdp", "fsdp": "fsdp", "fsdp2": "fsdp", "megatron": "megatron"}.get(strategy)
    if found is None:
        raise UnsupportedError(f"{ACTOR}.strategy {strategy[:40]!r} is not priced: use fsdp, fsdp2 or megatron")
    return found


def read(section: Section, config_name: str = "", said: str | None = None) -> RlRun:
    """The run; keys that are not there have the defaults of verl 0.9.1, engines and padding those of the release that is
    `said`. Raises InputError."""
    estimator = section.word("algorithm.adv_estimator") or "gae"
    if estimator not in ESTIMATORS:
        raise InputError(f"algorithm.adv_estimator {estimator[:40]!r}: use {', '.join(ESTIMATORS)}")
    if section.flag("distillation.enabled"):
        raise UnsupportedError(OF_A_TEACHER)
    run = _run(section, back_end(section, config_name), estimator, said)
    if not said and not run.removes_padding and not run.tokens_per_gpu:
        _pad_as_any(run)
    return run


def _run(section: Section, kind: str, estimator: str, said: str | None) -> RlRun:
    """The same of this back end and estimator."""
    version = said or VERSION
    kl = section.flag(f"{ACTOR}.use_kl_loss") or section.flag("algorithm.use_kl_in_reward")
    algorithm = "dapo" if ESTIMATORS[estimator] == "grpo" and not kl else ESTIMATORS[estimator]
    model = section.word("actor_rollout_ref.model.path")
    if model is None:
        raise InputError("actor_rollout_ref.model.path is not in the file: say --model NAME")
    group = section.count(f"{ROLLOUT}.n") or 1
    dynamic = section.flag(f"{ACTOR}.use_dynamic_bsz")
    engine = section.word(f"{ROLLOUT}.name") or "vllm"
    mode = section.word("trainer.v1.trainer_mode") or "sync"
    alone = not section.flag("actor_rollout_ref.hybrid_engine", default=True) or mode == "separate_async"
    other = tuple(key for key in section.flat if alone and key.startswith(OWN_ROLLOUT))
    each = section.count("trainer.n_gpus_per_node") or 8
    engine_nodes = section.whole("rollout.nnodes", f"{ROLLOUT}.nnodes") or 0
    engine_each = section.count("rollout.n_gpus_per_node", f"{ROLLOUT}.n_gpus_per_node") or each
    stale = section.whole("trainer.v1.sampler.max_off_policy_threshold") or 1
    run = RlRun(
        framework="verl",
        version=version,
        back_end=kind,
        model=model,
        algorithm=algorithm,
        nodes=section.count("trainer.nnodes") or 1,
        gpus_per_node=each,
        rollout_gpus=engine_nodes * engine_each if alone else 0,
        prompts=_prompts(section),
        group=group,
        minibatch=(section.count(f"{ACTOR}.ppo_mini_batch_size") or 256) * group,
        prompt_cap=section.count("data.max_prompt_length") or 512,
        response_cap=section.count("data.max_response_length") or 512,
        engine={"vllm_omni": "vllm"}.get(engine, engine),
        engine_tp=section.count(f"{ROLLOUT}.tensor_model_parallel_size") or 2,
        engine_pp=section.count(f"{ROLLOUT}.pipeline_model_parallel_size") or 1,
        engine_dp=section.count(f"{ROLLOUT}.data_parallel_size") or 1,
        memory_share=_or(section.number(f"{ROLLOUT}.gpu_memory_utilization"), 0.5),
        engine_sleeps=section.flag(f"{ROLLOUT}.free_cache_engine", default=True),
        tokens_per_gpu=(section.count(f"{ACTOR}.ppo_max_token_len_per_gpu") or 16384) if dynamic else 0,
        reference_waits=section.flag(f"{REF}.{'megatron' if kind == 'megatron' else 'fsdp_config'}.param_offload"),
        removes_padding=_removes_padding(section, kind, version),
        staleness=max(stale, 1) if "async" in mode else int(bool(other)),
        lora_rank=max(section.whole("actor_rollout_ref.model.lora_rank", "actor_rollout_ref.model.lora.rank") or 0, 0),
    )
    eager = not load_framework("verl").graphs(f"verl {version}", engine)
    run.graphs = not section.flag(f"{ROLLOUT}.enforce_eager", default=eager)
    run.engine_mode_said = bool(said) or engine != "vllm" or section.has(f"{ROLLOUT}.enforce_eager")
    run.algorithm_word = estimator if algorithm == "dapo" else ""
    run.no_reference, run.other_keys = not kl and algorithm in ("ppo", "rloo"), other
    _note(section, run, estimator)
    if alone and not run.rollout_gpus:
        raise InputError("actor_rollout_ref.hybrid_engine is false and actor_rollout_ref.rollout.nnodes is 0: no GPU generates")
    (_megatron if kind == "megatron" else _fsdp)(section, run)
    _passes(section, run, dynamic, version)
    return run


def _pad_as_any(run: RlRun) -> None:
    """Padding of a release that is not known: the longest of all."""
    known = load_framework("verl")
    run.pads_to, last = known.padded_at_most(run.back_end), known.padded_to(VERSION, run.back_end)
    if run.pads_to != last:
        longest = {"cap": "the caps of prompt and response"}.get(run.pads_to, f"the longest of a {run.pads_to}")
        newest = f"{VERSION} pads to the longest of a {last} (say --version)"
        why = f"{PADDING} is false: samples are padded to {longest}, as older releases do; {newest}"
        run.notes.append(note(why, Effect.LESS_MEMORY))


def _removes_padding(section: Section, kind: str, version: str) -> bool:
    """Whether a micro-batch of so many samples holds their tokens alone."""
    said, release = load_framework("verl"), release_numbers(version)
    if said.padded_to(version, kind) == "none":
        return True
    own = kind == "megatron" and release < release_numbers(ONE_SWITCH_FROM)
    return section.flag(MEGATRON_PADDING if own else PADDING, default=own or release >= release_numbers(REMOVES_FROM))


def _passes(section: Section, run: RlRun, dynamic: bool, version: str) -> None:
    """Micro-batches of training and of log-probabilities, and what verl/utils/config.py (validate_config) and the workers
    refuse of these."""
    run.mbs = section.count(f"{ACTOR}.ppo_micro_batch_size_per_gpu") or _of_all_ranks(section, run)
    run.forward = _pass(section, ROLLOUT, run, dynamic)
    used = load_algorithm(run.algorithm).reference_passes and not run.no_reference
    run.reference_forward = _pass(section, REF, run, dynamic) if used else None
    for at, batch in ((ROLLOUT, run.forward), (REF, run.reference_forward)):
        if batch == PassBatch():
            run.refused.append(
                f"neither {at}.{PASS}_per_gpu nor {at}.{PASS} is given, and samples are not packed (use_dynamic_bsz): give the "
                "first"
            )
    for at in (f"{ACTOR}.ppo_micro_batch_size", *(f"{at}.{PASS}" for at in (ROLLOUT, REF))):
        if not dynamic and section.has(f"{at}_per_gpu") and section.has(at):
            run.refused.append(f"{at}_per_gpu and {at} are both given: leave the second out")
    packs = bool(run.forward.tokens_per_gpu)
    if version == VERSION and packs != dynamic:  # asserted in verl/workers/engine_workers.py of 0.9.1
        run.refused.append(
            f"{ROLLOUT}.log_prob_use_dynamic_bsz is {packs} and {ACTOR}.use_dynamic_bsz {dynamic}: verl {VERSION} wants both "
            "alike"
        )


def _pass(section: Section, at: str, run: RlRun, dynamic: bool) -> PassBatch:
    """The micro-batch of one pass (defaults: rollout.yaml and ref.yaml of verl/trainer/config)."""
    if section.flag(f"{at}.log_prob_use_dynamic_bsz", default=dynamic):
        usual = section.count(f"{ACTOR}.ppo_max_token_len_per_gpu") or 16384
        return PassBatch(tokens_per_gpu=section.count(f"{at}.log_prob_max_token_len_per_gpu") or usual)
    each, every = section.count(f"{at}.{PASS}_per_gpu"), section.count(f"{at}.{PASS}")
    if each or not every:
        return PassBatch(mbs=each or 0)
    return PassBatch(mbs=max(1, every * run.tp * run.pp * run.cp // run.train_gpus))


def _of_all_ranks(section: Section, run: RlRun) -> int:
    """The share of one rank in ppo_micro_batch_size, which verl/workers/{fsdp,megatron}_workers.py divide. Raises InputError
    where samples are not packed and nothing says how many a micro-batch has (verl/workers/config/actor.py of 0.9.1)."""
    every = section.count(f"{ACTOR}.ppo_micro_batch_size") or 0
    if not every and not run.tokens_per_gpu:
        raise InputError(
            f"{ACTOR}.ppo_micro_batch_size_per_gpu is not given, nor {ACTOR}.use_dynamic_bsz=True: verl refuses a run without "
            "both; give one of them"
        )
    return max(1, every * run.tp * run.pp * run.cp // run.train_gpus)


def _prompts(section: Section) -> int:
    """Of a step; the fully asynchronous trainer says them in mini-batches (verl/experimental/fully_async_policy)."""
    if not section.has("async_training"):
        return section.count("data.train_batch_size") or 1024
    mini = section.count(f"{ACTOR}.ppo_mini_batch_size") or 256
    each = section.count("async_training.require_batches") or 1
    return mini * each * (section.count("async_training.trigger_parameter_sync_step") or 4)


def _note(section: Section, run: RlRun, estimator: str) -> None:
    """What is there and not priced, or priced as another; and the pass that verl/trainer/ppo/ray_trainer.py leaves out."""
    run.many_turns = section.flag(f"{ROLLOUT}.multi_turn.enable")
    run.no_policy_pass = section.flag("algorithm.rollout_correction.bypass_mode")
    if run.no_policy_pass:
        run.notes.append(note("algorithm.rollout_correction.bypass_mode: no pass of the policy's log-probabilities"))
    if run.group == 1 and estimator in COMPARING:
        run.notes.append(
            note(f"one response of a prompt: verl's {estimator} compares it with none, its reward is the advantage")
        )
    if run.engine_dp > 1:  # verl/workers/rollout/replica.py of 0.9.1: an engine's world is tp x dp x pp
        run.notes.append(note(f"each of an engine's {run.engine_dp} data-parallel ranks priced as an engine of its own"))
    for at, path in (("reward_model", "model.path"), ("reward.reward_model", "model_path")):
        if section.flag(f"{at}.enable"):
            nodes = section.count(f"{at}.nnodes") or 0 if section.flag(f"{at}.enable_resource_pool") else 0
            own = nodes * (section.count(f"{at}.n_gpus_per_node") or 0)
            score_by(run, section.flat.get(f"{at}.{path}"), own, beside=at == "reward_model" and not own)
    fewer = (f"{ROLLOUT}.quantization", f"{ACTOR}.megatron.override_transformer_config.fp8")
    run.notes += [in_bf16(key) for key in fewer if section.word(key)]
    if section.flag(f"{ACTOR}.fsdp_config.qat.enable"):
        run.notes.append(in_bf16(f"{ACTOR}.fsdp_config.qat"))
    if estimator == "remax":  # verl/trainer/ppo/ray_trainer.py: REMAX asks for gen_baseline_output
        run.notes.append(note("remax: a greedy response of every prompt is generated as its baseline, which is not priced"))
    if section.flag("algorithm.filter_groups.enable"):
        more = section.count("data.gen_batch_size")
        sample_dynamically(run, more / run.prompts if more and more > run.prompts else None)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _megatron(section: Section, run: RlRun) -> None:
    at = f"{ACTOR}.megatron"
    run.tp = section.count(f"{at}.tensor_model_parallel_size") or 1
    run.pp = section.count(f"{at}.pipeline_model_parallel_size") or 1
    run.vpp = section.count(f"{at}.virtual_pipeline_model_parallel_size") or 1
    run.cp = section.count(f"{at}.context_parallel_size") or 1
    run.ep = section.count(f"{at}.expert_model_parallel_size") or 1
    given = section.count(f"{at}.expert_tensor_parallel_size")  # null in verl/trainer/config/engine/megatron.yaml
    run.etp = given or (run.tp if run.ep > 1 else 0)
    if run.etp > 1 and not given:
        run.notes.append(split_experts(run.tp))
    own = f"{at}.override_transformer_config"
    run.first = section.count(f"{own}.num_layers_in_first_pipeline_stage")
    run.last = section.count(f"{own}.num_layers_in_last_pipeline_stage")
    granularity = section.word(f"{own}.recompute_granularity")
    if granularity == "full":
        method = section.word(f"{own}.recompute_method") or "uniform"
        run.recompute = Recompute.parse(f"full:{method}:{section.count(f'{own}.recompute_num_layers') or 1}")
    elif granularity == "selective":
        modules = section.get(f"{own}.recompute_modules") or ["core_attn"]
        run.recompute = Recompute.parse("selective:" + "+".join(str(name) for name in modules))
    run.offload = section.flag(f"{at}.param_offload") and section.flag(f"{at}.optimizer_offload")
    optimizer = f"{ACTOR}.optim.override_optimizer_config"
    if section.flag(f"{optimizer}.optimizer_cpu_offload"):
        run.cpu_optimizer = min(max(_or(section.number(f"{optimizer}.optimizer_offload_fraction"), 1.0), 0.0), 1.0)


def _fsdp(section: Section, run: RlRun) -> None:
    at = f"{ACTOR}.fsdp_config"
    run.cp = section.count(f"{at}.ulysses_sequence_parallel_size", f"{ACTOR}.ulysses_sequence_parallel_size") or 1
    run.recompute = (
        Recompute.parse("full") if section.flag("actor_rollout_ref.model.enable_gradient_checkpointing", default=True) else NONE
    )
    run.offload = section.flag(f"{at}.param_offload") and section.flag(f"{at}.optimizer_offload")
    size = section.whole(f"{at}.fsdp_size") or -1
    if size not in (-1, run.train_gpus):
        run.notes.append(note(f"{at}.fsdp_size {size} is priced as sharding over all {run.train_gpus} GPUs"))


def write(run: RlRun) -> dict[str, str]:
    """run_verl.sh. Raises UnsupportedError for what verl 0.9.1 has no keys for."""
    if run.algorithm not in WRITTEN:
        raise UnsupportedError(f"verl's trainer has no {run.algorithm} here: use {', '.join(WRITTEN)}")
    if run.critic_gpus:
        raise UnsupportedError("verl's trainer keeps the critic on the actor's GPUs")
    if run.rollout_gpus and not run.staleness:
        raise UnsupportedError("verl's trainer generates on GPUs of their own only ahead of the weights: say --staleness 1")
    words = {**_common(run), **(_megatron_words(run) if run.back_end == "megatron" else _fsdp_words(run))}
    lines = [f"  {quoted(f'{key}={value}')} \\" for key, value in words.items()]
    text = [
        "#!/usr/bin/env bash",
        MARK,
        f"# {remark(run.model)}, {run.algorithm} with verl {VERSION} on {run.train_gpus + run.rollout_gpus} GPUs.",
        "# Give MODEL (a checkpoint's folder or its name), TRAIN_FILES and VAL_FILES (parquet).",
        "set -euo pipefail",
        model_line(run),
        "python3 -m verl.trainer.main_ppo \\",
        f"  --config-name={'ppo_megatron_trainer' if run.back_end == 'megatron' else 'ppo_trainer'} \\",
        '  actor_rollout_ref.model.path="$MODEL" \\',
        '  data.train_files="${TRAIN_FILES:?give TRAIN_FILES}" \\',
        '  data.val_files="${VAL_FILES:?give VAL_FILES}" \\',
        *([TOOLS] if run.agents.turns > 1 else []),
        *lines,
        '  "$@"',
    ]
    return {"run_verl.sh": "\n".join(text) + "\n"}


def _common(run: RlRun) -> dict[str, object]:
    found: dict[str, object] = {
        "algorithm.adv_estimator": WRITTEN[run.algorithm],
        "data.train_batch_size": run.prompts,
        "data.max_prompt_length": run.prompt_cap,
        "data.max_response_length": run.response_cap + run.agents.added_tokens,
        f"{ACTOR}.use_kl_loss": run.algorithm in ("grpo", "rloo", "ppo"),
        f"{ACTOR}.ppo_mini_batch_size": max(1, run.minibatch // run.group),
        f"{ROLLOUT}.name": run.engine,
        f"{ROLLOUT}.n": run.group,
        f"{ROLLOUT}.tensor_model_parallel_size": run.engine_tp,
        f"{ROLLOUT}.gpu_memory_utilization": f"{run.memory_share:g}",
        f"{ROLLOUT}.enforce_eager": not run.graphs,
        f"{ROLLOUT}.max_num_seqs": 1024,
        f"{ROLLOUT}.free_cache_engine": not run.rollout_gpus,
        "trainer.nnodes": run.nodes,
        "trainer.n_gpus_per_node": run.gpus_per_node,
    }
    if run.tokens_per_gpu:
        found |= {f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": run.tokens_per_gpu}
    else:
        found |= {f"{ACTOR}.use_dynamic_bsz": False, f"{ACTOR}.ppo_micro_batch_size_per_gpu": run.mbs}
        found |= {f"{at}.log_prob_micro_batch_size_per_gpu": run.mbs for at in (ROLLOUT, REF)}
    if run.agents.turns > 1:  # verl/experimental/agent_loop/tool_agent_loop.py
        found |= {
            "data.return_raw_chat": True,
            f"{ROLLOUT}.agent.default_agent_loop": "tool_agent",
            f"{ROLLOUT}.multi_turn.enable": True,
            f"{ROLLOUT}.multi_turn.max_assistant_turns": run.agents.turns,
        }
    if run.lora_rank:
        found["actor_rollout_ref.model.lora_rank"] = run.lora_rank
    if run.algorithm == "ppo":
        found |= {
            "critic.model.path": "${actor_rollout_ref.model.path}",
            "critic.use_dynamic_bsz": bool(run.tokens_per_gpu),
        }
        if not run.tokens_per_gpu:
            found["critic.ppo_micro_batch_size_per_gpu"] = run.mbs
    if run.staleness:
        found |= {
            "trainer.v1.trainer_mode": "separate_async" if run.rollout_gpus else "colocate_async",
            "trainer.v1.sampler.max_off_policy_threshold": run.staleness,
        }
    if run.rollout_gpus:
        nodes, each = node_split(run.rollout_gpus, run.gpus_per_node)
        found |= {"actor_rollout_ref.hybrid_engine": False, f"{ROLLOUT}.nnodes": nodes, f"{ROLLOUT}.n_gpus_per_node": each}
    return found


def _megatron_words(run: RlRun) -> dict[str, object]:
    """Of actor and critic; the reference takes the actor's by interpolation."""
    found: dict[str, object] = {f"{REF}.megatron.param_offload": run.offload}
    for role in [ACTOR, *(["critic"] if run.algorithm == "ppo" else [])]:
        at = f"{role}.megatron"
        own = f"{at}.override_transformer_config"
        found |= {
            f"{at}.tensor_model_parallel_size": run.tp,
            f"{at}.pipeline_model_parallel_size": run.pp,
            f"{at}.context_parallel_size": run.cp,
            f"{at}.expert_model_parallel_size": run.ep,
            f"{at}.sequence_parallel": run.tp > 1,
            f"{at}.param_offload": run.offload,
            f"{at}.optimizer_offload": run.offload,
            **({f"{at}.expert_tensor_parallel_size": run.etp} if run.experts else {}),
            **({f"{at}.virtual_pipeline_model_parallel_size": run.vpp} if run.vpp > 1 else {}),
            **({f"+{own}.num_layers_in_first_pipeline_stage": run.first} if run.first else {}),
            **({f"+{own}.num_layers_in_last_pipeline_stage": run.last} if run.last else {}),
            **_recompute(own, run.recompute),
        }
    if run.cpu_optimizer:
        at = f"+{ACTOR}.optim.override_optimizer_config"
        found |= {f"{at}.optimizer_cpu_offload": True, f"{at}.optimizer_offload_fraction": f"{run.cpu_optimizer:g}"}
    return found


def _recompute(at: str, recompute: Recompute) -> dict[str, object]:
    if recompute.granularity == "full":
        return {
            f"{at}.recompute_granularity": "full",
            f"{at}.recompute_method": recompute.method,
            f"{at}.recompute_num_layers": recompute.num_layers,
        }
    if recompute.granularity == "selective":
        return {f"{at}.recompute_granularity": "selective", f"{at}.recompute_modules": f"[{','.join(recompute.modules)}]"}
    return {}


def _fsdp_words(run: RlRun) -> dict[str, object]:
    found: dict[str, object] = {
        f"{ACTOR}.strategy": "fsdp2",
        f"{ACTOR}.fsdp_config.optimizer_offload": run.offload,
        "actor_rollout_ref.model.enable_gradient_checkpointing": run.recompute != NONE,
        "actor_rollout_ref.model.use_remove_padding": True,
    }
    for role in (ACTOR, REF):
        found[f"{role}.fsdp_config.param_offload"] = run.offload
        found[f"{role}.fsdp_config.ulysses_sequence_parallel_size"] = run.cp
    return found
