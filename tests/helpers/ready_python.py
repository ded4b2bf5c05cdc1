"""An interpreter that has imported torch and megatron-core already: a job that it starts costs a fork, not five seconds of CPU.

Jobs are processes of their own all the same, with their arguments, variables, folder, streams and limit of a file's size; their
end is the client's, and they are killed where that ends first. For tests of what a job answers; how a process starts, takes
signals or meets other ranks is tested with the plain interpreter.
"""

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLIENT = """#!{python} -SE
import json, os, resource, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect({path!r})
socket.send_fds(line, [b"-"], [0, 1, 2])
asked = {{"arguments": sys.argv[1:], "variables": dict(os.environ), "folder": os.getcwd()}}
asked["file_bytes"] = resource.getrlimit(resource.RLIMIT_FSIZE)
line.sendall(json.dumps(asked).encode())
line.shutdown(socket.SHUT_WR)
os._exit(int(line.recv(16) or b"1"))
"""


@contextmanager
def ready_python(folder: Path) -> Iterator[Path]:
    """A program in the folder that takes `-P -m MODULE ...` or `FILE ...` like python, until the context ends."""
    path, program = str(folder / "ready"), folder / "ready-python"
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen([sys.executable, __file__, path], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None and server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    program.write_text(CLIENT.format(python=sys.executable, path=path))
    program.chmod(0o755)
    try:
        yield program
    finally:
        server.stdin.close()
        server.wait(60)
        server.stdout.close()


def ranks(program: str, processes: int, *command: str) -> list[str]:
    """torchrun of so many ranks, all of them and itself from a ready interpreter."""
    return [
        program,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
        "--no-python",
        program,
        *command,
    ]


def serve(path: str) -> None:
    """Answer clients until standard input ends, which it does with pytest too."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    os.write(1, b"ready\n")
    while True:
        ready, _, _ = select.select([0, listening], [], [])
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if 0 in ready:
            return
        line, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            attend(line)
        line.close()


def attend(line: socket.socket) -> None:
    """One client: its job, its end. Does not return."""
    _, streams, _, _ = socket.recv_fds(line, 1, 3)
    asked = json.loads(b"".join(iter(lambda: line.recv(2**16), b"")))
    job = os.fork()
    if job == 0:
        line.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        run(asked)
    for stream in streams:
        os.close(stream)
    ended, look = os.pidfd_open(job), select.poll()
    look.register(ended, select.POLLIN)
    look.register(line, 0)  # the client has gone
    if ended not in dict(look.poll()):
        os.kill(job, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(job, 0)[1])
    with suppress(OSError):
        line.sendall(str(code if code >= 0 else 128 - code).encode())
    os._exit(0)


def run(asked: dict) -> None:
    """As `python -P -m MODULE ...` or `python FILE ...` would. Does not return."""
    import resource

    words = [word for word in asked["arguments"] if word != "-P"]
    module, *arguments = words[1:] if words[0] == "-m" else words
    os.environ.clear()
    os.environ.update(asked["variables"])
    os.chdir(asked["folder"])
    resource.setrlimit(resource.RLIMIT_FSIZE, tuple(asked["file_bytes"]))
    sys.argv, code = [module, *arguments], 0
    try:
        if words[0] == "-m":
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(module, run_name="__main__")
    except SystemExit as error:
        code = int(error.code or 0) if not isinstance(error.code, str) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    import warnings

    with warnings.catch_warnings():  # megatron-core warns of everything optional that is not installed
        warnings.simplefilter("ignore")
        from autoconfig.trainer.host.limits import leave_out_compiler

        leave_out_compiler()
        import autoconfig.trainer.generate
        import autoconfig.trainer.training  # noqa: F401
    serve(sys.argv[1])
