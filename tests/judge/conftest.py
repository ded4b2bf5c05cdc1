"""These tests need the environment of `make judge` (Python 3.12, megatron-core 0.19.2); elsewhere they are not collected."""

from importlib import metadata
from pathlib import Path

import pytest


def _version() -> str:
    try:
        return metadata.version("megatron-core")
    except metadata.PackageNotFoundError:
        return ""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.judge)


if _version() == "0.19.2":
    from validation.judge.client import Judge

    @pytest.fixture(scope="session")
    def judge():
        with Judge() as found:
            yield found

else:
    collect_ignore_glob = ["test_*.py"]
