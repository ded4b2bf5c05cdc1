"""Overrides of Megatron-Bridge and NeMo-2 recipes: `key=value`, one a line or behind the command that starts the recipe.

What a recipe sets itself is known for the published ones (autoconfig/data/bridge_recipes.csv); of others every value
that a plan needs must be among the overrides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

from autoconfig.formats.argument_names import argument_name
from autoconfig.formats.bridge_recipes import published_recipes
from autoconfig.formats.options import OVERRIDE, overrides_of, read_command
from autoconfig.formats.readers.megatron_words import SIZES, SWITCHES, names_in, with_sizes, words_of
from autoconfig.formats.record import Document, from_words, model_named, other_optimizer, unknown_keys, with_lora, word
from autoconfig.formats.words import Header, header_of
from autoconfig.formats.writers.bridge import PRECISIONS, settings
from autoconfig.maps.tree import Section
from autoconfig.megatron.check_input import CheckInput
from autoconfig.megatron.shell.commands import Value, plain_value, reason_of, text_of
from autoconfig.megatron.shell.script import Script
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.remarks import Remark, note
from autoconfig.specs.software.software import DEFAULT_STACK
from autoconfig.training.numerics import usual_dropout
from autoconfig.training.question import Question

PASSED = frozenset(
    {
        "moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_expert_capacity_factor", "cuda_graph_impl",
        "cuda_graph_modules", "cuda_graph_scope", "overlap_moe_expert_parallel_comm", "delay_wgrad_compute",
        "attention_backend",
        "cross_entropy_loss_fusion", "cross_entropy_fusion_impl", "use_precision_aware_optimizer", "main_grads_dtype",
        "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype", "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split", "pipeline_model_parallel_layout", "cp_comm_type", "mtp_num_layers", "vocab_size",
        "fp32_residual_connection", "moe_shared_expert_overlap", "fp8_recipe", "fine_grained_activation_offloading",
        "cpu_offloading", "cpu_offloading_num_layers", "moe_router_enable_expert_bias", "moe_router_score_function",
        "use_transformer_engine_op_fuser", "deterministic_mode", "transformer_impl", "moe_router_force_load_balancing",
    }
)  # fmt: skip
"""Fields of Bridge's configuration with the names and meanings of Megatron-LM's arguments, which are read as these."""
HARMLESS = re.compile(
    r"(?:train|validation|dataset|data|checkpoint|logger|log|scheduler|rng|dist|tokenizer|profiling|rerun_state_machine|"
    r"nvrx_straggler|straggler|fault_tolerance|inprocess_restart|ft|env|exp_manager|resume|tensor_inspect|trainer\.(?!strategy)[\w]+)\..*|"
    r"optimizer\.(?:lr|min_lr|adam_.*|weight_decay|clip_grad|optimizer|bf16|fp16|params_dtype|use_distributed_optimizer|.*loss_scale.*|log_.*|barrier_.*)|"
    r"optim(?:\.config)?\.(?:lr|min_lr|adam_.*|weight_decay|clip_grad)|ddp\.(?:check_for_nan_in_grad|average_in_collective|"
    r"bucket_size|data_parallel_sharding_strategy|use_custom_fsdp|align_param_gather|grad_reduce_in_fp32|.*_group)|"
    r"model\.(?:calculate_per_token_loss|init_method_std|moe_aux_loss_coeff|moe_z_loss_coeff|moe_router_(?:load_balancing_type|"
    r"dtype|bias_update_rate|pre_softmax|topk_scaling_factor|fusion)|moe_grouped_gemm|moe_permute_fusion|"
    r"bias_.*_fusion|apply_rope_fusion|masked_softmax_fusion|gradient_accumulation_fusion|persist_layer_norm|"
    r"deallocate_pipeline_outputs|pipeline_dtype|autocast_dtype|params_dtype|bf16|fp16|mtp_loss_scaling_factor|"
    r"attention_softmax_in_fp32|perform_initialization|use_cpu_initialization|gradient_clip.*|seed|hf_.*|tokenizer.*|"
    r"make_vocab_size_divisible_by|offload_modules|use_te_rng_tracker|should_pad_vocab|overlap_p2p_comm|batch_p2p_comm|restore_.*|moe_token_drop_policy)|"
    r"peft\.(?:alpha|dropout.*|lora_.*|exclude_modules)|comm_overlap\.(?:bootstrap_.*|defer_.*|wgrad_.*|tp_comm_.*|overlap_.*|"
    r"align_.*|bucket_size|batch_p2p_comm|data_parallel_size)",
    re.DOTALL,
)
"""Fields that change neither memory nor time of a step."""
_RECIPE = re.compile(r"(?:--recipe|--factory|--model-recipe|--recipe_name)[= ]+['\"]?([A-Za-z0-9_.-]+)")
_ROLES = re.compile(r"_(?:pretrain|sft|peft|finetune|low_precision|pretraining)?_?(?:config|recipe)?$")
_HOLDERS = ("model.config.", "trainer.strategy.", "model.", "train.", "trainer.", "data.", "dataset.", "ddp.", "optimizer.",
            "trainer.strategy.ddp.", "optim.config.", "comm_overlap.", "mixed_precision.")  # fmt: skip
NEEDED = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "micro_batch_size": "mbs",
    "global_batch_size": "gbs",
    "seq_length": "seq",
}
"""What a plan needs -> the column of the table of recipes."""
FURTHER = {
    "virtual_pipeline_model_parallel_size": "vp",
    "expert_model_parallel_size": "ep",
    "expert_tensor_parallel_size": "etp",
}


def read(document: Document) -> CheckInput:
    """The record. GPUs: trainer.devices x trainer.num_nodes, else the launcher's, else the recipe's. Raises InputError."""
    head = header_of(document.text)
    document = _on_its_gpus(document, head)
    words, recipe, script = _words(document) if document.values is None else ([], None, None)
    said = {**_said(words), **overrides_of(words)} if document.values is None else document.values
    section = Section(said, document.text, document.request.settings)
    known = published_recipes().get(_full_name(recipe or ""), {})
    model, notes = _model(document, section, recipe)
    if document.request.model is not None:  # the recipe's: what the overrides change of it holds
        document, notes = replace(document, request=replace(document.request, model=None, like=None)), []
    arguments = [*_degrees(section, known, recipe), *_switches(section, known)]
    more, model = _megatrons(document, section, model)
    dispatcher, source_of_it = _dispatcher(section, known, model)
    arguments += [*dispatcher, *more, *_dropouts(section, model)]
    gpus, node = _counts(section, script, head, known)
    answer = from_words(document, arguments, gpus, node=node, model=model, spell=settings, software=DEFAULT_STACK)
    _require_experts(answer, section, recipe, known)
    answer = _with_adapters(answer, section, recipe or "", _scheme(words))
    question = _packed(answer.question, section, head)
    new = [Remark("recipe", recipe, UNKNOWN_RECIPE)] if recipe and not known else []
    question = replace(question, assumed=(*notes, *source_of_it, *question.assumed, *new))
    unused = section.unused()
    unknown = unknown_keys(section, (path for path in unused if not HARMLESS.fullmatch(path)))
    ignored = (*answer.ignored, *(path for path in unused if HARMLESS.fullmatch(path)))
    said_by_script = script.notes if script is not None else ()
    return replace(answer, question=question, notes=said_by_script, ignored=ignored, unknown=(*answer.unknown, *unknown))


def _on_its_gpus(document: Document, head: Header | None) -> Document:
    """The document on the GPU that its header names, where the request names none."""
    if head is None or document.request.gpu or document.request.cluster:
        return document
    return replace(document, request=replace(document.request, gpu=head.gpu))


def _model(document: Document, section: Section, recipe: str | None) -> tuple[ModelSpec, list[Remark]]:
    """The model that is asked for, that the recipe is called after or that a comment names, and what that assumes."""
    notes: list[Remark] = []
    name = _ROLES.sub("", recipe).replace("_", "-") if recipe else _named(document.text)
    name = re.sub(r"-pretrain.*|-\d+gpu.*", "", name or "") or None
    model = model_named(document, name, notes, f"the overrides name no recipe{_settings_file(document.text)}")
    if "model.mtp_num_layers" in section.flat and section.get("model.mtp_num_layers") is None:
        model = model.replace(mtp_num_layers=0)
    return model, notes


UNKNOWN_RECIPE = "not known: what it sets and no override says (recomputation, stages, precision) counts as Megatron's defaults"


def _degrees(section: Section, known: dict[str, str], recipe: str | None) -> list[Value]:
    """Arguments of the degrees, the batch and the sequence, as the overrides say them or the recipe does. Raises InputError
    where neither says one that a plan needs."""
    arguments: list[Value] = []
    for key, column in {**NEEDED, **FURTHER}.items():
        paths = _paths(key) + ["dataset.sequence_length"] * (key == "seq_length")
        value = section.word(*paths) or known.get(column) or ("1" if column == "cp" else None)
        if value is None and key in NEEDED:
            where = f"recipe {recipe} is not among the published ones that are known, and " if recipe else ""
            raise InputError(f"{where}{key} is not among the overrides: add it, or say --set model.{key}=N")
        if value not in (None, "null"):
            arguments += [word(FLAGS.get(key, f"--{key.replace('_', '-')}")), word(value)]
    return arguments


def _dropouts(section: Section, model: ModelSpec) -> list[Value]:
    """Arguments of the dropouts, which the providers of Bridge's models take from the model."""
    arguments: list[Value] = []
    for kind in ("attention", "hidden"):
        own = section.number(f"model.{kind}_dropout")
        arguments += [word(f"--{kind}-dropout"), word(usual_dropout(model) if own is None else own)]
    return arguments


