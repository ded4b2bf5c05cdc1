"""What NVIDIA's performance recipes switch on, release by release: `specs/catalogue/software/releases.csv`.

    python -m validation.distil.release_settings CHECKOUT > specs/catalogue/software/releases.csv

CHECKOUT is a clone of NVIDIA-NeMo/Megatron-Bridge with its tags. Up to 26.06.01 the settings are dataclasses of
`scripts/performance/configs/*/*workload_base_configs.py`; from 26.08 on they are functions of
`src/megatron/bridge/perf_recipes` and of the library recipes that they start from, which are run here on a stand-in that only
remembers what is set. No measurement is read.
"""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import re
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.run_settings import kind_of

TAGS = {
    "nemo-25.09": "v0.1.0rc4",
    "nemo-25.11": "v0.2.0",
    "nemo-26.02": "v0.3.0",
    "nemo-26.02.01": "v0.3.1",
    "nemo-26.04": "v0.4.0",
    "nemo-26.04.01": "v0.4.2",
    "nemo-26.06": "v0.5.0",
    "nemo-26.06.01": "v0.5.1",
    "nemo-26.08": "v0.6.0",
}
MODELS = {
    "QWEN3_30B_A3B": "qwen3-30b-a3b",
    "QWEN3_235B_A22B": "qwen3-235b-a22b",
    "QWEN3_NEXT_80B_A3B": "qwen3-next-80b-a3b",
    "DEEPSEEK_V3": "deepseek-v3",
    "GPT_OSS_120B": "gpt-oss-120b",
    "KIMI_K2": "kimi-k2",
    "NEMOTRON_3_NANO": "nemotron-3-nano",
    "NEMOTRON_3_SUPER": "nemotron-3-super",
    "LLAMA3_8B": "llama3-8b",
    "LLAMA3_70B": "llama3-70b",
    "LLAMA31_405B": "llama3.1-405b",
}
PRECISIONS = {"BF16": "bf16", "FP8_CS": "tensorwise", "FP8_SC": "blockwise", "FP8_MX": "mxfp8", "NVFP4": "nvfp4"}
PLAN = {
    "gpus": "num_gpus",
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "ep": "expert_model_parallel_size",
    "mbs": "micro_batch_size",
}
TASKS = {"PRETRAIN": "pretrain", "SFT": "sft", "LORA": "lora", "PEFT": "lora"}
COLUMNS = (
    "model", "kind", "gpu", "precision", "software", "until", "task", *PLAN, "gbs", "seq", "dispatcher", "cuda_graphs",
    "ep_overlap", "fused_experts", "fp8_attention", "fp8_output", "recompute", "offload_layers", "layout",
)  # fmt: skip
SETTINGS = tuple(column for column in COLUMNS if column not in ("software", "until", "gbs"))
FUSED = "cutedsl_fused_grouped_mlp"
FP8_OUTPUT = ("deepseek-v3", "gpt-oss-120b")
"""In 26.06 their *_llm_pretrain.py sets fp8_output_proj where experts are fused."""


RECIPES = ("megatron.bridge.perf_recipes", "megatron.bridge.recipes")
"""Packages whose functions are run: what a performance recipe leaves alone is its library recipe's."""


class Recorded:
    """Remembers what is set on it; what was never set is false and empty."""

    def __init__(self, *_: Any, **values: Any) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__.setdefault(name, Recorded())

    def __call__(self, *_: Any, **values: Any) -> Recorded:
        return Recorded(**values)

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __or__(self, _: Any) -> Recorded:
        return self

    __ror__ = __or__

    def __gt__(self, _: Any) -> bool:
        return False


