"""Figures that no job can have measured: an outcome with a name, in every number of a Measurement."""

import copy
import json
import math

import pytest
from autoconfig.profiler.outcome import FINAL, Kind, outcome_of
from autoconfig.specs.errors import InputError
from autoconfig.specs.measurement import (
    ImplausibleError,
    Measurement,
    RankFigures,
    Served,
    is_plausible,
    measurement_text,
    read_measurement_text,
    step_statistics,
)

RANK = RankFigures(
    rank=0, pipeline_stage=0, peak_allocated_bytes=2**30, peak_reserved_bytes=2**31, state_bytes=2**20,
    bytes_by_category={"weights": 5}, phase_seconds={"forward": 0.2}, layer_seconds={"dense.forward": 0.01},
)  # fmt: skip
SERVED = Served(
    ttft_seconds=0.1,
    tpot_seconds=0.02,
    output_tokens_per_second=50.0,
    requests=4,
    ttft_samples=(0.1, 0.2),
    tpot_samples=(0.02,),
)


def whole(job_hash: str = "0" * 64, plan: str = "tp=1") -> dict:
    """A record with every figure, as JSON."""
    measured = Measurement(
        job_hash=job_hash, plan=plan, status="ran", exit_code=0, ranks=(RANK,), warmup_seconds=(0.9,), losses=(2.0, None),
        gradient_norms=(1.0, None), wall_seconds=3.0, served=SERVED, **step_statistics((0.5, 0.4, 0.6)),
    )  # fmt: skip
    return json.loads(measurement_text(measured))


def numbers(body: object, path: tuple = ()) -> list[tuple]:
    """Where the numbers of a JSON value are."""
    if isinstance(body, dict | list):
        parts = body.items() if isinstance(body, dict) else enumerate(body)
        return [found for key, value in parts for found in numbers(value, (*path, key))]
    return [path] if isinstance(body, int | float) else []


def with_value(body: dict, path: tuple, value: object) -> dict:
    changed = copy.deepcopy(body)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return changed


FIGURES = [path for path in numbers(whole()) if path not in {("schema_version",), ("exit_code",)}]


def test_every_figure_is_looked_at():
    assert len(FIGURES) == 24 and read_measurement_text(json.dumps(whole())).step_seconds == 0.5


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: ".".join(map(str, path)))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e999, -1.0, -1, 10**30, 10**400])
def test_a_figure_that_is_none(path, value):
    if path[0] == "losses" and value in (-1, -1.0):
        assert read_measurement_text(json.dumps(with_value(whole(), path, value))).losses[0] == -1
        return
    if value == 10**30 and isinstance(_at(whole(), path), float):
        value = -1.0  # a number like another: beyond the prediction, which the study looks at
        if path[0] == "losses":
            return
    with pytest.raises(InputError, match=str(path[0])):
        read_measurement_text(json.dumps(with_value(whole(), path, value)))


def _at(body: object, path: tuple) -> object:
    for key in path:
        body = body[key]
    return body


@pytest.mark.parametrize("changes", [
    {"step_seconds": 0.0}, {"step_seconds": 1e-300}, {"step_seconds": 0.39}, {"step_seconds": 0.61},
    {"step_seconds_samples": [0.0, 0.5, 0.6]}, {"step_seconds_spread": 0.3}, {"step_seconds_spread": 0.0},
    {"served": {**whole()["served"], "tpot_seconds": 1e-9}}, {"served": {**whole()["served"], "ttft_seconds": 0.3}},
    {"served": {**whole()["served"], "output_tokens_per_second": 0.0}},
])  # fmt: skip
def test_a_record_that_contradicts_itself(changes):
    with pytest.raises(ImplausibleError):
        read_measurement_text(json.dumps({**whole(), **changes}))


@pytest.mark.parametrize(("value", "kind"), [
    (0.5, Kind.MEASURED), (math.nan, Kind.IMPLAUSIBLE), (math.inf, Kind.IMPLAUSIBLE), (0, Kind.IMPLAUSIBLE),
    (-1, Kind.IMPLAUSIBLE), (1e-300, Kind.IMPLAUSIBLE), (1e300, Kind.IMPLAUSIBLE), (None, Kind.GARBAGE), ("x", Kind.GARBAGE),
    (10**400, Kind.GARBAGE),
])  # fmt: skip
def test_the_outcome_has_a_name(new_folder, value, kind):
    folder = new_folder()
    body = whole(folder.job().content_hash, str(folder.job().plan))
    folder.result_file.write_text(json.dumps({**body, "step_seconds": value}))
    found = outcome_of(folder)
    assert found.kind is kind and found.kind in FINAL and (found.message or kind is Kind.MEASURED)


@pytest.mark.parametrize(("value", "said"), [
    (1.0, True), (1e6, True), (1e-6, True), (1.1e6, False), (0.9e-6, False), (math.nan, False), (math.inf, False), (0.0, False),
    (-1.0, False),
])  # fmt: skip
def test_what_can_be_a_measurement_of_a_prediction(value, said):
    assert is_plausible(2 * value, 2.0) is said
