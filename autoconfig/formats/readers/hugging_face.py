"""TRL's supervised fine-tuning, and what it shares with LLaMA-Factory and ms-swift: Hugging Face's Trainer arguments, DeepSpeed
by the name of its file, adapters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autoconfig.formats.projections import ALL_LINEAR, LLAMA, modules_named, names_of
from autoconfig.formats.readers.accelerate import layout, not_modelled
from autoconfig.formats.readers.deepspeed import FUSED, SOFTWARE, is_fused
from autoconfig.formats.record import Document, TrainerRun, model_named, record
from autoconfig.formats.tree import Section
from autoconfig.formats.writers import trl
from autoconfig.formats.writers.deepspeed import WISH
from autoconfig.formats.writers.words import accumulation
from autoconfig.megatron.check_input import CheckInput
from autoconfig.planning.export_files import MARK
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import NONE, Recompute, TrainPlan, parse_plan
from autoconfig.specs.remarks import Effect, Remark, note
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.bitsandbytes import FROZEN_BYTES
from autoconfig.training.question import PAGED
from autoconfig.training.space import Constraints

DEFAULT_BATCH = 8
"""transformers.TrainingArguments.per_device_train_batch_size."""
_STAGE = re.compile(r"(?:z|zero[-_]?)([0-3])", re.IGNORECASE)


HARMLESS = re.compile(
    r"(?:.*_)?datasets?(?:_.*)?|(?:eval|save|logging|report|dataloader|hub|push_to|adam|lr|warmup|metric|load_best)_.*|max_grad_norm|"
    r"(?:min|max)_lr|learning_rate|aligner_lr|weight_decay|beta[12]|(?:data_)?seed|max_steps|(?:num_train|max)_epochs|output_dir|"
    r"(?:logging_)?dir|run_name|overwrite_.*|plot_loss|resume_.*|ddp_(?:timeout|find_unused_parameters|backend)|val_size|"
    r"split_dataset_ratio|max_samples|streaming|shuffle.*|system|model_(?:author|name|revision)|trust_remote_code|do_(?:train|eval)|"
    r"lora_(?:alpha|dropout|bias)|use_rslora|init_weights|use_(?:hf|chat_template|fast_tokenizer)|template(?:_.*)?|loss_scale|"
    r"per_device_eval_batch_size|preprocessing_num_workers|disable_tqdm|truncation(?:_strategy)?|remove_unused_columns|"
    r"gradient_checkpointing_kwargs|padding_free|(?:neat_)?packing|bnb_4bit_.*|quant_method|lazy_tokenize|add_version|"
    r"ignore_args_error|create_checkpoint_symlink|strict|neftune_noise_alpha|log_level|include_tokens_per_second|ENV\..*|"
    r"include_num_input_tokens_seen|use_swanlab|swanlab_.*|enable_thinking|tuner_backend|check_model|agent_template|mix_strategy|"
    r"finetune|check|train_on_.*|load_from_cache_file|problem_type|mask_history|media_dir|image_.*|video_.*|cache_dir|bf16_full_eval|"
    r"completion_only_loss|"
    r"assistant_only_loss|chat_template_path|eos_token|packing_strategy|optim_args|auto_find_batch_size|full_determinism"
)
"""Options of the Trainer and of the programs around it that change neither memory nor time of a step."""
_STATE = "another optimizer than Adam keeps other state"
OTHER_OPTIMIZERS = ("use_galore", "use_q_galore", "use_badam", "use_apollo", "use_adam_mini", "use_muon")
"""Options of LLaMA-Factory and ms-swift that put another optimizer in Adam's place."""
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
ADAM = frozenset({"adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw_torch_npu_fused", "adam"})
EIGHT_BITS = {"adamw_bnb_8bit": "adam8bit", "adamw_8bit": "adam8bit", "paged_adamw_8bit": "paged_adam8bit"}
"""bitsandbytes' Adam in transformers.TrainingArguments.optim."""
_STRATEGIES = {"full_shard": 3, "fsdp2": 3, "shard_grad_op": 2, "no_shard": 0}
"""transformers.TrainingArguments.fsdp, and ms-swift's name of a preset, as ZeRO stages."""


def settings(scenario: Scenario, plan: TrainPlan) -> dict[str, tuple[str, ...]]:
    """The Trainer's options that depend on the plan."""
    return {
        "per_device_train_batch_size": (str(plan.mbs),),
        "gradient_accumulation_steps": (str(accumulation(scenario, plan)),),
        "ZeRO stage (deepspeed)": (str(plan.fsdp or int(plan.dist_opt)),),
        "gradient checkpointing": ("true" if plan.recompute != NONE else "false",),
        **({"offload_optimizer.device (deepspeed)": ("cpu",)} if plan.offload else {}),
    }


