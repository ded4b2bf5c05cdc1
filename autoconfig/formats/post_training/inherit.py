"""`defaults:` of NeMo-RL's YAML files: what a configuration lies over."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoconfig.maps.tree import load_yaml
from autoconfig.planning.work import spend
from autoconfig.specs.errors import InputError
from autoconfig.specs.files import read_text

BASE = "grpo_math_1B.yaml"
"""Its values are known (autoconfig/formats/post_training/nemo_rl.py): it need not be there."""
MOST = 12
"""Files that lie over each other."""
WHOLE = "_override_"
"""In a section: it takes the place of the one below, none of which is kept."""


def whole_values(values: Mapping[str, Any], folder: Path | None, depth: int = 0) -> dict[str, Any]:
    """Return the values with those of the files that `defaults` name, relative to `folder` (None: there is no folder), below
    them.

    As NeMo-RL merges them (nemo_rl/utils/config.py, load_config_with_inheritance): later files over earlier ones, mappings key
    by key. `defaults` stays where a file lies over the known base. Raises InputError for files that are not there.
    """
    own = {key: value for key, value in values.items() if key != "defaults"}
    named = values.get("defaults")
    names = [str(name) for name in (named if isinstance(named, list) else [named])]
    if named is None or not all(name.endswith(".yaml") for name in names):  # of Hydra, which knows its own
        return dict(values)
    if depth >= MOST:
        raise InputError(f"defaults: more than {MOST} files lie over each other")
    below: dict[str, Any] = {}
    for name in names:
        below = _merged(below, _parent(name, folder, depth))
    return _merged(below, own)


def _parent(name: str, folder: Path | None, depth: int) -> dict[str, Any]:
    path = None if folder is None else folder / name
    if path is None or not path.is_file():
        if Path(name).name == BASE:
            return {"defaults": BASE}
        raise InputError(
            f"defaults: {name[:80]} is not {'known' if path is None else 'there'}, and this file lies over it: check the file "
            f"in its place beside the others, or merge them (known without its file: {BASE})"
        )
    spend(200)
    values = load_yaml(read_text(path, "a NeMo-RL YAML"))
    if not isinstance(values, dict):
        raise InputError(f"defaults: {name[:80]} holds no mapping")
    return whole_values(values, path.parent, depth + 1)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `above` over `below`, mappings key by key."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(value, Mapping) and value.get(WHOLE):
            merged[key] = {name: one for name, one in value.items() if name != WHOLE}
        elif isinstance(value, Mapping) and isinstance(under, Mapping):
            merged[key] = _merged(under, value)
        else:
            merged[key] = value
    return merged
