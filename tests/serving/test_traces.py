"""Traces longer than an hour: read in pieces, sized by their busiest part, and told hour by hour."""

import math
import re
import resource
import time
from dataclasses import replace

import numpy as np
import pytest
from autoconfig.specs.errors import InputError

from autoconfig.planning.schemas import schema
from autoconfig.serving import traces
from autoconfig.serving.answer import answer
from autoconfig.serving.deployment import Stream, _stretch, report
from autoconfig.serving.deployment_json import serve_json
from autoconfig.serving.hours import Hour
from autoconfig.serving.question import understand
from autoconfig.serving.rank import rank
from autoconfig.serving.request import ServeRequest
from autoconfig.serving.traces import read_trace, trace_of
from benchmarks.made_traces import a_day, written

HOUR = 3600.0
ASKED = ServeRequest(
    model="llama3-8b", gpu="h100", gpus=32, engine="vllm", ttft_s=1.0, tpot_s=0.03, goal="gpus", disaggregated=False,
    fix=("weights=fp8", "kv=fp8"), simulate=2, top=3,
)  # fmt: skip


@pytest.mark.parametrize(
    ("seed", "start", "isl", "osl", "times"),
    [(1, 13 * HOUR, 900, 120, 4.0), (2, 4711.0, 300, 500, 6.0), (3, 61234.5, 3000, 60, 3.0)],
)
def test_a_day_with_one_busy_hour_gets_what_that_hour_alone_gets(tmp_path, seed, start, isl, osl, times):
    rows = a_day(requests=24_000, seed=seed, isl=isl, osl=osl, busy=(start, start + HOUR), times=times)
    alone = rows[(rows[:, 0] >= start) & (rows[:, 0] < start + HOUR)]
    day, hour = (
        answer(replace(ASKED, trace=str(written(tmp_path / name, some)), rate=rate))
        for name, some, rate in (("day", rows, 60.0), ("hour", alone, 60.0 * (len(alone) / HOUR) / (len(rows) / 24 / HOUR)))
    )
    window = day.question.day.window
    assert window.start_s == pytest.approx(start, abs=60.0) and window.end_s == pytest.approx(start + HOUR, abs=60.0)
    assert day.question.rate == pytest.approx(hour.question.rate, rel=0.01) and hour.question.day is None
    assert day.reports[0].gpus == hour.reports[0].gpus > 1
    assert day.reports[0].plan.decode.replace(batch=1) == hour.reports[0].plan.decode.replace(batch=1)


@pytest.mark.parametrize(("osl", "busiest"), [(300, 1), (4000, 2)])
def test_the_busiest_part_is_the_one_that_asks_most_of_the_gpus(osl, busiest):
    """One hour has most prompts, another most answers: what either takes alone decides."""
    rows = []
    kinds = [(500, 50, 12.0), (4000, 10, 4.0), (200, osl, 5.0), (100, 20, 4.0)]
    for hour, (isl, osl, each) in enumerate(kinds):
        rows += [
            {"timestamp": 1e3 * (hour * HOUR + i * each), "input_length": isl, "output_length": osl}
            for i in range(int(HOUR / each))
        ]
    starts = {round(one.start_s / HOUR, 1) for one in trace_of(rows).windows()}
    assert starts == {1.0, 2.0}
    found = answer(replace(ASKED, trace=rows, rate=60.0, simulate=0))
    alone = [
        answer(replace(ASKED, isl=isl, osl=osl, rate=found.question.times / each, simulate=0)).reports[0].gpus
        for isl, osl, each in kinds
    ]
    assert max(alone) == alone[busiest] > max(one for i, one in enumerate(alone) if i != busiest)
    assert found.question.day.window.start_s == pytest.approx(busiest * HOUR, abs=traces.BIN_S)
    most = {one.start_s: one.replicas for one in found.hours}
    assert max(most, key=most.get) == busiest * HOUR