def _counts(
    section: Section, script: Script | None, head: Header | None, known: dict[str, str]
) -> tuple[int | None, int | None]:
    """(GPUs, those of a node): what the overrides say, the launcher starts, or the header or the recipe is for."""
    recipes_own = head.gpus if head else int(known["gpus"]) if known.get("gpus") else None
    devices, nodes = section.count("trainer.devices"), section.count("trainer.num_nodes")
    gpus = devices * nodes if devices and nodes else _started(script) or recipes_own
    return gpus, devices or (script.gpus_per_node if script is not None and _started(script) else None)


def _packed(question: Question, section: Section, head: Header | None) -> Question:
    """The question of samples that are packed from sequences of a length that the header of a file of ours says."""
    if not (head and head.packed_length and section.has("dataset.packed_sequence_specs.packed_sequence_size")):
        return question
    length, scenario = head.packed_length, question.scenario
    scenario = replace(scenario, workload=replace(scenario.workload, packed_length=length))
    said = note(f"packed from sequences of {length:,} tokens, as the header says")
    return replace(question, scenario=scenario, assumed=(*question.assumed, said))


def _megatrons(document: Document, section: Section, model: ModelSpec) -> tuple[list[Value], ModelSpec]:
    """Arguments of Megatron-LM for the fields that bear their names and that nothing else reads, and the model with the sizes
    that the overrides change."""
    plain: dict[str, object] = {}
    for path in section.unused():
        holder, _, key = path.rpartition(".")
        if f"{holder}." in _HOLDERS and (key in PASSED or argument_name(key) in SIZES or key in SWITCHES):
            value = section.get(path)
            plain[key] = value.removeprefix("torch.") if isinstance(value, str) else value
    if (rows := plain.pop("vocab_size", None)) is not None:
        model = model.replace(vocab_size=int(str(rows)))
    own = Section(plain, document.text, {})
    names = names_in(own)
    sized = with_sizes(model, words_of(own, names), own)
    skip = {*SIZES, *(argument_name(key) for key in SWITCHES)}
    return words_of(own, {key: name for key, name in names.items() if name not in skip}), sized


