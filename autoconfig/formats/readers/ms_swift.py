"""ms-swift: scripts of `swift sft` and `megatron sft`, and the YAML with the same names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoconfig.formats.options import options_of, processes, read_command
from autoconfig.formats.projections import ALL_LINEAR
from autoconfig.formats.readers.hugging_face.preferences import not_supervised
from autoconfig.formats.readers.hugging_face.sharding import require_sharding
from autoconfig.formats.readers.hugging_face.trainer import keep_type, training
from autoconfig.formats.readers.hugging_face.trainer import settings as trainer_settings
from autoconfig.formats.readers.megatron_words import DEPTHS, names_in, spelled, words_of
from autoconfig.formats.record import Document, from_words, model_named, record, with_lora, word
from autoconfig.formats.writers.ms_swift import settings
from autoconfig.maps.read import read_entry
from autoconfig.maps.table import load_map
from autoconfig.maps.tree import Section
from autoconfig.megatron.check_input import CheckInput
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.remarks import Effect, Remark
from autoconfig.specs.scenario import LORA_MODULES
from autoconfig.specs.software.software import DEFAULT_STACK

DECISIVE = frozenset({"--model", "--load", "--mcore-model", "--model-id-or-path", "--model-type"})
SWIFT = load_map("ms_swift")


def read(document: Document) -> CheckInput:
    """Return the record. GPUs: NPROC_PER_NODE x NNODES, else `--gpus`. Raises InputError, UnsupportedError."""
    notes: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    launched: int | None = None
    if document.values is not None:
        values = document.values
        variables = values.get("ENV") if isinstance(values.get("ENV"), dict) else {}
    else:
        script = read_command(document.text, document.request.settings, "ms-swift", DECISIVE, r"--[A-Za-z][\w-]*")
        values, notes, variables, launched = options_of(script.argv), script.notes, script.variables, script.num_gpus
        launcher = (*script.before, script.program)
    section = Section(values, document.text, document.request.settings)
    if kind := section.word("rlhf_type") or ("dpo" if "rlhf" in launcher else ""):  # its default
        raise UnsupportedError(not_supervised(f"--rlhf_type {kind[:20]}", kind))
    gpus = processes(variables) or launched
    if any("megatron" in part for part in launcher) if launcher else any(section.has(key) for key in SWIFT.more["megatron"]):
        node = int(str(variables["NPROC_PER_NODE"])) if processes(variables) else None
        return replace(_megatron(document, section, gpus, node), notes=notes)
    require_sharding(section, launcher)
    return replace(_transformers(document, section, _on_device_map(variables, gpus)), notes=notes)


def _on_device_map(variables: Mapping[str, object], gpus: int | None) -> int | None:
    """Return the GPUs, where each process has one: more visible GPUs than processes of a node share the layers of a model.

    swift/cli/main.py of ms-swift starts one process without NPROC_PER_NODE and NNODES. Raises UnsupportedError.
    """
    visible = [name for name in str(variables.get("CUDA_VISIBLE_DEVICES", "")).split(",") if name.strip()]
    each = str(variables.get("NPROC_PER_NODE", "" if gpus or "NNODES" in variables else "1"))
    if not visible or not each.isdigit():
        return gpus
    if len(visible) > int(each):
        raise UnsupportedError(
            f"{len(visible)} GPUs are visible and NPROC_PER_NODE is {each}: the layers of the model are spread over GPUs that "
            f"take turns, which is not read; say NPROC_PER_NODE={len(visible)}"
        )
    return gpus or len(visible)


def _transformers(document: Document, section: Section, gpus: int | None) -> CheckInput:
    name = section.word("model", "model_id_or_path", "model_type")
    checkpoints = section.flag("gradient_checkpointing", default=True)
    dtype = section.word("torch_dtype", "dtype")
    section.flat.setdefault("torch_dtype", dtype or "bfloat16")
    if not section.has("max_length", *SWIFT.more["of_2"]) and document.request.seq_length is None:
        raise InputError(
            "max_length is not in the file, and its default is the longest that the model takes: add it, or say --seq-length N"
        )
    section.flat.setdefault("per_device_train_batch_size", 1)
    if not section.has("gradient_accumulation_steps") and (started := document.request.gpus or gpus):
        micro = section.count("per_device_train_batch_size") or 1
        section.flat["gradient_accumulation_steps"] = max(1, -(-SWIFT.more["least_batch"] // (micro * started)))
    run = training(
        document,
        section,
        name=name,
        kind=section.word(*SWIFT.entry("kind").keys) or "lora",
        length=("max_length", SWIFT.more["length"]),
        recompute=checkpoints,
        gpus=gpus,
    )
    return record(document, run, section, trainer_settings, keep_type(section, run))


def _megatron(document: Document, section: Section, gpus: int | None, node: int | None) -> CheckInput:
    kind = read_entry(SWIFT.entry("kind"), section)
    named = section.word("model", "load", "mcore_model", "model_type")  # NAME-mcore: a checkpoint that ms-swift converted
    model = model_named(document, named and named.removesuffix("-mcore"), [])
    length = document.request.seq_length or section.count("max_length", "seq_length")
    if length is None:
        raise InputError("max_length is not in the file: say --seq-length N")
    read_entry(SWIFT.entry("task"), section)
    usual = {**SWIFT.more["defaults"], **({} if section.has("train_type") else SWIFT.more["defaults_of_4"])}
    if document.request.global_batch_size:
        del usual["global_batch_size"]
    section.flat |= {key: value for key, value in usual.items() if section.get(key) is None}
    words = words_of(section, names_in(section, (*SWIFT.more["own"], "seq_length", DEPTHS)))
    model = model.replace(mtp_num_layers=section.whole(DEPTHS) or 0)  # trained only where it is asked for
    dtype = section.word("torch_dtype") or "bfloat16"
    words += [word("--seq-length"), word(length), word("--fp16" if dtype == "float16" else "--bf16")]
    if section.flag("use_distributed_optimizer"):
        words.append(word("--use-distributed-optimizer"))
    report = from_words(
        document,
        words,
        gpus,
        gpus_reason="NPROC_PER_NODE is not in the file",
        node=node,
        model=model,
        spell=settings if kind == "full" else spelled,
        software=DEFAULT_STACK,
    )
    return report if kind == "full" else _with_adapters(report, section)


def _with_adapters(report: CheckInput, section: Section) -> CheckInput:
    """Return the record with adapters: on all linear layers unless said, whose names are Megatron's. Raises InputError for
    others."""
    named = section.get("target_modules")
    texts = [] if named is None else named if isinstance(named, list) else str(named).split()
    layers = {str(text) for text in texts} or {ALL_LINEAR}
    if odd := sorted(layers - {ALL_LINEAR, *LORA_MODULES}):
        raise InputError(f"target_modules {odd[0][:40]!r}: read are {ALL_LINEAR}, {', '.join(LORA_MODULES)}")
    targets = None if ALL_LINEAR in layers else sorted(layers)
    report = with_lora(report, section.count("lora_rank") or SWIFT.more["lora_rank"], targets, "lora_rank")
    if report.question.scenario.model.is_moe and (targets is None or {"linear_fc1", "linear_fc2"} & layers):
        remark = Remark("target_modules", None, "adapters of experts: more memory and time", Effect.MORE_MEMORY)
        report = replace(report, not_modelled=(*report.not_modelled, remark))
    return report
