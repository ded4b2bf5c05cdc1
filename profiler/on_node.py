"""One node's part of a Ray job: `python -P -m autoconfig.profiler.on_node FOLDER ATTEMPT RANK`, started by a `ray_seat`.

It runs the command of launch.json as `supervise` does on this machine, and ends with its actor, however that dies, or once
launch.json tells of a later attempt: a node that was taken for lost does not measure beside its successor.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from autoconfig.profiler.folder import STARTED, JobFolder, read_json, write_json
from autoconfig.profiler.outcome import CANCEL
from autoconfig.profiler.processes import die_with_parent
from autoconfig.profiler.supervise import Cancelled, exit_code, watch


def run(folder: JobFolder, attempt: int, rank: int) -> None:
    """The first node (`rank` 0) says in life.json that it began, in end.json how it ended. One that was told to end says
    nothing: who told it does."""
    launch = read_json(folder.launch_file)

    def current() -> bool:
        return bool(read_json(folder.launch_file).get("attempt", attempt) == attempt)

    def begin() -> None:
        if not current():
            raise Cancelled
        if rank == 0:
            write_json(folder.life_file, {STARTED: True, "attempt": attempt, "host": socket.gethostname(), "pid": os.getpid()})

    def end(how: dict[str, Any]) -> None:
        if rank == 0 and how["reason"] != CANCEL and current():
            write_json(folder.end_file, {**how, "attempt": attempt})

    log = folder.log_file if rank == 0 else folder.path / f"node-{rank}.log"
    launch = {**launch, "nvml": launch.get("nvml") and rank == 0}
    mark = folder.path / f"{attempt}.{rank}"  # nodes of a test, and attempts, may share a machine
    watch(folder, launch, mark=mark, log=log, begin=begin, end=end, go_on=current)


def main(arguments: list[str]) -> int:
    """FOLDER, ATTEMPT, RANK. The work is done by a child: Ray kills what an actor started itself as soon as the actor dies, and
    then somebody must still end the job's processes."""
    end_with_parent = die_with_parent()
    child = os.fork()
    if child:
        signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def work() -> None:
        end_with_parent()
        run(JobFolder(Path(arguments[0])), int(arguments[1]), int(arguments[2]))

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