DISPATCHER, BACKEND = "moe_token_dispatcher_type", "moe_flex_dispatcher_backend"
USUAL_DISPATCHER = "alltoall"
"""What Bridge's own providers of mixtures set (megatron/bridge/models/), where megatron-core's default is allgather; recipes
that differ say flex."""


def _dispatcher(section: Section, known: dict[str, str], model: ModelSpec) -> tuple[list[Value], list[Remark]]:
    """Arguments of the dispatcher that the recipe sets where the overrides do not, and what that assumes."""
    if not model.is_moe or section.has(*_paths(DISPATCHER)):
        return [], []
    name = known.get("disp") or USUAL_DISPATCHER
    words = [f"--{DISPATCHER.replace('_', '-')}", name]
    if name == "flex" and known.get("backend") and not section.has(*_paths(BACKEND)):
        words += [f"--{BACKEND.replace('_', '-')}", known["backend"]]
    said = Remark("dispatcher", name, f"as Bridge's mixtures have it: no override says model.{DISPATCHER}")
    return [word(text) for text in words], [] if known.get("disp") else [said]


def _require_experts(answer: CheckInput, section: Section, recipe: str | None, known: dict[str, str]) -> None:
    """Raises InputError where only the recipe says how experts are divided: most of Bridge's set 1, megatron-core's default is
    tensor parallelism."""
    said = section.has(*_paths("expert_tensor_parallel_size"))
    if recipe and not (known or said) and answer.question.scenario.model.num_moe_experts and answer.plan.tp > 1:
        raise InputError(
            f"recipe {recipe} is not among the published ones that are known, and expert_tensor_parallel_size is not among the "
            "overrides: add it, or say --set model.expert_tensor_parallel_size=N"
        )


