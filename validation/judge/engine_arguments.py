"""`ENGINE_PYTHON validation/judge/engine_arguments.py DIR...`: what the engine's own parser and checks say of exported scripts.

Each DIR holds exported files and the model's config.json (validation/judge/serving_plans.py writes such folders). Runs with the
Python that has vLLM or SGLang (no GPU is needed) and nothing of this project. A script runs in bash with a stand-in for the
server that prints its arguments; the engine's parser reads these, its own checks of the whole configuration follow, and what
they make of each value is compared with the plan in deployment.json. Exit code 1 where anything is refused or differs.

SGLang: ServerArgs.resolve_once with --device cuda and check_server_args, which need no GPU. vLLM: the parser, then
SchedulerConfig and ParallelConfig; its CPU platform is named, since the one of CUDA asks the GPU.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SERVERS = ("serve.sh", "prefill.sh", "decode.sh")


def arguments_of(script: Path, model: str = "model") -> tuple[str, list[str]]:
    """(program, arguments) of the first instance that the script starts."""
    with tempfile.TemporaryDirectory() as folder:
        stand_in = Path(folder) / "stand-in"
        stand_in.write_text('#!/bin/bash\nprintf "%s\\0" "$(basename "$0")" "$@"\n', encoding="utf-8")
        stand_in.chmod(0o755)
        for name in ("vllm", "python3", "trtllm-serve", "trtllm-llmapi-launch", "torchrun"):
            (Path(folder) / name).symlink_to(stand_in)
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "MODEL": model, "MEGATRON": "megatron"}
        environment |= {"INSTANCE": "0", "HEAD_NODE": "node0"}
        if "set PREFILL to" in script.read_text(encoding="utf-8"):  # a router: as if each instance had a node of its own
            described = json.loads((script.parent / "deployment.json").read_text(encoding="utf-8"))
            for kind in ("prefill", "decode"):
                nodes = range(described[kind]["num_replicas"])
                environment[kind.upper()] = " ".join(f"{kind}{number}:{8000 + number}" for number in nodes)
        config = Path(model, "config.json")
        if config.is_file() and "quantization_config" in json.loads(config.read_text(encoding="utf-8")):
            environment["QUANTIZATION"] = ""
        done = subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True, check=True, timeout=60)
    program, *rest = done.stdout.rstrip("\0").split("\0")
    return program, rest


def read_by_vllm(arguments: list[str], model: Path) -> dict[str, Any]:
    """`vllm serve MODEL ...` as vLLM reads it, and what its scheduler's and parallel sizes' own checks say."""
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()
    from vllm.config import ParallelConfig, SchedulerConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    command, name, *rest = arguments
    assert command == "serve", arguments[:2]
    read = AsyncEngineArgs.from_cli_args(make_arg_parser(FlexibleArgumentParser()).parse_args(["--model", name, *rest]))
    SchedulerConfig(
        max_num_batched_tokens=read.max_num_batched_tokens,
        max_num_seqs=read.max_num_seqs,
        max_model_len=read.max_model_len,
        enable_chunked_prefill=read.enable_chunked_prefill,
        is_encoder_decoder=False,
    )
    ParallelConfig(
        tensor_parallel_size=read.tensor_parallel_size,
        pipeline_parallel_size=read.pipeline_parallel_size,
        data_parallel_size=read.data_parallel_size,
        enable_expert_parallel=read.enable_expert_parallel,
    )
    ranks = read.tensor_parallel_size * read.data_parallel_size
    return {
        "tp x adp": ranks,
        "pp": read.pipeline_parallel_size,
        "adp": read.data_parallel_size,
        "ep": ranks if read.enable_expert_parallel else 1,
        "sequences a rank": read.max_num_seqs,
        "tokens a rank": read.max_num_batched_tokens,
        "fp8 cache": read.kv_cache_dtype == "fp8",
        "quantization": read.quantization,
        "transfer": read.kv_transfer_config and read.kv_transfer_config.kv_role,
        "nodes": read.nnodes,
    }


def read_by_sglang(arguments: list[str], model: Path) -> dict[str, Any]:
    """`python3 -m sglang.launch_server ...` as SGLang reads, completes and checks it for CUDA GPUs."""
    _define_operators_of_torchvision()
    from sglang.srt.server_args import prepare_server_args

    assert arguments[:2] == ["-m", "sglang.launch_server"], arguments[:2]
    server = prepare_server_args([*arguments[2:], "--device", "cuda"])
    server.resolve_once()
    server.check_server_args()
    read = server.resolved_dict()
    return {
        "tp x adp": read["tp_size"],
        "pp": read["pp_size"],
        "adp": read["attn_dp_size"],
        "ep": read["ep_size"],
        "sequences a rank": max(read["max_running_requests"] // read["attn_dp_size"], 1),
        "tokens a rank": min(read["chunked_prefill_size"], read["max_prefill_tokens"])
        if read["chunked_prefill_size"] > 0
        else read["max_prefill_tokens"],
        "fp8 cache": read["kv_cache_dtype"] == "fp8_e4m3",
        "quantization": read["quantization"],
        "transfer": read["disaggregation_mode"],
        "nodes": read["nnodes"],
    }


def _define_operators_of_torchvision() -> None:
    """SGLang imports torchvision for pictures; its operators need torch's CUDA build, so their names alone are registered."""
    import torch

    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        text = importlib.metadata.distribution("torchvision").locate_file("torchvision/_meta_registrations.py").read_text()
        for name in sorted(set(re.findall(r'"torchvision::(\w+)"', text))):
            torch.library.define(f"torchvision::{name}", "(Tensor x) -> Tensor")


