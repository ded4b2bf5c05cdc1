"""Reading a file that is one, within limits; and writing one so that nobody ever reads half of it."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from autoconfig.specs.errors import FileError, option

MAX_TEXT_BYTES = 1_000_000
"""Of a script or a configuration."""


@contextmanager
def opened(path: Path, wanted: str) -> Iterator[BinaryIO]:
    """An ordinary file to read bytes from. Pipes and devices are never waited for, nor files of /proc. Raises FileError for
    these, for folders, and for what cannot be read, saying what is `wanted`."""
    name = shown_name(path)
    try:
        if path.is_dir():
            raise FileError(f"{name!r} is a folder; give {wanted}")
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise FileError(f"{name!r} is no ordinary file; save it to one first, and give {wanted}")
            yield file
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise FileError(f"{name!r} cannot be read: {reason}; check the path") from error


def shown_name(path: Path) -> str:
    """A path in at most 200 characters."""
    return str(path) if len(str(path)) <= 200 else f"{str(path)[:197]}..."


def read_bytes(path: Path, wanted: str, most: int = MAX_TEXT_BYTES, *, head: bool = False) -> bytes:
    """What an ordinary file of at most `most` bytes holds; with `head` its first `most` bytes, however long it is. Raises
    FileError for what is too large and where `opened` does."""
    name = shown_name(path)
    with opened(path, wanted) as file:
        if (size := os.fstat(file.fileno()).st_size) > most and not head:
            raise FileError(f"{name!r} has {size:,} bytes, more than {most:,}; give {wanted}")
        data: bytes | None = file.read(most + 1)
        if data is None:  # of /proc: there will be something to read later
            raise FileError(f"{name!r} is no ordinary file; save it to one first, and give {wanted}")
    if len(data) > most and not head:
        raise FileError(f"{name!r} has more than {most:,} bytes; give {wanted}")
    return data[:most]


def read_text(path: Path, wanted: str, most: int = MAX_TEXT_BYTES) -> str:
    """The text of an ordinary file of at most `most` bytes. Raises FileError for anything else, saying what is `wanted`."""
    name, data = str(path)[:200], read_bytes(path, wanted, most)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise FileError(f"{name!r} is no text file (UTF-8); give {wanted}")
    if not text.strip():
        raise FileError(f"{name!r} is empty; give {wanted}")
    return text


def check_output_path(path: Path, suffixes: tuple[str, ...]) -> None:
    """Fail before the work, not after it. Raises FileError when the suffix or the folder cannot be used."""
    name = str(path) if len(str(path)) <= 200 else f"{str(path)[:197]}..."
    if "\0" in name:
        raise FileError(f"output {name!r} holds a NUL character; name a file without it")
    try:
        if path.is_dir():
            raise FileError(f"output {name!r} is a folder; name a file in it, ending in {' or '.join(suffixes)}")
        if path.suffix.lower() not in suffixes:
            raise FileError(f"output {name!r}: the name must end in {' or '.join(suffixes)}")
        if not path.parent.is_dir():
            raise FileError(f"output {name!r}: there is no folder {str(path.parent)[:200]}; make it first")
        if not os.access(path.parent, os.W_OK):
            raise FileError(f"output {name!r}: the folder {path.parent} cannot be written to; name another one")
    except OSError as error:  # a name too long
        raise FileError(f"output {name!r} cannot be used as a file name: {error.strerror or error}") from error


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` on a file beside `path` and rename it; nothing is left behind on an error or Ctrl-C. Raises FileError."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror or error}") from error
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """`write_atomically` of a text. Raises FileError."""
    write_atomically(path, lambda file: file.write_text(text, encoding="utf-8"))


def write_new(path: Path, text: str, *, force: bool = False) -> None:
    """`write_text` into a folder that exists; a file that exists is replaced with `force` only. Raises FileError."""
    name = str(path)[:200]
    try:
        if "\0" in name or path.is_dir() or not path.parent.is_dir():
            raise FileError(f"{name!r}: name a file in a folder that exists")
        if path.exists() and not force:
            raise FileError(f"{name!r} exists: name another file, or say {option('force')} to replace it")
    except OSError as error:  # a name too long
        raise FileError(f"{name!r} cannot be used as a file name: {error.strerror or error}") from error
    write_text(path, text)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def replace_section(page: Path, begin: str, end: str, text: str) -> None:
    """Put `text` between two marks of a page; the marks stay."""
    before, rest = page.read_text(encoding="utf-8").split(begin)
    after = rest.split(end)[1]
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
