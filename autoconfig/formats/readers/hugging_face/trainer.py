"""Hugging Face's Trainer, as TRL, LLaMA-Factory, axolotl and ms-swift have it: its arguments and adapters."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from autoconfig.formats.hooks.deepspeed import DEEPSPEED, FULL, FUSED, SOFTWARE, is_fused
from autoconfig.formats.projections import ALL_LINEAR, LLAMA, modules_named, names_of
from autoconfig.formats.readers.hugging_face.sharding import is_named, names_deepspeed, sharding
from autoconfig.formats.record import Document, TrainerRun, model_named
from autoconfig.formats.words import accumulation, header_of
from autoconfig.maps.tree import Section
from autoconfig.specs.errors import InputError, UnsupportedError, option
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import NONE, TrainPlan
from autoconfig.specs.remarks import Effect, Remark, note
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.optimizers import other_state
from autoconfig.specs.software.software import StackOptions
from autoconfig.training.question import PAGED
from autoconfig.training.space import Constraints

DEFAULT_BATCH = 8
"""transformers.TrainingArguments.per_device_train_batch_size."""
HARMLESS = re.compile(
    r"(?:.*_)?datasets?(?:_.*)?|(?:eval|save|logging|report|dataloader|hub|push_to|adam|lr|warmup|metric|load_best)_.*|max_grad_norm|"
    r"(?:min|max)_lr|learning_rate|aligner_lr|weight_decay|beta[12]|(?:data_)?seed|max_steps|(?:num_train|max)_epochs|output_dir|"
    r"(?:logging_)?dir|run_name|overwrite_.*|plot_loss|resume_.*|ddp_(?:timeout|find_unused_parameters|backend)|val_size|"
    r"split_dataset_ratio|max_samples|streaming|shuffle.*|system|model_(?:author|name|revision)|trust_remote_code|do_(?:train|eval)|"
    r"lora_(?:alpha|dropout|bias)|use_rslora|init_weights|use_(?:hf|chat_template|fast_tokenizer)|template(?:_.*)?|loss_scale|"
    r"per_device_eval_batch_size|preprocessing_num_workers|disable_tqdm|truncation(?:_strategy)?|remove_unused_columns|"
    r"gradient_checkpointing_kwargs(?:\..*)?|padding_free|(?:neat_)?packing|bnb_4bit_.*|quant_method|lazy_tokenize|add_version|"
    r"ignore_args_error|create_checkpoint_symlink|strict|neftune_noise_alpha|log_level|include_tokens_per_second|ENV\..*|"
    r"include_num_input_tokens_seen|use_swanlab|swanlab_.*|enable_thinking|tuner_backend|check_model|agent_template|mix_strategy|"
    r"finetune|check|train_on_.*|load_from_cache_file|problem_type|mask_history|media_dir|image_.*|video_.*|cache_dir|bf16_full_eval|"
    r"completion_only_loss|"
    r"assistant_only_loss|chat_template_path|eos_token|packing_strategy|optim_args|group_by_length|lazy_preprocess|auto_find_batch_size|full_determinism"
)
"""Options of the Trainer and of the programs around it that change neither memory nor time of a step."""
OTHER_OPTIMIZERS = ("use_galore", "use_q_galore", "use_badam", "use_apollo", "use_adam_mini", "use_muon")
"""Options of LLaMA-Factory and ms-swift that put another optimizer in Adam's place, with less state."""
QUANTISED = ("quantization_bit", "quant_bits", "load_in_4bit", "load_in_8bit")
LESS, MORE = Effect.LESS_MEMORY, Effect.MORE_MEMORY
NOT_MODELLED = {
    QUANTISED: ("weights in fewer bits, which is priced of bitsandbytes' 4 and 8 bits beside adapters: less memory", LESS),
    ("use_unsloth", "use_unsloth_gc"): ("kernels and recomputation of unsloth: less memory, less time", LESS),
    ("modules_to_save", "additional_target"): ("further modules are trained whole: more memory", MORE),
    ("use_dora",): ("magnitudes beside the adapters: more time", Effect.TIME),
    ("task_type",): ("an embedding, a score or classes instead of the vocabulary's output layer: less memory", LESS),
    ("num_labels",): ("the output layer is a classifier, not the vocabulary's: less memory", LESS),
}
"""Options that matter and that no formula reads, with what they change."""
_FROZEN = "part of the weights are frozen, and which is not read"
REFUSED = {
    **dict.fromkeys(("freeze_parameters", "freeze_parameters_ratio", "trainable_parameters"), _FROZEN),
    "lisa_activated_layers": "part of the layers is trained at a time, which no formula here prices",
    "fp8": "float8 of accelerate (torchao, Transformer Engine) is not priced; check the file with fp8: false",
    **dict.fromkeys(
        ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"),
        "Megatron's back end of a Trainer's program is not read (ms-swift's is, by megatron sft)",
    ),
    "sequence_parallel_size": "a sequence over several GPUs (Ulysses, ring) is not read here",
}
"""Options of which no answer would be right."""
ADAM = frozenset(
    {
        "paged_adamw_32bit",
        "paged_adamw",
        "adamw",
        "adamw_torch",
        "adamw_torch_fused",
        "adamw_hf",
        "adamw_apex_fused",
        "adamw_torch_npu_fused",
        "adam",
    }
)
OTHERS = {
    "adafactor": "adafactor",
    "adamw_bnb_8bit": "adam8bit",
    "adamw_8bit": "adam8bit",
    "paged_adamw_8bit": "paged_adam8bit",
}
"""Optimizers of other state in transformers.TrainingArguments.optim: Adafactor, bitsandbytes' Adam."""


