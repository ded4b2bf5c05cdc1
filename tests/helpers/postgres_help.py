"""A PostgreSQL server of the tests' own, on a free port, in a scratch folder."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of its database. Its folder is not pytest's: other runs of pytest close that to the server's user."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    binary = found[-1].parent if found else Path(shutil.which("initdb") or "").parent
    if not (binary / "initdb").exists():
        reason = "PostgreSQL is not installed: run tools/install_services.sh"
        pytest.fail(reason) if os.geteuid() == 0 else pytest.skip(reason)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="autoconfig-postgres-"))
    data = folder / "data"
    who: list[str] = []
    if os.geteuid() == 0:  # the server refuses to run as root
        shutil.chown(folder, "postgres")
        who = ["runuser", "-u", "postgres", "--"]
    options = f"-h 127.0.0.1 -p {port} -k {folder} -c fsync=off"
    run(*who, str(binary / "initdb"), "--auth=trust", "--username=tests", "--pgdata", str(data))
    run(*who, str(binary / "pg_ctl"), "-D", str(data), "-w", "-l", str(folder / "log"), "-o", options, "start")
    try:
        yield f"postgresql://tests:secret@127.0.0.1:{port}/postgres"
    finally:
        run(*who, str(binary / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop")
        shutil.rmtree(folder)


def run(*command: str) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr.decode()
