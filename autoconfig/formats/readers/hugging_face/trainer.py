"""Hugging Face's Trainer, as TRL, LLaMA-Factory, axolotl and ms-swift have it: its arguments and adapters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autoconfig.formats.hooks.deepspeed import DEEPSPEED, FULL, FUSED, SOFTWARE, is_fused
from autoconfig.formats.mapped import run_fields
from autoconfig.formats.projections import ALL_LINEAR, LLAMA, modules_named, names_of
from autoconfig.formats.readers.hugging_face.sharding import is_named, names_deepspeed, sharding
from autoconfig.formats.record import Document, TrainerRun, model_named
from autoconfig.formats.words import accumulation, header_of
from autoconfig.maps.read import Reading, read_fields
from autoconfig.maps.table import Map, load_map
from autoconfig.maps.tree import Section
from autoconfig.specs.errors import InputError, UnsupportedError, option
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import NONE, TrainPlan
from autoconfig.specs.remarks import Effect, Remark, note
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.optimizers import other_state
from autoconfig.training.numerics import PAGED
from autoconfig.training.space import Constraints

TRAINER = load_map("trainer")
QUANTISED = ("quantization_bit", "quant_bits", "load_in_4bit", "load_in_8bit")
OTHER_OPTIMIZERS = ("use_galore", "use_q_galore", "use_badam", "use_apollo", "use_adam_mini", "use_muon")
"""Options of LLaMA-Factory and ms-swift that put another optimizer in Adam's place, with less state."""


def settings(scenario: Scenario, plan: TrainPlan) -> dict[str, tuple[str, ...]]:
    """Return the Trainer's options that depend on the plan."""
    return {
        "per_device_train_batch_size": (str(plan.mbs),),
        "gradient_accumulation_steps": (str(accumulation(scenario, plan)),),
        "ZeRO stage (deepspeed)": (str(plan.fsdp or int(plan.dist_opt)),),
        "gradient checkpointing": ("true" if plan.recompute != NONE else "false",),
        **({"offload_optimizer.device (deepspeed)": ("cpu",)} if plan.offload else {}),
    }


def settings_of_fsdp(scenario: Scenario, plan: TrainPlan) -> dict[str, tuple[str, ...]]:
    """Return the same where the file itself says that torch's FSDP shards."""
    options = {name: texts for name, texts in settings(scenario, plan).items() if "deepspeed" not in name}
    words = {3: "full_shard auto_wrap", 2: "shard_grad_op auto_wrap"}
    return {**options, **({"fsdp": (words[plan.fsdp],)} if plan.fsdp else {})}


def training(
    document: Document,
    section: Section,
    *,
    name: str | None,
    kind: str,
    length: tuple[str, int | None],
    recompute: bool,
    gpus: int | None,
    table: Map = TRAINER,
) -> TrainerRun:
    """Return the run of a Trainer. `kind`: full or lora; `length`: the option of the longest sequence and its default, None
    where the program has one of its own or none. Raises InputError where no length is known."""
    assumed: list[Remark] = []
    head = header_of(document.text)
    model = model_named(document, name or (head.model if head else None), assumed)
    if kind not in ("full", "lora"):
        raise UnsupportedError(f"training of kind {kind[:40]!r}: read are full and lora")
    reading = read_fields(table, section, {"kind": kind})
    seq = _length(section, document, length, assumed)
    assumed += [note("every sequence is as long as the longest, as with packing"), *reading.assumed]
    sharded, odd = sharding(section, document, assumed)
    fused = reading.fields["liger"]
    fields = run_fields({"software": FUSED if fused else SOFTWARE, "precision": "fp32", **reading.fields})
    options = replace(fields.pop("options"), **_buckets(sharded))
    run = TrainerRun(
        model=model,
        gpus=gpus,
        seq_length=seq,
        assumed=assumed,
        table=table,
        ways={"offload": "offload_optimizer in the DeepSpeed file"} if names_deepspeed(section) else {},
        not_modelled=odd,
        options=options,
        **{**fields, "recompute": FULL if recompute else NONE, **sharded},
    )
    if head is not None and head.packed_length and section.flag("packing"):
        run.packed_length = head.packed_length
        assumed.append(note(f"packed from sequences of {head.packed_length:,} tokens, as the header says"))
    name_liger(section, run)
    if kind == "lora":
        run.numerics = {**run.numerics, **_adapters(reading, model)}
    _quantise(reading, run)
    _remark(reading, run)
    return run


def _length(section: Section, document: Document, length: tuple[str, int | None], assumed: list[Remark]) -> int:
    """Return the longest sequence. Raises InputError where no length is known."""
    text = section.count(length[0])
    seq = text or length[1] or document.request.seq_length
    if seq is None:
        raise InputError(f"no sequence length is in the file, and its program has its own: say {option('seq_length')} N")
    if text is None and length[1] is not None:
        assumed.append(Remark("seq_length", seq, f"the default of {length[0]}"))
    return seq


