"""The engine of maps on a table of its own: what is read, refused, remarked, and written back."""

import tomllib
from importlib import resources

import pytest
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.remarks import Effect

from autoconfig.maps.read import read_fields
from autoconfig.maps.table import load_map, map_of
from autoconfig.maps.tree import Section, load_toml
from autoconfig.maps.write import toml_text, written

TABLE = map_of(
    tomllib.loads("""
source = "the test"
harmless = ["log.*"]

[fields.tp]
keys = ["par.tp", "par.tensor"]
type = "count"
default = 1
write = "unusual"

[fields.batch]
keys = ["train.batch"]
type = "count"
needed = true
open = ["auto"]
write = "always"

[fields.stage]
keys = ["zero.stage"]
type = "whole"
default = 0
values = { 0 = { fsdp = 0 }, 2 = { fsdp = 2 }, 3 = { fsdp = 3 } }
errors = { "*" = "{place} is {value}: use 0, 2 or 3" }
write = "always"

[fields.offload]
keys = ["zero.device"]
values = { cpu = 1.0, none = 0.0 }
default = "none"
when = { stage = [2, 3] }
write = "always"

[fields.pinned]
keys = ["zero.pin"]
constant = true
when = { offload = 1.0 }

[fields.recompute]
keys = ["ac.mode", "ac.option"]
joined = true
default = ["none", "op"]
values = { "none" = "none", "selective op" = "selective:op", "none *" = "none" }
unsupported = { "*" = "{value}: read are none and selective op" }
write = "always"

[[refused]]
keys = ["zero.mics"]
usual = ["-1"]
why = "copies of shards"

[[not_modelled]]
keys = ["zero.flow"]
effect = "time"
why = "on the CPU: less time"
""")
)


def read(text, **settings):
    return read_fields(TABLE, Section(load_toml(text), text, settings, open_words=frozenset({"auto"})))


def test_a_file_is_read_by_its_table():
    file = "train.batch=4\npar.tensor=2\n[zero]\nstage=3\ndevice='cpu'\nflow={on=true}\n[ac]\nmode='selective'\n"
    reading = read(file)
    wanted = {"tp": 2, "batch": 4, "stage": 3, "fsdp": 3, "offload": 1.0, "recompute": "selective:op"}
    assert reading.fields == wanted
    assert [(one.field, one.effect) for one in reading.not_modelled] == [("zero.flow", Effect.TIME)]


@pytest.mark.parametrize(("text", "error", "says"), [
    ("", InputError, r"train.batch is not in the file: add it, or say --set train.batch=N"),
    ("train.batch='auto'", InputError, "train.batch is not in the file"),
    ("train.batch=0", InputError, "it must be at least 1"),
    ("train.batch=1\n[zero]\nstage=1", InputError, r"zero.stage \(line 3\) is 1: use 0, 2 or 3"),
    ("train.batch=1\n[ac]\nmode='block'", UnsupportedError, "block op: read are none and selective op"),
    ("train.batch=1\n[zero]\nmics=8", UnsupportedError, "is 8: copies of shards"),
    ("train.batch=1\n[par]\ntp='auto'", InputError, "not known: say --set par.tp=VALUE"),
])  # fmt: skip
def test_what_a_table_does_not_hold_is_an_error(text, error, says):
    with pytest.raises(error, match=says):
        read(text)


def test_values_that_switch_nothing_on_are_no_remark():
    reading = read("train.batch=1\n[zero]\nmics=-1\nflow=false\ndevice='cpu'\n")
    assert reading.not_modelled == [] and "offload" not in reading.fields  # of no stage that is sharded


