"""DeepSpeed's configuration in JSON (data/maps/deepspeed.toml): its buckets, Liger's kernels, optimizers of one bit."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from autoconfig.formats.mapped import Hooks, MappedFormat
from autoconfig.formats.record import Document, Spell
from autoconfig.maps.read import Reading, read_fields, remarks_of
from autoconfig.maps.tree import Section
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.plan import NONE, Recompute, TrainPlan
from autoconfig.specs.remarks import Effect, Remark, note
from autoconfig.specs.run_settings import MOST_ELEMENTS
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.optimizers import other_state
from autoconfig.specs.software.software import OWN_BUCKET, StackOptions, bucket_bytes
from autoconfig.training.space import Constraints

FULL = Recompute("full", (), "uniform", 1)
SOFTWARE, FUSED = "deepspeed", "transformers-deepspeed"
"""Transformers' own modules, whose loss holds the logits; with Liger's kernels, which do not."""
LIGER = ("use_liger_kernel", "enable_liger_kernel", "use_liger")


def is_fused(section: Section) -> bool:
    """Return whether Liger's kernels are asked for."""
    return any([str(section.get(key)).lower() not in ("none", "false", "0", "") for key in LIGER])


def stack_of(section: Section, document: Document, assumed: list[Remark]) -> str:
    """Return the stack of a file that says how a trainer is sharded and not which layers it has."""
    fused = is_fused(section)
    if not fused and document.request.software is None:
        why = f"the Trainer's own layers and loss, which holds the logits (with Liger's kernels: --set {LIGER[0]}=true)"
        assumed.append(note(why))
    return FUSED if fused else SOFTWARE


def sharding_of(section: Section, stage: int | None, assumed: list[Remark]) -> dict[str, Any]:
    """Return dist_opt, fsdp, offload and buckets of a section with DeepSpeed's keys, of this stage where it stands elsewhere.
    Raises InputError, and UnsupportedError for copies over part of the GPUs (MiCS, hpZ)."""
    reading = read_fields(DEEPSPEED.table.below("zero_optimization"), section, {"stage": stage})
    _add_buckets(reading, assumed)
    fields: dict[str, Any] = {name: reading.fields[name] for name in ("dist_opt", "fsdp")}
    fields["offload"] = reading.fields.get("offload", 0.0)
    if "bucket_bytes" in reading.fields:
        fields["options"] = StackOptions(bucket_bytes=reading.fields["bucket_bytes"])
    return fields


def not_modelled(section: Section) -> list[Remark]:
    """Return what of a section with DeepSpeed's keys matters and no formula reads."""
    return remarks_of(DEEPSPEED.table, section)


def _add_buckets(reading: Reading, assumed: list[Remark]) -> None:
    """Add bytes of the buckets: of the sizes that the file says, of DeepSpeed's own where it says none; none of `auto`, which
    the Trainer fills in with the hidden size squared, a few MiB."""
    section, sizes = reading.section, []
    for name in ("reduce", "allgather"):
        text = str(section.flat.get(f"zero_optimization.{name}_bucket_size"))
        size = OWN_BUCKET if text == "None" else 0.0
        with suppress(ValueError):
            size = float(text)
        sizes.append(min(size, MOST_ELEMENTS))
    if not (reading.fields["stage"] and sizes[0] > 0):
        return
    if section.flat.get("zero_optimization.reduce_bucket_size") is None:
        why = "elements, DeepSpeed's own where nothing says them, as are those of allgather_bucket_size"
        assumed.append(Remark("reduce_bucket_size", OWN_BUCKET, why))
    overlaps = section.flag("zero_optimization.overlap_comm") if section.has("zero_optimization.overlap_comm") else None
    reading.fields["bucket_bytes"] = bucket_bytes(sizes[0], max(sizes[1], 0.0), overlaps=overlaps)


def _complete(reading: Reading, document: Document) -> None:
    """Add the buckets, and what another optimizer changes. Raises InputError for a batch that is not known,
    UnsupportedError for a one-bit optimizer beside ZeRO."""
    fields, section = reading.fields, reading.section
    if not (fields.get("global_batch") or fields.get("accumulation") or document.request.global_batch_size):
        raise InputError("train_batch_size and gradient_accumulation_steps are not in the file: say --global-batch-size N")
    _add_buckets(reading, reading.assumed)
    kind, name = fields.get("optimizer_type", "adam"), section.word("optimizer.type") or ""
    if kind == "one_bit" and fields["stage"]:
        raise UnsupportedError(
            f"optimizer.type {name}: the one-bit optimizers are not for ZeRO, DeepSpeed asserts it; use AdamW"
        )
    if kind == "one_bit":
        why = (
            "from freeze_step on momentum travels in one bit, and what that loses is kept: less traffic, more memory; priced "
            "as Adam (DeepSpeed 0.19.8 has it no more)"
        )
        reading.not_modelled.append(Remark("optimizer.type", name, why, Effect.MORE_MEMORY))
    elif kind != "adam":
        reading.not_modelled.append(other_state("optimizer.type", name))


def _words(reading: Reading) -> tuple[Spell, Constraints]:
    """Return the words for a plan, and the plans: without ZeRO where the optimizer is not for it."""
    one_bit = reading.fields.get("optimizer_type") == "one_bit"
    unsharded = {"fsdp": frozenset({0}), "dist_opt": frozenset({False})} if one_bit else {}
    return DEEPSPEED.settings, Constraints(fixed={**DEEPSPEED.wish.fixed, **unsharded})


def bucket(scenario: Scenario) -> int | None:
    """Return elements of each of DeepSpeed's buckets: those that the question says, else those that transformers' Trainer fills
    in for `auto` (integrations/deepspeed.py: the hidden size squared), which DeepSpeed's own, 4.5 GB of each kind, are not
    priced as. None where a file said others, which are priced."""
    if scenario.given.zero_bucket is None and any(scenario.software.memory.bucket_bytes):
        return None
    return scenario.given.zero_bucket or scenario.model.hidden_size**2


def _refused(scenario: Scenario, plan: TrainPlan) -> list[str]:
    sharded = plan.fsdp or plan.dist_opt
    return [f"offload={plan.offload}"] if plan.offload and (plan.offload < 1 or not sharded) else []


def _unsaid(scenario: Scenario, plan: TrainPlan) -> list[str]:
    unsaid = [f"model {scenario.model.name} and sequence length {scenario.workload.seq_length}: the trainer's own"]
    if plan.recompute != NONE:
        unsaid.append(f"recompute={plan.recompute}: the trainer's (gradient_checkpointing)")
    return unsaid


DEEPSPEED = MappedFormat(
    name="deepspeed",
    hooks=Hooks(
        begin=lambda document, section, assumed: {"software": stack_of(section, document, assumed)},
        complete=_complete,
        words=_words,
        written=lambda scenario, plan, said: said.update(
            dict.fromkeys(("reduce_bucket", "allgather_bucket"), bucket(scenario))
        ),
        settings=lambda scenario, plan: {"recompute (of the trainer)": (str(plan.recompute),)},
        refused=_refused,
        unsaid=_unsaid,
    ),
)
