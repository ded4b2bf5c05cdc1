"""The picture of docs/architecture.md is that of today's packages."""

from tools.architecture import PICTURE, draw


def test_the_picture_is_fresh() -> None:
    assert PICTURE.read_text(encoding="utf-8") == draw(), "run python -m tools.architecture"
