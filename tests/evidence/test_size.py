"""A gigabyte of trace and 100 MB of log: seconds of one core, and memory (`make soak`)."""

import re

import pytest

from autoconfig.evidence.read import read_texts
from benchmarks.evidence import LOG_BYTES, TRACE_BYTES, log_text, read_rate, trace_text


def test_a_made_trace_has_the_parts_that_it_was_made_of():
    """Of 20 us each: 15 of computing in four kinds; each hundredth 18.5 of a reduction that nothing hides, 1.5 us more of which
    reach beyond the next launch."""
    trace = read_texts({"rank0.json": "".join(trace_text(3_000_000))}).traces[0]
    compute = trace.parts["gemm_seconds"] + trace.parts["pointwise_seconds"] + trace.parts["flash_attention_seconds"]
    launched = trace.launches
    assert trace.unknown_kernel_share == 0 and launched > 1500 and trace.parts["pointwise_seconds"] > 0
    assert compute == pytest.approx(15e-6 * 0.99 * launched, rel=0.01)
    assert trace.parts["gradient_reduction_seconds"] == pytest.approx(18.5e-6 * 0.01 * launched, rel=0.1)
    assert sum(trace.parts.values()) + sum(trace.idle.values()) == pytest.approx(trace.span_s)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "pieces", "seconds", "megabytes"),
    [("trace", trace_text(TRACE_BYTES), 40, 250), ("log", log_text(LOG_BYTES), 3, 100)],
)
def test_large_files_are_read_in_bounds(kind, pieces, seconds, megabytes):
    core, memory = re.search(r"\(([\d.]+) s of one core\), (\d+) MB", read_rate(kind, pieces)).groups()
    assert float(core) <= seconds and int(memory) <= megabytes
