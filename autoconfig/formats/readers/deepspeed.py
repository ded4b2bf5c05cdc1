"""DeepSpeed's configuration in JSON: batch, precision, ZeRO (docs/config-json.md of DeepSpeed; held against 0.19)."""

from __future__ import annotations

from typing import Any

from autoconfig.formats.record import Document, TrainerRun, model_named, needed, record
from autoconfig.formats.tree import Section
from autoconfig.formats.writers.deepspeed import WISH, settings
from autoconfig.megatron.check_input import CheckInput
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.plan import NONE, Recompute

SOFTWARE = "transformers-deepspeed"
CPU = ("cpu", "nvme")


def read(document: Document) -> CheckInput:
    """The record. Model, GPUs and sequence length: --model, --gpus, --seq-length. Raises InputError."""
    section = document.section()
    assumed: list[str] = []
    model = model_named(document, None, assumed, "a DeepSpeed file names no model")
    tp = section.count("tensor_parallel.autotp_size", "tensor_parallel.tp_size") or 1
    run = TrainerRun(
        model=model, software=SOFTWARE, gpus=None, tp=tp, cp=section.count("sequence_parallel_size") or 1,
        micro_batch=needed(section.count("train_micro_batch_size_per_gpu"), section, "train_micro_batch_size_per_gpu"),
        accumulation=_auto(section, "gradient_accumulation_steps"), global_batch=_auto(section, "train_batch_size"),
        seq_length=_length(document), recompute=recompute_of(section, assumed), numerics=numerics_of(section), assumed=assumed,
        **sharding_of(section, section.whole("zero_optimization.stage") or 0),
    )  # fmt: skip
    if run.global_batch is None and run.accumulation is None and document.request.global_batch_size is None:
        raise InputError("train_batch_size and gradient_accumulation_steps are not in the file: say --global-batch-size N")
    run.not_modelled += not_modelled(section)
    return record(document, run, section, settings, WISH)


def _auto(section: Section, path: str) -> int | None:
    """A number that the trainer fills in (`auto`) from the others counts as absent."""
    return None if section.flat.get(path) == "auto" else section.count(path)


def _length(document: Document) -> int:
    length = document.request.seq_length
    if length is None:
        raise InputError("a DeepSpeed file says no sequence length: say --seq-length N")
    return length


def sharding_of(section: Section, stage: int) -> dict[str, Any]:
    """dist_opt, fsdp and offload of a ZeRO stage. Raises InputError for others than 0 to 3, UnsupportedError for copies over
    part of the GPUs (MiCS, hpZ)."""
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
    return {"dist_opt": stage == 1, "fsdp": stage if stage > 1 else 0, "offload": 1.0 if offloaded else 0.0}


def not_modelled(section: Section) -> list[str]:
    """What of a file's ZeRO no formula reads, with what it changes."""
    found = []
    weights = (section.word("zero_optimization.offload_param.device") or "none").lower()
    if weights in CPU or section.flag("zero_optimization.cpu_offload_params"):
        found.append("zero_optimization.offload_param: weights wait in CPU memory: less GPU memory, more time")
    if (section.word("zero_optimization.offload_optimizer.device") or "").lower() == "nvme":
        found.append("zero_optimization.offload_optimizer on NVMe is priced as CPU memory")
    for name in ("zero_quantized_weights", "zero_quantized_gradients"):
        if section.flag(f"zero_optimization.{name}"):
            found.append(f"zero_optimization.{name}: less traffic")
    return found


def recompute_of(section: Section, assumed: list[str]) -> Recompute:
    """The checkpointing that the trainer was told (`--set recompute=full`), which a DeepSpeed file does not say."""
    text = section.word("recompute")
    if text is None:
        assumed.append("recompute none: a DeepSpeed file does not say it (--set recompute=full:uniform:1)")
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