def settings(scenario: Scenario, plan: TrainPlan) -> dict[str, tuple[str, ...]]:
    """The Trainer's options that depend on the plan."""
    return {
        "per_device_train_batch_size": (str(plan.mbs),),
        "gradient_accumulation_steps": (str(accumulation(scenario, plan)),),
        "ZeRO stage (deepspeed)": (str(plan.fsdp or int(plan.dist_opt)),),
        "gradient checkpointing": ("true" if plan.recompute != NONE else "false",),
        **({"offload_optimizer.device (deepspeed)": ("cpu",)} if plan.offload else {}),
    }


def settings_of_fsdp(scenario: Scenario, plan: TrainPlan) -> dict[str, tuple[str, ...]]:
    """The same where the file itself says that torch's FSDP shards."""
    found = {name: texts for name, texts in settings(scenario, plan).items() if "deepspeed" not in name}
    words = {3: "full_shard auto_wrap", 2: "shard_grad_op auto_wrap"}
    return {**found, **({"fsdp": (words[plan.fsdp],)} if plan.fsdp else {})}


def training(
    document: Document,
    section: Section,
    *,
    name: str | None,
    kind: str,
    length: tuple[str, int | None],
    recompute: bool,
    gpus: int | None,
) -> TrainerRun:
    """The run of a Trainer. `kind`: full or lora; `length`: the option of the longest sequence and its default, None where the
    program has one of its own or none. Raises InputError where no length is known."""
    assumed: list[Remark] = []
    head = header_of(document.text)
    model = model_named(document, name or (head.model if head else None), assumed)
    if kind not in ("full", "lora"):
        raise UnsupportedError(f"training of kind {kind[:40]!r}: read are full and lora")
    said = section.count(length[0])
    seq = said or length[1] or document.request.seq_length
    if seq is None:
        raise InputError(f"no sequence length is in the file, and its program has its own: say {option('seq_length')} N")
    if said is None and length[1] is not None:
        assumed.append(Remark("seq_length", seq, f"the default of {length[0]}"))
    assumed.append(note("every sequence is as long as the longest, as with packing"))
    micro, steps = section.count("per_device_train_batch_size"), section.count("gradient_accumulation_steps")
    if micro is None:
        micro = DEFAULT_BATCH
        assumed.append(Remark("per_device_train_batch_size", micro, "the Trainer's default"))
    sharded, odd = sharding(section, document, assumed)
    fields = {
        "software": FUSED if is_fused(section) else SOFTWARE,
        "recompute": FULL if recompute else NONE,
        **sharded,
    }
    run = TrainerRun(
        model=model,
        gpus=gpus,
        micro_batch=micro,
        accumulation=steps or 1,
        seq_length=seq,
        numerics=_numerics(section, kind, model),
        assumed=assumed,
        harmless=HARMLESS,
        tp=section.count("autotp_size") or 1,
        ways={"offload": "offload_optimizer in the DeepSpeed file"} if names_deepspeed(section) else {},
        not_modelled=odd,
        **fields,
    )
    if head is not None and head.packed_length and section.flag("packing"):
        run.packed_length = head.packed_length
        assumed.append(note(f"packed from sequences of {head.packed_length:,} tokens, as the header says"))
    run.options = _options(section, run.options)
    name_liger(section, run)
    _quantise(section, run)
    _remark(section, run)
    return run


def _options(section: Section, options: StackOptions) -> StackOptions:
    """How layers and loss run: torch_compile; a loss that holds no logits (Liger's, Cut Cross-Entropy) or a part of them."""
    compiled = True if is_named(section, "torch_compile") else None
    fused = is_fused(section) or is_named(section, "cut_cross_entropy", "use_cce")
    ways = (
        ("fused", fused),
        ("chunked", is_named(section, "chunked_cross_entropy")),
        ("in_place", is_named(section, "liger_cross_entropy")),
        ("compiled", bool(compiled)),
    )
    loss = next((name for name, holds in ways if holds), "")
    return replace(options, compiled=compiled, loss_fusion=loss)


