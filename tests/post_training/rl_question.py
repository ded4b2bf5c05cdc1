"""Questions of `autoconfig rl` as a table of fields; without a word on staleness a step is on-policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoconfig.post_training.answer import RlAnswer, answer
from autoconfig.post_training.question import RlQuestion, request_of, understand


def answered(given: Mapping[str, Any]) -> RlAnswer:
    """The answer to these fields."""
    return answer(request_of({"staleness": 0, **given}))


def understood(given: Mapping[str, Any]) -> RlQuestion:
    """The same, not answered."""
    return understand(request_of({"staleness": 0, **given}))
