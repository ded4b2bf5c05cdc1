"""DeepSpeed's configuration in JSON: batch, precision, ZeRO (docs/config-json.md of DeepSpeed; held against 0.19)."""

from __future__ import annotations

import re
from typing import Any

from autoconfig.formats.record import Document, TrainerRun, model_named, needed, record
from autoconfig.formats.tree import Section
from autoconfig.formats.writers.deepspeed import WISH, settings
from autoconfig.megatron.check_input import CheckInput
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.plan import NONE, Recompute
from autoconfig.specs.remarks import Effect, Remark, note
from autoconfig.specs.run_settings import MOST_ELEMENTS
from autoconfig.specs.software.optimizers import other_state
from autoconfig.specs.software.software import OWN_BUCKET, BucketBytes, StackOptions, bucket_bytes
from autoconfig.training.space import Constraints

SOFTWARE, FUSED = "deepspeed", "transformers-deepspeed"
"""Transformers' own modules, whose loss holds the logits; with Liger's kernels, which do not."""
LIGER = ("use_liger_kernel", "enable_liger_kernel", "use_liger")
WAYS = {
    "offload": 'zero_optimization.offload_optimizer.device "cpu"',
    "gradients": 'data_types.grad_accum_dtype "bf16"',
}
OWN_MICRO_BATCH = "train_micro_batch_size_per_gpu"
CPU = ("cpu", "nvme")
ADAM = frozenset({"adam", "adamw", "lamb", "muadam", "muadamw"})
"""Optimizers with two moments, by DeepSpeed's names (runtime/config.py of 0.19.8)."""
ONE_BIT = frozenset({"onebitadam", "zerooneadam", "onebitlamb"})
"""Those that compress momentum, of DeepSpeed before 0.19.8."""
HARMLESS = re.compile(
    r"optimizer\.(?:type|legacy_fusion|params\..*)|scheduler\..*|gradient_clipping|steps_per_print|wall_clock_breakdown|"
    r"(?:fp16|bf16|bfloat16)\.(?!.*(?:master_weights|optimizer_states)).*|data_types\..*|prescale_gradients|gradient_predivide_factor|"
    r"zero_allow_untested_optimizer|zero_force_ds_cpu_optimizer|memory_breakdown|dump_state|disable_allgather|dataloader_drop_last|"
    r"(?:flops_profiler|comms_logger|tensorboard|wandb|csv_monitor|comet|monitor_config|aio|checkpoint|autotuning|elasticity\.enabled)"
    r"(?:\..*)?|activation_checkpointing\..*|zero_optimization\.(?!zenflow|super_offload).*|tensor_parallel\..*|"
    r"(?:data_efficiency|curriculum_learning|progressive_layer_drop|torch_autocast|compile|sparse_attention)\..*|"
    r"use_data_before_expert_parallelism|graph_harvesting|load_universal_checkpoint|communication_data_type|"
    r"seq_parallel_communication_data_type|sequence_parallel_size"
)
"""Keys that change neither memory nor time of a step."""
_NAMED = tuple(
    Remark(key, None, why, effect)
    for key, effect, why in (
        (
            "activation_checkpointing.partition_activations",
            Effect.LESS_MEMORY,
            "checkpoints of deepspeed.checkpointing are divided over tensor-parallel ranks: less memory, more traffic",
        ),
        (
            "activation_checkpointing.cpu_checkpointing",
            Effect.LESS_MEMORY,
            "checkpoints of deepspeed.checkpointing wait in CPU memory: less GPU memory",
        ),
        ("bf16.bf16_master_weights_and_grads", Effect.LESS_MEMORY, "no fp32 copies of weights and gradients: less memory"),
        ("bf16.bf16_optimizer_states", Effect.LESS_MEMORY, "moments in bf16: less memory"),
        ("fp16.fp16_master_weights_and_grads", Effect.LESS_MEMORY, "no fp32 copies of weights and gradients: less memory"),
        ("zero_optimization.zenflow", Effect.TIME, "ZenFlow updates most weights on the CPU, beside the next steps: less time"),
        ("zero_optimization.super_offload", Effect.TIME, "another way to offload the optimizer: less time"),
        ("compression_training", Effect.MEMORY_AND_TIME, "weights or activations are quantised or pruned while they train"),
        ("sparse_attention", Effect.TIME, "attention over part of the pairs: less time"),
        ("progressive_layer_drop.enabled", Effect.TIME, "layers are left out while it trains: less time"),
        ("curriculum_learning.enabled", Effect.MEMORY_AND_TIME, "sequences grow while it trains; checked at the longest"),
        ("data_efficiency.enabled", Effect.TIME, "tokens or samples are left out while it trains: less time"),
        ("torch_autocast.enabled", Effect.MEMORY_AND_TIME, "torch's autocast over weights in fp32"),
        ("compile.deepcompile", Effect.TIME, "compiled: less time"),
    )
)
"""Keys that matter and that no formula reads."""


