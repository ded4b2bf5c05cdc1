"""Jobs and measurements: JSON round trip, content hash, schemas, and what is refused."""

import dataclasses
import json
from pathlib import Path

import autoconfig.specs
import jsonschema
import pytest
from autoconfig.specs.errors import FileError, InputError, PlanError
from autoconfig.specs.job import Job, job_json, job_text, read_job, read_job_text
from autoconfig.specs.measurement import Measurement, RankFigures, measurement_text, read_measurement_text, step_statistics
from autoconfig.specs.models.model_catalogue import load_model, model_names
from autoconfig.specs.plan import Recompute, TrainPlan, parse_plan
from autoconfig.specs.scenario import Numerics, Workload
from hypothesis import given, settings
from hypothesis import strategies as st

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


@pytest.mark.parametrize("name", model_names())
def test_every_model_round_trips(name):
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


@settings(max_examples=50, deadline=None)
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


@pytest.mark.parametrize(
    ("changes", "said"),
    [
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
    ],
)
def test_impossible_jobs_are_refused(changes, said):
    with pytest.raises(InputError, match=said):
        job(**changes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"step": 3}, "did you mean steps"),
        ({"steps": "3"}, "steps='3' is not a whole number"),
        ({"steps": True}, "steps=True is not a whole number"),
        ({"plan": {"tp": 1}}, "plan must be a text"),
        ({"plan": "tp=0"}, "tp=0"),
        ({"model": []}, "not an object"),
        ({"model": {"name": "x"}}, "num_layers is missing"),
        ({"schema_version": 2}, "schema_version 2"),
        ({"rank": 1.5}, "rank=1.5 is not a whole number or null"),
    ],
)
def test_wrong_files_say_where(change, said):
    text = json.dumps(json.loads(job_text(job())) | change)
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        read_job_text(text)


@pytest.mark.parametrize("text", ["", "[1]", "{", "null", "NaN", "[" * 100_000])
def test_what_is_no_job_is_an_input_error(text):
    with pytest.raises(InputError):
        read_job_text(text)


def test_a_missing_file_is_a_file_error(tmp_path):
    for path in (tmp_path, tmp_path / "no.json", Path("a\0b")):
        with pytest.raises(FileError):
            read_job(path)


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
