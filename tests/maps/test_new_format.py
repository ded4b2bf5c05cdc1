"""A new launcher's format is one table: picotron's config.json (huggingface/picotron, template/base_config.json) is read,
refused, remarked and written without code of its own."""

import json
import tomllib

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.remarks import Effect

from autoconfig.formats import mapped
from autoconfig.formats.check import READERS, read_any
from autoconfig.formats.hooks.table import MAPPED
from autoconfig.formats.mapped import MappedFormat
from autoconfig.formats.recognise import _own_marks
from autoconfig.maps.table import load_map, map_of
from autoconfig.megatron.check_input import CheckRequest

NAME = "picotron"
TABLE = """
source = "huggingface/picotron, template/base_config.json"
file = "config.json"
syntax = "json"
software = "torch-eager"
harmless = ["dataset.*", "checkpoint.*", "logging.*", "environment.*", "model.use_*", "distributed.backend", "training.seed"]

[[marks]]
sections = ["distributed", "model", "training"]

[says]
keys = ["tp", "pp", "cp"]
numerics = { precision = ["bf16", "fp32"], grad_reduce_dtype = ["fp32"] }

[wish]
fsdp = [0]
dist_opt = [false]
recompute = ["none"]

[fields.model]
keys = ["model.name"]
write = "always"

[fields.precision]
keys = ["model.dtype"]
default = "bfloat16"
values = { bfloat16 = "bf16", float32 = "fp32" }
write = "always"

[fields.seq_length]
keys = ["training.seq_length"]
type = "count"
needed = true
write = "always"

[fields.micro_batch]
keys = ["training.micro_batch_size"]
type = "count"
needed = true
write = "always"

[fields.accumulation]
keys = ["training.gradient_accumulation_steps"]
type = "count"
default = 1
write = "always"

[[not_modelled]]
keys = ["distributed.pp_engine"]
only = ["afab"]
effect = "more_memory"
why = "all forwards before all backwards: more activations"
""" + "".join(
    f'\n[fields.{key}]\nkeys = ["distributed.{key}_size"]\ntype = "count"\ndefault = 1\nwrite = "always"\n'
    for key in ("tp", "cp", "pp", "dp")
)
FILE = {
    "distributed": {"tp_size": 2, "cp_size": 1, "pp_size": 2, "dp_size": 2, "pp_engine": "afab"},
    "model": {"name": "llama3-8b", "dtype": "bfloat16", "use_flash_attention": True},
    "training": {"seq_length": 4096, "micro_batch_size": 2, "gradient_accumulation_steps": 8, "seed": 1, "slip": 3},
}
ASKED = CheckRequest(gpus=8, gpu="h100-sxm-80gb")


@pytest.fixture
def picotron(monkeypatch):
    """The format, registered as a line of hooks/table.py does it."""
    table = map_of(tomllib.loads(TABLE))
    monkeypatch.setattr(mapped, "load_map", lambda name: table if name == NAME else load_map(name))
    form = MappedFormat(name=NAME)
    monkeypatch.setitem(MAPPED, NAME, form)
    monkeypatch.setitem(READERS, NAME, form.read)
    _own_marks.cache_clear()
    yield form
    _own_marks.cache_clear()


def test_a_file_is_known_read_and_written_back(picotron):
    read = read_any(json.dumps(FILE), ASKED)
    scenario = read.question.scenario
    assert (read.kind, str(read.plan)) == (NAME, "tp=2,pp=2,dp=2,mbs=2,sp=0,recompute=none,dist_opt=0")
    assert (scenario.model.name, scenario.workload.global_batch_size) == ("llama3-8b", 2 * 8 * 2)
    assert [(one.field, one.effect) for one in read.not_modelled] == [("distributed.pp_engine", Effect.MORE_MEMORY)]
    assert [one.field for one in read.unknown] == ["training.slip"] and "training.seed" in read.ignored
    assert picotron.refused(scenario, read.plan) == []
    again = read_any(picotron.write(scenario, read.plan).text, ASKED)
    assert (again.plan, again.question.scenario.workload) == (read.plan, scenario.workload)


def test_what_the_table_does_not_hold_is_an_error(picotron):
    odd = {**FILE, "model": {"name": "llama3-8b", "dtype": "float64"}}
    with pytest.raises(InputError, match=r"picotron file: model.dtype float64: use one of bfloat16, float32"):
        read_any(json.dumps(odd), ASKED)


def test_a_plan_without_words_is_refused(picotron):
    read = read_any(json.dumps(FILE), ASKED)
    assert picotron.refused(read.question.scenario, read.plan.replace(fsdp=3)) == ["fsdp=3"]
