"""OpenRLHF: flags of `openrlhf.cli.train_ppo_ray` (dotted since 0.10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autoconfig.formats.post_training.keys import likeliest_version
from autoconfig.formats.post_training.run import (
    RlRun,
    algorithm_of,
    fields_of_run,
    model_line,
    node_split,
    run_of_fields,
    sample_dynamically,
    score_by,
)
from autoconfig.maps.read import read_fields
from autoconfig.maps.table import load_map
from autoconfig.maps.tree import Section
from autoconfig.maps.write import written_paths
from autoconfig.planning.export_files import MARK, quoted, remark
from autoconfig.post_training.job import PassBatch
from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.plan import NONE
from autoconfig.specs.remarks import note

VERSION = "0.11.2"
WRITTEN = ("ppo", "rloo", "grpo", "dapo")
COMPARING = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
"""Estimators that need two responses of a prompt or more."""
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
MICRO, CLASSIC_MICRO = (1, 1), (4, 8)
"""Samples of a micro-batch of training and of passes where they are not given, in 0.11.2 and before 0.10 (the same file)."""


def dotted(section: Section, wanted: str | None = None) -> tuple[Section, str]:
    """Return the section with classic flags under their names of 0.11.2, and the release that it is for: the wanted one, or
    of those without dots the newest that takes most of its flags."""
    classic = load_map("rl_openrlhf").more["classic"]
    if not any(name in section.flat for name in classic):
        return section, VERSION
    version = wanted if wanted in CLASSIC_VERSIONS else likeliest_version("openrlhf", section.flat, CLASSIC_VERSIONS)
    values = {classic.get(name, name): value for name, value in section.flat.items()}
    if version in CAPPED or any(name in section.flat for name in CAPS):
        prompt, response = (section.count(name) or CAP for name in CAPS)
        values |= {"data.max_len": prompt + response, "rollout.max_new_tokens": response}
    section.used.update(classic)
    return replace(section, values=values), version


def read(section: Section, wanted: str | None = None, alone: int | None = None) -> RlRun:
    """Return the run; flags that are not there have the defaults of the release. `alone`: GPUs of train_ppo without Ray, on
    which all models are, and generate by themselves. Raises InputError."""
    file, (section, version) = section, dotted(section, wanted or (CLASSIC_VERSIONS[0] if alone else None))
    plan = read_fields(load_map("rl_openrlhf"), section).fields
    run = _run(plan, version)
    if alone:
        run.nodes, run.gpus_per_node = node_split(alone, 8)
        run.rollout_gpus, run.critic_gpus, run.engine, run.engine_tp, run.engines = 0, 0, "hf", 1, 0
        run.offload, run.memory_share = False, HF_SHARE
        plan["together"] = True
    else:
        run.refused += _asserted(run, plan)
    _note(section, run, plan)
    file.used.update(section.used)
    return run


def _asserted(run: RlRun, plan: Mapping[str, Any]) -> list[str]:
    """Return what train_ppo_ray.py asserts of GPUs that roles share, and in 0.5 and 0.6 of prompts and engines."""
    actor, engines, wrong = run.train_gpus, run.engines, []
    if run.version in ASSERTING:
        oldest = run.version == ASSERTING[0]
        which = "a divisor" if oldest else "a divisor or a multiple"
        rules = {
            f"--rollout_batch_size {run.prompts:,} does not divide over the actor's {actor:,} GPUs": run.prompts % actor,
            "--zero_stage 3 wants --vllm_num_engines above 0": not engines and plan.get("stage") == 3,
            f"--vllm_num_engines {engines} and the actor's {actor} GPUs: use {which} of them": (
                engines and actor % engines and (oldest or engines % actor)
            ),
            f"the actor's {actor} GPUs are no multiple of the critic's {run.critic_gpus}": (
                run.critic_gpus and actor % run.critic_gpus
            ),
        }
        wrong += [text for text, broken in rules.items() if broken]
    own, reference = (run.nodes, run.gpus_per_node), (plan["reference_nodes"], plan["reference_node_gpus"])
    shared = plan["together"] or plan["with_reference"]
    if shared and run.algorithm != "dapo" and plan.get("kl") != 0 and reference != own:
        sizes = f"{own[0]} x {own[1]} and {reference[0]} x {reference[1]}"
        wrong.append(f"actor and reference share GPUs, and have {sizes}: give both the same")
    return wrong


def _run(plan: Mapping[str, Any], version: str) -> RlRun:
    """Return the run of train_ppo_ray, without what is noted."""
    algorithm = algorithm_of(plan, plan.get("kl") != 0)
    engines, tp, together, asynchronous = plan["engines"], plan["engine_tp"], plan["together"], plan["asynchronous"]
    colocated = (together and not asynchronous) or engines == 0
    apart = algorithm == "ppo" and not together
    response = min(plan["response_cap"], plan["longest"])
    return run_of_fields(
        plan,
        "openrlhf",
        "--actor.model_name_or_path",
        version=version,
        back_end="fsdp",
        algorithm=algorithm,
        algorithm_word=plan["estimator"] if algorithm == "dapo" else "",
        rollout_gpus=0 if colocated else engines * tp,
        critic_gpus=plan["critic_nodes"] * plan["critic_node_gpus"] if apart else 0,
        prompt_cap=max(1, plan["longest"] - response),
        response_cap=response,
        engine="vllm" if engines else "hf",
        memory_share=_share(plan, version),
        **_micro_batches(plan, version),
        staleness=max(plan["queue"] or 1, 1) if asynchronous else 0,
        compares=plan["estimator"] in COMPARING,
        sharding=3 if plan.get("stage") == 3 else 2,
    )


def _micro_batches(plan: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Return micro-batches of training, and of the passes over what was generated (openrlhf/trainer/ppo_utils)."""
    training, forward = MICRO if version == VERSION else CLASSIC_MICRO
    batch = {"mbs": plan.get("mbs") or training}
    if not plan["dynamic"]:
        return {**batch, "forward": PassBatch(mbs=plan.get("forward_samples") or forward)}
    tokens = plan["token_cap"]
    return {**batch, "tokens_per_gpu": tokens, "forward": PassBatch(tokens_per_gpu=plan.get("forward_tokens") or tokens)}


