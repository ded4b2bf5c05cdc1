"""Writes the examples of docs/inference.md from the commands themselves. `python docs/generate_inference.py` (from the
project's root, again after every refit); a test fails when the page is stale."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import shlex
import tempfile
import textwrap
from pathlib import Path
from unittest import mock

from autoconfig.cli.main import cli
from benchmarks import made_traces

PAGE = Path(__file__).with_name("inference.md")
WIDTH = "124"
ONE_GPU = "--top 1 --isl 1024 --osl 1024 --verbose"
EXAMPLES = {
    "70b": f"deployments --model llama3-70b --gpus 1 --gpu h100-sxm-80gb --fix weights=fp8,kv=fp8 {ONE_GPU}",
    "sizing": "deployments --model llama3-70b --gpus 64 --gpu h200 --engine vllm --trace day.csv --rate 20 --ttft 2s "
    "--tpot 50ms --goal gpus --price 3 --top 2 --verbose",
    "falcon": f"deployments --model falcon-180b --gpus 1 --gpu h200-sxm-141gb --fix weights=int4,kv=fp8 {ONE_GPU}",
}
PARETO_SHOWN = 3
"""Title, header and first row (one user alone) of the last table."""


@functools.cache
def printed(command: str) -> str:
    """What a command prints on WIDTH columns without the later rows of the Pareto frontier and what stands below it: counts
    and seconds of the search, and what it assumed."""
    out = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        if "day.csv" in command:
            made_traces.main(path := f"{folder}/day.csv")
            command = command.replace("day.csv", path)
        _run(command, out)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    last = next((i for i, line in enumerate(lines) if line.startswith("Pareto frontier")), len(lines))
    kept = lines[: last + PARETO_SHOWN]
    return "\n".join(kept)


def _run(command: str, out: io.StringIO) -> None:
    with contextlib.redirect_stdout(out), mock.patch.dict(os.environ, COLUMNS=WIDTH):
        cli.main(shlex.split(command), standalone_mode=False)


def block(name: str) -> str:
    """The example with its command, as it stands between its marks."""
    text = textwrap.indent(f"autoconfig {EXAMPLES[name]}\n\n{printed(EXAMPLES[name])}", "    ", lambda line: bool(line.strip()))
    return f"<!-- serving example {name}: written by python docs/generate_inference.py -->\n{text}\n<!-- end of example -->"


def page(text: str) -> str:
    """The page with every example made anew. Raises ValueError where a mark is missing."""
    for name in EXAMPLES:
        pattern = rf"<!-- serving example {name}:.*?<!-- end of example -->"
        if len(re.findall(pattern, text, flags=re.DOTALL)) != 1:
            raise ValueError(f"the page has not one example {name}")
        new = block(name)
        text = re.sub(pattern, lambda _, new=new: new, text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
