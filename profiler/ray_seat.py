"""One node's place in a Ray job: an actor that starts `on_node` there and says whether it still runs.

Ray sends the class to the node by value, so it imports the standard library and Ray only: the nodes' Ray need not find this
package.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import threading
from typing import Any

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent dies."""
OF_THE_NODE = ("RAY_", "CUDA_VISIBLE_DEVICES", "HOSTNAME", "TMPDIR")
"""Variables that a node's own Ray sets; all others are those of the search, as sbatch hands them over."""
LINGER_S = 60.0
"""How long an ended job keeps its GPUs where no search looks at it any more."""


class Seat:
    """Of one bundle of a job's placement group."""

    def __init__(
        self,
        command: list[str],
        folder: str,
        variables: dict[str, str],
        group: str,
        meet: str,
        linger_s: float,
        leader: Any = None,
    ) -> None:
        """Start `command` in `folder`. The first seat, which has no `leader`, chooses where all meet, says so in the variable
        `meet`, and gives the placement group `group` back `linger_s` after the end. Raises OSError where the command is not
        there."""
        import ray

        if leader is None:
            with socket.socket() as free:
                free.bind(("", 0))
                self._address = f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"
        else:
            self._address = ray.get(leader.address.remote())
        library = ctypes.CDLL(None, use_errno=True)
        own = {name: value for name, value in os.environ.items() if name.startswith(OF_THE_NODE)}
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env={**variables, **own, meet: self._address},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: library.prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
        )
        if leader is None:
            threading.Thread(target=self._give_back, args=(group, linger_s), daemon=True).start()

    def address(self) -> str:
        """HOST:PORT where the job's nodes meet."""
        return self._address

    def code(self) -> int | None:
        """The exit code of the node's process; None while it runs."""
        return self._process.poll()

    def end(self, wait_s: float) -> None:
        """Tell the node's process to end, with all that it started, and wait for it."""
        self._process.terminate()
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _give_back(self, group: str, linger_s: float) -> None:
        import time

        import ray

        self._process.wait()
        time.sleep(linger_s)
        ray.util.remove_placement_group(ray.util.get_placement_group(group))
