"""`ENGINE_PYTHON tools/judge/engine_arguments.py serve.sh...`: what the engine's own parser says of an exported start script.

Runs with the Python that has vLLM or SGLang (no GPU is needed) and nothing of this project. The script runs in bash with a
stand-in for the server that prints its arguments; the parser reads these. Prints what was read; exit code 1 on a refusal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SHOWN = ("tensor_parallel", "pipeline_parallel", "max_num", "max_model", "kv_cache_dtype", "quantization", "tp_size", "chunked")


def arguments_of(script: Path) -> tuple[str, list[str]]:
    """(program, arguments) of the first instance that the script starts."""
    with tempfile.TemporaryDirectory() as folder:
        stand_in = Path(folder) / "stand-in"
        stand_in.write_text('#!/bin/bash\nprintf "%s\\0" "$(basename "$0")" "$@"\n', encoding="utf-8")
        stand_in.chmod(0o755)
        for name in ("vllm", "python3", "trtllm-serve", "torchrun"):
            (Path(folder) / name).symlink_to(stand_in)
        given = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "MODEL": "model", "MEGATRON": "megatron"}
        given["INSTANCE"] = "0"
        done = subprocess.run(["bash", str(script)], env=given, capture_output=True, text=True, check=True, timeout=60)
    program, *rest = done.stdout.rstrip("\0").split("\0")
    return program, rest


def parsed_by_vllm(arguments: list[str]) -> Any:
    """`vllm serve MODEL ...` as vLLM reads it; its platform is the CPU's where no GPU is found."""
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    command, model, *rest = arguments
    assert command == "serve", arguments[:2]
    return make_arg_parser(FlexibleArgumentParser()).parse_args(["--model", model, *rest])


def parsed_by_sglang(arguments: list[str]) -> Any:
    """`python3 -m sglang.launch_server ...` as SGLang reads it."""
    import argparse

    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    assert arguments[:2] == ["-m", "sglang.launch_server"], arguments[:2]
    return parser.parse_args(arguments[2:])


def main() -> None:
    """Each script named on the command line."""
    for name in sys.argv[1:]:
        program, arguments = arguments_of(Path(name))
        try:
            found = (parsed_by_vllm if program == "vllm" else parsed_by_sglang)(arguments)
        except SystemExit as refused:
            raise SystemExit(1) from refused
        shown = {key: value for key, value in vars(found).items() if value is not None and any(part in key for part in SHOWN)}
        print(f"{name}: read by {program}: {shown}")


if __name__ == "__main__":
    main()