def _scheme(words: Sequence[Value]) -> str:
    """Which adapters run_recipe.py is told to train, in small letters; empty where it is not told."""
    texts = [part for value in words for part in text_of(value).split("=", 1)]
    return next((given.lower() for name, given in pairwise(texts) if name in ("--peft_scheme", "--peft-scheme", "--peft")), "")


def _with_adapters(answer: CheckInput, section: Section, recipe: str, scheme: str) -> CheckInput:
    """With LoRA's fields (megatron/bridge/peft/lora.py). Raises InputError for adapters whose rank is not said, and for recipes
    of fine-tuning that train adapters where nobody says otherwise."""
    rank, targets = section.count("peft.dim"), section.get("peft.target_modules")
    section.get("peft.alpha")
    whole = scheme in ("none", "null") or section.word("peft") in ("none", "null")
    if rank is None:
        adapters = targets is not None or scheme or any(part in recipe for part in ("_peft", "lora", "_finetune"))
        if adapters and not whole:
            raise InputError(
                "the adapters' rank is not among the overrides: add peft.dim=N, or say --set peft.dim=N (--set peft=none where "
                "all weights are trained)"
            )
        return answer
    return with_lora(answer, rank, targets, "peft.dim")


FLAGS = {"virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank"}


def _words(document: Document) -> tuple[list[Value], str | None, Script | None]:
    """(words, name of the recipe, the script) of a list of overrides or of a script."""
    lines = [line.strip() for line in document.text.splitlines()]
    kept = [line for line in lines if line and not line.startswith("#")]
    match = _RECIPE.search("\n".join(kept))
    if all(OVERRIDE.fullmatch(part) for line in kept for part in line.split()):
        return [plain_value(part) for line in kept for part in line.split()], match[1] if match else None, None
    pattern = r"(?:--recipe|--factory|-[a-z]{2,3}|(?:model|train|trainer|data|dataset|ddp|optimizer|checkpoint|logger|log)\..*)"
    decisive = frozenset(
        {"model.tensor-model-parallel-size", "trainer.strategy.tensor-model-parallel-size", "--recipe", "--factory"}
    )
    script = read_command(document.text, document.request.settings, "Megatron-Bridge", decisive, pattern)
    words = [*map(plain_value, script.before), *script.argv]
    return words, _recipe_of(script.argv) or (match[1] if match else None), script


