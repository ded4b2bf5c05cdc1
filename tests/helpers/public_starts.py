"""The 60 start commands of public documentation (tests/data/serving_starts)."""

import tomllib
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "data" / "serving_starts"
STARTS = tomllib.loads((FOLDER / "sources.toml").read_text(encoding="utf-8"))