def read_router(arguments: list[str]) -> dict[str, int]:
    """Instances that the router's own parser reads: sglang-router or vllm-router."""
    if arguments[1].startswith("sglang"):
        _define_operators_of_torchvision()
    module = importlib.import_module(arguments[1])
    read = module.parse_router_args(arguments[2:])
    return {"prefill": len(read.prefill_urls), "decode": len(read.decode_urls)}


def meant_by(plan: dict[str, Any], script: str, read_tokens: int) -> dict[str, Any]:
    """What a plan of deployment.json means, by the names of a reading. A prefill instance has at least a sequence for each rank
    and stage. A decode instance runs no prompts: any more tokens do."""
    tp, pp, adp = (plan[f"{name}_parallel_size"] for name in ("tensor", "pipeline", "attention_data"))
    tokens = plan["max_num_tokens"]
    return {
        "tp x adp": tp * adp,
        "pp": pp,
        "adp": adp,
        "ep": plan["expert_parallel_size"],
        "sequences a rank": max(plan["max_batch_size"], adp * pp if script == "prefill.sh" else adp) // adp,
        "tokens a rank": max(tokens, read_tokens) if script == "decode.sh" else tokens,
        "fp8 cache": plan["kv_cache_format"] == "fp8",
    }


def judge(folder: Path) -> list[str]:
    """What is wrong with the scripts of a folder; prints what was read."""
    wrong = []
    described = json.loads((folder / "deployment.json").read_text(encoding="utf-8"))
    for script in [folder / name for name in SERVERS if (folder / name).is_file()]:
        kind = "prefill" if script.name == "prefill.sh" else "decode"
        program, arguments = arguments_of(script, str(folder))
        try:
            reading = (read_by_vllm if program == "vllm" else read_by_sglang)(arguments, folder)
        except (Exception, SystemExit) as refused:  # whatever the engine's checks raise is its refusal
            wrong.append(f"{script}: refused: {type(refused).__name__}: {refused}")
            continue
        print(f"{script}: {reading}")
        wrong += differences(script, reading, described[kind])
    if (folder / "router.sh").is_file():
        reading = read_router(arguments_of(folder / "router.sh", str(folder))[1])
        print(f"{folder / 'router.sh'}: {reading}")
        wrong += miscounted(folder / "router.sh", reading, described)
    return wrong


def differences(script: Path, reading: dict[str, Any], plan: dict[str, Any], lost: int = 1) -> list[str]:
    """Where a script is read otherwise than its plan means; fewer than `lost` sequences a rank may go."""
    meant = meant_by(plan, script.name, reading["tokens a rank"])
    near = {name for name in ("sequences a rank",) if 0 <= meant[name] - reading[name] < lost}
    wrong = [name for name, value in meant.items() if reading[name] != value and name not in near]
    return [f"{script}: {name} is read as {reading[name]}, the plan has {meant[name]}" for name in wrong]


def miscounted(file: Path, counts: dict[str, int], described: dict[str, Any]) -> list[str]:
    """Kinds of instances of which a router reads another number than the plan has."""
    wanted = {kind: described[kind]["num_replicas"] for kind in counts}
    wrong = [kind for kind in counts if counts[kind] != wanted[kind]]
    return [f"{file}: {counts[kind]} {kind} instances, the plan has {wanted[kind]}" for kind in wrong]


def main() -> None:
    """Judge each folder named on the command line."""
    wrong = [line for name in sys.argv[1:] for line in judge(Path(name))]
    print("\n".join(wrong) or "nothing refused, every value as planned")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
