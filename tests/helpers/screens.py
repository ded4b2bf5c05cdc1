"""`python tests/helpers/screens.py`: records what commands show on terminals of 80, 120 and 200 columns.

Digits are recorded as 0: the shape is held, not the constants.
"""

import io
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import autoconfig
from autoconfig.notebook.answers import Answered
from autoconfig.render import listings
from autoconfig.render.screen import Screen, show_records

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "render" / "screens"
WIDTHS = (80, 120, 200)
SCRIPT = ROOT / "tests" / "megatron" / "scripts" / "megatron_2021_gpt_345m_mp.sh"
SMALL = {"model": "llama3-8b", "gpus": 8, "calibration": "none", "top": 4}
LARGE = {"model": "llama3-70b", "tokens": "1T", "calibration": "none"}
PLAN = "tp=2,pp=4,mbs=1,recompute=full:block:1"
SERVED = {"model": "llama3-70b", "gpus": 8, "gpu": "h200", "osl": 500, "ttft": "2s", "tpot": "50ms", "top": 3, "simulate": 1}
MIXTURE = {"model": "qwen3-30b-a3b", "gpus": 32, "gpu": "h200", "global_batch_size": 512, "calibration": "none"}
MONEY = {"tokens": "1T", "price": 2.5}
BUDGET = {"money": "3M", "days": 60, "gpu": ["h100=2.2", "b200=4.5"], "calibration": "none"}
SCREENS: dict[str, tuple[str, Callable[[], Answered[object] | Callable[[Screen], None]]]] = {
    "search": ("peak", lambda: autoconfig.search(**SMALL, **MONEY, include="tp=8,mbs=1")),
    "nothing_fits": ("Nothing fits", lambda: autoconfig.search(**{**SMALL, "model": "llama3-70b"})),
    "mixture": ("peak", lambda: autoconfig.search(**MIXTURE, **MONEY)),
    "comparison": ("ratio", lambda: autoconfig.search(**SMALL, **MONEY, gpu=["h100", "a100-80gb"], precision="bf16")),
    "explain": ("seconds", lambda: autoconfig.explain(PLAN, model="llama3-8b", gpus=8, calibration="none")),
    "scaling": ("tokens/s", lambda: autoconfig.scaling(**LARGE, gpus="64:256", days=60)),
    "deployments": ("tok/s/GPU", lambda: autoconfig.deployments(**SERVED)),
    "overload": ("NO", lambda: autoconfig.deployments(**{**SERVED, "gpus": 4, "gpu": "h100", "rate": 50, "include": "tp=4"})),
    "rl": ("binds", lambda: autoconfig.rl(model="qwen2.5-7b", gpus=8)),
    "check": ("argument", lambda: autoconfig.check(SCRIPT)),
    "refused": ("argument", lambda: autoconfig.check(SCRIPT, gpus=3)),
    "budget": ("cost", lambda: autoconfig.budget(**BUDGET)),
    "models": ("parameters", lambda: lambda screen: show_records(screen, listings.model_rows()[:6])),
    "gpus": ("memory", lambda: lambda screen: show_records(screen, listings.gpu_rows()[:6])),
    "software": ("year", lambda: lambda screen: show_records(screen, listings.software_rows())),
    "rules": ("enforced in", lambda: lambda screen: show_records(screen, listings.rule_rows())),
}  # fmt: skip
"""Name -> a word of the head of its table, and what shows it."""
FIRST = (
    "search", "nothing_fits", "mixture", "comparison", "scaling", "deployments", "overload", "rl", "check", "refused", "budget",
)  # fmt: skip
"""Those that say what to start."""


@cache
def _shown(name: str) -> Answered[object] | Callable[[Screen], None]:
    return SCREENS[name][1]()


def screen(name: str, width: int) -> str:
    """What a terminal of this width shows."""
    text, found = io.StringIO(), _shown(name)
    (found.show if isinstance(found, Answered) else found)(Screen(file=text, width=width))
    return text.getvalue()


def recorded(text: str) -> str:
    """The shape of a screen: digits are 0, runs of spaces one."""
    text = re.sub(r"published-[0-9]+-[0-9a-f]+", "published-0-0", re.sub(r" +\n", "\n", text))
    return re.sub(r" +", " ", re.sub(r"[0-9]+([.,][0-9]+)*", "0", text))


def path(name: str, width: int) -> Path:
    """Where a screen is recorded."""
    return FOLDER / f"{name}.{width}.txt"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in SCREENS:
        for width in WIDTHS:
            path(name, width).write_text(recorded(screen(name, width)), encoding="utf-8")
