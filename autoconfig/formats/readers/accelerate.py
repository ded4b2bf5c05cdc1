"""Hugging Face accelerate's configuration: FSDP 1 and 2, DeepSpeed, plain data parallelism, tensor and context parallelism."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from autoconfig.formats.hooks.deepspeed import DEEPSPEED, SOFTWARE, sharding_of, stack_of
from autoconfig.formats.readers.options import options_of
from autoconfig.formats.record import Document, TrainerRun, model_named, needed, record
from autoconfig.formats.words import accumulation
from autoconfig.formats.writers.accelerate import WISH, settings
from autoconfig.maps.tree import Section
from autoconfig.megatron.check_input import CheckInput
from autoconfig.megatron.shell.commands import plain_value
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.plan import NONE, Recompute, TrainPlan
from autoconfig.specs.remarks import Effect, Remark
from autoconfig.specs.scenario import Scenario

STRATEGIES = {"FULL_SHARD": 3, "1": 3, "SHARD_GRAD_OP": 2, "2": 2, "NO_SHARD": 0, "3": 0, "HYBRID_SHARD": 3, "4": 3}
"""FSDP 1's strategies, and the numbers that accelerate gives them, as ZeRO stages."""
ASKED = "an accelerate file names no model (the trainer's file beside it does, sft.yaml: check that, with this one)"
MICRO_BATCH = ("per_device_train_batch_size", "micro_batch_size")
"""The trainer's word for it, and ours."""
_KINDS = {"use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "multi_gpu": "MULTI_GPU"}
_OF_DEEPSPEED = frozenset(
    {"zero_stage", "offload_optimizer_device", "offload_param_device", "deepspeed_config_file", "zero3_init_flag"}
)
"""Options of `accelerate launch` (accelerate 1.15, commands/launch.py)."""
PRECISIONS = {"no": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}


def read(document: Document) -> CheckInput:
    """The record. What the file does not say: --model, --set per_device_train_batch_size=N, --seq-length. Raises
    InputError."""
    section = document.section()
    assumed: list[Remark] = []
    launched = layout(section, assumed, document.request.gpus, document.beside)
    model = model_named(document, None, assumed, ASKED)
    if document.request.seq_length is None:
        raise InputError("an accelerate file says no sequence length: say --seq-length N")
    mixed = (section.word("mixed_precision") or "no").lower()
    if mixed not in PRECISIONS:
        raise InputError(f"{section.place('mixed_precision')} is {mixed[:40]!r}: use one of {', '.join(PRECISIONS)}")
    run = TrainerRun(
        model=model,
        micro_batch=needed(section.count(*MICRO_BATCH), section, MICRO_BATCH[0]),
        accumulation=section.count("gradient_accumulation_steps", "deepspeed_config.gradient_accumulation_steps"),
        seq_length=document.request.seq_length,
        numerics={"precision": PRECISIONS[mixed]},
        assumed=assumed,
        **launched,
    )
    run.not_modelled += not_modelled(section)
    if run.recompute == NONE and not section.has("recompute"):
        why = "the file does not say it, the trainer may (--set recompute=full:uniform:1)"
        assumed.append(Remark("recompute", "none", why))
    if run.software != SOFTWARE:
        return record(document, run, section, settings_of_fsdp1 if _is_fsdp1(section) else settings, WISH)
    run.software, run.ways = stack_of(section, document, assumed), {"offload": "deepspeed_config.offload_optimizer_device cpu"}
    return record(document, run, section, settings_of_zero, DEEPSPEED.wish)


def _is_fsdp1(section: Section) -> bool:
    sharded = (section.word("distributed_type") or "").upper() == "FSDP"
    return sharded and (section.whole("fsdp_config.fsdp_version") or 1) == 1


def settings_of_fsdp1(scenario: Scenario, plan: TrainPlan) -> dict[str, tuple[str, ...]]:
    """What of a plan stands in a file of FSDP 1, which a file is that names no version."""
    found = dict(settings(scenario, plan))
    found.pop("fsdp_config.fsdp_version", None)
    if found.pop("fsdp_config.fsdp_reshard_after_forward", None):
        found["fsdp_config.fsdp_sharding_strategy"] = ("FULL_SHARD" if plan.fsdp == 3 else "SHARD_GRAD_OP",)
    return found


def settings_of_zero(scenario: Scenario, plan: TrainPlan) -> dict[str, tuple[str, ...]]:
    """What of a plan stands in a file that starts DeepSpeed, and the trainer's own."""
    found = {
        "deepspeed_config.zero_stage": (str(plan.fsdp or int(plan.dist_opt)),),
        "deepspeed_config.gradient_accumulation_steps": (str(accumulation(scenario, plan)),),
        "per_device_train_batch_size (of the trainer)": (str(plan.mbs),),
        "gradient_checkpointing (of the trainer)": (str(plan.recompute != NONE).lower(),),
    }
    return {**found, **({"deepspeed_config.offload_optimizer_device": ("cpu",)} if plan.offload else {})}


def from_launcher(words: Sequence[str], document: Document) -> Document | None:
    """What `accelerate launch` is told, its options over its --config_file; None where it is not the launcher, and where its
    file is not beside the script."""
    names = [word.rsplit("/", 1)[-1] for word in words]
    if "accelerate" not in names:
        return None
    options = options_of([plain_value(word) for word in words[names.index("accelerate") + 1 :]])
    if (named := options.pop("config_file", None)) is not None:
        beside = document.beside(str(named))
        if beside is None:
            return None
        values = dict(beside.values) if isinstance(beside.values, dict) else {}
    else:
        values = {}
    for name, value in options.items():
        part = "fsdp_config" if name.startswith("fsdp_") else "deepspeed_config" if name in _OF_DEEPSPEED else ""
        if name in _KINDS:
            values["distributed_type"] = _KINDS[name]
        elif name.startswith("parallelism_config_"):
            values["parallelism_config"] = {**values.get("parallelism_config", {}), name: value}
        elif part:
            values[part] = {**(values.get(part) or {}), name: value}
        else:
            values[name] = value
    return replace(document, format="accelerate", values=values, request=replace(document.request, settings={}))


def layout(
    section: Section,
    assumed: list[Remark],
    asked: int | None = None,
    beside: Callable[[str], Document | None] = lambda name: None,
) -> dict[str, Any]:
    """Fields of a TrainerRun: GPUs, software, sharding, tensor and context parallelism, recomputation; `asked`: how many GPUs
    the caller said; `beside`: files that lie with this one. Raises InputError."""
    _refuse_copies(section, asked)
    kind = (section.word("distributed_type") or "NO").upper()
    if kind not in ("FSDP", "DEEPSPEED", "MULTI_GPU", "NO"):
        raise UnsupportedError(f"{section.place('distributed_type')} is {kind}: read are FSDP, DEEPSPEED and MULTI_GPU")
    return {
        "software": _software(section, kind),
        "gpus": section.count("num_processes"),
        "tp": _size(section, "tp"),
        "cp": _size(section, "cp", "sp"),
        "recompute": _recompute(section),
        **_sharding(section, kind, beside, assumed),
    }


def not_modelled(section: Section) -> list[Remark]:
    """What of the file no formula reads."""
    found = []
    if section.flag("fsdp_config.fsdp_offload_params"):
        why = "weights, gradients and optimizer wait in CPU memory: less GPU memory"
        found.append(Remark("fsdp_offload_params", None, why, Effect.LESS_MEMORY))
    if (section.word("deepspeed_config.offload_param_device") or "none").lower() in ("cpu", "nvme"):
        why = "weights wait in CPU memory: less GPU memory, more time"
        found.append(Remark("offload_param_device", None, why, Effect.LESS_MEMORY))
    _size(section, "dp_shard")
    return found


def _refuse_copies(section: Section, asked: int | None) -> None:
    """Raises UnsupportedError where weights are sharded over part of the GPUs: HYBRID_SHARD shards over one machine
    (torch.distributed.fsdp.ShardingStrategy), which are all GPUs where there is one."""
    copies = _size(section, "dp_replicate")
    hybrid = (section.word("fsdp_config.fsdp_sharding_strategy", "fsdp_config.fsdp_reshard_after_forward") or "").upper()
    machines, started = section.count("num_machines") or 1, section.count("num_processes")
    if copies > 1:
        what = f"parallelism_config_dp_replicate_size {copies}"
    elif hybrid in ("HYBRID_SHARD", "4") and (machines > 1 or asked not in (None, started)):
        what = f"fsdp_sharding_strategy {hybrid} on several machines"
    else:
        return
    raise UnsupportedError(
        f"{what}: weights, gradients and optimizer are sharded over part of the GPUs only, with a copy in each such part, "
        "which plans cannot say; check the file with FULL_SHARD"
    )


def _software(section: Section, kind: str) -> str:
    """Context parallelism is torch's own ring attention, which torchtitan has."""
    if kind == "DEEPSPEED":
        return SOFTWARE
    return "torchtitan" if _size(section, "cp", "sp") > 1 else "torch-eager"


def _size(section: Section, *names: str) -> int:
    paths = [f"parallelism_config.parallelism_config_{name}_size" for name in names]
    return section.count(*paths) or 1


def _sharding(section: Section, kind: str, beside: Callable[[str], Document | None], assumed: list[Remark]) -> dict[str, Any]:
    if kind == "DEEPSPEED":
        if name := section.word("deepspeed_config.deepspeed_config_file"):
            file = beside(name)
            if file is None:
                raise InputError(f"deepspeed_config_file: the plan stands in {name[:60]}, which is not beside it: check that")
            zero = file.section()
            return sharding_of(zero, zero.whole("zero_optimization.stage") or 0, assumed)
        stage = section.whole("deepspeed_config.zero_stage")
        found = sharding_of(
            section, 2 if stage is None else stage, assumed
        )  # DeepSpeedPlugin of accelerate/utils/dataclasses.py
        device = (section.word("deepspeed_config.offload_optimizer_device") or "none").lower()
        return {**found, "offload": 1.0 if device in ("cpu", "nvme") and (found["fsdp"] or found["dist_opt"]) else 0.0}
    if kind != "FSDP":
        return {}
    version = section.whole("fsdp_config.fsdp_version") or 1
    if version == 2:
        return {"fsdp": 3 if section.flag("fsdp_config.fsdp_reshard_after_forward", default=True) else 2}
    strategy = (
        section.word("fsdp_config.fsdp_sharding_strategy", "fsdp_config.fsdp_reshard_after_forward") or "FULL_SHARD"
    ).upper()
    if strategy not in STRATEGIES:
        raise InputError(f"fsdp_sharding_strategy {strategy[:40]!r}: use one of {', '.join(STRATEGIES)}")
    return {"fsdp": STRATEGIES[strategy]}


def _recompute(section: Section) -> Recompute:
    if (text := section.word("recompute")) is not None:
        return Recompute.parse(text)
    return Recompute("full", (), "uniform", 1) if section.flag("fsdp_config.fsdp_activation_checkpointing") else NONE