def training(
    document: Document,
    section: Section,
    *,
    name: str | None,
    kind: str,
    length: tuple[str, int],
    recompute: bool,
    gpus: int | None,
) -> TrainerRun:
    """The run of a Trainer. `kind`: full or lora; `length`: the option of the longest sequence and its default."""
    assumed: list[Remark] = []
    model = model_named(document, name, assumed)
    if kind not in ("full", "lora"):
        raise UnsupportedError(f"training of kind {kind[:40]!r}: read are full and lora")
    seq = section.count(length[0])
    if seq is None:
        seq = length[1]
        assumed.append(Remark("seq_length", seq, f"the default of {length[0]}"))
    assumed.append(note("every sequence is as long as the longest, as with packing"))
    micro, steps = section.count("per_device_train_batch_size"), section.count("gradient_accumulation_steps")
    if micro is None:
        micro = DEFAULT_BATCH
        assumed.append(Remark("per_device_train_batch_size", micro, "the Trainer's default"))
    run = TrainerRun(
        model=model,
        gpus=gpus,
        micro_batch=micro,
        accumulation=steps or 1,
        seq_length=seq,
        recompute=Recompute("full", (), "uniform", 1) if recompute else NONE,
        numerics=_numerics(section, kind, model),
        assumed=assumed,
        harmless=HARMLESS,
        tp=section.count("autotp_size") or 1,
        ways={"offload": "offload_optimizer in the DeepSpeed file"} if section.has("deepspeed") else {},
        **{"software": FUSED if is_fused(section) else SOFTWARE, **_sharding(section, assumed)},
    )
    _name_liger(section, run)
    _quantise(section, run)
    _remark(section, run)
    return run


def _quantise(section: Section, run: TrainerRun) -> None:
    """Weights that bitsandbytes keeps in 4 or 8 bits beside adapters. Double quantisation is off in TRL unless said
    (trl/trainer/model_config.py) and on in the others (LLaMA-Factory's double_quantization, ms-swift's
    bnb_4bit_use_double_quant)."""
    method = section.word("quantization_method", "quant_method") or "bnb"
    doubled = section.flag(
        "use_bnb_nested_quant", "bnb_4bit_use_double_quant", "double_quantization", default=not section.has("load_in_4bit")
    )
    section.word("quantization_type", "bnb_4bit_quant_type")  # nf4 and fp4 have the same bytes
    bits = section.count("quantization_bit", "quant_bits") if _is_on(section, "quantization_bit", "quant_bits") else None
    bits = 4 if section.flag("load_in_4bit") else 8 if section.flag("load_in_8bit") else bits
    frozen = {4: "nf4" if doubled else "nf4_single", 8: "int8"}.get(bits or 0)
    model, trained = run.model, run.numerics
    dense = not (model.is_moe or model.is_hybrid or model.encoder_num_layers)
    narrow = trained.get("peft") == "lora" and trained["precision"] in ("bf16", "fp16")
    if frozen and narrow and dense and method.lower() in ("bnb", "bitsandbytes"):
        run.numerics = {**trained, "frozen_dtype": frozen}
        said = f"linear layers of the blocks in {frozen} of bitsandbytes, embedding, output layer and norms in 16 bits"
        run.assumed.append(note(said))


def _remark(section: Section, run: TrainerRun) -> None:
    """What of the file no formula reads. Raises UnsupportedError where no answer would be right."""
    for key, why in REFUSED.items():
        if _is_on(section, key) and str(section.get(key)) != "1":
            raise UnsupportedError(f"{section.place(key)} is {str(section.get(key))[:40]}: {why}")
    if section.flag("do_predict", "do_eval") and not section.flag("do_train"):
        raise UnsupportedError("do_predict without do_train: this evaluates; read is training")
    if str(section.get("task_type") or "causal_lm").lower() == "causal_lm":
        section.flat.pop("task_type", None)
    run.not_modelled += [
        Remark(key, None, *said)
        for keys, said in NOT_MODELLED.items()
        for key in keys
        if _is_on(section, key) and not (keys == QUANTISED and "frozen_dtype" in run.numerics)
    ]
    _require_adam(section, run)
    attention = (section.word("attn_impl", "attn_implementation", "flash_attn") or "").lower()
    if attention in ("eager", "disabled"):
        why = "the scores of all pairs of tokens are held: more memory and time"
        run.not_modelled.append(Remark(f"{attention} attention", None, why, MORE))