def read(document: Document) -> CheckInput:
    """The record. Model, GPUs and sequence length: --model, --gpus, --seq-length. Raises InputError."""
    section = document.section()
    assumed: list[Remark] = []
    model = model_named(document, None, assumed, "a DeepSpeed file names no model")
    tp = section.count("tensor_parallel.autotp_size", "tensor_parallel.tp_size") or 1
    run = TrainerRun(
        model=model,
        software=stack_of(section, document, assumed),
        gpus=None,
        tp=tp,
        cp=section.count("sequence_parallel_size") or 1,
        micro_batch=needed(_micro_batch(section), section, OWN_MICRO_BATCH),
        accumulation=_auto(section, "gradient_accumulation_steps"),
        global_batch=_auto(section, "train_batch_size"),
        seq_length=_length(document),
        recompute=recompute_of(section, assumed),
        numerics=numerics_of(section),
        assumed=assumed,
        ways=WAYS,
        **sharding_of(section, section.whole("zero_optimization.stage") or 0, assumed),
    )
    if run.global_batch is None and run.accumulation is None and document.request.global_batch_size is None:
        raise InputError("train_batch_size and gradient_accumulation_steps are not in the file: say --global-batch-size N")
    run.harmless = HARMLESS
    odd = _optimizer(section, run)
    one_bit = any(one.effect is Effect.MORE_MEMORY for one in odd)
    run.not_modelled += [*not_modelled(section), *odd]
    unsharded = {"fsdp": frozenset({0}), "dist_opt": frozenset({False})} if one_bit else {}
    return record(document, run, section, settings, Constraints(fixed={**WISH.fixed, **unsharded}))


def is_fused(section: Section) -> bool:
    """Whether Liger's kernels are asked for."""
    return any([str(section.get(key)).lower() not in ("none", "false", "0", "") for key in LIGER])


def stack_of(section: Section, document: Document, assumed: list[Remark]) -> str:
    """The stack of a file that says how a trainer is sharded and not which layers it has."""
    fused = is_fused(section)
    if not fused and document.request.software is None:
        why = f"the Trainer's own layers and loss, which holds the logits (with Liger's kernels: --set {LIGER[0]}=true)"
        assumed.append(note(why))
    return FUSED if fused else SOFTWARE


def _auto(section: Section, path: str) -> int | None:
    """A number that the trainer fills in (`auto`) from the others counts as absent."""
    if section.flat.get(path) != "auto":
        return section.count(path)
    section.used.add(path)
    return None


def _micro_batch(section: Section) -> int | None:
    """The file's, else the trainer's, which fills in `auto`."""
    trainers = "per_device_train_batch_size"
    own = _auto(section, OWN_MICRO_BATCH) if section.has(trainers) else section.count(OWN_MICRO_BATCH)
    return section.count(trainers) if own is None else own


def _length(document: Document) -> int:
    length = document.request.seq_length
    if length is None:
        raise InputError("a DeepSpeed file says no sequence length: say --seq-length N")
    return length


def sharding_of(section: Section, stage: int, assumed: list[Remark]) -> dict[str, Any]:
    """dist_opt, fsdp, offload and buckets of a ZeRO stage. Raises InputError for others than 0 to 3, and
    UnsupportedError for copies over part of the GPUs (MiCS, hpZ)."""
    if not 0 <= stage <= 3:
        raise InputError(f"{section.place('zero_optimization.stage')} is {stage}: use 0 to 3")
    if (group := section.whole("zero_optimization.mics_shard_size") or -1) > 0:
        raise UnsupportedError(
            f"zero_optimization.mics_shard_size {group}: MiCS shards weights, gradients and optimizer over {group} GPUs only, "
            "with a copy in each such group, which plans cannot say (ZeRO shards over all); drop the key to check plain ZeRO"
        )
    if stage == 3 and (group := section.whole("zero_optimization.zero_hpz_partition_size") or 1) > 1:
        raise UnsupportedError(
            f"zero_optimization.zero_hpz_partition_size {group}: hpZ holds a second copy of the weights over each {group} "
            "GPUs, which plans cannot say; drop the key to check plain ZeRO-3"
        )
    device = (section.word("zero_optimization.offload_optimizer.device") or "none").lower()
    offloaded = stage > 0 and (device in CPU or section.flag("zero_optimization.cpu_offload"))
    found: dict[str, Any] = {"dist_opt": stage == 1, "fsdp": stage if stage > 1 else 0, "offload": 1.0 if offloaded else 0.0}
    if stage and (size := _bucket(section, assumed)) is not None:
        found["options"] = StackOptions(bucket_bytes=size)
    return found