def _share(plan: Mapping[str, Any], version: str) -> float:
    """Return the share of memory for an engine."""
    oldest = version == CLASSIC_VERSIONS[0]
    share = float(plan.get("memory_share", OLDEST_SHARE if oldest else SHARE))
    return TOGETHER_SHARE if oldest and plan["together"] and OLDEST_SHARE <= share < 1.0 else share


def _note(section: Section, run: RlRun, plan: Mapping[str, Any]) -> None:
    """Note what is priced as another or not at all."""
    stage = plan.get("stage", 2)
    if stage not in (2, 3):
        run.notes.append(note(f"ZeRO stage {stage} is priced as stage 2, which needs less memory"))
    if section.has("reward.model_name_or_path"):
        score_by(run, section.flat["reward.model_name_or_path"], beside=plan["together"])
    if not plan["together"] and not plan["with_reference"] and plan.get("kl") != 0:
        run.notes.append(note("the reference model has GPUs of its own: it is priced on those of the actor"))
    if plan["filters"]:
        sample_dynamically(run, None)


def write(run: RlRun) -> dict[str, str]:
    """Write run_openrlhf.sh. Raises UnsupportedError for what OpenRLHF has no flags for."""
    if run.algorithm not in WRITTEN:
        raise UnsupportedError(f"OpenRLHF's train_ppo_ray has no {run.algorithm}: use {', '.join(WRITTEN)}")
    if run.pp > 1 or run.back_end != "fsdp" or (run.recompute != NONE and run.recompute.granularity != "full"):
        raise UnsupportedError("OpenRLHF trains with DeepSpeed ZeRO: no pipelines, full recomputation or none")
    if run.algorithm == "ppo" and bool(run.rollout_gpus) != bool(run.critic_gpus):
        raise UnsupportedError("OpenRLHF's critic has GPUs of its own where engines have theirs, and only there")
    if run.staleness and not run.rollout_gpus:
        raise UnsupportedError("OpenRLHF generates ahead of the weights on GPUs of their own only")
    words = written_paths(load_map("rl_openrlhf"), _fields(run))
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
        *(f"  --{key}{'' if value is True else f' {quoted(str(value))}'} \\" for key, value in words),
        '  "$@"',
    ]
    return {"run_openrlhf.sh": "\n".join(text) + "\n"}


def _fields(run: RlRun) -> dict[str, Any]:
    """Return the words of the map that a run says."""
    critic_nodes, critic_node_gpus = node_split(run.critic_gpus, run.gpus_per_node) if run.critic_gpus else (None, None)
    apart, tokens = bool(run.rollout_gpus or run.critic_gpus), run.tokens_per_gpu or None
    return {
        **fields_of_run(run),
        "kl": 0.0 if run.algorithm == "dapo" else 0.01,
        "reference_nodes": run.nodes,
        "reference_node_gpus": run.gpus_per_node,
        "forward_samples": run.mbs,
        "stage": 3,
        "critic_nodes": critic_nodes,
        "critic_node_gpus": critic_node_gpus,
        "token_cap": tokens,
        "forward_tokens": tokens,
        "queue": run.staleness or None,
        "removes_padding": bool(tokens) or run.cp > 1,
        "together": not apart,
        "with_reference": apart,
    }
