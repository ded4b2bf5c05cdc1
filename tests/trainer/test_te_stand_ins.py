"""Stand-ins for Transformer Engine against memory measured with the real one (published runs that ship with the project)."""

import pytest

from autoconfig.measured import published_rows, read_case
from autoconfig.trace import trace_request
from specs.units import GIB
from trainer.trace import trace_rank

TOLERANCE = 0.02
ROWS = [row for row in published_rows() if row["source"] == "SimuMax-B200-v1.2"]


def layouts() -> list[dict[str, str]]:
    """One row per layout: runs that differ in the number of micro-batches alone measured the same."""
    return list({(row["tp"], row["pp"], row["cp"], row["seq"]): row for row in reversed(ROWS)}.values())


@pytest.mark.parametrize("row", layouts(), ids=lambda row: row["id"])
def test_simumax(row: dict[str, str]) -> None:
    case = read_case(row)
    request = trace_request(case.setting, case.plan, (0,))
    traced, measured = trace_rank(request, 0).peak_bytes / GIB, float(row["peak_mem_gib"])
    print(f"{row['id']} {case.plan}: measured {measured:.2f}, traced {traced:.2f} GiB ({traced / measured - 1:+.2%})")
    assert traced == pytest.approx(measured, rel=TOLERANCE)


def test_simumax_last_stage() -> None:
    """SM-0001's ranks 4 to 7, 64,479 MiB (the notes of the row)."""
    row = next(row for row in ROWS if row["id"] == "SM-0001")
    assert "4:64479" in row["notes"]
    case = read_case(row)
    traced = trace_rank(trace_request(case.setting, case.plan, (7,)), 7).peak_bytes
    assert traced == pytest.approx(64479 * 2**20, rel=TOLERANCE)