def test_a_file_is_the_same_in_pieces_of_any_size(tmp_path, monkeypatch):
    rows = a_day(requests=3000, seed=4, isl=400, osl=80, busy=(30_000.0, 33_600.0), times=5.0)
    rows[5, 1] = 9000  # the longest comes long before the busy hour
    for lines in (False, True):
        path = written(tmp_path / f"trace{lines}", rows, lines=lines)
        monkeypatch.setattr(traces, "CHUNK_BYTES", 1 << 22)
        whole = read_trace(path)
        monkeypatch.setattr(traces, "CHUNK_BYTES", 500)
        pieces = read_trace(path)
        assert len(whole.marks) == 1 and len(pieces.marks) > 100
        assert (whole.bins == pieces.bins).all() and whole.windows() == pieces.windows()
        for name in ("arrival_s", "input_tokens", "output_tokens"):
            assert np.allclose(getattr(whole.trace, name), getattr(pieces.trace, name), atol=1e-5)
        inside = rows[(rows[:, 0] - rows[0, 0] >= whole.window.start_s) & (rows[:, 0] - rows[0, 0] < whole.window.end_s)]
        assert len(pieces.trace.arrival_s) == len(inside) and pieces.trace.input_tokens.tolist() == inside[:, 1].tolist()
        assert pieces.trace.longest_tokens == (rows[:, 1] + rows[:, 2]).max() > (inside[:, 1] + inside[:, 2]).max()
        text = path.read_text().splitlines()
        text[2000] = text[2000].replace(":", ";") if lines else text[2000] + "x"
        path.write_text("\n".join(text) + "\n")
        with pytest.raises(InputError, match=r"line 2001(:| is not valid JSON)"):
            read_trace(path)
        text[2000], text[2001] = text[2002], text[2000].replace(";", ":").rstrip("x")
        path.write_text("\n".join(text) + "\n")
        with pytest.raises(InputError, match=r"line \d+ .*arrive"):
            read_trace(path)


def test_sums_over_long_traces_keep_all_requests():
    """A century is no trace; three years are, in coarser bins."""
    times = np.linspace(0.0, 3 * 365 * 86_400.0, 5000)
    rows = [{"timestamp": 1e3 * t, "input_length": 7, "output_length": 3} for t in times]
    found = trace_of(rows)
    assert len(found.bins) <= traces.MAX_BINS and found.width == 15.0 * 2**8
    assert found.requests == 5000 and found.bins[:, 1].sum() == 35_000
    assert sum(one.sums["requests"] for one in found.spans(HOUR, 168)) == 5000 and len(found.spans(HOUR, 168)) <= 168
    with pytest.raises(InputError, match="no usable span of time"):
        trace_of([*rows, {"timestamp": 1e13, "input_length": 7, "output_length": 3}])


def test_an_hour_of_more_requests_than_are_looked_at_is_cut_to_its_busiest_part(monkeypatch):
    monkeypatch.setattr(traces, "MAX_REQUESTS", 1000)
    rows = a_day(requests=6000, seed=5, isl=100, osl=50, busy=(600.0, 900.0), times=8.0, seconds=HOUR)
    found = trace_of([{"timestamp": 1e3 * t, "input_length": int(i), "output_length": int(o)} for t, i, o in rows])
    assert found.window.start_s >= 585.0 and found.window.end_s <= 915.0
    assert 100 < len(found.trace.arrival_s) <= 1000


def test_few_requests_a_day_are_taken_together():
    rows = [{"timestamp": 600_000 * i, "input_length": 10, "output_length": 5} for i in range(144)]
    found = trace_of(rows)
    assert len(found.trace.arrival_s) >= traces.LEAST_REQUESTS


def test_the_busiest_stretch_of_a_rank_is_simulated():
    arrival = np.concatenate([np.arange(100.0), 100.0 + 0.1 * np.arange(50)])
    stream = Stream(arrival_s=arrival, isl=np.full(150, 10.0), osl=np.arange(150.0), begin_s=arrival + 2.0)
    part = _stretch(stream, 50)
    assert part.osl.tolist() == list(range(100, 150)) and part.arrival_s[0] == 0.0 and part.begin_s[0] == 2.0
    assert _stretch(stream, 150) is stream