class _StandIns:
    """Finds every module of megatron.bridge but the recipes, torch, and what else recipes import: all Recorded, but the
    function that names a dispatcher."""

    def __init__(self, source: Path) -> None:
        self.source = source

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] not in ("megatron", "torch", "transformers"):
            return None
        file = self.source / (name.replace(".", "/") + ".py")
        package = file.with_suffix("") / "__init__.py"
        if name.startswith(RECIPES) and "dataset_utils" not in name and (file.is_file() or package.is_file()):
            source = package if package.is_file() else file
            parents = [str(package.parent)] if package.is_file() else None
            return importlib.util.spec_from_file_location(name, source, submodule_search_locations=parents)
        return importlib.util.spec_from_loader(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: Recorded() if not name.startswith("__") else _missing(name)  # type: ignore[method-assign]
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__.endswith("flex_dispatcher_backend"):
            module.apply_flex_dispatcher_backend = _flex_dispatcher  # type: ignore[attr-defined]


def _flex_dispatcher(model: Any, backend: Any = None) -> None:
    """What Megatron-Bridge's function does on a GPU that has the backend."""
    if backend in ("deepep", "hybridep"):
        model.moe_token_dispatcher_type, model.moe_flex_dispatcher_backend = "flex", backend


def _missing(name: str) -> Any:
    raise AttributeError(name)


def dataclass_settings(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, fields) of every preset of one tag."""
    base = folder / "scripts" / "performance"
    for name in [m for m in sys.modules if m == "utils" or m.startswith("utils.")]:
        del sys.modules[name]
    utils = types.ModuleType("utils")
    utils.__path__ = [str(base / "utils")]
    sys.modules["utils"] = utils
    for path in sorted((base / "configs").glob("*/*workload_base_configs.py")):
        spec = importlib.util.spec_from_file_location("presets", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        lengths = _tuned_lengths(path.parent)
        for name, value in vars(module).items():
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                yield name, vars(value) | {"seq_length": _tuned_length(name, lengths)}


_TUNED = re.compile(r"\ndef (\w+)_(sft|lora)_config_(\w+)\((.*?)(?=\ndef |\Z)", re.S)
_LENGTH = re.compile(r"(?m)^[^#\n]*\bseq_length ?= ?(\d+)(?: if precision\.lower\(\) == \"bf16\" else (\d+))?")


def _tuned_lengths(folder: Path) -> dict[str, tuple[str, str]]:
    """Names of fine-tuning presets without their precision -> tokens of a sample in bf16, in the other formats."""
    lengths = {}
    for path in folder.glob("*_llm_finetune.py"):
        for model, task, gpu, body in _TUNED.findall(path.read_text(encoding="utf-8")):
            if match := _LENGTH.search(body):
                lengths[f"{model}_{task}_config_{gpu}".upper()] = match[1], match[2] or match[1]
    return lengths


def _tuned_length(name: str, lengths: dict[str, tuple[str, str]]) -> str:
    stem = re.sub(rf"_({'|'.join(PRECISIONS)})(_V\d)?$", "", name)
    return lengths.get(stem, ("", ""))["BF16" not in name]


def yaml_settings(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, fields) of every preset of 25.09: plans from configs/*/*.yaml, and what run_script.py sets for its models: DeepEP,
    overlap and two recomputed modules for DeepSeek-V3 on H100, all-to-all with token drop elsewhere."""
    base = folder / "scripts" / "performance" / "configs"
    for path in (base / name for name in ("deepseek/deepseek_v3", "qwen3/qwen3_30b_a3b", "qwen3/qwen3_235b_a22b")):
        matrix = yaml.safe_load(path.with_name(path.name + "_llm_pretrain.yaml").read_text(encoding="utf-8"))["perf_matrix"]
        for gpu, sizes in matrix.items():
            for gpus, presets in sizes.items():
                for form in set(presets) - {"common"}:
                    plan = presets["common"] | (presets[form] or {})
                    values = {PLAN[key]: plan[key] for key in ("tp", "pp", "cp", "ep", "mbs")}
                    values |= {PLAN["vpp"]: plan["vp"], PLAN["gpus"]: int(gpus.rsplit("_", 1)[1])}
                    values |= {"global_batch_size": plan["gbs"]}
                    values |= {"cuda_graph_impl": "transformer_engine" if plan["cuda_graphs"] else None}
                    if path.name == "deepseek_v3":
                        dropless = gpu == "h100"
                        values |= {"moe_flex_dispatcher_backend": "deepep" if dropless else None, "moe_a2a_overlap": dropless}
                        values |= {"recompute_modules": ["mla_up_proj", "mlp"] if dropless else ["mla_up_proj"]}
                    yield f"{path.name.upper()}_PRETRAIN_CONFIG_{gpu.upper()}_{form.upper()}", values


def function_settings(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, fields) of every recipe of 26.08 and later, functions, under the names of the presets before it."""
    finder: Any = _StandIns(folder / "src")
    sys.meta_path.insert(0, finder)
    for path in sorted((folder / "src" / "megatron" / "bridge" / "perf_recipes").glob("*/*/*.py")):
        module = importlib.import_module(".".join(path.relative_to(folder / "src").with_suffix("").parts))
        for name, function in vars(module).items():
            match = re.fullmatch(r"(\w+)_(pretrain|sft|peft)_(\d+)gpu_(\w+?)_(bf16|fp8cs|fp8sc|fp8mx|nvfp4)_config", name)
            if match is None:
                continue
            model, task, gpus, gpu, precision = match.groups()
            form = {"fp8cs": "FP8_CS", "fp8sc": "FP8_SC", "fp8mx": "FP8_MX"}.get(precision, precision.upper())
            run = function()
            values = {
                **vars(run.model),
                "num_gpus": int(gpus),
                "recompute_modules": [] if run.model.recompute_granularity is None else run.model.recompute_modules,
                "micro_batch_size": run.train.micro_batch_size,
                "global_batch_size": run.train.global_batch_size,
                "seq_length": "" if task == "pretrain" else run.model.seq_length,
                "moe_a2a_overlap": getattr(run.comm_overlap, "overlap_moe_expert_parallel_comm", None) is True,
                FUSED: run.model.use_transformer_engine_op_fuser is True,
                "fp8_dot_product_attention": getattr(run.mixed_precision, "fp8_dot_product_attention", None) is True,
                "pp_layout": layout if isinstance(layout := run.model.pipeline_model_parallel_layout, str) else "",
            }
            yield f"{model.upper()}_{task.upper()}_CONFIG_{gpu.upper()}_{form}", values


PRESET = re.compile(
    rf"({'|'.join(MODELS)})_(?:({'|'.join(TASKS)})_CONFIG_)?([GB0-9H]+)_({'|'.join(PRECISIONS)})(?:_V1|_V2|_BASE_CONFIG)?"
)
TEXTS = {"gbs": "global_batch_size", "seq": "seq_length", "offload_layers": "cpu_offloading_num_layers"}
FLAGS = {"ep_overlap": "moe_a2a_overlap", "fused_experts": FUSED, "fp8_attention": "fp8_dot_product_attention"}
"""Column -> field of a preset."""


def rows_of(software: str, presets: Iterator[tuple[str, dict[str, Any]]]) -> Iterator[dict[str, str]]:
    """Presets of known models as rows; of pretraining without the length of a sequence, which is the model's."""
    for name, every in presets:
        if match := PRESET.fullmatch(name):
            model, task, gpu, precision = match.groups("PRETRAIN")
            values = {key: value for key, value in every.items() if not isinstance(value, Recorded)}
            yield {
                "software": software,
                "model": MODELS[model],
                "kind": kind_of(load_model(MODELS[model])),
                "gpu": gpu.lower(),
                "precision": PRECISIONS[precision],
                "task": TASKS[task],
                **{column: str(values.get(field) or "") for column, field in TEXTS.items()},
                **{column: str(values.get(field) or 1) for column, field in PLAN.items()},
                "dispatcher": _dispatcher(values),
                "cuda_graphs": _graphs(values),
                **{column: str(int(bool(values.get(field)))) for column, field in FLAGS.items()},
                "fp8_output": str(
                    int(values.get("fp8_output_proj", bool(values.get(FUSED)) and MODELS[model] in FP8_OUTPUT) is True)
                ),
                "recompute": " ".join(values.get("recompute_modules") or []),
                "layout": re.sub(r"[' ]", "", str(values.get("pp_layout") or "")),
            }


def _graphs(values: dict[str, Any]) -> str:
    """Scopes of CUDA graphs."""
    scopes = {"full_iteration": "full_iteration", "transformer_engine": values.get("cuda_graph_scope") or "full"}
    scope = scopes.get(values.get("cuda_graph_impl") or "", "")
    return scope if isinstance(scope, str) else " ".join(scope)


def _dispatcher(values: dict[str, Any]) -> str:
    """Empty where a preset does not say it. A backend without the type that uses it is a model's default."""
    if values.get("moe_token_dispatcher_type") == "alltoall":
        return "alltoall"
    if backend := values.get("moe_flex_dispatcher_backend"):
        return str(backend)
    return "alltoall" if "moe_flex_dispatcher_backend" in values else ""


def compact(rows: Iterator[dict[str, str]]) -> list[dict[str, str]]:
    """One row for a recipe that several releases in a row have alike (columns software and until; gbs lists its batches, in
    the order of presets); what a function leaves to its base recipe stays as the last release of that plan had it."""
    releases, compacted = list(TAGS), []
    seen: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        recipes = seen.setdefault((row["model"], row["gpu"], row["precision"], row["task"]), [])
        before = next((old for old in reversed(recipes) if _alike(old, row, PLAN)), {})
        row["dispatcher"] = row["dispatcher"] or before.get("dispatcher") or "alltoall"
        row["layout"] = row["layout"] or before.get("layout", "")
        same = next((old for old in recipes if _alike(old, row, SETTINGS)), None)
        if same and releases.index(row["software"]) - releases.index(same["until"]) <= 1:
            same["until"] = row["software"]
            same["gbs"] = " ".join(dict.fromkeys([*same["gbs"].split(), *row["gbs"].split()]))
        else:
            row["until"] = row["software"]
            recipes.append(row)
            compacted.append(row)
    return compacted


def _alike(old: dict[str, str], row: dict[str, str], columns: Iterable[str]) -> bool:
    return all(old[column] == row[column] for column in columns)


def main(checkout: Path) -> None:
    """Print the table."""
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted(compact(_rows(checkout)), key=lambda row: [row[column] for column in COLUMNS[:4]]))


def _rows(checkout: Path) -> Iterator[dict[str, str]]:
    for software, tag in TAGS.items():
        flat = software >= "nemo-26.08"
        wanted = [f"src/{name.replace('.', '/')}" for name in RECIPES] if flat else ["scripts/performance"]
        with tempfile.TemporaryDirectory() as name:
            archive = subprocess.run(["git", "-C", str(checkout), "archive", tag, *wanted], check=True, capture_output=True)
            subprocess.run(["tar", "x", "-C", name], input=archive.stdout, check=True)
            read = function_settings if flat else yaml_settings if software == "nemo-25.09" else dataclass_settings
            yield from rows_of(software, read(Path(name)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
