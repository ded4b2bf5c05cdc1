"""vLLM's own KV groups and SGLang's own memory fraction: one question a line of JSON in, one answer out.

    python validation/judge/engine_blocks.py vllm FOLDER      {"layers", "length", "tokens", "pool", "pp"...} -> {"blocks", ...}
    python validation/judge/engine_blocks.py sglang FOLDER    {"gpu_mib", "tp", ...} -> {"fraction", "chunk", "graphs"}

FOLDER holds the sources of one release (validation/judge/engine_sources.py). Of vLLM the modules in REAL run as they are, every
other import is a stand-in; of SGLang the function is cut out of its file. Needs torch, runs in the judge's environment.
"""

from __future__ import annotations

import ast
import copy
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

REAL = (
    "vllm.v1.core.kv_cache_utils",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.kv_cache_spec_registry",
    "vllm.v1.kv_cache_layout",
    "vllm.v1.core.single_type_kv_cache_manager",
    "vllm.utils.math_utils",
    "vllm.utils.torch_utils",
)
"""Modules of vLLM that decide; older releases have some of them in vllm/utils/__init__.py."""


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives any module of vLLM but the real ones as a mock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".", 1)[0] != "vllm":
            return None
        file = self.folder / (name.replace(".", "/") + ".py")
        if name in REAL and file.is_file():
            return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = mock.MagicMock(name=spec.name)
        module.__path__, module.__name__, module.__spec__ = [], spec.name, spec
        for real in REAL:
            parent, _, child = real.rpartition(".")
            if parent == spec.name:
                delattr(module, child)
        if spec.name == "vllm.utils":
            module.cdiv, module.round_up = (lambda a, b: -(a // -b)), (lambda a, b: -(a // -b) * b)
            module.get_dtype_size = lambda dtype: dtype.itemsize
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: a mock has everything."""


class Said(SimpleNamespace):
    """A configuration: what it was not told is None."""

    def __getattr__(self, name: str) -> None:
        return None


def specs_of(interface: ModuleType, layers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """vLLM's specification of each layer; page sizes are made of one head of so many 8-bit numbers."""
    import torch

    specs: dict[str, Any] = {}
    for index, layer in enumerate(layers):
        kind, block, page = layer["kind"], layer["block"], layer["page"]
        if kind == "states":
            values = {"shapes": ((page,),), "dtypes": (torch.uint8,), "block_size": block}
            fields = interface.MambaSpec.__dataclass_fields__
            if "num_speculative_blocks" in fields:
                values["num_speculative_blocks"] = layer["copies"] - 1
            specs[f"layer.{index}"] = interface.MambaSpec(**values)
            continue
        common = {"block_size": block, "num_kv_heads": 1, "dtype": torch.uint8}
        if layer.get("latent"):
            spec, head = interface.MLAAttentionSpec, page // block
        else:
            spec, head = interface.FullAttentionSpec, page // block // 2
        if kind == "sliding window":
            spec, common = interface.SlidingWindowSpec, {**common, "sliding_window": layer["window"]}
        specs[f"layer.{index}"] = spec(**common, head_size=head, **flags(spec))
    return specs


def flags(spec: Any) -> dict[str, Any]:
    """What older releases ask for beside."""
    return {"use_mla": False} if "use_mla" in spec.__dataclass_fields__ else {}


def vllm(folder: Path) -> Iterator[dict[str, Any]]:
    """Answers questions of blocks and concurrency by the release's own functions."""
    sys.meta_path.insert(0, StandIn(folder))
    interface = importlib.import_module("vllm.v1.kv_cache_interface")
    utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
    for line in sys.stdin:
        question = json.loads(line)
        config = Said(
            model_config=Said(max_model_len=question["length"], original_max_model_len=question["length"]),
            scheduler_config=Said(
                max_num_batched_tokens=question["tokens"], disable_hybrid_kv_cache_manager=not question["hybrid"]
            ),
            parallel_config=Said(
                decode_context_parallel_size=1, prefill_context_parallel_size=1, pipeline_parallel_size=question["pp"]
            ),
            cache_config=Said(
                mamba_cache_mode="align" if question["cached"] else "none",
                block_size=16,
                get_resolved_kv_cache_layout=lambda: importlib.import_module("vllm.v1.kv_cache_layout").KVCacheLayout.LBNHC,
            ),
            num_prefill_lookahead_tokens=0,
            attention_config=Said(),
            max_in_flight_tokens=question["flight"],
        )
        specs = specs_of(interface, question["layers"])
        stages = [{f"layer.{index}": specs[f"layer.{index}"] for index in stage} for stage in question["stages"]]
        pools = [question["pool"]] * len(stages)
        if hasattr(utils, "get_kv_cache_configs"):
            configs = utils.get_kv_cache_configs(config, copy.deepcopy(stages), pools)
        else:
            configs = [utils.get_kv_cache_config(config, stage, question["pool"]) for stage in copy.deepcopy(stages)]
        fewest = min(configs, key=lambda one: one.num_blocks)
        concurrency = utils.get_max_concurrency_for_kv_cache_config(config, fewest)
        yield {
            "blocks": fewest.num_blocks,
            "concurrency": concurrency,
            "groups": sorted(len(group.layer_names) for group in fewest.kv_cache_groups),
        }


def sglang(folder: Path) -> Iterator[dict[str, Any]]:
    """Answers questions of the fraction by ServerArgs._handle_gpu_memory_settings, cut out of its class."""
    path = folder / "sglang" / "srt" / "server_args.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    made = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ServerArgs")
    wanted = ("_handle_gpu_memory_settings", "_generate_piecewise_cuda_graph_tokens", "_generate_cuda_graph_batch_sizes")
    cut = ast.ClassDef("ServerArgs", [], [], [n for n in made.body if getattr(n, "name", "") in wanted], [])
    space: dict[str, Any] = {"logger": mock.MagicMock(), "envs": mock.MagicMock(), "is_hip": lambda: False}
    exec(compile(ast.fix_missing_locations(ast.Module([cut], [])), str(path), "exec"), space)
    config = mock.MagicMock()
    config.ModelConfig.from_server_args.return_value.is_multimodal = False
    sys.modules |= {name: mock.MagicMock() for name in ("sglang", "sglang.srt", "sglang.srt.configs")}
    sys.modules["sglang.srt.configs.model_config"] = config
    for line in sys.stdin:
        question = json.loads(line)
        args = space["ServerArgs"]()
        model = SimpleNamespace(is_multimodal=False)
        for name, value in {
            "tp_size": question["tp"],
            "pp_size": question["pp"],
            "dp_size": question["dp"],
            "enable_dp_attention": question["dp"] > 1,
            "speculative_algorithm": question["draft"],
            "get_model_config": lambda model=model: model,
            "use_mla_backend": lambda latent=question["latent"]: latent,
            "device": "cuda",
            "model_path": "model",
            "disable_piecewise_cuda_graph": bool(question["draft"]) or question["dp"] > 1 or question["pp"] > 1,
        }.items():
            setattr(args, name, value)
        for name in UNSAID:
            setattr(args, name, None)
        for name in OFF:
            setattr(args, name, False)
        args._handle_gpu_memory_settings(question["gpu_mib"])
        yield {
            "fraction": args.mem_fraction_static,
            "chunk": args.chunked_prefill_size,
            "graphs": args.cuda_graph_max_bs,
        }


UNSAID = (
    *("chunked_prefill_size", "cuda_graph_max_bs", "cuda_graph_bs", "mem_fraction_static", "piecewise_cuda_graph_max_tokens"),
    *("piecewise_cuda_graph_tokens", "max_total_tokens", "max_running_requests"),
)
OFF = (
    *("enable_piecewise_cuda_graph", "enable_symm_mem", "language_only", "disable_cuda_graph", "disable_cuda_graph_padding"),
    *("enable_pdmux", "enable_torch_compile"),
)


if __name__ == "__main__":
    for answer in {"vllm": vllm, "sglang": sglang}[sys.argv[1]](Path(sys.argv[2])):
        print(json.dumps(answer), flush=True)