def test_hour_by_hour_each_hour_gets_what_its_own_question_gets(tmp_path):
    rows = a_day(requests=20_000, seed=6, isl=800, osl=150, busy=(36_000.0, 43_200.0), times=5.0)
    fix = (*ASKED.fix, "tp=1", "pp=1")
    found = answer(replace(ASKED, trace=str(written(tmp_path / "day", rows)), rate=60.0, simulate=0, fix=fix))
    best, by_hour = found.reports[0], found.hours
    assert sum(one.rate * one.seconds for one in by_hour) == pytest.approx(60.0 * 86_400.0, rel=0.01)
    assert len(by_hour) == 24 and max(one.gpus for one in by_hour) == best.gpus > min(one.gpus for one in by_hour)
    assert sum(one.gpu_hours for one in by_hour) < 0.6 * best.gpus * 24
    own_fix = (*fix, f"tokens={best.plan.decode.tokens}")  # any batch: a load takes a system to the smallest that carries it
    for number in (2, 11):
        span = found.question.day.spans(HOUR, 168)[number]
        isl, osl = (round(span.peak[name] / span.peak["requests"]) for name in ("inputs", "outputs"))
        lengths = {"isl": isl, "osl": osl, "isl_stddev": float(isl), "osl_stddev": float(osl)}
        rate = span.peak_rate * found.question.times
        own = answer(replace(ASKED, **lengths, rate=rate, simulate=0, fix=own_fix))
        assert by_hour[number].replicas == own.reports[0].plan.decode.replicas
    record = serve_json(found)
    assert len(record.hours) == 24 and record.question.trace.sized_by.requests < record.question.trace.requests == 20_000
    assert re.fullmatch(r"2026-11-28 1\d:\d\d:\d\d to 1\d:\d\d:\d\d", record.question.trace.sized_by.clock)
    assert "hours" in schema("serve")["properties"]


def test_both_pools_of_a_deployment_shrink_with_the_hour():
    rows = [
        {"timestamp": 1e3 * (hour * HOUR + i * 3600 / each), "input_length": 3000, "output_length": 100}
        for hour, each in enumerate([100, 500, 1000])
        for i in range(each)
    ]
    question = replace(understand(replace(ASKED, trace=rows, rate=60.0, ttft_s=0.5, disaggregated=True)), aggregated=False)
    columns = rank(question.in_means())
    best = report(question, columns, int(columns.order[0]))
    found = Hour.of_day(question, best)
    pools = [(one.prefill_replicas, one.replicas) for one in found]
    assert best.plan.prefill.replicas == pools[2][0] > pools[1][0] > pools[0][0] >= 1
    assert best.plan.decode.replicas >= pools[2][1] >= pools[1][1] >= pools[0][1] >= 1
    assert found[2].gpus == best.gpus
    assert found[1].gpus == pools[1][0] * best.plan.prefill.size + pools[1][1] * best.plan.decode.size


@pytest.mark.soak
def test_five_million_requests_are_sized_within_a_minute_and_a_gibibyte(tmp_path):
    """The figure of `make bench`, held: processor time, as other processes may run beside it."""
    path = written(tmp_path / "day", a_day(requests=5_000_000, seed=7, isl=1500, osl=300, busy=(46_800.0, 50_400.0), times=3.0))
    start = time.process_time()
    found = answer(replace(ASKED, model="llama3-70b", gpus=256, disaggregated=True, trace=str(path), ttft_s=2.0, tpot_s=0.05))
    seconds = time.process_time() - start
    assert found.reports and found.question.day.requests == 5_000_000
    assert 46_800.0 - 60.0 <= found.question.day.window.start_s <= 50_400.0
    assert seconds < 60.0 and math.isfinite(seconds)
    assert read_peak_growth() < 1.0


def read_peak_growth() -> float:
    """GiB that this process has held at most; the rows that were written are in it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def test_hours_keep_the_headroom_that_the_busiest_part_takes():
    """Twice the instances of the closed form for the busiest hour: twice for every hour, in round numbers."""
    rows = [
        {"timestamp": 1e3 * (hour * HOUR + i * 3600 / each), "input_length": 3000, "output_length": 100}
        for hour, each in enumerate([200, 500, 1000])
        for i in range(each)
    ]
    found = answer(replace(ASKED, trace=rows, rate=60.0, ttft_s=None, simulate=0, fix=(*ASKED.fix, "tp=1", "pp=1")))
    best = found.reports[0]
    decode = best.plan.decode.replace(replicas=2 * best.plan.decode.replicas)
    doubled = replace(best, plan=replace(best.plan, decode=decode), gpus=2 * best.gpus)
    closed, more = ([one.replicas for one in Hour.of_day(found.question, one)] for one in (best, doubled))
    assert closed[2] == best.gpus and more[2] == 2 * best.gpus
    assert all(2 * few - 2 <= many <= 2 * few for few, many in zip(closed, more, strict=True)) and more != closed
