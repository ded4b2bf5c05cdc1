"""Words for shell scripts that no name in them can turn into a command."""

from __future__ import annotations

import re


def quoted(value: str) -> str:
    """A word in single quotes, safe in any shell."""
    return "'" + value.replace("'", "'\\''") + "'"


def remark(text: str) -> str:
    """Text for a comment: one line, printable, so that no name can end the comment and start a command."""
    return "".join(c if c.isprintable() else " " for c in text)[:400]


def slug(text: str) -> str:
    """A name for jobs and folders: letters, digits, dot, dash."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text).strip("-.")[:60] or "model"