def keep_type(section: Section, run: TrainerRun, wish: Constraints = WISH) -> Constraints:
    """Weights that were loaded in bf16 stay so, as do gradients and moments: the Trainer casts none (create_optimizer of
    transformers/trainer.py), and torch/optim/adam.py makes moments like the parameter. DeepSpeed keeps fp32 copies, and
    accelerate widens what it shards (FSDP); of fp16 weights torch's GradScaler refuses the gradients. Returns those of the
    plans of `wish` that keep these types."""
    narrow = (section.word("torch_dtype", "dtype") or "").lower() in ("bfloat16", "bf16") or section.flag("pure_bf16")
    if not narrow or "peft" in run.numerics or run.fsdp or run.dist_opt or section.has("deepspeed"):
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


def _require_adam(section: Section, run: TrainerRun) -> None:
    """Raises UnsupportedError where another optimizer trains all weights; of adapters, which are few, it is named."""
    optimizer = section.word("optim", "optimizer") or "adamw"
    odd = next((key for key in OTHER_OPTIMIZERS if _is_on(section, key)), "")
    if narrow := EIGHT_BITS.get(optimizer.lower()):
        run.numerics = {**run.numerics, "optimizer": narrow}
        run.assumed += [note(PAGED)] if narrow == "paged_adam8bit" else []
    elif optimizer.lower() not in ADAM:
        odd = f"optim {optimizer[:40]}"
    if odd and run.numerics.get("peft") != "lora":
        raise UnsupportedError(f"{odd}: {_STATE}, which no formula here prices; check the file with adamw_torch")
    if odd:
        run.not_modelled.append(Remark(odd, None, f"{_STATE}; priced as Adam, of adapters alone"))


def _name_liger(section: Section, run: TrainerRun) -> None:
    """Beside software whose loss holds the logits."""
    said = Remark("Liger's kernels", None, "the logits are never held, less memory", LESS)
    if is_fused(section) and run.software != FUSED and said not in run.not_modelled:
        run.not_modelled.append(said)


def _is_on(section: Section, *keys: str) -> bool:
    return str(section.get(*keys)).lower() not in ("none", "false", "0", "0.0", "", "[]")


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


TRL_LENGTH = 1024
"""trl.SFTConfig.max_length."""
_HEAD = re.compile(
    rf"^{re.escape(MARK)}: (?P<model>\S+) on (?P<gpus>[\d,]+) x (?P<gpu>[a-z0-9.-]+), sequence [\d,]+"
    r"(?: packed from sequences of (?P<packed>[\d,]+))?, global batch [\d,]+(?:, priced as software \S+)?; plan (?P<plan>\S+)$",
    re.MULTILINE,
)


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def read_trl(document: Document) -> CheckInput:
    """The record of a file for `trl sft --config` (trl 1.16: SFTConfig, ModelConfig). Model and GPUs: --model, --gpus, else the
    header that `export` wrote. Raises InputError."""
    head = _HEAD.search(document.text)
    request = document.request
    if head is not None:
        gpu = request.gpu if request.gpu or request.cluster else head["gpu"]
        document = replace(document, request=replace(request, gpu=gpu))
    section = document.section()
    length = "max_length" if section.has("max_length") else "max_seq_length"  # of TRL before 0.16
    plain = not section.has("bf16", "fp16")
    if plain:
        section.flat["bf16"] = True
    run = training(
        document,
        section,
        name=section.word("model_name_or_path") or (head["model"] if head else None),
        kind="lora" if section.flag("use_peft") else "full",
        length=(length, TRL_LENGTH),
        recompute=section.flag("gradient_checkpointing", default=True),
        gpus=_number(head["gpus"]) if head else None,
    )
    run.ways = {**run.ways, "adapters": "use_peft: true"}
    if plain:
        run.assumed.append(
            Remark("precision", "bf16", "the default of SFTConfig where neither bf16 nor fp16 is said (trl from 0.20 on)")
        )
    if head and head["packed"] and section.flag("packing"):
        run.packed_length = _number(head["packed"])
        run.assumed.append(note(f"packed from sequences of {head['packed']} tokens, as the header says"))
    wide = (section.word("dtype", "torch_dtype") or "float32").lower() in ("float32", "fp32")
    if section.has("deepspeed"):
        return record(document, run, section, settings, WISH)
    _launch(document, run, head["plan"] if head else "")
    _name_liger(section, run)
    wish = keep_type(section, run, trl.WISH)
    frozen = section.flag("use_peft") and not any(section.flag(key) for key in ("load_in_4bit", "load_in_8bit"))
    if wide and frozen and run.numerics["precision"] != "fp32" and run.software == trl.SOFTWARE:
        run.numerics = {**run.numerics, "frozen_dtype": "fp32"}
        run.assumed.append(note("frozen weights in float32, as trl loads them where the file does not say dtype: bfloat16"))
        if run.recompute == NONE:
            why = "which autocast saves for backward: more memory"
            run.not_modelled.append(Remark("casts of frozen fp32 weights", None, why, MORE))
    if wide and run.numerics.get("frozen_dtype") in FROZEN_BYTES:
        why = "embedding, output layer and norms are loaded in float32 (dtype: bfloat16 says 16 bits): more memory"
        run.not_modelled.append(Remark("dtype", None, why, MORE))
    return record(document, run, section, trl.settings, wish)


