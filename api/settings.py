"""What the service was started with."""

from __future__ import annotations

from dataclasses import dataclass

LOOPBACK = ("127.0.0.1", "::1", "localhost")
MAX_BODY_BYTES = 2 * 2**20
DEFAULT_DATABASE = "sqlite:///autoconfig-service.db"


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """One process of the service."""

    database: str = DEFAULT_DATABASE
    keys_required: bool = False
    workers: int = 2
    """Processes that compute answers."""
    answer_seconds: float = 30.0
    """Longest that a synchronous answer may take."""
    max_body_bytes: int = MAX_BODY_BYTES
    cache_bytes: int = 64 * 2**20
    """Rendered answers kept in memory."""
    requests_per_second: float = 50.0
    """Per API key; bursts of twice as many."""
