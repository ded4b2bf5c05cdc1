"""What no two recordings have alike, replaced by a word. Nothing else is touched, and nothing is sorted."""

from __future__ import annotations

import io
import re

_NUMBER = r"\d+(?:\.\d+)?(?:e-?\d+)?"
RULES: tuple[tuple[str, str], ...] = (
    # elapsed seconds: in the texts of searches and traces, and in their JSON, where predicted seconds have longer names
    (r"\b(ranked|priced|traced) in [\d.]+ s\b", r"\1 in <seconds> s"),
    (rf'("seconds": ?){_NUMBER}', r"\1<seconds>"),
    (r'("seconds_by_phase": ?)\{[^{}]*\}', r"\1<seconds>"),
    # dates with a time, with or without a zone: 2026-01-31T23:59:59.123456+00:00
    (r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?", "<time>"),
    # the address of the service that was started
    (r"\b127\.0\.0\.1:\d+", "127.0.0.1:<port>"),
    # identities of searches; keys of the service, and their identities in a table
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<uuid>"),
    (r"\bac_[0-9a-f]{12}_[\w-]{43}", "<key>"),
    (r"(?m)^[0-9a-f]{12}(?=  )", "<key id>"),
)
_RULES = tuple((re.compile(pattern), word) for pattern, word in RULES)


def normalised(text: str, hidden: dict[str, str]) -> str:
    """The text by the rules; `hidden` are texts of this recording (its folders), longest first, and words for them."""
    for secret in sorted(hidden, key=len, reverse=True):
        text = text.replace(secret, hidden[secret])
    for pattern, word in _RULES:
        text = pattern.sub(word, text)
    return text


def parquet_text(raw: bytes) -> str:
    """A parquet file as its schema and its rows as CSV; numbers with all their digits."""
    import pyarrow.csv
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(io.BytesIO(raw))
    rows = io.BytesIO()
    pyarrow.csv.write_csv(table, rows)
    return f"{table.schema.to_string(show_schema_metadata=False)}\n{rows.getvalue().decode()}"
