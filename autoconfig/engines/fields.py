"""A start command's settings as an EngineStart, of each engine by its own flags."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.engines.flags import NAMES, flag_of_older_releases, not_modelled, roles
from autoconfig.engines.reading import MODEL_SETTINGS, SAME_ON_NODES, ReadStart, UnsetError, unset_text
from autoconfig.planning.resolve import read_checkpoint, read_model
from autoconfig.planning.scheduled_gpu import scheduled_gpu
from autoconfig.specs.engines.architectures import catalogue_architectures
from autoconfig.specs.engines.releases import later_release, newest_release, version_of
from autoconfig.specs.engines.start import LONGER, EngineStart
from autoconfig.specs.errors import InputError, UnknownNameError, UnsupportedError, option
from autoconfig.specs.hardware.cluster import GpuSpec, load_gpu
from autoconfig.specs.models.config_reader import ConfigReader, read_json_object, rope_scaling
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import config_file_of
from autoconfig.specs.remarks import Effect, Remark
from autoconfig.specs.software.checkpoint import Checkpoint, quantised_at_load

GIB = 2**30
CACHES = {
    **dict.fromkeys(("auto", "bfloat16", "bf16", "float16", "half", "fp16"), ""),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla"), "fp8"),
    **dict.fromkeys(("nvfp4", "fp4_e2m1"), "nvfp4"),
    "int8": "int8",
}
"""--kv-cache-dtype of the three engines by our format; empty: the model's own 16 bits, or what the checkpoint says."""
OTHER_CACHES = {
    "vllm": (
        *(
            "fp8_per_token_head",
            "int4_per_token_head",
            "int8_per_token_head",
            "nvfp4_4over6",
            "nvfp4_ds_mla",
            "ultraquant_4bit",
        ),
        *("turboquant_3bit_nc", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_k8v4"),
    ),
    "sglang": (),
}
"""Further ones that an engine has: vllm 0.8.5 to 0.32, config/cache.py, CacheDType; sglang 0.4.6 to 0.5.23, server_args.py. The
command line refuses what is in neither."""
NEEDS_FILES = ("awq", "awq_marlin", "gptq", "gptq_marlin", "gptq_marlin_24", "gptq_bitblas", "moe_wna16")
"""Methods that look for their own settings beside the weights: get_config_filenames of vllm's and sglang's
layers/quantization; model_loader/weight_utils.py, get_quant_config, says what they miss."""
SIXTEEN_BITS = ("auto", "half", "float16", "bfloat16", "fp16", "bf16")
LORA_SLOTS = {"vllm": 1, "sglang": 8, "tensorrt-llm": 4}
"""Adapters at once where the command names no number: vllm config/lora.py, sglang server_args.py, tensorrt_llm LoraConfig."""
LORA_RANK = 16
"""vllm config/lora.py, max_lora_rank; of SGLang's adapters, whose own files say it, an assumption."""
WHOLE_PROMPT = 16384
"""Tokens of a prefill of SGLang where --chunked-prefill-size is -1: max_prefill_tokens."""
MTP = ("mtp", "deepseek_mtp", "nextn")


@dataclass
class Filled:
    """A start in one record, and what was noted while it was made."""

    start: EngineStart
    not_modelled: tuple[Remark, ...] = ()
    assumed: tuple[Remark, ...] = ()
    model_name: str = ""
    architectures: tuple[str, ...] = ()
    """Of the model's config; empty where it is not known."""


class IllegalValueError(InputError):
    """The engine refuses the value of a setting, so the server does not start. `setting`: its name."""

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(message)
        self.setting = setting


MOST = 10**12
"""Of a size or a count: what is more, no machine has."""


@dataclass
class _Taking:
    """Reads settings, each by its name, and gathers remarks."""

    read: ReadStart
    remarks: list[Remark] = field(default_factory=list)
    assumed: list[Remark] = field(default_factory=list)

    def count(self, *names: str, least: int = 1) -> int | None:
        """A whole number of at least `least`, of the first of these that is said."""
        for name in names:
            value = self.read.value(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                self.fail(name, f"a whole number of at least {least}")
            return int(value)
        return None

    def share(self, *names: str) -> float | None:
        for name in names:
            value = self.read.value(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value <= 1.0:
                self.fail(name, "a share above 0, at most 1", self._share_words(value))
            return float(value)
        return None

    def number(self, name: str) -> float | None:
        value = self.read.value(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST:
            self.fail(name, f"a number from 0 to {MOST:,}")
        return float(value)

    def text(self, name: str) -> str:
        value = self.read.value(name)
        return "" if value is None or isinstance(value, bool | dict | list) else str(value)

    def yes(self, name: str) -> bool:
        return self.read.value(name) in (True, "true", "True")

    def off(self, name: str) -> bool | None:
        """False where a switch that turns something off is on."""
        return False if self.yes(name) else None

    def maybe(self, name: str) -> bool | None:
        value = self.read.value(name)
        return value if isinstance(value, bool) else None

    def state(self, name: str) -> str | None:
        """A format of recurrent states."""
        return text if (text := self.text(name)) in ("float32", "bfloat16", "float16") else None

    def plain(self) -> dict[str, Any]:
        """The fields that one setting says each (data/engine_fields.toml)."""
        rows = _fields()[self.read.engine]
        return {name: getattr(self, how)(*settings) for name, (how, *settings) in rows.items()}

    def listed(self, name: str) -> list[int]:
        """Whole numbers of a list, however it is written."""
        value = self.read.value(name)
        items = value if isinstance(value, list) else str(value or "").replace(",", " ").split()
        return [int(item) for item in items if str(item).isdigit()]

    def mapping(self, name: str) -> Mapping[str, Any]:
        value = self.read.value(name)
        return value if isinstance(value, dict) else {}

    def cache(self, name: str) -> str | None:
        text = self.text(name).lower()
        if text and text not in CACHES and text not in OTHER_CACHES.get(self.read.engine, (text,)):
            flag = self.read.said[name].source.split()[0]
            legal = ", ".join(["auto", "bfloat16", "fp8_e4m3", "fp8_e5m2", *OTHER_CACHES[self.read.engine]])
            raise IllegalValueError(name, f"argument {flag}: invalid choice: {text[:30]!r} (choose from {legal}, ...)")
        if text and text not in CACHES:
            known = ", ".join(CACHES)
            raise UnsupportedError(f"{self.read.said[name].source}: a cache in {text[:30]} is not modelled; these are: {known}")
        return CACHES.get(text) or None

    def _share_words(self, value: object) -> str:
        """What vLLM says of a share above 1: config/cache.py, up to 0.11.0 _verify_args, then pydantic of its field."""
        if self.read.engine != "vllm" or not isinstance(value, int | float) or value <= 1:
            return ""
        if version_of(self.read.release or newest_release("vllm")) < (0, 11, 1):
            return f" (GPU memory utilization must be less than 1.0. Got {float(value)}.)"
        return " (gpu_memory_utilization: Input should be less than or equal to 1)"

    def fail(self, name: str, wanted: str, words: str = "") -> None:
        raise IllegalValueError(name, f"{self.read.said[name].source}: {wanted} is needed{words}")


@cache
def _fields() -> dict[str, dict[str, list[str]]]:
    text = (resources.files("autoconfig") / "data" / "engine_fields.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


Fill = Callable[[_Taking, ModelSpec], dict[str, Any]]


def fill(
    read: ReadStart,
    *,
    model: str | Mapping[str, Any] | None = None,
    gpu: str | GpuSpec | None = None,
    gpus_per_node: int | None = None,
    local_files: bool = True,
    like: str | None = None,
    sbatch: Sequence[tuple[str, str]] = (),
) -> Filled:
    """The EngineStart of a start that was read. `model` and `gpu`: what the caller says instead of the file. Raises InputError:
    no GPU, a model that is not known, a variable without a value, a value that no start has."""
    unset = _unset(read, model)
    if model is None and any(source.startswith("the model is ") for source, _ in unset):
        raise InputError(unset_text(unset), field="model")
    named = model if model is not None else read.model
    spec, notes = _model(named, local_files=local_files, like=like, in_file=model is None)
    taking = _Taking(read, assumed=list(notes))
    spec = _overridden(taking, spec)
    card = _gpu(read, gpu, sbatch, taking.assumed)
    checkpoint = _checkpoint(taking, named, local_files=local_files, by_id=model is None)
    try:
        values = {"vllm": _vllm, "sglang": _sglang, "tensorrt-llm": _trtllm}[read.engine](taking, spec)
    except UnsetError:
        raise InputError(unset_text(unset)) from None
    _check_ranks(read, values)
    start = EngineStart(
        engine=read.engine,
        release=read.release,
        model=spec,
        gpu=card,
        gpus_per_node=gpus_per_node,
        checkpoint=checkpoint,
        longer=_longer(taking),
        **{name: value for name, value in values.items() if value is not None},
    )
    taking.remarks += [
        Remark(name, None, f"{read.said[name].source}: {why} (not modelled)", Effect.MEMORY_AND_TIME)
        for name, why in not_modelled(read.engine).items()
        if name in read.said and _asks(read.said[name].value)
    ]
    if why := later_release(read.engine, read.release):
        taking.assumed.append(Remark("release", read.release, why, Effect.EVERYTHING))
    if not read.release:
        why = f"the newest that is known{flag_of_older_releases(read.engine, read.said)}"
        taking.assumed.append(Remark("release", newest_release(read.engine), why, Effect.EVERYTHING))
    return Filled(
        start=start,
        not_modelled=tuple(taking.remarks),
        assumed=tuple(taking.assumed),
        model_name=named if isinstance(named, str) else spec.name,
        architectures=_architectures(taking, named, spec, local_files=local_files and model is not None),
    )


def _check_ranks(read: ReadStart, values: Mapping[str, Any]) -> None:
    """Raises IllegalValueError where attention data parallelism or the experts' ranks do not divide tensor parallelism (sglang
    0.4.6 to 0.5.23, server_args.py: assert self.tp_size % self.dp_size == 0; parallel_state.py, initialize_model_parallel)."""
    tp, dp, ep = values["tp"], values.get("dp") or 1, values.get("ep") or 1
    if values.get("attention_dp") and tp % dp:
        name = next((one for one in ("attn-dp-size", "dp-size") if one in read.said), "")
        raise IllegalValueError(name, f"assert self.tp_size % self.dp_size == 0: {dp} data-parallel ranks do not divide {tp}")
    for name in ("ep-size", "moe_expert_parallel_size"):
        if name in read.said and ep > 0 and tp % ep:
            why = f"{read.said[name].source}: the experts' ranks must divide the tensor-parallel ranks ({tp})"
            raise IllegalValueError(name, why)


def _unset(read: ReadStart, model: object) -> list[tuple[str, str]]:
    """(where it stands, variables) of every setting that is reckoned with and holds a variable that nothing sets; the model's
    only where nobody else names one."""
    key, left_out = MODEL_SETTINGS[read.engine], {*not_modelled(read.engine), *SAME_ON_NODES}
    found = []
    for name, one in read.said.items():
        if not one.unset:
            continue
        if name == key or one.value == read.model:
            found += [(f"the model is {one.value}", one.unset)] if model is None else []
        elif name in roles(read.engine) and name not in left_out:
            found.append((one.source, one.unset))
    return found


def _model(
    named: str | Mapping[str, Any], *, local_files: bool, like: str | None, in_file: bool
) -> tuple[ModelSpec, list[Remark]]:
    """Raises InputError that asks for the config.json where nobody knows the model."""
    try:
        return read_model(named, local_files=local_files and not in_file, like=like)
    except UnknownNameError as error:
        if not in_file:
            raise
        where = "a folder that the server sees" if str(named).startswith((".", "/", "~")) else "not in the catalogue"
        raise InputError(
            f"the model of the command, {str(named)[:100]!r}, is {where}: give its config.json as {option('model')}, or the "
            "name that the catalogue has for it (autoconfig models)",
            field="model",
        ) from error


def _gpu(read: ReadStart, asked: str | GpuSpec | None, sbatch: Sequence[tuple[str, str]], assumed: list[Remark]) -> GpuSpec:
    if asked is not None:
        return asked if isinstance(asked, GpuSpec) else load_gpu(asked)
    if read.gpu:
        try:
            found = load_gpu(read.gpu)
        except InputError as error:
            raise InputError(f"the file asks for {read.gpu!r}: say {option('gpu')} ({error})", field="gpu") from error
        assumed.append(Remark("gpu", found.id, f"as the file asks for {read.gpu}", Effect.EVERYTHING))
        return found
    named = scheduled_gpu(sbatch, None, assumed)
    if named is None:
        raise InputError(f"the file does not say which GPU the server runs on: say {option('gpu')}, such as h100", field="gpu")
    return load_gpu(named)


def _checkpoint(taking: _Taking, named: str | Mapping[str, Any], *, local_files: bool, by_id: bool) -> Checkpoint | None:
    """How the weights are stored: as the published id or the config.json says, else as the command has them quantised.
    `by_id`: the command's own id, which says that they have 16 bits."""
    dtype = taking.text("dtype").lower()
    if dtype and dtype not in SIXTEEN_BITS:
        raise UnsupportedError(f"{taking.read.said['dtype'].source}: weights are served in 16 bits or quantised; say auto")
    found = read_checkpoint(named, local_files=local_files)
    method = taking.text("quantization").lower()
    if found is not None or not method or method in ("none", "mxfp4"):
        return found
    if by_id and method in NEEDS_FILES and taking.read.engine in OTHER_CACHES:
        source = taking.read.said["quantization"].source
        why = f"Cannot find the config file for {method} ({source}: {str(named)[:80]} has weights in 16 bits"
        raise IllegalValueError("quantization", f"{why}; a checkpoint in that format is needed)")
    return quantised_at_load(method)


def _architectures(take: _Taking, named: str | Mapping[str, Any], model: ModelSpec, *, local_files: bool) -> tuple[str, ...]:
    """As the command puts them into the config, as config.json has them, or those of the catalogue's model."""
    config: Mapping[str, Any] = named if isinstance(named, Mapping) else {}
    if isinstance(named, str) and local_files and (file := config_file_of(named)):
        config = read_json_object(file)
    flags = [*OVERRIDES[take.read.engine], ""]
    found = next(filter(None, ({**config, **take.mapping(flag)}.get("architectures") for flag in flags)), None)
    if config or found:
        return tuple(one for one in found if isinstance(one, str)) if isinstance(found, list) else ()
    return catalogue_architectures(model.name)


def _vllm(take: _Taking, model: ModelSpec) -> dict[str, Any]:
    tp, dp = take.count("tensor-parallel-size") or 1, take.count("data-parallel-size") or 1
    limits, length, lora = take.mapping("limit-mm-per-prompt"), take.read.value("max-model-len"), take.yes("enable-lora")
    return take.plain() | {
        "tp": tp,
        "dp": dp,
        "ep": tp * dp if take.yes("enable-expert-parallel") and model.is_moe else 1,
        "max_model_len": length if length == -1 else take.count("max-model-len"),
        "flashinfer_sampler": _switch(take, "VLLM_USE_FLASHINFER_SAMPLER"),
        "charge_graphs": _switch(take, "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"),
        "attention_backend": take.text("attention-backend") or take.read.environment.get("VLLM_ATTENTION_BACKEND", ""),
        "lora_slots": (take.count("max-loras") or LORA_SLOTS["vllm"]) if lora else None,
        "lora_rank": (take.count("max-lora-rank") or LORA_RANK) if lora else None,
        "cpu_offload_bytes": int((take.number("cpu-offload-gb") or 0.0) * GIB),
        "language_only": take.yes("language-model-only") or (bool(limits) and not any(map(_items, limits.values()))),
        **_graphs_of_vllm(take),
        **_speculation_of_vllm(take),
    }


def _graphs_of_vllm(take: _Taking) -> dict[str, Any]:
    """Whether CUDA graphs are captured, and of which batches: flags before the keys of --compilation-config."""
    compiled = take.mapping("compilation-config")
    sizes = take.listed("cudagraph-capture-sizes") or [
        int(size) for size in compiled.get("cudagraph_capture_sizes") or () if str(size).isdigit()
    ]
    largest = take.count("max-cudagraph-capture-size") or compiled.get("max_cudagraph_capture_size")
    eager = take.yes("enforce-eager") or str(compiled.get("cudagraph_mode", "")).upper() == "NONE"
    eager = eager or take.read.value("optimization-level") in (0, "0")
    return {"eager": eager or None, "graph_max_batch": max(sizes, default=largest) or None, "graph_count": len(sizes) or None}


def _asks(value: Any) -> bool:
    """Whether a value turns on what it names: 0 and 1 of sizes, false and null do not."""
    return value is not False and value is not None and (isinstance(value, bool) or value not in (0, 1))


def _items(limit: Any) -> int:
    """Of a kind of input: `2`, or `{"count": 2}`."""
    value = limit.get("count", 1) if isinstance(limit, dict) else limit
    return int(value) if str(value).isdigit() else 1


def _longer(take: _Taking) -> bool:
    """Whether the command lets the server take longer sequences than the model's config has."""
    variable, *flags = LONGER[take.read.engine] or ("",)
    return bool(_switch(take, variable)) or any(take.read.value(name) not in (None, "auto", "hf", "") for name in flags)


OVERRIDES = {"vllm": ("hf-overrides", "rope-scaling"), "sglang": ("json-model-override-args",), "tensorrt-llm": ()}
"""Flags whose JSON changes the model's config; rope-scaling is one of its keys."""


def _overridden(take: _Taking, model: ModelSpec) -> ModelSpec:
    """The model with the length and the scaling of its rotary positions that the command puts into its config; other keys are
    not read. Raises InputError for values that no config has."""
    for flag in OVERRIDES[take.read.engine]:
        said = take.mapping(flag)
        said = {"rope_scaling": said} if flag == "rope-scaling" and said else said
        values = ConfigReader({**said, **(said.get("text_config") or {})}, take.read.said[flag].source if said else flag)
        length = values.integer("max_position_embeddings", model.max_position_embeddings)
        scaling = model.rope_scaling
        for key in ("rope_scaling", "rope_parameters"):
            if key in values:
                own = {"original_max_position_embeddings": length, **values.section(key).values()}
                scaling = rope_scaling(ConfigReader(own, values.section(key).where))
        model = model.replace(max_position_embeddings=length, rope_scaling=scaling)
        if unread := [key for key in said if key not in (*_READ, "text_config")]:
            why = f"{flag}: {', '.join(map(str, unread))[:80]} in the config (not modelled)"
            take.remarks.append(Remark(flag, None, why, Effect.MEMORY_AND_TIME))
    return model


_READ = ("max_position_embeddings", "rope_scaling", "rope_parameters", "rope_theta", "architectures")


def _switch(take: _Taking, name: str) -> bool | None:
    text = take.read.environment.get(name, "").strip().lower()
    return None if not text else text in ("1", "true", "on", "yes")


def _speculation_of_vllm(take: _Taking) -> dict[str, Any]:
    said = dict(take.mapping("speculative-config"))
    for name, key in (("spec-method", "method"), ("spec-model", "model"), ("spec-tokens", "num_speculative_tokens")):
        if take.read.value(name) is not None:
            said[key] = take.read.value(name)
    if not said:
        return {}
    method, tokens = str(said.get("method", "")).lower(), said.get("num_speculative_tokens", 1)
    return _speculation(take, method, tokens, str(said.get("model", "")), "speculative-config")


def _speculation(take: _Taking, method: str, tokens: Any, draft: str, flag: str) -> dict[str, Any]:
    """Method, tokens and draft model as EngineStart has them."""
    if not isinstance(tokens, int) or isinstance(tokens, bool) or not 1 <= tokens <= 64:
        raise InputError(f"{flag}: the number of draft tokens is 1 to 64, not {str(tokens)[:20]!r}")
    if method in MTP or method.endswith("_mtp"):
        return {"draft_method": "mtp", "draft_tokens": tokens}
    if method.startswith(("eagle", "dflash")):
        kind = "eagle"
    elif method.startswith("ngram") or method == "suffix":
        return {"draft_method": "ngram", "draft_tokens": tokens}
    elif method in ("", "draft_model", "standalone", "drafttarget", "draft_target"):
        kind = "model"
    else:
        why = f"{flag} {method[:30]}: the memory and speed of its drafts (not modelled)"
        take.remarks.append(Remark(flag, None, why, Effect.MEMORY_AND_TIME))
        return {}
    spec = _draft(take, draft, flag)
    return {"draft_method": kind, "draft_tokens": tokens if spec else 0, "draft_model": spec}


def _draft(take: _Taking, draft: str, flag: str) -> ModelSpec | None:
    try:
        return read_model(draft, local_files=False)[0] if draft else None
    except InputError:
        why = f"{flag}: the draft model {draft[:80]!r} is not in the catalogue; its weights and cache are not counted"
        take.remarks.append(Remark(flag, None, why, Effect.MEMORY_AND_TIME))
        return None


def _experts_of_sglang(take: _Taking, model: ModelSpec, tp: int) -> int | None:
    deepep = take.yes("enable-deepep-moe") or take.text("moe-a2a-backend") not in ("", "none")
    ep = tp if model.is_moe and (deepep or take.yes("enable-ep-moe")) else take.count("ep-size")
    return ep if model.is_moe else 1


def _sglang(take: _Taking, model: ModelSpec) -> dict[str, Any]:
    tp = take.count("tp-size") or 1
    own = take.count("attn-dp-size")
    shared = take.yes("enable-dp-attention") or bool(own and own > 1)
    ep = _experts_of_sglang(take, model, tp)
    sizes = take.listed("cuda-graph-bs") or take.listed("cuda-graph-bs-decode")
    chunk = take.count("chunked-prefill-size", least=-1)
    if chunk is not None and chunk < 1:
        chunk = take.count("max-prefill-tokens") or WHOLE_PROMPT
    return take.plain() | {
        "tp": tp,
        "ep": ep,
        "attention_dp": shared,
        "max_num_batched_tokens": chunk,
        "eager": take.yes("disable-cuda-graph") or take.yes("disable-decode-cuda-graph") or None,
        "graph_max_batch": take.count("cuda-graph-max-bs", "cuda-graph-max-bs-decode") or max(sizes, default=None),
        "graph_count": len(sizes) or None,
        "cpu_offload_bytes": int((take.number("cpu-offload-gb") or 0.0) * GIB),
        **_adapters_of_sglang(take),
        **_speculation_of_sglang(take),
    }


def _adapters_of_sglang(take: _Taking) -> dict[str, Any]:
    if not take.yes("enable-lora") and not take.read.value("lora-paths"):
        return {}
    rank = take.count("max-lora-rank")
    if rank is None:
        rank = LORA_RANK
        take.assumed.append(Remark("lora_rank", LORA_RANK, "the adapters' own rank is not in the command", Effect.LESS_MEMORY))
    return {"lora_slots": take.count("max-loras-per-batch") or LORA_SLOTS["sglang"], "lora_rank": rank}


def _speculation_of_sglang(take: _Taking) -> dict[str, Any]:
    method = take.text("speculative-algorithm").lower()
    if not method or method == "none":
        return {}
    draft = take.text("speculative-draft-model-path")
    tokens = take.count("speculative-num-draft-tokens") or (take.count("speculative-num-steps") or 3) + 1
    if method in ("eagle", "nextn") and not draft:  # the module of the checkpoint: model_config.is_draft_model
        method = "mtp"
    return _speculation(take, method, tokens, draft, "speculative-algorithm")


def _trtllm(take: _Taking, model: ModelSpec) -> dict[str, Any]:
    tp, shared = take.count("tensor_parallel_size") or 1, take.yes("enable_attention_dp")
    sizes = take.listed("cuda_graph_config.batch_sizes")
    graphs = take.read.said.get("cuda_graph_config")
    lora = take.count("lora_config.max_loras") is not None
    return take.plain() | {
        "tp": tp,
        "dp": tp if shared else 1,
        "ep": take.count("moe_expert_parallel_size", least=-1) if model.is_moe else 1,
        "attention_dp": shared,
        **(_balance_of_trtllm(take) if shared and take.yes("attention_dp_config.enable_balance") else {}),
        "eager": True if graphs is not None and graphs.value is None else None,
        "graph_max_batch": take.count("cuda_graph_config.max_batch_size", least=0) or (max(sizes) if sizes else None),
        "graph_count": len(sizes) or None,
        "lora_rank": (take.count("lora_config.max_lora_rank") or LORA_RANK) if lora else None,
        **_speculation_of_trtllm(take),
    }


def _balance_of_trtllm(take: _Taking) -> dict[str, int | None]:
    """How prompts of attention ranks wait for each other, by default as llmapi/llm_args.py, AttentionDpConfig."""
    batching = take.count("attention_dp_config.batching_wait_iters", least=0)
    timeout = take.count("attention_dp_config.timeout_iters") or 50
    return {"balance_timeout": timeout, "balance_batching": 10 if batching is None else batching}


def _speculation_of_trtllm(take: _Taking) -> dict[str, Any]:
    method = take.text("speculative_config.decoding_type").lower()
    if not method:
        return {}
    tokens = take.count("speculative_config.num_nextn_predict_layers", "speculative_config.max_draft_len") or 1
    draft = take.text("speculative_config.speculative_model_dir") or take.text("speculative_config.speculative_model")
    return _speculation(take, method, tokens, draft, "speculative_config")


def matters(engine: str) -> frozenset[str]:
    """Settings that may change an answer."""
    return frozenset({*roles(engine), *not_modelled(engine)})


def title(read: ReadStart) -> str:
    """The engine and its release as they are shown."""
    return f"{NAMES[read.engine]} {read.release}".strip()
