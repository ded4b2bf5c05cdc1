"""Rows of the catalogues, as `autoconfig models`, `gpus` and `software` print them; one model: its family and parameters."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from autoconfig.planning.resolve import read_checkpoint, read_model
from autoconfig.specs.errors import GIB, UnknownNameError, UnsupportedError
from autoconfig.specs.hardware.cluster import gpu_ids, load_gpu
from autoconfig.specs.json_record import Keywords, Positive
from autoconfig.specs.models.huggingface import model_type_of
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import family_of_name, load_model, model_names
from autoconfig.specs.models.parameters import active_parameters, mtp_depths_held, total_parameters
from autoconfig.specs.remarks import AssumedJson, Effect, assumed_json
from autoconfig.specs.software.engine import engine_names, load_engine
from autoconfig.specs.software.software import load_stack, software_names
from autoconfig.time_model.serving.tables import shipped_calibration
from autoconfig.training.rules import ALL_RULES, Rule


def model_rows() -> list[dict[str, Any]]:
    """One row per catalogue model."""
    rows = []
    for name in model_names():
        model = load_model(name)
        experts = f"{model.num_moe_experts} top {model.moe_router_topk}" if model.num_moe_experts else "-"
        rows.append(
            {
                "name": name,
                "parameters": total_parameters(model),
                "active": active_parameters(model),
                "layers": model.num_layers,
                "hidden": model.hidden_size,
                "heads": model.num_attention_heads,
                "kv_heads": model.num_query_groups,
                "ffn": model.moe_ffn_hidden_size or model.ffn_hidden_size,
                "experts": experts,
                "vocabulary": model.vocab_size,
                "sequence": model.default_seq_length or "-",
                "global_batch": model.default_global_batch_size or "-",
            }
        )
    return rows


def named(what: str, rows: list[dict[str, Any]], words: Iterable[str]) -> list[dict[str, Any]]:
    """The rows whose name, their first column, has every word. Raises UnknownNameError where none has."""
    said = [word.strip().lower() for word in words]
    names = [str(next(iter(row.values()))) for row in rows]
    found = [row for row, name in zip(rows, names, strict=True) if all(word in name.lower() for word in said)]
    if not found:
        kind = {"gpus": "GPU", "software": "software stack"}.get(what, what.removesuffix("s"))
        raise UnknownNameError(kind, " ".join(said), names, f"autoconfig {what} lists all")
    return found


def gpu_rows() -> list[dict[str, Any]]:
    """One row per GPU type: dense peaks in TFLOPS, bandwidths in GB/s per direction."""
    rows = []
    for name in gpu_ids():
        gpu = load_gpu(name)
        peak = {key: round(value / 1e12) for key, value in gpu.flops_per_s.items()}
        rows.append(
            {
                "id": name,
                "memory_gib": round(gpu.memory_bytes / GIB, 1),
                "memory_gb_per_s": round(gpu.hbm_bytes_per_s / 1e9),
                "bf16_tflops": peak.get("bf16", "-"),
                "fp8_tflops": peak.get("fp8", "-"),
                "link": gpu.link,
                "link_gb_per_s": round(gpu.link_bytes_per_s / 1e9),
                "link_domain": gpu.link_domain_size,
                "gpus_per_node": gpu.gpus_per_node,
                "network_gbit_per_s": round(gpu.nic_bytes_per_s * 8 / 1e9),
            }
        )
    return rows


def software_rows() -> list[dict[str, Any]]:
    """One row per software stack: what it saves, fuses and overlaps."""
    rows = []
    for name in software_names():
        stack = load_stack(name)
        memory, time = stack.memory, stack.time
        overlaps = [
            word
            for word, on in (
                ("gradient reduction", time.overlap_grad_reduce),
                ("parameter gather", time.overlap_param_gather),
                (f"TP {time.tp_overlap_share:.0%}", time.tp_overlap_share > 0),
                (f"p2p {time.p2p_overlap_share:.0%}", time.p2p_overlap_share > 0),
            )
            if on
        ]
        loss, norms = f"{memory.loss_bytes_per_logit:g} B/logit", f"norms {memory.norm_input_bytes:g} B"
        row = {"name": name, "year": stack.year, "saves": f"{memory.attention_kernel} attention, {loss}, {norms}"}
        row |= {"overlaps": ", ".join(overlaps) or "nothing", "also_called": ", ".join(stack.aliases) or "-"}
        rows.append({**row, "description": stack.description})
    return rows


def engine_rows() -> list[dict[str, Any]]:
    """One row per serving engine generation."""
    rows = []
    for engine in map(load_engine, engine_names()):
        row = {
            "name": engine.name,
            "framework": engine.framework,
            "year": engine.year,
            "constants_stand_in": shipped_calibration().borrowed_by(engine) or "-",
            "kv_memory_ratio": engine.kv_memory_ratio,
        }
        rows.append({**row, "chunked_prefill": engine.chunked_prefill, "description": engine.description})
    return rows


WHERE = {
    "arguments": "Megatron-LM refuses such a plan when it reads the arguments",
    "config": "Megatron-core refuses such a plan when its configuration or model is built",
    "groups": "Megatron-core refuses such a plan when process groups are made",
    "schedule": "Megatron-core refuses such a plan when the pipeline schedule starts",
    "kernels": "Such a plan fails when layers or collectives are built or called on GPUs",
    "run time": "Such a plan fails at run time, in a check of the layers",
    "nowhere": "Megatron starts, and runs something else than the plan says or does not know the limit",
}
"""Where a rule is enforced (ENFORCED_IN of training/recompute_rules.py), in words."""
OF_OPTIONS = "No plan of a search breaks it: options and launch scripts are held to it"


def rule_rows() -> list[dict[str, Any]]:
    """One row per rule that rejects plans, in the order of checking: what must hold, the plan keys it looks at, where Megatron
    enforces it."""
    return [{"rule": rule.id, "text": rule.text, "keys": _keys(rule), "enforced_in": rule.enforced_in} for rule in ALL_RULES]


def rules_about(word: str) -> list[dict[str, Any]]:
    """The rules of a topic: a key of a plan (sp), or a word of what they say (experts); empty where none is about it."""
    said = word.strip().lower()
    found = [row for row in rule_rows() if said in row["keys"].split()]
    begins = re.compile(rf"\b{re.escape(said)}", re.IGNORECASE)
    return found or [row for row in rule_rows() if said and begins.search(row["text"])]


def _keys(rule: object) -> str:
    return " ".join(key for key in rule.needs if key != "num_gpus") if isinstance(rule, Rule) else "whole plan"


def rule_record(given: str) -> dict[str, Any]:
    """One rule in full, `reason` and `source` among it; a constraint of Megatron that no plan of a search can break has its own
    words as text. Raises UnknownNameError with the nearest codes."""
    with (resources.files("autoconfig") / "data" / "megatron_constraints.csv").open(encoding="utf-8") as file:
        constraints = {row["id"]: row for row in csv.DictReader(file)}
    rules = {rule.id: rule for rule in ALL_RULES}
    code = given.strip().upper()
    if code not in rules and code not in constraints:
        known = sorted({*rules, *constraints})
        raise UnknownNameError("rule", code, known, "autoconfig rules lists those that reject plans", field="rule")
    constraint = constraints.get(code, {})
    source = constraint.get("source_at_MLM_d98e8a64_Bridge_067f987df", "")
    found = {"rule": code, "text": "", "keys": constraint.get("area", ""), "enforced_in": None, "enforced": OF_OPTIONS}
    if (rule := rules.get(code)) is not None:
        where = rule.enforced_in
        found |= {"text": rule.text, "keys": _keys(rule), "enforced_in": where, "enforced": WHERE[where], "reason": rule.reason}
        source = rule.source
    else:
        found |= {"text": f"{constraint['rule']} (when: {constraint['when']})", "reason": ""}
    return {**found, "source": source}


def rule_text(record: dict[str, Any]) -> str:
    """The record as lines."""
    lines = [f"{record['rule']}: {record['text']}.", f"About: {record['keys']}", f"{record['enforced']}."]
    lines += [f"Why: {record['reason']}."] if record["reason"] else []
    return "\n".join([*lines, f"In Megatron's code: {record['source']}"] if record["source"] else lines)


@dataclass(frozen=True, kw_only=True)
class ModelCountJson(AssumedJson):
    """What `autoconfig model --json` prints."""

    schema_version: Annotated[int, Keywords(const=2)] = 2
    name: str
    family: str
    """Of the catalogue, or a config.json's model_type; gpt3 for a bare size."""
    parameters: Positive
    """All, the vocabulary unpadded, as the model's publisher counts: exact."""
    active_parameters: Positive
    """Those that one token passes: of the routed experts only the chosen ones."""
    left_out: tuple[str, ...]
    """What the model has beside them, or its file says and the count does not take."""
    quantised: str = ""
    """How a quantised checkpoint stores its weights; empty for 16 bits."""


