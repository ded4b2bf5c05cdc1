"""OpenRLHF: flags of `openrlhf.cli.train_ppo_ray` (dotted since 0.10)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from autoconfig.formats.post_training.keys import likeliest_version
from autoconfig.formats.post_training.recognise import Recognised
from autoconfig.formats.post_training.run import RlRun, map_of_framework, pass_of, run_of_fields, score_by
from autoconfig.formats.post_training.words import node_split
from autoconfig.maps.read import read_fields
from autoconfig.maps.tree import Section
from autoconfig.maps.write import written_paths
from autoconfig.planning.export_files import quoted
from autoconfig.post_training.job import Placement, PostTrainingJob
from autoconfig.specs.errors import InputError
from autoconfig.specs.remarks import note

VERSION: str = map_of_framework("openrlhf").more["version"]
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


def read(document: Recognised, gpus: int | None, release: str | None) -> RlRun:
    """Return the run of train_ppo_ray, or of train_ppo without Ray, on whose GPUs all models are and generate by themselves;
    flags that are not there have the defaults of the release. Raises InputError."""
    plain, gpus = document.config_name == "train_ppo", gpus or document.gpus
    if plain and gpus is None:
        raise InputError("openrlhf.cli.train_ppo does not say its GPUs: say --gpus N")
    section, version = _dotted(document.section, release or (CLASSIC_VERSIONS[0] if plain else None))
    reading = read_fields(map_of_framework("openrlhf"), section)
    document.section.used.update(section.used)
    plan = reading.fields
    plan |= {"version": version, "sharding": 3 if plan.get("stage") == 3 else 2}
    micro, forward_micro = MICRO if version == VERSION else CLASSIC_MICRO
    plan = {"mbs": micro, "forward_samples": forward_micro, **plan}
    _place(plan)
    if plain and gpus:
        nodes, each = node_split(gpus, 8)
        none = {"rollout_gpus": 0, "critic_gpus": 0, "engines": 0, "offload": False}
        plan |= {**none, "nodes": nodes, "gpus_per_node": each, "engine": "hf", "engine_tp": 1, "memory_share": HF_SHARE}
        plan["together"] = True
    run = run_of_fields("openrlhf", replace(reading, fields=plan))
    run.refused += [] if plain else _asserted(run, plan)
    _note(section, run, plan)
    return run


def _dotted(section: Section, wanted: str | None) -> tuple[Section, str]:
    """Return the section with classic flags under their names of 0.11.2, and the release that it is for: the wanted one, or
    of those without dots the newest that takes most of its flags."""
    classic = map_of_framework("openrlhf").more["classic"]
    if not any(name in section.flat for name in classic):
        return section, VERSION
    version = wanted if wanted in CLASSIC_VERSIONS else likeliest_version("openrlhf", section.flat, CLASSIC_VERSIONS)
    values = {classic.get(name, name): value for name, value in section.flat.items()}
    if version in CAPPED or any(name in section.flat for name in CAPS):
        prompt, response = (section.count(name) or CAP for name in CAPS)
        values |= {"data.max_len": prompt + response, "rollout.max_new_tokens": response}
    section.used.update(classic)
    return replace(section, values=values), version


def _place(plan: dict[str, Any]) -> None:
    """Set whose GPUs are whose, the lengths, the engines' share and micro-batches of passes (openrlhf/trainer/ppo_utils)."""
    together, ahead, oldest = plan["together"], plan["asynchronous"], plan["version"] == CLASSIC_VERSIONS[0]
    colocated = (together and not ahead) or plan["engines"] == 0
    plan["rollout_gpus"] = 0 if colocated else plan["engines"] * plan["engine_tp"]
    critic = plan["critic_nodes"] * plan["critic_node_gpus"]
    plan["critic_gpus"] = critic if plan["algorithm"] == "ppo" and not together else 0
    plan["response_cap"] = min(plan["response_cap"], plan["longest"])
    plan["prompt_cap"] = max(1, plan["longest"] - plan["response_cap"])
    plan["engine"] = "vllm" if plan["engines"] else "hf"
    share = plan.setdefault("memory_share", OLDEST_SHARE if oldest else SHARE)
    plan["memory_share"] = TOGETHER_SHARE if oldest and together and OLDEST_SHARE <= share < 1.0 else share
    plan["tokens_per_gpu"] = plan["token_cap"] if plan["dynamic"] else 0
    plan["forward"] = pass_of(plan, "forward")
    plan["staleness"] = max(plan["queue"], 1) if ahead else 0


