"""accelerate's YAML (data/maps/accelerate.toml): for FSDP, and for DeepSpeed where a plan is priced as it; and what its command
is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from autoconfig.formats.hooks.deepspeed import DEEPSPEED, FULL, SOFTWARE, sharding_of, stack_of
from autoconfig.formats.mapped import Hooks, MappedFormat, run_fields
from autoconfig.formats.options import options_of
from autoconfig.formats.record import Document
from autoconfig.formats.words import Settings, accumulation
from autoconfig.maps.read import Reading, read_entry, read_fields
from autoconfig.maps.tree import Section
from autoconfig.megatron.shell.commands import plain_value
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.plan import NONE, TrainPlan
from autoconfig.specs.remarks import Remark
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.software import StackOptions
from autoconfig.training.space import Constraints

_KINDS = {"use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "multi_gpu": "MULTI_GPU"}
_OF_ZERO = ("zero_stage", "offload_optimizer_device", "offload_param_device", "deepspeed_config_file", "zero3_init_flag")
_PARTS = {"fsdp_": "fsdp_config", "parallelism_config_": "parallelism_config", **dict.fromkeys(_OF_ZERO, "deepspeed_config")}
"""Beginnings of options of `accelerate launch` -> the section of its file in which they stand."""
Beside = Callable[[str], Document | None]
"""Files that lie with one, by their names."""


def layout(section: Section, assumed: list[Remark], asked: int | None, beside: Beside) -> tuple[dict[str, Any], list[Remark]]:
    """Return what a trainer's launch says: fields of a TrainerRun (GPUs, software, sharding, tensor and context parallelism,
    recomputation), and what of it no formula reads; `asked`: how many GPUs the caller said. Raises InputError."""
    reading = read_fields(ACCELERATE.table, section)
    _place(reading, assumed, asked, beside)
    fields = run_fields(reading.fields)
    return {name: value for name, value in fields.items() if name != "numerics"}, reading.not_modelled


def _place(reading: Reading, assumed: list[Remark], asked: int | None, beside: Beside) -> None:
    """Add software and sharding. Raises InputError, and UnsupportedError where weights are sharded over part of the GPUs:
    HYBRID_SHARD shards over one machine (torch.distributed.fsdp.ShardingStrategy), which are all GPUs where there is one."""
    fields, section = reading.fields, reading.section
    hybrid = str(fields.get("strategy", "")).upper()
    what = f"parallelism_config_dp_replicate_size {fields['copies']}" if fields["copies"] > 1 else ""
    if hybrid in ("HYBRID_SHARD", "4") and (fields["nodes"] > 1 or asked not in (None, fields.get("gpus"))):
        what = what or f"fsdp_sharding_strategy {hybrid} on several machines"
    if what:
        raise UnsupportedError(
            f"{what}: weights, gradients and optimizer are sharded over part of the GPUs only, with a copy in each such part, "
            "which plans cannot say; check the file with FULL_SHARD"
        )
    fields |= {"gpus": fields.get("gpus"), "recompute": fields.get("told_recompute") or fields.get("recompute", "none")}
    fields["software"] = "torchtitan" if fields["cp"] > 1 else "torch-eager"  # torch's own ring attention, which torchtitan has
    if fields["kind"] != "deepspeed":
        return
    fields["software"] = SOFTWARE
    zero, stage = section, fields["stage"]
    if name := section.word("deepspeed_config.deepspeed_config_file"):
        file = beside(name)
        if file is None:
            raise InputError(f"deepspeed_config_file: the plan stands in {name[:60]}, which is not beside it: check that")
        zero, stage = file.section(), None
    sharding = sharding_of(zero, stage, assumed)
    fields["bucket_bytes"] = sharding.pop("options", StackOptions()).bucket_bytes
    if zero is not section:
        fields |= sharding


def _begin(document: Document, section: Section, assumed: list[Remark]) -> dict[str, Any]:
    read_entry(ACCELERATE.table.entry("kind"), section)  # of another kind no model helps
    return {"alone": True}


def _complete(reading: Reading, document: Document) -> None:
    """Add the stack of a file that is checked alone."""
    fields = reading.fields
    _place(reading, reading.assumed, document.request.gpus, document.beside)
    if fields["recompute"] == "none" and not reading.section.has("recompute"):
        why = "the file does not say it, the trainer may (--set recompute=full:uniform:1)"
        reading.assumed.append(Remark("recompute", "none", why))
    if fields["software"] == SOFTWARE:
        fields["software"] = stack_of(reading.section, document, reading.assumed)
        fields["ways"] = {"offload": "deepspeed_config.offload_optimizer_device cpu"}


def _words(reading: Reading) -> tuple[Callable[[Scenario, TrainPlan], Settings], Constraints]:
    """Return the words for a plan in this file, and which plans it can say."""
    if reading.fields["kind"] == "deepspeed":
        return settings_of_zero, DEEPSPEED.wish
    fsdp1 = reading.fields["kind"] == "fsdp" and reading.fields["version"] == 1
    return (settings_of_fsdp1 if fsdp1 else ACCELERATE.settings), ACCELERATE.wish


def settings_of_fsdp1(scenario: Scenario, plan: TrainPlan) -> Settings:
    """Return what of a plan stands in a file of FSDP 1, which a file is that names no version."""
    words = dict(ACCELERATE.settings(scenario, plan))
    words.pop("fsdp_config.fsdp_version", None)
    if words.pop("fsdp_config.fsdp_reshard_after_forward", None):
        words["fsdp_config.fsdp_sharding_strategy"] = ("FULL_SHARD" if plan.fsdp == 3 else "SHARD_GRAD_OP",)
    return words


def settings_of_zero(scenario: Scenario, plan: TrainPlan) -> Settings:
    """Return what of a plan stands in a file that starts DeepSpeed, and the trainer's own."""
    words: Settings = {
        "deepspeed_config.zero_stage": (str(plan.fsdp or int(plan.dist_opt)),),
        "deepspeed_config.gradient_accumulation_steps": (str(accumulation(scenario, plan)),),
        "per_device_train_batch_size (of the trainer)": (str(plan.mbs),),
        "gradient_checkpointing (of the trainer)": (str(plan.recompute != NONE).lower(),),
    }
    return {**words, **({"deepspeed_config.offload_optimizer_device": ("cpu",)} if plan.offload else {})}


