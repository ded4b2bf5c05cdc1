"""Files of measured operators; jobs and measurements."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import autoconfig.specs
import jsonschema
import pytest
from autoconfig.specs.errors import InputError, PlanError, UnknownNameError
from autoconfig.specs.hardware import local_gpu as local
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.hardware.local_gpu import cpu_name, memory_bytes
from autoconfig.specs.hardware.operator_table import (
    COMMAND,
    KIND,
    check_operator_table,
    check_operators,
    gpu_of_table,
    local_folder,
    local_tables,
    read_operator_table,
    write_operator_table,
)
from autoconfig.specs.job import Job, job_json, job_text, read_job_text
from autoconfig.specs.measurement import Measurement, RankFigures, measurement_text, read_measurement_text, step_statistics
from autoconfig.specs.models.model_catalogue import load_model, model_names
from autoconfig.specs.plan import Recompute, TrainPlan, parse_plan
from autoconfig.specs.scenario import Numerics, Workload
from hypothesis import given
from hypothesis import strategies as st
from tables import tabled

SHIPPED = Path(__file__).parents[2] / "time_model" / "data" / "operators"
SPEC = {
    "id": "local-x", "name": "X", "vendor": "nvidia", "architecture": "hopper", "compute_capability": 9.0,
    "memory_bytes": 64 * 2**30, "hbm_bytes_per_s": 2e12, "flops_per_s": {"bf16": 1e15}, "num_sms": 100, "link": "nvlink",
    "link_bytes_per_s": 4e11, "link_domain_size": 8, "gpus_per_node": 8, "nic_bytes_per_s": 5e10, "sources": {},
}  # fmt: skip


def table(**changes: Any) -> dict[str, Any]:
    """A small table of a device that the catalogue lacks."""
    grid = {
        "axes": {"m": [1, 2], "n": [1, 2], "k": [1, 2]},
        "efficiency": [[[0.1, 0.2], [0.3, 0.4]], [[0.5, 0.6], [0.7, 0.8]]],
        "peak_flops_per_s": 1e15,
        "use": True,
    }
    collectives = {
        "axes": {"ranks": [2, 4]},
        "link_bytes_per_s": 4e11,
        "kinds": {"all_reduce": {"alpha_s": [1e-5, 2e-5], "link_share": [0.5, 0.6], "sqrt_s": [0.0, 0.0], "use": True}},
    }
    whole = {
        "schema_version": 1, "kind": KIND, "gpu": "local-x", "gpu_spec": SPEC,
        "device": {"type": "cuda", "reported_name": "X", "memory_bytes": 64 * 2**30}, "gemm": {"bf16": grid}, "attention": {},
        "grouped_gemm": {}, "collectives": collectives, "constants": {"hbm": {"launch_s": 2e-6}},
    }  # fmt: skip
    return copy.deepcopy({**whole, **changes})


def edited(path: str, value: Any) -> dict[str, Any]:
    """A table with one value changed, by a path like gemm.bf16.use."""
    data = table()
    *front, last = path.split(".")
    target: Any = data
    for key in front:
        target = target[int(key)] if isinstance(target, list) else target[key]
    target[int(last) if isinstance(target, list) else last] = value
    return data


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for this machine's tables."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    local_folder().mkdir(parents=True)
    return local_folder()


def write(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data))
    return path


def test_a_table_is_read_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_operator_table(path, table())
    assert read_operator_table(path) == table()
    gpu = gpu_of_table(read_operator_table(path), path)
    assert (gpu.id, gpu.num_sms, gpu.operator_tables) == ("local-x", 100, str(path))
    write_operator_table(path, edited("constants.hbm.launch_s", 9e-6))
    assert read_operator_table(path)["constants"]["hbm"]["launch_s"] == 9e-6


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.json")), ids=lambda path: path.stem)
def test_shipped_tables_have_the_same_operators(path: Path) -> None:
    data = json.loads(path.read_text())
    if path.stem != "decisions":
        check_operators(data)


@tabled
def test_what_cannot_be_is_refused_with_the_file_and_the_place(path: str, value: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        check_operator_table(edited(path, value), "mine.json")
    assert "mine.json" in str(caught.value)


@pytest.mark.parametrize("data", [None, 5, [], {}, "x", {"kind": KIND}, {"kind": KIND, "schema_version": 1}])
def test_anything_else_is_refused(data: Any) -> None:
    with pytest.raises(InputError):
        check_operator_table(data, "mine.json")


def test_a_table_without_spec_must_be_of_a_catalogue_gpu() -> None:
    data = table(gpu="h100-sxm-80gb")
    del data["gpu_spec"]
    check_operator_table(data, "mine.json")
    assert gpu_of_table(data, "/x/mine.json").memory_bytes == load_gpu("h100").memory_bytes
    data["gpu"] = "h1000"
    with pytest.raises(InputError, match="needs gpu_spec"):
        check_operator_table(data, "mine.json")


@pytest.mark.parametrize("key", ["num_sms", "flops_per_s", "link"])
def test_a_spec_without_a_number_is_refused(key: str) -> None:
    data = table()
    del data["gpu_spec"][key]
    with pytest.raises(InputError, match=key):
        gpu_of_table(data, "mine.json")


def test_this_machines_gpu_is_its_own_table_when_it_has_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "reported_gpu", lambda tried: ("X", 64.0 * 2**30))
    with pytest.raises(InputError, match=f"measure this one: {COMMAND}"):
        local.local_gpu()
    write(home / "junk.json", {"kind": "junk"})
    write(home / "other.json", edited("device.reported_name", "Y"))
    write(home / "small.json", edited("device.memory_bytes", 32 * 2**30))
    with pytest.raises(InputError, match="measure this one"):
        local.local_gpu()
    mine = write(home / "local-x.json", table())
    gpu, source = local.local_gpu()
    assert gpu.operator_tables == str(mine) and "measured on this machine" in source
    assert [path.name for path, _ in local_tables()] == ["local-x.json", "other.json", "small.json"]


def test_a_known_gpu_without_a_table_keeps_its_published_numbers(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "reported_gpu", lambda tried: ("NVIDIA H100 80GB HBM3", 85017755648.0))
    gpu, source = local.local_gpu()
    assert gpu == load_gpu("h100") and f"{COMMAND} measures this one" in source


def test_without_a_gpu_the_measured_cpu_stands_in(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "reported_gpu", lambda tried: tried.append("nvidia-smi is not installed"))
    with pytest.raises(InputError, match=r"nvidia-smi is not installed.*measure this machine's CPU once: autoconfig calibrate"):
        local.local_gpu()
    write(home / "gpu.json", table())
    cpu = edited("device", {"type": "cpu", "reported_name": cpu_name(), "memory_bytes": memory_bytes()})
    write(home / "cpu.json", cpu)
    assert local.local_gpu()[0].operator_tables == str(home / "cpu.json")


def test_a_measured_device_is_found_by_its_id(home: Path) -> None:
    with pytest.raises(UnknownNameError):
        local.find_gpu("local-x")
    write(home / "a.json", table())
    assert local.find_gpu("local-x").num_sms == 100 and local.find_gpu("h100").operator_tables == ""


SCHEMAS = Path(autoconfig.specs.__file__).parent / "schemas"


def job(**changes) -> Job:
    values = {
        "model": load_model("llama3-8b"),
        "plan": parse_plan("tp=2,pp=2,dp=2,mbs=1,sp=1", 8),
        "workload": Workload(seq_length=128, global_batch_size=16),
    }
    return Job(**{**values, **changes})


def schema(name: str) -> dict:
    return json.loads((SCHEMAS / f"{name}.schema.json").read_text())


@pytest.mark.parametrize("name", model_names()[::8])
def test_models_round_trip(name):
    model = load_model(name).replace(num_layers=load_model(name).num_layers)
    before = job(model=model, plan=TrainPlan(tp=1, pp=1, dp=1, mbs=1))
    assert read_job_text(job_text(before)) == before
    jsonschema.validate(job_json(before), schema("job"))


plans = st.builds(
    TrainPlan,
    tp=st.sampled_from([1, 2, 8]),
    pp=st.sampled_from([1, 2, 4]),
    dp=st.sampled_from([1, 2, 16]),
    cp=st.sampled_from([1, 2]),
    mbs=st.sampled_from([1, 2, 4]),
    sp=st.booleans(),
    dist_opt=st.booleans(),
    recompute=st.sampled_from([Recompute.parse(t) for t in ("none", "full:block:2", "selective:core_attn+mlp")]),
)


@given(plan=plans, seed=st.integers(0, 2**31 - 1), dropout=st.floats(0, 0.99), limit=st.none() | st.integers(1, 2**40))
def test_what_is_written_is_read_back_and_hashes_alike(plan, seed, dropout, limit):
    before = job(
        plan=plan, seed=seed, numerics=Numerics(hidden_dropout=dropout), device_memory_bytes=limit,
        workload=Workload(seq_length=8, global_batch_size=64 * 2),
    )  # fmt: skip
    after = read_job_text(job_text(before))
    assert after == before and after.content_hash == before.content_hash


def test_the_hash_is_of_the_content():
    one = job()
    assert job().content_hash == one.content_hash and len(one.content_hash) == 64
    assert job(model=one.model.replace(name="other", default_seq_length=7)).content_hash == one.content_hash
    changes = [
        {"steps": 6}, {"seed": 1}, {"numerics": Numerics(precision="fp32")}, {"device": "cpu"}, {"attention_kernel": "unfused"},
        {"model": one.model.replace(vocab_size=1000)}, {"plan": one.plan.replace(sp=False)}, {"device_memory_bytes": 2**30},
    ]  # fmt: skip
    assert len({one.content_hash, *(job(**change).content_hash for change in changes)}) == len(changes) + 1


@pytest.mark.parametrize(("changes", "said"), [
    ({"mode": "trace"}, "run, emulate"),
    ({"device": "tpu"}, "cpu, cuda"),
    ({"software": "apex"}, "megatron-local, transformer-engine"),
    ({"steps": 0}, "steps=0"),
    ({"rank": 1}, "rank=1 is for mode emulate"),
    ({"mode": "emulate"}, "rank from 0 to 7"),
    ({"mode": "emulate", "rank": 8}, "rank from 0 to 7"),
    ({"workload": Workload(seq_length=8, global_batch_size=3)}, "mbs x dp"),
    ({"plan": parse_plan("tp=1,pp=3,dp=1", 3)}, "32 layers do not divide"),
    ({"device_memory_bytes": 0}, "device_memory_bytes=0"),
])  # fmt: skip
def test_impossible_jobs_are_refused(changes, said):
    with pytest.raises(InputError, match=said):
        job(**changes)


@tabled
def test_wrong_files_say_where(change, said):
    text = json.dumps(json.loads(job_text(job())) | change)
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        read_job_text(text)


@pytest.mark.parametrize("text", ["", "[1]", "{", "null", "NaN", "[" * 100_000])
def test_what_is_no_job_is_an_input_error(text):
    with pytest.raises(InputError):
        read_job_text(text)


def test_a_shorter_job_keeps_its_layout():
    long = job(model=load_model("deepseek-v3").replace(mtp_num_layers=0), plan=parse_plan("tp=1,pp=2,first=30,last=31", 2))
    short = long.shortened(layers_per_chunk=3, num_microbatches=2)
    assert (short.model.num_layers, len(short.model.moe_pattern), short.num_microbatches) == (6, 6, 2)
    assert short.plan == long.plan.replace(first=None, last=None)
    with pytest.raises(InputError, match="the job has"):
        long.shortened(num_microbatches=1000)
    with pytest.raises(PlanError):
        read_job_text(job_text(long).replace("first=30", "first=29"))


def test_measurements_round_trip():
    figures = RankFigures(rank=0, pipeline_stage=0, peak_allocated_bytes=5, bytes_by_category={"weights": 3, "logits": 2})
    before = Measurement(
        job_hash=job().content_hash, plan=str(job().plan), status="ran", exit_code=0, ranks=(figures,), losses=(1.5, 1.25),
        versions={"torch": "2"}, **step_statistics((0.5, 0.25, 0.75)),
    )  # fmt: skip
    assert read_measurement_text(measurement_text(before)) == before
    assert (before.step_seconds, before.step_seconds_spread) == (0.5, 0.5)
    jsonschema.validate(json.loads(measurement_text(before)), schema("measurement"))
    with pytest.raises(InputError, match="ran, oom, failed"):
        dataclasses.replace(before, status="dead")
    with pytest.raises(InputError, match="exit_code=9"):
        dataclasses.replace(before, exit_code=9)
    with pytest.raises(InputError, match="complete"):
        read_measurement_text(measurement_text(before)[:-20])


@pytest.mark.parametrize(("kind", "name"), [(Job, "job"), (Measurement, "measurement")])
def test_the_schemas_name_every_field(kind, name):
    assert set(schema(name)["properties"]) == {"schema_version", *(field.name for field in dataclasses.fields(kind))}
