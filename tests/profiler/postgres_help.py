"""A PostgreSQL server of the tests' own, on a free port, in a scratch folder."""

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def postgres_server(folder: Path) -> Iterator[str]:
    """The URL of its database."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    binary = found[-1].parent if found else Path(shutil.which("initdb") or "").parent
    if not (binary / "initdb").exists():
        reason = "PostgreSQL is not installed: run tools/install_services.sh"
        pytest.fail(reason) if os.geteuid() == 0 else pytest.skip(reason)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = folder / "data"
    who: list[str] = []
    if os.geteuid() == 0:  # the server refuses to run as root
        shutil.chown(folder, "postgres")
        for parent in folder.parents[:2]:
            parent.chmod(parent.stat().st_mode | 0o011)
        who = ["runuser", "-u", "postgres", "--"]
    options = f"-h 127.0.0.1 -p {port} -k {folder} -c fsync=off"
    run(*who, str(binary / "initdb"), "--auth=trust", "--username=tests", "--pgdata", str(data))
    run(*who, str(binary / "pg_ctl"), "-D", str(data), "-w", "-l", str(folder / "log"), "-o", options, "start")
    try:
        yield f"postgresql://tests:secret@127.0.0.1:{port}/postgres"
    finally:
        run(*who, str(binary / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop")


def run(*command: str) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr.decode()