def _started(script: Script | None) -> int | None:
    """GPUs of a launcher that starts several: a program alone may start the others itself."""
    return script.num_gpus if script is not None and script.num_gpus != 1 else None


def _recipe_of(words: Sequence[Value]) -> str | None:
    """What the command hands over as the recipe's name, without a call's arguments. Raises InputError where it is not known."""
    for at, value in enumerate(words):
        name, equals, joined = text_of(value).partition("=")
        if name not in _NAMES or not (equals or at + 1 < len(words)):
            continue
        named = value if equals else words[at + 1]
        if reason := reason_of(named):
            raise InputError(f"{name} is not known: {reason}")
        match = re.match(r"[A-Za-z0-9_.-]+", joined if equals else text_of(named))
        return match[0] if match else None
    return None


_NAMES = ("--recipe", "--factory", "--model-recipe", "--recipe_name", "--model")
_SHORT = {
    "-gb": "train.global_batch_size",
    "-mb": "train.micro_batch_size",
    "-sl": "model.seq_length",
    "-tp": "model.tensor_model_parallel_size",
    "-pp": "model.pipeline_model_parallel_size",
    "-cp": "model.context_parallel_size",
    "-vp": "model.virtual_pipeline_model_parallel_size",
    "-ep": "model.expert_model_parallel_size",
    "-etp": "model.expert_tensor_parallel_size",
}
"""Options of Megatron-Bridge's run_recipe.py -> the setting that each sets; the long ones have its last part."""


def _said(words: Sequence[Value]) -> dict[str, object]:
    """Settings that run_recipe.py's own options set."""
    long = {f"--{path.rpartition('.')[2]}": path for path in _SHORT.values()}
    found: list[Value] = []
    for at, value in enumerate(words[:-1]):
        name, equals, joined = text_of(value).partition("=")
        path = _SHORT.get(name) or long.get(name.replace("-", "_").replace("__", "--", 1))
        if path:
            found.append((*plain_value(f"{path}="), *(plain_value(joined) if equals else words[at + 1])))
    return overrides_of(found)


def _named(text: str) -> str | None:
    match = re.search(r"^# model: (\S+)$", text, re.MULTILINE)
    return match[1] if match else None


_OTHER_NAMES = {"moonlight_16b_sft_config": "moonlight_16b_sft_8gpu_h100_bf16_tp1_config"}
"""An older name (megatron/bridge/recipes/moonlight/) that does not stand for the plain recipe."""


@cache
def _full_name(recipe: str) -> str:
    """Megatron-Bridge's older names (`llama3_8b_sft_config`) stand for the bf16 recipe on H100; the name itself where the table
    has none or several of these."""
    recipe = _OTHER_NAMES.get(recipe, recipe)
    match = re.fullmatch(r"(.+_(?:pretrain|sft|peft))(_.+)?_config", recipe)
    if match is None or recipe in published_recipes():
        return recipe
    full = re.compile(rf"{re.escape(match[1])}_[0-9]+gpu_h100_bf16{re.escape(match[2] or '')}_config")
    found = [name for name, row in published_recipes().items() if row["kind"] == "library" and full.fullmatch(name)]
    return found[0] if len(found) == 1 else recipe


def _settings_file(text: str) -> str:
    """The file of settings that a command of Hydra names (`--config-name`), which the overrides change."""
    found = re.search(r"(?m)^[^#\n]*--config-name[= ]([\w./-]+)", text)
    return f", but settings of {found[1].removesuffix('.yaml')[:60]}.yaml (--config-name): give that file, or" if found else ""


def _paths(key: str) -> list[str]:
    return [f"{holder}{key}" for holder in _HOLDERS]


VALUED = (
    ("recompute_granularity", "--recompute-granularity", "recompute"),
    ("recompute_method", "--recompute-method", "rmethod"),
    ("recompute_num_layers", "--recompute-num-layers", "rlayers"),
    ("num_layers_in_first_pipeline_stage", "--decoder-first-pipeline-num-layers", ""),
    ("num_layers_in_last_pipeline_stage", "--decoder-last-pipeline-num-layers", ""),
    ("optimizer_offload_fraction", "--optimizer-offload-fraction", ""),
)
"""(field, Megatron-LM's argument, column of the table of recipes)."""


