"""`rl check` without its search for a better placement, which most tests of files ask nothing of."""

import pytest

from autoconfig.post_training.rank import rank

SEARCH = "autoconfig.formats.post_training.check.rank"


@pytest.fixture
def unsearched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check finds no placement beside that of the file."""
    monkeypatch.setattr(SEARCH, lambda *_: [])


@pytest.fixture
def searched(unsearched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It searches, in a file whose tests are `unsearched`."""
    monkeypatch.setattr(SEARCH, rank)
