"""data/sources.toml: every published source has one entry, every entry a source, a use that is known, and a reason."""

import pytest
from autoconfig.specs.errors import UnknownNameError

from autoconfig.calibration.observe import published_runs
from autoconfig.runs.sources import USES, harder_readings, serving_figures, source_of, sources
from autoconfig.runs.training_row import published_rows


def test_every_source_has_an_entry_and_every_entry_a_source() -> None:
    found = published_runs()
    names = {row["source"] for row in published_rows()} | {run.case.source for run in found.runs}
    names |= {row.source for row in found.dropped}
    assert {source_of(name).match for name in names} == {source.match for source in sources()}
    with pytest.raises(UnknownNameError):
        source_of("a table that nobody added")


def test_entries_say_what_they_are_for() -> None:
    for source in sources():
        assert set(source.use) <= set(USES) and source.why, source
        assert source.whole_step or not {"bands", "calibrate"} & set(source.use), source
        assert source.bar is None or source.bar.leave_out in ("source", "model")
    bars = [source.bar.name for source in sources() if source.bar]
    assert len(bars) == len(set(bars)) and {reading.bar for reading in harder_readings()} <= set(bars)
    assert len({figure.name for figure in serving_figures()}) == len(serving_figures())


def test_sources_and_models_that_published_runs_left_out_before_are_still_left_out() -> None:
    fitted = {run.case.source for run in published_runs().runs if "calibrate" in source_of(run.case.source).use}
    for part in ("SFT", "LoRA", "long context", "golden", "single", "SimuMax", "Table4-layer", "stas00", "Google"):
        assert not [name for name in fitted if part in name]
