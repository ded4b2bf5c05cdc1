#!/usr/bin/env python3
"""Ask the service how to run a model on the GPUs of a job, and submit the training with the answer.

    slurm_submit.py --service http://planner:8000 --folder run1 model=llama3-70b gpus=64 gpu=h100-sxm-80gb -- --partition=train

What follows `--` goes to sbatch. The API key is read from AUTOCONFIG_KEY; MEGATRON_PATH, DATA_PATH and the other variables
of the script (its first lines say which) are taken from the environment, as sbatch passes them on. Exit code 3: nothing fits.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from autoconfig.client import Client, ServiceError

EXIT_REFUSED, EXIT_NOTHING_FITS = 2, 3


def main(arguments: list[str]) -> int:
    """The whole program."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    options, sbatch = _options(arguments[:at]), arguments[at + 1 :]
    question = dict(options.question)
    client = Client(options.service, os.environ.get("AUTOCONFIG_KEY"))
    try:
        found = client.plans(**question, top=1)
        if not found.plans:
            print("no plan fits these GPUs; autoconfig search says what would", file=sys.stderr)
            return EXIT_NOTHING_FITS
        best = found.plans[0]
        files = client.export(best.short, **question)
    except ServiceError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    print(f"{best.short}: {best.step_seconds:.3g} s a step predicted with calibration {found.calibration}", file=sys.stderr)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (options.folder / name).write_text(text, encoding="utf-8")
    return subprocess.run(["sbatch", "--parsable", *sbatch, "train.sbatch"], cwd=options.folder, check=False).returncode


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--service", required=True, metavar="URL", help="http://HOST:PORT of autoconfig serve")
    parser.add_argument("--folder", required=True, type=Path, help="where the scripts and the log go")
    parser.add_argument("question", nargs="+", type=_field, metavar="FIELD=VALUE", help="fields of POST /v1/plans")
    return parser.parse_args(arguments)


def _field(text: str) -> tuple[str, object]:
    """`gpus=64`: a JSON value where it is one, else text."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r}: write it like gpus=64")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
