"""File locks that the kernel drops when their holder dies, however it dies (flock)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from autoconfig.specs.errors import FileError


class FileLock:
    """An exclusive lock on a file. The lock belongs to the open file: a child process that inherits it holds it too."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Use `take`."""
        self.path = path
        self.descriptor = descriptor

    def write(self, text: str) -> None:
        """What `holder` reads: who has the lock."""
        os.truncate(self.descriptor, 0)
        os.pwrite(self.descriptor, text.encode(), 0)

    def release(self) -> None:
        """Give up this process's hold; a child that inherited the lock keeps it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def take(path: Path) -> FileLock | None:
    """The lock, or None where another process has it. Raises FileError where the file cannot be opened."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise FileError(f"lock {str(path)[:200]!r} cannot be opened: {error.strerror or error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        hint = "name a folder on a local disk"
        raise FileError(f"{str(path)[:200]!r} cannot be locked: {error.strerror or error}; {hint}") from error
    return FileLock(path, descriptor)


def is_held(path: Path) -> bool:
    """Whether a live process holds the lock."""
    if not path.exists():
        return False
    lock = take(path)
    if lock is None:
        return True
    lock.release()
    return False


def holder(path: Path) -> str:
    """What the holder wrote; empty where nothing can be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