def _asserted(run: RlRun, plan: dict[str, Any]) -> Iterator[str]:
    """Yield what train_ppo_ray.py asserts of GPUs that roles share, and in 0.5 and 0.6 of prompts and engines."""
    actor, engines, critic = run.train_gpus, plan["engines"], run.placement.critic_gpus
    if run.version in ASSERTING:
        oldest = run.version == ASSERTING[0]
        which = "a divisor" if oldest else "a divisor or a multiple"
        rules = {
            f"--rollout_batch_size {run.prompts:,} does not divide over the actor's {actor:,} GPUs": run.prompts % actor,
            "--zero_stage 3 wants --vllm_num_engines above 0": not engines and plan.get("stage") == 3,
            f"--vllm_num_engines {engines} and the actor's {actor} GPUs: use {which} of them": (
                engines and actor % engines and (oldest or engines % actor)
            ),
            f"the actor's {actor} GPUs are no multiple of the critic's {critic}": critic and actor % critic,
        }
        yield from (text for text, broken in rules.items() if broken)
    own, reference = (run.nodes, run.gpus_per_node), (plan["reference_nodes"], plan["reference_node_gpus"])
    if (plan["together"] or plan["with_reference"]) and run.algorithm != "dapo" and plan["kl"] and reference != own:
        sizes = f"{own[0]} x {own[1]} and {reference[0]} x {reference[1]}"
        yield f"actor and reference share GPUs, and have {sizes}: give both the same"


def _note(section: Section, run: RlRun, plan: dict[str, Any]) -> None:
    """Note what is priced as another or not at all."""
    if (stage := plan.get("stage", 2)) not in (2, 3):
        run.notes.append(note(f"ZeRO stage {stage} is priced as stage 2, which needs less memory"))
    if section.has("reward.model_name_or_path"):
        score_by(run, section.flat["reward.model_name_or_path"], beside=plan["together"])
    if not plan["together"] and not plan["with_reference"] and plan["kl"]:
        run.notes.append(note("the reference model has GPUs of its own: it is priced on those of the actor"))


def values(job: PostTrainingJob, placement: Placement, words: dict[str, Any]) -> dict[str, Any]:
    """Return what run_openrlhf.sh says beside what all files say: its flags."""
    each, critic, tokens = words["gpus_per_node"], placement.critic_gpus, placement.tokens_per_gpu or None
    critic_nodes, critic_node_gpus = node_split(critic, each) if critic else (None, None)
    together = placement.colocated and not critic
    words |= {
        "kl": 0.0 if job.algorithm.name == "dapo" else 0.01,
        "reference_nodes": words["nodes"],
        "reference_node_gpus": each,
        "forward_samples": placement.train.mbs,
        "stage": 3,
        "critic_nodes": critic_nodes,
        "critic_node_gpus": critic_node_gpus,
        "token_cap": tokens,
        "forward_tokens": tokens,
        "queue": placement.staleness or None,
        "removes_padding": bool(tokens) or placement.train.cp > 1,
        "together": together,
        "with_reference": not together,
    }
    flags = written_paths(map_of_framework("openrlhf"), words)
    return {"VALUES": [f"  --{key}{'' if value is True else f' {quoted(str(value))}'} \\" for key, value in flags]}