def test_what_is_written_is_read_as_the_same_fields():
    said = {"tp": 2, "batch": 4, "fsdp": 3, "offload": 1.0, "recompute": "selective:op"}
    values = written(TABLE, said)
    assert values == {
        "par": {"tp": 2}, "train": {"batch": 4}, "zero": {"stage": 3, "device": "cpu", "pin": True},
        "ac": {"mode": "selective", "option": "op"},
    }  # fmt: skip
    assert read(toml_text(values)).fields == {**said, "stage": 3}
    plain = written(TABLE, {"tp": 1, "batch": 4, "fsdp": 0, "offload": 0.0, "recompute": "none"})
    assert plain == {"train": {"batch": 4}, "zero": {"stage": 0}, "ac": {"mode": "none"}}


@pytest.mark.parametrize("table", ['source = "x"\n[fields.a]\nkey = "a"', 'source = "x"\n[fields.a]\ntype = "int"'])
def test_a_slip_in_a_table_is_an_error(table):
    with pytest.raises(ValueError, match=r"no key of a FieldRow of a map|use one of"):
        map_of(tomllib.loads(table))


@pytest.mark.parametrize("file", sorted(one.name for one in (resources.files("autoconfig") / "data" / "maps").iterdir()))
def test_every_table_says_its_source(file):
    assert load_map(file.removesuffix(".toml")).source


@pytest.mark.parametrize("table", [
    {"harmless": ["*"]},
    {"fields": {"precision": {"keys": ["dtype"], "values": {"float32": "fp32", "*": "bf16"}}}},
])  # fmt: skip
def test_a_table_is_closed(table):
    """A star makes of what is not understood something certain."""
    with pytest.raises(ValueError, match="every"):
        map_of({"source": "the test", **table})


@pytest.mark.parametrize("table", [
    {"fields": {"pp": {"keys": ["pp"], "when": {"back_nd": "megatron"}}}},
    {"fields": {"late": {"keys": ["a"], "when": {"pp": 1}}, "pp": {"keys": ["pp"]}}},
    {"not_modelled": [{"keys": ["a"], "when": {"stage": 3}}]},
])  # fmt: skip
def test_a_condition_on_what_nothing_says_is_an_error(table):
    with pytest.raises(ValueError, match=r"(back_nd|pp|stage) is said by no field"):
        map_of({"source": "the test", **table})
    map_of({"source": "the test", "of_code": ["back_nd", "pp", "stage"], **table})


SECTIONS = map_of(
    tomllib.loads("""
source = "the test"
[fields.back_end]
keys = ["strategy"]

[[section]]
at = "actor.megatron"
when = { back_end = "megatron" }
[section.fields]
tp = { keys = ["tp_size"], type = "count", default = 1, write = "always" }
sp = { keys = ["sequence_parallel"], type = "flag", write = "only" }

[[section]]
at = "actor.fsdp"
when = { back_end = "fsdp" }
[section.fields]
tp = { keys = ["tensor_parallel"], type = "count", default = 1, write = "always" }
batch = { keys = ["micro_batch"], type = "count", same_as = "tp" }

[[not_modelled]]
when = { back_end = "fsdp", tp = "> 1" }
effect = "time"
why = "tp {tp} of FSDP"
""")
)


def test_sections_share_a_path_and_a_condition():
    values = {
        "strategy": "megatron",
        "actor": {"megatron": {"tp_size": 4, "sequence_parallel": True}, "fsdp": {"tensor_parallel": 2}},
    }
    reading = read_fields(SECTIONS, Section(values, ""))
    assert (reading.fields, reading.not_modelled) == ({"back_end": "megatron", "tp": 4}, [])
    reading = read_fields(SECTIONS, Section({**values, "strategy": "fsdp"}, ""))
    assert reading.fields == {"back_end": "fsdp", "tp": 2, "batch": 2}
    assert [(one.why, one.effect) for one in reading.not_modelled] == [("tp 2 of FSDP", Effect.TIME)]
    said = {"back_end": "megatron", "tp": 4, "sp": True}
    assert written(SECTIONS, said) == {"actor": {"megatron": {"tp_size": 4, "sequence_parallel": True}}}
