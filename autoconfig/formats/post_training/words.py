"""A planned placement in the words of the maps, and the remarks on lengths and turns in files of ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from autoconfig.formats.post_training.run import map_of_framework
from autoconfig.maps.write import written, yaml_text
from autoconfig.post_training.job import Placement, PostTrainingJob, prompt_room
from autoconfig.post_training.question import COMPARING
from autoconfig.post_training.samples.rollout import ONE_TURN, Agents
from autoconfig.specs.models.model_catalogue import hub_id
from autoconfig.specs.plan import NONE

ASKED = "the model: a folder, or its id on the hub"
PLACEHOLDER = "CHECKPOINT"
"""Stands in YAML for a model that is to be given."""
TURNS = "Planned for samples of {:d} turns: tools of {:g} s, spread {:g}, {:d} tokens, {:d} sandboxes, prefix {}"
LENGTHS = "Planned for prompts of {:.0f} and responses of {:.0f} tokens on average"


def words_of(job: PostTrainingJob, placement: Placement) -> dict[str, Any]:
    """Return the words of the maps that a planned placement says; None where one is not written."""
    plan, engine, recompute, alone = placement.train, placement.engine, placement.train.recompute, not placement.colocated
    nodes, each = node_split(plan.world_size, job.gpus_per_node or job.gpu.gpus_per_node)
    engine_nodes, engine_node_gpus = node_split(engine.gpus, each) if alone else (None, None)
    prompt_cap = job.longest_prompt or prompt_room(job.prompt_tokens)
    return {
        **{name: getattr(plan, name) for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs", "first", "last")},
        "back_end": "fsdp" if plan.fsdp or not plan.dist_opt else "megatron",
        "model": checkpoint_of(job) or PLACEHOLDER,
        "algorithm": job.algorithm.name,
        "compares": job.algorithm.name in COMPARING,
        "nodes": nodes,
        "gpus_per_node": each,
        "prompts": job.prompts,
        "group": job.group,
        "minibatch": job.minibatch,
        "prompt_cap": prompt_cap,
        "response_cap": job.responses.cap,
        "longest": prompt_cap + job.responses.cap,
        "sp": plan.tp > 1,
        "checkpointing": recompute != NONE,
        "granularity": None if recompute == NONE else recompute.granularity,
        "recompute_method": recompute.method,
        "recompute_layers": recompute.num_layers,
        "recompute_modules": f"[{','.join(recompute.modules)}]",
        "optimizer_on_cpu": plan.offload > 0,
        "optimizer_fraction": f"{plan.offload:g}",
        "lora_rank": job.lora_rank,
        "colocated": placement.colocated,
        "critic_gpus": placement.critic_gpus,
        "staleness": placement.staleness,
        "asynchronous": placement.staleness > 0,
        "engine": "vllm",
        "engine_tp": engine.tp,
        "engine_pp": engine.pp,
        "engines": engine.replicas,
        "engine_nodes": engine_nodes,
        "engine_node_gpus": engine_node_gpus,
        "engine_sleeps": not alone,
        "memory_share": f"{placement.memory_share:g}",
        "eager": not placement.cuda_graphs,
        "offload": placement.offload,
        "dynamic": placement.tokens_per_gpu > 0,
        "tokens_per_gpu": placement.tokens_per_gpu,
    }


def checkpoint_of(job: PostTrainingJob) -> str:
    """Return the folder or hub's id of the policy; empty where neither the caller nor the catalogue says it."""
    return job.checkpoint or ("" if job.policy.model_type else hub_id(job.policy.name))


def model_line(job: PostTrainingJob) -> str:
    """Return the line of a script that sets MODEL, which the caller may set."""
    name = checkpoint_of(job)
    return f'MODEL="${{MODEL:-{name}}}"' if name else f'MODEL="${{MODEL:?give {ASKED}}}"'


def yaml_lines(framework: str, words: Mapping[str, Any], remarks: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Return the settings of a file with remarks behind some of its lines; a model that is not known is asked for."""
    model = {f"{key}: {PLACEHOLDER}": f"give {ASKED}" for key in ("model_name", "model_name_or_path")}
    lines, behind = yaml_text(written(map_of_framework(framework), words)).splitlines(), {**model, **remarks}
    return [f"{line}  # {behind[line.strip()]}" if line.strip() in behind else line for line in lines]


def node_split(gpus: int, per_node: int) -> tuple[int, int]:
    """Return (nodes, GPUs of each)."""
    return (gpus // per_node, per_node) if gpus % per_node == 0 else (1, gpus)


def lengths_lines(job: PostTrainingJob) -> list[str]:
    """Return the remarks of a file that is written: the mean lengths that its seconds are of, and what samples do between
    turns, which no framework has a key for."""
    a = job.agents
    turns = (a.turns, a.tool_seconds, a.tool_spread, a.tool_tokens, a.sandboxes, "kept" if a.keeps_prefix else "dropped")
    lines = [LENGTHS.format(job.prompt_tokens, job.responses.mean), *([TURNS.format(*turns)] if a.turns > 1 else [])]
    return [f"# {line}" for line in lines]


def said_agents(text: str) -> Agents:
    """Return what samples do between turns in a file with that remark; of others one turn."""
    found = _remark(TURNS, text)
    if found is None:
        return ONE_TURN
    turns, seconds, spread, tokens, boxes, prefix = found
    return Agents(
        turns=int(turns),
        tool_seconds=float(seconds),
        tool_spread=float(spread),
        tool_tokens=int(tokens),
        sandboxes=int(boxes),
        keeps_prefix=prefix == "kept",
    )


def said_lengths(text: str) -> tuple[float, float] | None:
    """Return (mean prompt, mean response) in tokens of a file with that remark."""
    found = _remark(LENGTHS, text)
    return None if found is None else (float(found[0]), float(found[1]))


PATTERNS = {"{:d}": r"(\d{1,7})", "{:.0f}": r"(\d{1,7})", "{:g}": r"(\d{1,7}(?:\.\d{1,6})?)", "{}": "(kept|dropped)"}
"""What a remark of ours has in the place of each number or word."""


def _remark(wanted: str, text: str) -> tuple[str, ...] | None:
    """Return the numbers and words of a remark in the first lines of a file."""
    for place, pattern in PATTERNS.items():
        wanted = wanted.replace(place, pattern)
    match = re.search(f"^# {wanted}$", "\n".join(text.splitlines()[:8]), re.MULTILINE)
    return match.groups() if match else None