def _switches(section: Section, known: dict[str, str]) -> list[Value]:
    """Sequence parallelism, recomputation, stages, precision, optimizer."""
    texts: list[str] = []
    texts += ["--sequence-parallel"] * section.flag(*_paths("sequence_parallel"), default=known.get("sp") == "True")
    texts += _with_values(section, known)
    texts += _precision(section.word("mixed_precision", "trainer.plugins.precision") or known.get("precision") or "bf16")
    texts += ["--use-distributed-optimizer"] * section.flag(*_paths("use_distributed_optimizer"), default=True)
    texts += ["--overlap-grad-reduce"] * section.flag(*_paths("overlap_grad_reduce"), default=True)
    texts += ["--overlap-param-gather"] * section.flag(*_paths("overlap_param_gather"), default=True)
    overlapped = section.flag("comm_overlap.tp_comm_overlap", default=known.get("tpovl") == "True")
    sharded = "--sequence-parallel" in texts and section.word(*_paths("tensor_model_parallel_size")) not in (None, "1")
    texts += ["--tp-comm-overlap"] * (overlapped and (sharded or not known))  # a recipe's is dropped where it cannot run
    if section.flag("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp", default=known.get("fsdp") == "True"):
        sharded_by = ["--data-parallel-sharding-strategy", "optim_grads_params", "--ckpt-format", "fsdp_dtensor"]
        texts += ["--use-megatron-fsdp", *sharded_by]
    other = other_optimizer(section, "optimizer.optimizer", "optim.config.optimizer")
    texts += ["--optimizer", other] * bool(other)
    texts += ["--optimizer-cpu-offload"] * section.flag(*_paths("optimizer_cpu_offload"))
    texts += ["--grad-reduce-in-bf16"] * (not section.flag("ddp.grad_reduce_in_fp32", default=True))
    return [word(text) for text in texts]


def _with_values(section: Section, known: dict[str, str]) -> list[str]:
    """Arguments of recomputation, of uneven stages and of what is offloaded."""
    texts: list[str] = []
    for key, flag, column in VALUED:
        value = section.word(*_paths(key)) or ("null" if section.has(*_paths(key)) else known.get(column)) or "null"
        texts += [flag, value] if value not in ("null", "") else []
    modules = section.get(*_paths("recompute_modules"))
    if modules or (known.get("rmodules") and "--recompute-granularity" in texts):
        listed = isinstance(modules, list)
        named = modules if listed else str(modules or known["rmodules"]).strip("[]").replace(",", " ").split()
        texts += ["--recompute-modules", *map(str, named)]
    return texts


def _precision(name: str) -> list[str]:
    """Arguments of a name in Bridge's registry of precisions, or of the table's word for it. Raises InputError."""
    ours = {theirs: mine for mine, theirs in PRECISIONS.items()} | {"fp8": "delayed", "fp8_cs": "tensorwise", "fp8_mx": "mxfp8"}
    word = ours.get(name, name)
    if word in ("bf16", "bf16-mixed"):
        return ["--bf16"]
    if word in ("fp16", "fp16-mixed"):
        return ["--fp16"]
    if word == "nvfp4":
        return ["--bf16", "--fp4-format", "e2m1"]
    if word in ("delayed", "tensorwise", "blockwise", "mxfp8"):
        return ["--bf16", "--fp8-format", "e4m3" if word == "mxfp8" else "hybrid", "--fp8-recipe", word]
    raise InputError(f"mixed_precision {name[:60]!r} is not known; known are {', '.join(PRECISIONS.values())}")


def is_list(text: str) -> bool:
    """Whether every line that is no comment is `path.key=value`, with a dot in one of the paths."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    words = [part for line in lines[:200] for part in line.split()]
    return (
        bool(words) and all(OVERRIDE.fullmatch(part) for part in words) and any("." in part.partition("=")[0] for part in words)
    )
