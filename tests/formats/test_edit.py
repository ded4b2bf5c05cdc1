"""`check --apply-to` on files of other launchers: what changes is what was promised, and nothing else."""

import json
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from autoconfig.specs.errors import InputError
from tables import tabled

from autoconfig.formats.check import read_any
from autoconfig.formats.edit import changed, improved_text
from autoconfig.megatron.check import FlagChange, changes_from, check, target
from autoconfig.megatron.check_input import CheckRequest

TABLE = json.loads((Path(__file__).parent / "public_files.json").read_text())
ROWS = {row[0]: row for row in TABLE["rows"]}
EDITED = (
    "1-3B.yml", "config_280m_llama.yaml", "70b.yaml", "llama2_7B-FP8-pretrain.yaml", "fsdp2_config.yaml",
    "ds_z2_offload_config.json", "deepseek_v3_671b.toml", "mlperf-24n.yaml", "175b.yaml", "mixtral_8x7b.yaml", "multi_gpu.yaml",
)  # fmt: skip
SCRIPTS = ("72b_offload.sh", "qwen3_moe_offload.sh", "long_text.sh", "nano/slurm_pretrain.sh", "super/slurm_sft.sh")
LISTING = """megatron() { printf '%s\\n' "$@"; }
uv() { megatron "$@"; }
srun() { shift 2; "$@"; }
export -f megatron uv srun
"""
"""Functions of bash in the place of the launchers: they print what they are given."""


def leaves(values, path=""):
    """Every value by the last part of its key, as another reader than ours loads the file."""
    if isinstance(values, dict):
        return {k: v for key, value in values.items() for k, v in leaves(value, str(key)).items()}
    return {path.lstrip("-").replace("-", "_"): values}


def loaded(text):
    if "\n[" in f"\n{text}" and "{" not in text:
        return leaves(tomllib.loads(text))
    return leaves(yaml.safe_load(text))


@pytest.mark.parametrize("name", EDITED)
def test_only_what_was_promised_changes(name):
    row = next(row for row in ROWS.values() if row[0].split(" ")[1].endswith(f"/{name}"))
    request = CheckRequest(**row[1])
    answer = check(read_any(row[-1], request))
    plan, scenario = target(answer)
    changes = {change.flag.rpartition(".")[2].lstrip("-"): change.new for change in changes_from(answer.source, plan, scenario)}
    before, after = loaded(row[-1]), loaded(improved_text(answer, request))
    differing = {key for key in before | after if before.get(key) != after.get(key)}
    assert differing and differing <= set(changes) | {"global_batch_size"}
    for key in differing & set(changes):
        new = changes[key]
        shown = [str(after[key])] if key in after and not isinstance(after[key], list) else after.get(key)
        assert (new is None and shown is None) or [word.lower() for word in new] == [word.lower() for word in shown]


@pytest.mark.parametrize("name", SCRIPTS)
def test_bash_starts_what_was_promised(name):
    row = next(row for row in ROWS.values() if row[0].split(" ")[1].endswith(f"/{name}"))
    request = CheckRequest(**row[1])
    answer = check(read_any(row[-1], request))
    plan, scenario = target(answer)
    text = LISTING + improved_text(answer, request).replace('CONTAINER_IMAGE=""', "CONTAINER_IMAGE=x")
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=20, check=True)
    words = [word.replace("=", "\n") for word in done.stdout.splitlines()]
    given = "\n".join(words).splitlines()
    changes = changes_from(answer.source, plan, scenario)
    assert changes
    for change in changes:
        assert (change.new is None and change.flag not in given) or given[given.index(change.flag) + 1] in (
            change.new[0], f"[{','.join(change.new)}]",
        )  # fmt: skip
        assert change.new is None or len(change.new) == 1 or given[given.index(change.flag) + 2] == change.new[1]


def test_what_cannot_be_edited_is_refused_with_the_changes():
    row = next(row for row in ROWS.values() if "qwen3_lora_pretrain.yaml" in row[0])
    request = CheckRequest(**row[1])
    answer = check(read_any(row[-1], request))
    with pytest.raises(InputError, match=r"cannot be edited: the stage of ZeRO stands in.*change by hand: .*per_device"):
        improved_text(answer, request)


@tabled
def test_values_are_replaced_where_they_stand(text, flag, new, result):
    assert changed(text, [FlagChange(flag=flag, old=None, new=None if new is None else (new,))]) == result


def test_a_setting_that_stands_twice_is_refused():
    with pytest.raises(InputError, match="more than once"):
        changed("a:\n  k: 1\nb:\n  k: 2\n", [FlagChange(flag="k", old=("1",), new=("3",))])