def _launch(document: Document, run: TrainerRun, written: str) -> None:
    """Sharding as the file of accelerate beside it says, else as the plan that `export` wrote into the header."""
    run.software = trl.SOFTWARE
    if (launch := document.launch) is not None:
        section = launch.section()
        found = layout(section)
        recompute = found.pop("recompute")
        for name, value in found.items():
            setattr(run, name, run.gpus if value is None else value)
        run.recompute = recompute if recompute != NONE else run.recompute
        run.not_modelled += not_modelled(section)
        run.assumed.append(note(f"sharding and GPUs as {trl.LAUNCH} beside it says, which was written with it"))
        return
    plan = parse_plan(written, run.gpus or 1) if written else None
    if plan is None or not plan.fsdp:
        run.assumed.append(note(f"weights on every GPU (an accelerate file that shards them, {trl.LAUNCH}, is not beside it)"))
        return
    run.fsdp = plan.fsdp
    run.recompute = plan.recompute if plan.recompute != NONE else run.recompute
    why = f"{trl.LAUNCH}, which was written with it, is not beside it, and accelerate needs it"
    run.assumed.append(note(f"sharded as the plan in its header, fsdp={plan.fsdp}: {why}"))


def require_sharding(section: Section, launcher: Sequence[str]) -> None:
    """Raises InputError where a file of accelerate says it, which a command names."""
    named = "accelerate" in launcher and any(part.startswith("--config_file") for part in launcher)
    if named and not section.has("fsdp", "deepspeed"):
        raise InputError(
            "the sharding stands in the file of accelerate --config_file, which is not opened: say --set fsdp=full_shard or "
            "--set deepspeed=zero2 (fsdp=no_shard: none)"
        )


def _fully_sharded(section: Section) -> dict[str, Any]:
    """transformers' `fsdp`: a strategy and words beside it, like `full_shard auto_wrap offload`. Raises InputError."""
    if not _is_on(section, "fsdp"):
        return {}
    words = re.findall(r"\w+", str(section.get("fsdp")).lower())
    stages = [3 if word == "true" else _STRATEGIES[word] for word in words if word in ("true", *_STRATEGIES)]
    if len(stages) != 1 or set(words) - {*_STRATEGIES, "auto_wrap", "offload", "true"}:
        given, known = " ".join(words)[:40], ", ".join((*_STRATEGIES, "auto_wrap", "offload"))
        raise InputError(f"{section.place('fsdp')} is {given!r}: read are {known}")
    stage = stages[0]
    return {"software": trl.SOFTWARE, "fsdp": stage, "offload": 1.0 if "offload" in words and stage else 0.0}


def _sharding(section: Section, assumed: list[Remark]) -> dict[str, Any]:
    text = section.get("deepspeed")
    if text is None or text is False:
        return _fully_sharded(section)
    if isinstance(text, dict):
        raise InputError("deepspeed: give the JSON of DeepSpeed itself to check")
    name = str(text).rsplit("/", 1)[-1]
    match = _STAGE.search(name)
    if match is None:
        raise InputError(
            f"{section.place('deepspeed')}: {name[:60]!r} does not say its ZeRO stage: say --set deepspeed=zero2 (0 to 3)"
        )
    if "autotp" in name.lower() and section.count("autotp_size") is None:
        raise InputError(
            f"{section.place('deepspeed')}: the tensor parallelism of {name[:60]!r} is not known: say --set autotp_size=N"
        )
    stage = int(match[1])
    why = f"which the name {name[:60]!r} says: the file itself is not opened (--set deepspeed=zero{stage})"
    assumed.append(Remark("ZeRO stage", stage, why))
    offload = 1.0 if "offload" in name.lower() and stage else 0.0
    return {"dist_opt": stage == 1, "fsdp": stage if stage > 1 else 0, "offload": offload}
