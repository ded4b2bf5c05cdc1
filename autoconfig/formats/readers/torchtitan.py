"""torchtitan's TOML (torchtitan/config/job_config.py up to 2025, and its names of before).

Stages: torchtitan spreads layers with embedding and output counted as layers (`generate_llm_fqn_per_model_part`,
torchtitan/distributed/pipeline_parallel.py): the first stages take one more where they do not divide.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from autoconfig.formats.record import Document, TrainerRun, model_named, needed, record
from autoconfig.formats.writers.torchtitan import WISH, settings
from autoconfig.maps.tree import Section
from autoconfig.megatron.check_input import CheckInput
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import NONE, Recompute
from autoconfig.specs.remarks import Effect, Remark
from autoconfig.specs.software.optimizers import is_adam, other_state
from autoconfig.specs.software.software import StackOptions
from autoconfig.training.plan_rules import PipelineSplit

FLAVOURS = {
    ("llama3", "8b"): "llama3.1-8b",
    ("llama3", "70b"): "llama3.1-70b",
    ("llama3", "405b"): "llama3.1-405b",
    ("llama2", "7b"): "llama2-7b",
    ("llama2", "13b"): "llama2-13b",
    ("llama2", "70b"): "llama2-70b",
    **{("llama4", f"17bx16e{more}"): "llama4-scout" for more in ("", "_irope")},
    **{("llama4", f"17bx128e{more}"): "llama4-maverick" for more in ("", "_irope")},
    ("deepseek_v3", "671b"): "deepseek-v3",
    ("deepseek_v3", "236b"): "deepseek-v2",
    ("deepseek_v3", "16b"): "deepseek-v2-lite",
    ("qwen3", "30b-a3b"): "qwen3-30b-a3b",
    ("qwen3", "235b-a22b"): "qwen3-235b-a22b",
    ("gpt_oss", "20b"): "gpt-oss-20b",
    ("gpt_oss", "120b"): "gpt-oss-120b",
}
"""Name and flavour of torchtitan's registries whose shapes are catalogue models' (torchtitan/models/*/__init__.py)."""
ONE_STAGE = ("1f1b", "gpipe")
LOOPED = ("interleaved1f1b", "interleavedzerobubble", "loopedbfs")
IN_A_V = ("zbvzerobubble", "dualpipev")
"""Schedules of torch.distributed.pipelining, in small letters: of one stage a rank; of several, rank r with stages r, r + pp,
...; of two, with the first and the last on the first rank."""
HARMLESS = re.compile(
    r"(?:job|profiling|metrics|optimizer|lr_scheduler|checkpoint|validation|compile|comm|infra|memory_estimation|fault_tolerance|"
    r"experimental|debug|float8|mx|quantize|data\w*)\..*|model\.(?:hf_assets_path|tokenizer_path|norm_type|print_after_conversion)|"
    r"training\.(?:dataset\w*|max_norm|steps|warmup_steps|gc_\w+|seed|deterministic\w*|compile|enable_loss_parallel|tokenizer\w*)|"
    r"parallelism\.(?:disable_loss_parallel|enable_compiled_autograd|context_parallel_rotate_method|"
    r"fsdp_reshard_after_forward|pipeline_parallel_expert_parallel_overlap)|"
    r"activation_checkpoint\.(?:per_op\w+|early_stop|memory_budget|visualize\w+|preserve_rng_state|determinism_check|debug)"
)
"""Keys of torchtitan's JobConfig that change neither plan nor model; others that nothing reads are of a fork, or slips."""


def read(document: Document) -> CheckInput:
    """The record. Raises InputError, UnsupportedError."""
    section = document.section()
    assumed: list[Remark] = []
    model = model_named(document, _model_name(section), assumed, whole=True)
    at = "parallelism" if section.has("parallelism") else "experimental"
    tp = section.count(f"{at}.tensor_parallel_degree", "training.tensor_parallel_degree") or 1
    pp = section.count(f"{at}.pipeline_parallel_degree", "experimental.pipeline_parallel_degree") or 1
    cp = section.count(f"{at}.context_parallel_degree", "experimental.context_parallel_degree") or 1
    shard = section.whole(
        f"{at}.data_parallel_shard_degree", "training.data_parallel_shard_degree", "training.data_parallel_degree"
    )
    replicate = section.count(f"{at}.data_parallel_replicate_degree", "training.data_parallel_replicate_degree") or 1
    shard = -1 if shard is None else shard
    if replicate > 1 and shard != 1:
        raise UnsupportedError(
            f"data_parallel_replicate_degree {replicate}: weights, gradients and optimizer are sharded over part of the GPUs "
            "only, with a copy in each such part, which plans cannot say; set it to 1 to check sharding over all"
        )
    optimizer = section.word("optimizer.name") or "AdamW"
    local = needed(section.count("training.local_batch_size", "training.batch_size"), section, "training.local_batch_size")
    micro = local if pp == 1 else section.count(f"{at}.pipeline_parallel_microbatch_size") or 1
    if local % micro:
        raise InputError(f"training.local_batch_size {local} is no multiple of the pipeline's micro-batch {micro}")
    whole = section.whole("training.global_batch_size") or -1
    if micro > local:
        raise InputError(f"training.local_batch_size {local} is less than the pipeline's micro-batch {micro}")
    run = TrainerRun(
        model=model, software="torchtitan", gpus=shard * replicate * tp * pp * cp if shard > 0 else None,
        tp=tp, pp=pp, cp=cp, ep=section.count(f"{at}.expert_parallel_degree") or 1,
        etp=section.count(f"{at}.expert_tensor_parallel_degree") or 1,
        sp=tp > 1 and section.flag(f"{at}.enable_sequence_parallel", default=True),
        micro_batch=micro, accumulation=local // micro if whole < 0 else None, global_batch=whole if whole > 0 else None,
        schedule_samples=local if pp > 1 else None,
        seq_length=needed(section.count("training.seq_len"), section, "training.seq_len"),
        recompute=_recompute(section), numerics=_numerics(section, model), assumed=assumed, harmless=HARMLESS,
        fsdp=0 if shard == 1 and cp == 1 else _stage(section, at, pp), options=_options(section, at, assumed),
    )  # fmt: skip
    if pp > 1:
        run.vpp, run.split = _stages(section, at, model.num_layers, pp)
    run.not_modelled += _not_modelled(section, at, model)
    if optimizer.lower() == "muon":
        assumed.append(Remark("optimizer", "muon", "its Newton-Schulz iterations are left out of the time", Effect.TIME))
    elif not is_adam(optimizer):
        run.not_modelled.append(other_state("optimizer.name", optimizer))
    return record(document, run, section, settings, WISH)


def _model_name(section: Section) -> str | None:
    name, flavour = section.word("model.name"), section.word("model.flavor")
    if name is None or flavour is None:
        return None
    if known := FLAVOURS.get((name.lower(), flavour.lower())):
        return known
    return f"{name}-{flavour}".lower().replace("_", "-")


def _stage(section: Section, at: str, pp: int) -> int:
    """ZeRO stage: `default` keeps weights after forward where there is a pipeline."""
    policy = section.word(f"{at}.fsdp_reshard_after_forward") or "default"
    if policy not in ("default", "always", "never"):
        raise InputError(f"fsdp_reshard_after_forward {policy[:40]!r}: use default, always or never")
    return 3 if policy == "always" or (policy == "default" and pp == 1) else 2


def _stages(section: Section, at: str, layers: int, pp: int) -> tuple[int, PipelineSplit]:
    schedule = _schedule(section, at)
    for key in ("module_fqns_per_model_part", "pipeline_parallel_split_points"):
        if section.get(f"{at}.{key}"):
            raise UnsupportedError(f"{at}.{key}: stages of the file's own, which plans cannot say; drop it to check equal ones")
    first, last = (section.whole(f"{at}.pipeline_parallel_{end}_stage_less_layers") for end in ("first", "last"))
    first, last = 1 if first is None else first, 1 if last is None else last
    each = section.count(f"{at}.pipeline_parallel_layers_per_stage")
    counted = layers + first + last
    stages = -(-counted // each) if each else pp * (2 if schedule in LOOPED else 1)
    if stages % pp:
        raise InputError(f"pipeline_parallel_layers_per_stage {each}: {stages} stages are no multiple of {pp} ranks")
    if (stages == pp) != (schedule in ONE_STAGE):
        wanted = "one stage" if schedule in ONE_STAGE else "at least two stages"
        raise InputError(f"pipeline_parallel_schedule {schedule} has {wanted} a rank, and the file gives {stages // pp}")
    sizes = [counted // stages + int(number < counted % stages) for number in range(stages)]
    sizes[0] -= first
    sizes[-1] -= last
    if min(sizes) < 1:
        raise InputError(f"{layers} layers are too few for {stages} pipeline stages")
    return stages // pp, PipelineSplit(vpp=stages // pp, layers=tuple(sum(sizes[rank::pp]) for rank in range(pp)))


def _schedule(section: Section, at: str) -> str:
    """The pipeline's schedule in small letters. Raises InputError, and UnsupportedError for what plans cannot say."""
    given = section.word(f"{at}.pipeline_parallel_schedule") or "1F1B"
    schedule = given.lower()
    if section.word(f"{at}.pipeline_parallel_schedule_csv"):
        raise UnsupportedError("pipeline_parallel_schedule_csv: the schedule stands in a file of its own, which is not read")
    if schedule in IN_A_V:
        raise UnsupportedError(
            f"pipeline_parallel_schedule {given}: two stages a rank in a V, the first and the last of all on the first rank, "
            "which plans cannot say and no formula prices; check the file with Interleaved1F1B or 1F1B"
        )
    if schedule not in (*ONE_STAGE, *LOOPED):
        known = "1F1B, GPipe, Interleaved1F1B, InterleavedZeroBubble and LoopedBFS"
        raise InputError(f"pipeline_parallel_schedule {given[:40]!r}: read are {known}")
    return schedule


def _options(section: Section, at: str, assumed: list[Remark]) -> StackOptions:
    """How layers, loss and tensor parallelism run."""
    name = "enable_async_tensor_parallel"
    on = section.flag(f"{at}.{name}", f"experimental.{name}", default=False)
    return replace(_compiled(section, assumed), async_tp=True if on else None)


def _compiled(section: Section, assumed: list[Remark]) -> StackOptions:
    """What torch.compile fuses: layers and loss, or the named components (compile.components, by default both)."""
    if not (section.flag("compile.enable") or section.flag("training.compile")):
        assumed.append(Remark("compile", False, "the file does not switch it on", Effect.MEMORY_AND_TIME))
        return StackOptions()
    named = section.get("compile.components")
    parts = named if isinstance(named, list) else ["model", "loss"] if named is None else str(named).strip("[]").split(",")
    words = {str(part).strip(" '\"") for part in parts}
    return StackOptions(compiled="model" in words, loss_fusion="compiled" if "loss" in words else "")


def _recompute(section: Section) -> Recompute:
    mode = section.word("activation_checkpoint.mode") or "selective"
    option = section.word("activation_checkpoint.selective_ac_option") or "op"  # the default of job_config.py since 2025
    if mode == "none":
        return NONE
    if mode == "full" or (mode == "selective" and option == "1"):
        return Recompute("full", (), "uniform", 1)
    if mode == "selective" and option == "op":
        return Recompute("selective", ("op",))
    raise UnsupportedError(
        f"activation_checkpoint {mode} {option}: read are none, full, and selective by op or of every layer; to price it so, "
        "say --set activation_checkpoint.mode=full or --set activation_checkpoint.selective_ac_option=op"
    )


def _numerics(section: Section, model: ModelSpec) -> dict[str, Any]:
    names = [name for name in _converters(section) if "grouped_mm" not in name]
    found: dict[str, Any] = {"precision": "bf16", "grad_reduce_dtype": "fp32"}
    if (section.word("training.mixed_precision_param") or "bfloat16") == "float32":
        found["precision"] = "fp32"
    if (section.word("training.mixed_precision_reduce") or "float32") == "bfloat16":
        found["grad_reduce_dtype"] = "bf16"
    if (section.word("optimizer.name") or "").lower() == "muon":
        found["optimizer"] = "muon"
    if any("float8" in name for name in names) or section.flag("float8.enable_float8_linear"):
        recipe = section.word("float8.recipe_name", "quantize.linear.float8.recipe_name") or "tensorwise"
        found |= {"precision": "fp8", "fp8_recipe": "tensorwise"}
        if recipe != "tensorwise":
            raise UnsupportedError(f"float8 recipe {recipe[:40]!r}: only tensorwise is read")
        gathers = ("float8.enable_fsdp_float8_all_gather", "quantize.linear.float8.enable_fsdp_float8_all_gather")
        found["fp8_param_gather"] = section.flag(*gathers)
    if any("mx" in name for name in names):
        found |= {"precision": "fp8", "fp8_recipe": "mxfp8"}
    if section.flag("debug.moe_force_load_balance", "training.debug_moe_force_load_balance") and model.is_moe:
        found["moe_imbalance"] = 1.0
    return found


def _converters(section: Section) -> list[str]:
    """What quantises modules: `quantize.linear.*` (before, `float8` and `mx`) those of torch.nn.Linear, `quantize.grouped_mm.*`
    routed experts (torchtitan/components/quantization)."""
    found = section.get("model.converters") or []
    return [str(name).strip() for name in (found if isinstance(found, list) else str(found).split(","))]


def _not_modelled(section: Section, at: str, model: ModelSpec) -> list[Remark]:
    found = []
    names = _converters(section)
    experts = [name for name in names if "grouped_mm" in name]
    if experts and len(experts) == len(names):
        why = "GEMMs of routed experts in 8 bits are priced in 16: a step may be faster"
        found.append(Remark("model.converters", ",".join(experts), why, Effect.TIME))
    elif model.is_moe and not experts and any("float8" in name or "mx" in name for name in names):
        why = "leaves routed experts in 16 bits (quantize.grouped_mm.* quantises them); priced in 8: a step is slower"
        found.append(Remark("model.converters", ",".join(names), why, Effect.TIME))
    if section.flag("training.enable_cpu_offload"):
        why = "weights, gradients and optimizer wait in CPU memory: less GPU memory"
        found.append(Remark("training.enable_cpu_offload", None, why, Effect.LESS_MEMORY))
    if (section.word("training.dtype") or "float32") == "bfloat16":
        why = "weights and optimizer state in 16 bits: less memory"
        found.append(Remark("training.dtype", "bfloat16", why, Effect.LESS_MEMORY))
    schedule = (section.word(f"{at}.pipeline_parallel_schedule") or "1F1B").lower()
    if schedule not in (*ONE_STAGE, *LOOPED[:1]):
        why = "priced as 1F1B, interleaved where it has several stages a rank"
        found.append(Remark("pipeline_parallel_schedule", schedule, why, Effect.TIME))
    return found
