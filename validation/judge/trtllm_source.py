"""`python -m validation.judge.trtllm_source TENSORRT_LLM DIR...`: exported scripts before the source files of TensorRT-LLM.

TENSORRT_LLM is the folder tensorrt_llm of its source tree. Importing it needs its CUDA libraries, so parts of three of its
files run instead. The click options of `serve` (commands/serve.py) parse the command line; the option classes that a script's
YAML fills (llmapi/llm_args.py: cut out of the file, with their validators) read the YAML with pydantic, and a name that
TorchLlmArgs does not have is refused; a router's YAML is read by llmapi/disagg_utils.py. What crosses two options
(TorchLlmArgs' own validators) is not run. Exit code 1 on a refusal.
"""

from __future__ import annotations

import ast
import json
import math
import sys
import typing
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import click
import pydantic
import yaml  # no stubs of its own

from validation.judge.engine_arguments import arguments_of, differences, miscounted

CLASSES = {
    "kv_cache_config": "KvCacheConfig",
    "cuda_graph_config": "CudaGraphConfig",
    "cache_transceiver_config": "CacheTransceiverConfig",
}
"""Options of TorchLlmArgs that are classes, of those that the exporter writes."""
TYPES = {"int": int, "float": float, "str": str}
KINDS = {"serve": "decode", "prefill": "prefill", "decode": "decode"}


def command(serve: Path) -> click.Command:
    """`trtllm-serve serve` with the options that the file declares."""
    function = next(n for n in ast.parse(serve.read_text(encoding="utf-8")).body if getattr(n, "name", "") == "serve")
    parameters: list[click.Parameter] = [click.Argument(["model"])]
    for call in (d for d in function.decorator_list if isinstance(d, ast.Call)):  # type: ignore[attr-defined]
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "option"):
            continue
        names = [ast.literal_eval(name) for name in call.args]
        words = {keyword.arg: keyword.value for keyword in call.keywords}
        flag = "is_flag" in words and bool(ast.literal_eval(words["is_flag"]))
        kind = {"is_flag": True} if flag else {"type": _click_type(words.get("type"))}
        parameters.append(click.Option(names, **kind))
    return click.Command("serve", params=parameters)


def _click_type(node: ast.expr | None) -> Any:
    if isinstance(node, ast.Name):
        return TYPES[node.id]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.List):  # a choice of words written out
        return click.Choice([ast.literal_eval(word) for word in node.args[0].elts])
    return str


class Options:
    """TorchLlmArgs' names, and the classes of CLASSES as pydantic models."""

    def __init__(self, llm_args: Path) -> None:
        tree = ast.parse(llm_args.read_text(encoding="utf-8"))
        self.classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self.fields = dict(self._fields("TorchLlmArgs"))
        wanted = {"StrictBaseModel", "Field", *CLASSES.values()}
        body = [n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name in wanted]
        for node in body:
            node.decorator_list = []  # mirror_pybind_fields: compares with the C++ class
            if isinstance(node, ast.ClassDef) and node.name != "StrictBaseModel":
                node.bases = [ast.Name("StrictBaseModel", ast.Load())]
        self.names: dict[str, Any] = {**vars(typing), "PydanticField": pydantic.Field, "math": math}
        self.names |= {name: getattr(pydantic, name) for name in ("BaseModel", "field_validator", "model_validator")}
        module = ast.fix_missing_locations(ast.Module(body=list(body), type_ignores=[]))
        exec(compile(module, str(llm_args), "exec"), self.names)  # the file is the judge: it was named to be run

    def _fields(self, name: str) -> Iterator[tuple[str, ast.expr]]:
        node = self.classes.get(name)
        for base in node.bases if node else ():
            yield from self._fields(getattr(base, "id", ""))
        for line in node.body if node else ():
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                yield line.target.id, line.annotation

    def read(self, options: Mapping[str, Any]) -> dict[str, Any]:
        unknown = [name for name in options if name not in self.fields]
        if unknown:
            raise ValueError(f"TorchLlmArgs has no {', '.join(unknown)}")
        return {name: self._value(name, value) for name, value in options.items()}

    def _value(self, name: str, value: Any) -> Any:
        if name in CLASSES:
            return self.names[CLASSES[name]](**value)
        return pydantic.TypeAdapter(eval(ast.unparse(self.fields[name]), self.names)).validate_python(value, strict=True)


