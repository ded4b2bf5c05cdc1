"""Which keys a release of a framework takes (data/post_training_keys.json, read off its wheels and tags)."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.planning.work import spend
from autoconfig.specs.errors import InputError
from autoconfig.specs.remarks import Remark

HINTS = 20
"""Keys that are compared with all others for the name that they are a slip of."""
FREE = re.compile(
    r"(override_\w{1,80}|engine_kwargs|\w_kwargs|optim|hf_config_overrides|model_overrides|env_vars|profiler|checkpoint|tool_config)\."
    r"|^(hydra|env|ray_kwargs|reward\w*|custom_reward_function|data|logger|defaults|reward_model|critic\.model)\b"
)
"""Mappings into which users may put keys of their own, and what says nothing of placement."""
OF_CLASSES = re.compile(r"(actor_rollout_ref\.(actor|rollout|ref|model)|critic|algorithm)\.")
"""Sections whose `_target_` in verl/trainer/config (0.9.1) is a dataclass, which raises at a key that hydra's `+` adds."""


@cache
def _data() -> dict[str, Any]:
    text = (resources.files("autoconfig") / "data" / "post_training_keys.json").read_text(encoding="utf-8")
    keys: dict[str, Any] = json.loads(text)
    return keys


def versions(framework: str) -> list[str]:
    """Return the releases whose keys are known, oldest first."""
    releases: list[str] = _data()[framework]["versions"]
    return releases


def version_of(framework: str, wanted: str | None) -> str:
    """Return the newest known release, or the wanted one. Raises InputError naming those that are known."""
    releases = versions(framework)
    if wanted and wanted not in releases:
        raise InputError(f"keys of {framework} {wanted[:40]} are not known: use {', '.join(releases)}")
    return wanted or releases[-1]


def likeliest_version(framework: str, given: Iterable[str], among: Iterable[str]) -> str:
    """Return the newest of these releases that takes most of the keys."""
    table: dict[str, str] = _data()[framework]["any"]
    releases, names = versions(framework), list(given)
    spend(len(names))
    taken = {one: sum(table.get(name, "0" * 99)[releases.index(one)] == "1" for name in names) for one in among}
    return max(taken, key=lambda one: (taken[one], releases.index(one)))


def key_types(framework: str) -> dict[str, str]:
    """Return by key the name of the type of its value in the newest base configuration; empty where a framework's own parser
    decides."""
    types: dict[str, str] = _data()[framework].get("types", {})
    return types


def lacking_keys(framework: str, version: str, given: Iterable[str]) -> list[str]:
    """Return the keys that the newest release requires and a whole configuration lacks; none where that is not known."""
    there = list(given)
    wanted = _data()[framework].get("required", {}) if version == versions(framework)[-1] else {}
    return [key for key in wanted if not any(one == key or one.startswith(f"{key}.") for one in there)]


def added_keys(framework: str, unknown: Iterable[str], text: str) -> list[str]:
    """Return the keys, of those that a release does not take, that hydra's `+KEY` in `text` adds where nothing refuses them."""
    if framework != "verl":
        return []
    names = [key for key in unknown if not OF_CLASSES.match(key)]
    spend(len(names) * len(text) / 50)
    return [key for key in names if re.search(rf"(?<![\w.+])\+\+?{re.escape(key)}=", text)]


def unknown_keys(framework: str, back_end: str, version: str, given: Iterable[str], text: str = "") -> list[Remark]:
    """Return what is wrong with keys that this release does not take: gone, not there yet, or meant another; `text`: of the
    file, in which hydra's `+KEY` adds one."""
    table: dict[str, str] = _data()[framework].get(back_end) or _data()[framework]["any"]
    at = versions(framework).index(version)
    prefixes = {key.rsplit(".", depth)[0] for key in table for depth in range(1, key.count(".") + 1)}
    wrong: list[Remark] = []
    for key in given:
        spend(5)
        digits = table.get(key, "")
        if digits[at : at + 1] == "1" or key in prefixes or _is_free(framework, key, text):
            continue
        if digits:
            why = _other_release(framework, digits, at)
        else:
            taken = [other for other, releases in table.items() if releases[at] == "1"]
            why = f"{framework} {version} has no such key{_meant(key, taken, search=len(wrong) < HINTS)}"
        wrong.append(Remark(key, None, why))
    return wrong


def _is_free(framework: str, key: str, text: str) -> bool:
    """Return whether the key stands where users may put keys of their own; in verl's section of data those that the file
    adds."""
    return bool(FREE.search(key)) and (framework != "verl" or not key.startswith("data.") or f"+{key}" in text)


def _other_release(framework: str, digits: str, at: int) -> str:
    """Return which release has a key that the one at this place has not."""
    releases = versions(framework)
    if "1" in digits[:at]:
        return f"gone from {framework} {releases[at]}; {releases[digits[:at].rindex('1')]} had it"
    return f"not yet in {framework} {releases[at]}; {releases[digits.index('1')]} has it"


def _meant(key: str, taken: list[str], *, search: bool) -> str:
    """Return the key that is likely meant, as a question: one that ends so, else with `search` the one that is nearest."""
    spend(len(taken) / 5)
    near = [other for other in taken if other.endswith(f".{key}")]
    if not near and search:
        spend(10 * len(taken))
        near = difflib.get_close_matches(key[:200], taken, n=1, cutoff=0.8)
    return f"; {near[0]}?" if near else ""
