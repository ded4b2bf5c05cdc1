"""Fixtures of the profiler's tests: job folders, and a real Slurm of one node."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from autoconfig.profiler.folder import JobFolder, prepare
from job_help import make_job, wait_until


@pytest.fixture
def new_folder(tmp_path: Path) -> Callable[..., JobFolder]:
    """A job folder by behaviour."""

    def new(behaviour: int = 0, number: int = 0, **changes: object) -> JobFolder:
        return prepare(tmp_path / "jobs", make_job(behaviour, number, **changes))

    return new


CONFIGURATION = Path(__file__).with_name("slurm.conf").read_text()


def missing_for_slurm() -> str:
    """What keeps a Slurm of our own from starting here; empty where nothing does."""
    if os.geteuid() != 0:
        return "a Slurm of our own needs root"
    programs = [name for name in ("slurmctld", "slurmd", "munged", "sbatch") if shutil.which(name) is None]
    return f"{', '.join(programs)} not found: run tools/install_services.sh" if programs else ""


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running Slurm of one node with two fake GPUs: its node's name. SLURM_CONF points to it."""
    if reason := missing_for_slurm():
        pytest.fail(reason) if os.environ.get("CI") or os.geteuid() == 0 else pytest.skip(reason)
    folder = tmp_path_factory.mktemp("slurm")
    node = socket.gethostname().split(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir()
    for number in range(2):
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(f"NodeName={node} Name=gpu File={folder}/gpu[0-1]\n")
    ports = free_ports(2)
    text = CONFIGURATION.format(node=node, folder=folder, controller=ports[0], daemon=ports[1], cpus=os.cpu_count())
    (folder / "slurm.conf").write_text(text)
    with munge(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        for program in ("slurmctld", "slurmd"):
            subprocess.run([program], check=True, capture_output=True)
        try:
            wait_until(lambda: node_state(node).startswith("idle"), f"the node is {node_state(node)}: see {folder}/slurmd.log")
            yield node
        finally:
            subprocess.run(["scancel", "--partition=main"], check=False, capture_output=True)
            for program in ("slurmd", "slurmctld"):
                with contextlib.suppress(OSError, ValueError):
                    os.kill(int((folder / f"{program}.pid").read_text()), signal.SIGTERM)


def node_state(node: str) -> str:
    return subprocess.run(["sinfo", "-h", "-n", node, "-o", "%T"], capture_output=True, text=True, check=False).stdout.strip()


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def munge() -> Iterator[None]:
    """munged, started where none answers. It stays: others may have come to rely on it."""
    if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode:
        subprocess.run(["install", "-d", "-o", "munge", "/run/munge"], check=True)
        key = Path("/etc/munge/munge.key")
        if not key.exists():
            key.write_bytes(os.urandom(1024))
            shutil.chown(key, "munge", "munge")
            key.chmod(0o400)
        subprocess.run(["su", "-s", "/bin/sh", "munge", "-c", "/usr/sbin/munged"], check=True, capture_output=True)
        wait_until(
            lambda: subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode == 0, "munged is silent"
        )
    yield