def judge(folder: Path, serve: click.Command, options: Options) -> list[str]:
    """What is wrong with the scripts of a folder; prints what was read."""
    wrong = []
    described = json.loads((folder / "deployment.json").read_text(encoding="utf-8"))
    for script in [folder / f"{kind}.sh" for kind in KINDS if (folder / f"{kind}.sh").is_file()]:
        program, words = arguments_of(script, str(folder))
        words = words[1:] if program == "trtllm-llmapi-launch" else words
        plan = described[KINDS[script.stem]]
        try:
            flags = serve.make_context("serve", words).params
            read = options.read(yaml.safe_load(Path(flags["extra_llm_api_options"]).read_text(encoding="utf-8")))
        except (click.ClickException, ValueError) as refused:  # pydantic's ValidationError is a ValueError
            wrong.append(f"{script}: refused: {refused}")
            continue
        tokens = flags["max_num_tokens"]
        if not read["enable_chunked_prefill"]:
            tokens = min(tokens, plan["max_num_tokens"])  # more: room for a longer prompt, which is not cut
        ranks = plan["attention_data_parallel_size"] * plan["pipeline_parallel_size"]
        reading = {
            "tp x adp": flags["tensor_parallel_size"],
            "pp": flags["pipeline_parallel_size"],
            "adp": flags["tensor_parallel_size"] if read["enable_attention_dp"] else 1,
            "ep": flags["moe_expert_parallel_size"] or 1,
            "sequences a rank": flags["max_batch_size"] * plan["pipeline_parallel_size"],
            "tokens a rank": tokens,
            "fp8 cache": read["kv_cache_config"].dtype == "fp8",
        }
        print(f"{script}: {reading}")
        wrong += differences(script, reading, plan, lost=ranks)  # a micro-batch of a stage is whole: up to one a stage is lost
    return wrong


def judge_router(folder: Path, disagg_utils: Path) -> list[str]:
    """What parse_disagg_config_file, cut out of llmapi/disagg_utils.py, makes of the YAML that router.sh writes."""
    arguments_of(folder / "router.sh", str(folder))
    tree = ast.parse(disagg_utils.read_text(encoding="utf-8"))
    body: list[ast.stmt] = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    names: dict[str, Any] = {name: getattr(typing, name) for name in typing.__all__}
    names |= {"dataclass": dataclass, "field": field, "IntEnum": IntEnum, "uuid": uuid, "yaml": yaml, "Comm": object}
    names["__name__"] = __name__  # dataclass looks its module up
    exec(compile(ast.Module(body=body, type_ignores=[]), str(disagg_utils), "exec"), names)
    read = names["parse_disagg_config_file"](str(folder / "router.yaml"))
    kinds = [server.type for server in read.server_configs]
    described = json.loads((folder / "deployment.json").read_text(encoding="utf-8"))
    counts = {"prefill": kinds.count("ctx"), "decode": kinds.count("gen")}
    print(f"{folder / 'router.yaml'}: {counts}, port {read.port}")
    return miscounted(folder / "router.yaml", counts, described)


def main() -> None:
    """Judge each folder named on the command line."""
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    source = Path(sys.argv[1])
    serve, options = command(source / "commands/serve.py"), Options(source / "llmapi/llm_args.py")
    version = (source / "version.py").read_text(encoding="utf-8").rpartition("=")[2].strip()
    wrong = [line for name in sys.argv[2:] for line in judge(Path(name), serve, options)]
    for folder in (Path(name) for name in sys.argv[2:] if (Path(name) / "router.sh").is_file()):
        wrong += judge_router(folder, source / "llmapi/disagg_utils.py")
    print("\n".join(wrong) or "nothing refused, every value as planned", f"(TensorRT-LLM {version})")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