def _buckets(sharded: dict[str, Any]) -> dict[str, Any]:
    """Return DeepSpeed's buckets of what shards the run, which is no longer said there."""
    options = sharded.pop("options", None)
    return {} if options is None else {"bucket_bytes": options.bucket_bytes}


def _adapters(reading: Reading, model: ModelSpec) -> dict[str, Any]:
    """Return rank and layers of the adapters. Raises InputError for layers that the model has not."""
    rank = reading.fields.get("rank", 16 if reading.section.has("use_peft") else 8)
    named = set(reading.fields.get("targets", [ALL_LINEAR]))
    layers = {} if named & {ALL_LINEAR, "all"} else {"lora_target_modules": _modules(named, model)}
    return {"peft": "lora", "lora_rank": rank, **layers}


def _quantise(reading: Reading, run: TrainerRun) -> None:
    """Add weights that bitsandbytes keeps in 4 or 8 bits beside adapters."""
    fields, trained, model = reading.fields, run.numerics, run.model
    doubled = fields.get("doubled", not reading.section.has("load_in_4bit"))
    frozen = {4: "nf4" if doubled else "nf4_single", 8: "int8"}.get(fields.get("bits", 0))
    dense = not (model.is_moe or model.is_hybrid or model.encoder_num_layers)
    narrow = trained.get("peft") == "lora" and trained["precision"] in ("bf16", "fp16")
    if frozen and narrow and dense and fields["quantisation"] == "bitsandbytes":
        run.numerics = {**trained, "frozen_dtype": frozen}
        what = f"linear layers of the blocks in {frozen} of bitsandbytes, embedding, output layer and norms in 16 bits"
        run.assumed.append(note(what))


def _remark(reading: Reading, run: TrainerRun) -> None:
    """Add what of the file no formula reads. Raises UnsupportedError where nothing is trained."""
    section, fields = reading.section, reading.fields
    if section.flag("do_predict", "do_eval") and not section.flag("do_train"):
        raise UnsupportedError("do_predict without do_train: this evaluates; read is training")
    quantised = QUANTISED if "frozen_dtype" in run.numerics else ()
    run.not_modelled += [remark for remark in reading.not_modelled if remark.field not in quantised]
    run.not_modelled += [other_state(key, "") for key in OTHER_OPTIMIZERS if is_named(section, key)]
    if reading.table.entry("optim").fields_of(fields["optim"]) is None:
        run.not_modelled.append(other_state("optim", fields["optim"]))
    run.assumed += [note(PAGED)] if run.numerics.get("optimizer") == "paged_adam8bit" else []


def keep_type(section: Section, run: TrainerRun, wish: Constraints = DEEPSPEED.wish) -> Constraints:
    """Keep the types that were loaded: weights in bf16 stay so, as do gradients and moments: the Trainer casts none
    (create_optimizer of transformers/trainer.py), and torch/optim/adam.py makes moments like the parameter. DeepSpeed keeps
    fp32 copies, and accelerate widens what it shards (FSDP); of fp16 weights torch's GradScaler refuses the gradients. Returns
    those of the plans of `wish` that keep these types."""
    narrow = (section.word("torch_dtype", "dtype") or "").lower() in ("bfloat16", "bf16") or section.flag("pure_bf16")
    if not narrow or "peft" in run.numerics or run.fsdp or run.dist_opt or names_deepspeed(section):
        return wish
    run.numerics = {**run.numerics, "weights_are_masters": True, "grad_reduce_dtype": "bf16"}
    why = (
        "weights, gradients and moments in bf16 without fp32 copies, 8 bytes a parameter: AdamW keeps the type in which the "
        "weights were loaded (torch's fused one, the default from 2.8 on; foreach holds 2 bytes more while it steps)"
    )
    if "optimizer" in run.numerics:
        why = "weights and gradients in bf16 without fp32 copies, moments in 8 bits"
    run.assumed.append(note(why))
    return Constraints(
        fixed={**wish.fixed, "dist_opt": frozenset({False}), "fsdp": frozenset({0}), "offload": frozenset({0.0})}
    )


def name_liger(section: Section, run: TrainerRun) -> None:
    """Beside software whose loss holds the logits."""
    remark = Remark(
        "Liger's kernels", None, "norms, rotation and activation hold less than is priced: less memory", Effect.LESS_MEMORY
    )
    if is_fused(section) and run.software != FUSED and remark not in run.not_modelled:
        run.not_modelled.append(remark)


def _modules(names: set[str], model: ModelSpec) -> tuple[str, ...]:
    """Return Megatron's layers that hold the named layers of transformers. Raises InputError."""
    layers, odd = modules_named(model, names)
    if odd:
        known_names = ", ".join(name for theirs in (names_of(model) or LLAMA).values() for name in theirs)
        raise InputError(f"lora_target_modules {odd[0][:40]!r}: read are {known_names} of {model.name}, and {ALL_LINEAR}")
    return layers
