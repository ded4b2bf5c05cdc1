"""Writing a file so that nobody ever reads half of it: beside its place, then renamed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from autoconfig.specs.errors import FileError, option


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