def from_launcher(words: Sequence[str], document: Document) -> Document | None:
    """Return what `accelerate launch` is told, its options over its --config_file; None where it is not the launcher, and where
    its file is not beside the script."""
    names = [word.rsplit("/", 1)[-1] for word in words]
    if "accelerate" not in names:
        return None
    options = options_of([plain_value(word) for word in words[names.index("accelerate") + 1 :]])
    values: dict[str, Any] = {}
    if (named := options.pop("config_file", None)) is not None:
        beside = document.beside(str(named))
        if beside is None:
            return None
        values = dict(beside.values) if isinstance(beside.values, dict) else {}
    for name, value in options.items():
        part = next((part for start, part in _PARTS.items() if name.startswith(start)), "")
        if name in _KINDS:
            values["distributed_type"] = _KINDS[name]
        elif part:
            values[part] = {**(values.get(part) or {}), name: value}
        else:
            values[name] = value
    return replace(document, format="accelerate", values=values, request=replace(document.request, settings={}))


def _written(scenario: Scenario, plan: TrainPlan, fields: dict[str, Any]) -> None:
    """Add the fields that accelerate has another way."""
    zero = scenario.software.sharding == "deepspeed" and bool(plan.fsdp or plan.dist_opt)
    fields |= {"kind": "deepspeed" if zero else "fsdp" if plan.fsdp else "multi_gpu", "alone": True, "version": 2}
    fields |= {"micro_batch": None, "accumulation": None, "copies": 1, "shards": plan.dp}
    fields |= {"zero3_init": plan.fsdp == 3, "zero3_save": plan.fsdp == 3, "offload": float(plan.offload > 0)}
    if plan.tp == plan.cp == 1:
        fields |= dict.fromkeys(("copies", "shards", "tp", "cp"))


def _refused(scenario: Scenario, plan: TrainPlan) -> list[str]:
    """Return what a file has no words for; of DeepSpeed checkpoints are the trainer's, as are compile and loss."""
    zero = scenario.software.sharding == "deepspeed"
    whole = plan.recompute == FULL and (plan.fsdp or zero)
    waits = zero and plan.offload == 1 and (plan.fsdp or plan.dist_opt)
    bucket = None if zero and scenario.given.own_overlap else scenario.given.zero_bucket  # the file has no words for others
    odd = {
        f"zero_bucket={bucket}": bucket is not None,
        f"recompute={plan.recompute}": not (plan.recompute == NONE or whole),
        f"offload={plan.offload}": plan.offload and not waits,
    }
    return [text for text, holds in odd.items() if holds]


def _unsaid(scenario: Scenario, plan: TrainPlan) -> list[str]:
    return [
        f"model {scenario.model.name} and sequence length {scenario.workload.seq_length}: the trainer's own",
        f"micro-batch {plan.mbs} and gradient accumulation {accumulation(scenario, plan)}: the trainer's "
        "per_device_train_batch_size and gradient_accumulation_steps",
    ]


def _comment(scenario: Scenario) -> str:
    several = "# on each machine: its own machine_rank, and main_process_ip, the address of machine 0\n"
    return several * (scenario.cluster.num_nodes > 1)


ACCELERATE = MappedFormat(
    name="accelerate",
    hooks=Hooks(
        begin=_begin,
        complete=_complete,
        words=_words,
        shown=lambda scenario, plan: plan.replace(
            offload=0.0, dist_opt=plan.dist_opt and scenario.software.sharding != "deepspeed"
        ),
        written=_written,
        settings=lambda scenario, plan: {"per_device_train_batch_size (of the trainer)": (str(plan.mbs),)},
        refused=_refused,
        unsaid=_unsaid,
        comment=_comment,
    ),
)
