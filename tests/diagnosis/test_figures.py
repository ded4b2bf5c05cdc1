"""False alarms on published runs, gains of switches, calibration from one run (validation/diagnosis)."""

import csv

import pytest

from validation.diagnosis import groups, sheet, switches
from validation.diagnosis.alarms import alarm_lines
from validation.diagnosis.groups import group_lines
from validation.diagnosis.switches import pair_lines

pytestmark = [pytest.mark.judge, pytest.mark.xdist_group("diagnosis figures")]


def test_figures_are_held_to():
    lines = [*alarm_lines(), *pair_lines(), *group_lines()]
    assert len(lines) >= 3 and [line for line in lines if not line.holds] == []


@pytest.mark.parametrize("listing", [groups, switches], ids=["groups", "pairs"])
def test_the_committed_lists_are_what_the_tables_hold(listing):
    with listing.LIST.open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file))[1:] == listing.listed(), f"stale: run python -m {listing.__name__}"


def test_the_page_is_fresh():
    assert sheet.PAGE.read_text(encoding="utf-8") == sheet.page(), "stale: run python -m validation.diagnosis.sheet"