def _quantise(section: Section, run: TrainerRun) -> None:
    """Weights that bitsandbytes keeps in 4 or 8 bits beside adapters. Double quantisation is off in TRL unless said
    (trl/trainer/model_config.py) and on in the others (LLaMA-Factory's double_quantization, ms-swift's
    bnb_4bit_use_double_quant)."""
    method = section.word("quantization_method", "quant_method") or "bnb"
    doubled = section.flag(
        "use_bnb_nested_quant", "bnb_4bit_use_double_quant", "double_quantization", default=not section.has("load_in_4bit")
    )
    section.word("quantization_type", "bnb_4bit_quant_type")  # nf4 and fp4 have the same bytes
    bits = section.count("quantization_bit", "quant_bits") if is_named(section, "quantization_bit", "quant_bits") else None
    bits = 4 if section.flag("load_in_4bit") else 8 if section.flag("load_in_8bit") else bits
    frozen = {4: "nf4" if doubled else "nf4_single", 8: "int8"}.get(bits or 0)
    model, trained = run.model, run.numerics
    dense = not (model.is_moe or model.is_hybrid or model.encoder_num_layers)
    narrow = trained.get("peft") == "lora" and trained["precision"] in ("bf16", "fp16")
    if frozen and narrow and dense and method.lower() in ("bnb", "bitsandbytes"):
        run.numerics = {**trained, "frozen_dtype": frozen}
        kept = f"linear layers of the blocks in {frozen} of bitsandbytes, embedding, output layer and norms in 16 bits"
        run.assumed.append(note(kept))


def _remark(section: Section, run: TrainerRun) -> None:
    """What of the file no formula reads. Raises UnsupportedError where no answer would be right."""
    for key, why in REFUSED.items():
        if is_named(section, key) and str(section.get(key)) != "1":
            raise UnsupportedError(f"{section.place(key)} is {str(section.get(key))[:40]}: {why}")
    if section.flag("do_predict", "do_eval") and not section.flag("do_train"):
        raise UnsupportedError("do_predict without do_train: this evaluates; read is training")
    if str(section.get("task_type") or "causal_lm").lower() == "causal_lm":
        section.flat.pop("task_type", None)
    run.not_modelled += [
        Remark(key, None, *said)
        for keys, said in NOT_MODELLED.items()
        for key in keys
        if is_named(section, key) and not (keys == QUANTISED and "frozen_dtype" in run.numerics)
    ]
    _read_optimizer(section, run)
    attention = (section.word("attn_impl", "attn_implementation", "flash_attn") or "").lower()
    if attention in ("eager", "disabled"):
        why = "the scores of all pairs of tokens are held: more memory and time"
        run.not_modelled.append(Remark(f"{attention} attention", None, why, MORE))


def keep_type(section: Section, run: TrainerRun, wish: Constraints = DEEPSPEED.wish) -> Constraints:
    """Weights that were loaded in bf16 stay so, as do gradients and moments: the Trainer casts none (create_optimizer of
    transformers/trainer.py), and torch/optim/adam.py makes moments like the parameter. DeepSpeed keeps fp32 copies, and
    accelerate widens what it shards (FSDP); of fp16 weights torch's GradScaler refuses the gradients. Returns those of the
    plans of `wish` that keep these types."""
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


def _read_optimizer(section: Section, run: TrainerRun) -> None:
    """Adam with moments in 32 or 8 bits; others are named."""
    word = section.word("optim", "optimizer") or "adamw"
    odd = [other_state(key, "") for key in OTHER_OPTIMIZERS if is_named(section, key)]
    if narrow := OTHERS.get(word.lower()):
        run.numerics = {**run.numerics, "optimizer": narrow}
        run.assumed += [note(PAGED)] if narrow == "paged_adam8bit" else []
    elif word.lower() not in ADAM:
        odd.append(other_state("optim", word))
    run.not_modelled += odd


def name_liger(section: Section, run: TrainerRun) -> None:
    """Beside software whose loss holds the logits."""
    said = Remark("Liger's kernels", None, "norms, rotation and activation hold less than is priced: less memory", LESS)
    if is_fused(section) and run.software != FUSED and said not in run.not_modelled:
        run.not_modelled.append(said)


def _numerics(section: Section, kind: str, model: ModelSpec) -> dict[str, Any]:
    dtype = (section.word("torch_dtype", "infer_dtype") or "").lower()
    bf16 = section.flag("bf16") or section.flag("pure_bf16") or dtype in ("bfloat16", "bf16")
    fp16 = section.flag("fp16") or dtype in ("float16", "fp16")
    found: dict[str, Any] = {"precision": "bf16" if bf16 else "fp16" if fp16 else "fp32"}
    if kind == "lora":
        rank = section.count("lora_rank", "lora_r")
        found |= {"peft": "lora", "lora_rank": rank or (16 if section.has("use_peft") else 8)}
        named = section.get("lora_target_modules", "target_modules", "lora_target")
        given = {word.strip() for name in (named if isinstance(named, list) else [named]) for word in str(name).split(",")}
        if named is not None and not given & {ALL_LINEAR, "all"}:
            found["lora_target_modules"] = _modules(given, model)
    return found


def _modules(given: set[str], model: ModelSpec) -> tuple[str, ...]:
    """Megatron's layers that hold the named layers of transformers. Raises InputError."""
    found, odd = modules_named(model, given)
    if odd:
        known = ", ".join(name for theirs in (names_of(model) or LLAMA).values() for name in theirs)
        raise InputError(f"lora_target_modules {odd[0][:40]!r}: read are {known} of {model.name}, and {ALL_LINEAR}")
    return found