def describe(
    model: str | Mapping[str, Any], *, local_files: bool = True, like: str | None = None, download: bool = False
) -> ModelCountJson:
    """A catalogue name, a size, the path of a config.json or (a mapping) its content, read as one of the family `like` where
    given. Raises InputError, and UnsupportedError with the reason where the model cannot be planned."""
    spec, remarks = read_model(model, local_files=local_files, like=like, download=download)
    total = total_parameters(spec)
    return ModelCountJson(
        name=spec.name,
        family=like or _family(model, spec),
        parameters=total,
        active_parameters=active_parameters(spec),
        left_out=(*(one.why for one in remarks if one.effect is Effect.LEFT_OUT), *_left_out(spec, total)),
        **assumed_json(one for one in remarks if one.effect is not Effect.LEFT_OUT),
        quantised=_quantised(model, local_files=local_files),
    )


def _quantised(model: str | Mapping[str, Any], *, local_files: bool) -> str:
    """A count needs no format, so that one which is not read is only said."""
    try:
        checkpoint = read_checkpoint(model, local_files=local_files)
    except UnsupportedError as error:
        return error.text
    return "" if checkpoint is None else str(checkpoint)


def _family(given: str | Mapping[str, Any], spec: ModelSpec) -> str:
    if not isinstance(given, str):
        return str(given.get("model_type", ""))
    if (family := family_of_name(spec.name)) is not None:
        return family
    path = Path(given.strip()).expanduser()
    return model_type_of(path) if path.exists() else "gpt3"


def _left_out(spec: ModelSpec, total: int) -> tuple[str, ...]:
    depths = mtp_depths_held(spec)
    if not depths:
        return ()
    more = total_parameters(spec, mtp=True) - total
    return (f"{depths} multi-token-prediction depth{'s' * (depths > 1)}: {more:,} parameters",)


def model_text(found: ModelCountJson) -> str:
    """For a person."""
    lines = [f"{found.name} ({found.family}): {found.parameters:,} parameters, {found.active_parameters:,} active"]
    lines += [f"quantised: {found.quantised}"] * bool(found.quantised)
    lines += [f"left out: {text}" for text in found.left_out]
    return "\n".join([*lines, *(f"assumed: {text}" for text in found.assumed)])


def model_json_text(found: ModelCountJson) -> str:
    """The same as JSON, for the service."""
    from autoconfig.specs.json_record import to_json

    return json.dumps(to_json(found), allow_nan=False)