def _bucket(section: Section, assumed: list[Remark]) -> BucketBytes | None:
    """Bytes of the buckets: of the sizes that the file says, of DeepSpeed's own where it says none; None of `auto`, which the
    Trainer fills in with the hidden size squared, a few MiB."""
    paths = [f"zero_optimization.{name}_bucket_size" for name in ("reduce", "allgather")]
    said = [str(section.flat.get(path)) for path in paths]
    sizes = [float(text) if _SIZE.fullmatch(text) else OWN_BUCKET if text == "None" else 0.0 for text in said]
    if not sizes[0]:
        return None
    if said[0] == "None":
        why = "elements, DeepSpeed's own where nothing says them, as are those of allgather_bucket_size"
        assumed.append(Remark("reduce_bucket_size", OWN_BUCKET, why))
    overlaps = section.flag("zero_optimization.overlap_comm") if section.has("zero_optimization.overlap_comm") else None
    return bucket_bytes(*(min(size, MOST_ELEMENTS) for size in sizes), overlaps=overlaps)


_SIZE = re.compile(r"[0-9.]{1,20}(?:e\+?[0-9]{1,2})?")


def not_modelled(section: Section) -> list[Remark]:
    """What of a file's ZeRO no formula reads, with what it changes."""
    found = []
    weights = (section.word("zero_optimization.offload_param.device") or "none").lower()
    if weights in CPU or section.flag("zero_optimization.cpu_offload_params"):
        why = "weights wait in CPU memory: less GPU memory, more time"
        found.append(Remark("zero_optimization.offload_param", None, why, Effect.LESS_MEMORY))
    if (section.word("zero_optimization.offload_optimizer.device") or "").lower() == "nvme":
        found.append(Remark("zero_optimization.offload_optimizer", "nvme", "priced as CPU memory", Effect.TIME))
    for name in ("zero_quantized_weights", "zero_quantized_gradients"):
        if section.flag(f"zero_optimization.{name}"):
            found.append(Remark(f"zero_optimization.{name}", None, "less traffic", Effect.TIME))
    return [*found, *(remark for remark in _NAMED if _is_on(section, remark.field))]


def _is_on(section: Section, key: str) -> bool:
    """The key is there and not switched off; of a mapping, any part of it."""
    below = [path for path in section.flat if path.startswith(f"{key}.")]
    return any([section.get(path) not in (None, False, "auto") for path in (key, *below) if path in section.flat])


def _optimizer(section: Section, run: TrainerRun) -> list[Remark]:
    """What of an optimizer other than Adam no formula reads. Raises UnsupportedError for a one-bit one beside ZeRO."""
    name = section.word("optimizer.type")
    if name is None or (plain := name.lower().replace("_", "")) in ADAM:
        return []
    if plain in ONE_BIT and (run.fsdp or run.dist_opt):
        raise UnsupportedError(
            f"optimizer.type {name}: the one-bit optimizers are not for ZeRO, DeepSpeed asserts it; use AdamW"
        )
    if plain in ONE_BIT:
        why = (
            "from freeze_step on momentum travels in one bit, and what that loses is kept: less traffic, more memory; priced "
            "as Adam (DeepSpeed 0.19.8 has it no more)"
        )
        return [Remark("optimizer.type", name, why, Effect.MORE_MEMORY)]
    return [other_state("optimizer.type", name)]


def recompute_of(section: Section, assumed: list[Remark]) -> Recompute:
    """The checkpointing that the trainer was told (`--set recompute=full`), which a DeepSpeed file does not say."""
    text = section.word("recompute")
    if text is None:
        why = "a DeepSpeed file does not say it (--set recompute=full:uniform:1)"
        assumed.append(Remark("recompute", "none", why))
        return NONE
    return Recompute.parse(text)


def numerics_of(section: Section) -> dict[str, Any]:
    """Precision of bf16 and fp16; gradients as DeepSpeed's data_types say."""
    bf16 = section.flag("bf16.enabled", "bfloat16.enabled")
    fp16 = False if bf16 and section.flat.get("fp16.enabled") == "auto" else section.flag("fp16.enabled")
    if bf16 and fp16:
        raise InputError("bf16 and fp16 are both enabled; drop one of them")
    found: dict[str, Any] = {"precision": "bf16" if bf16 else "fp16" if fp16 else "fp32"}
    if kind := section.word("data_types.grad_accum_dtype"):
        found["grad_reduce_dtype"] = "fp32" if kind in ("fp32", "float32") else "bf16"
    return found
