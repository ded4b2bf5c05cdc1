"""RayRunner: jobs in placement groups of a Ray cluster, one actor (`ray_seat`) a node. Needs the extra `ray`.

Groups and actors are detached, and their names are those of the job's folder and attempt: they outlive the search that made
them, and the next one finds them. A node that dies takes its actors along; its job is then lost, and begun again.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoconfig.profiler import ray_seat
from autoconfig.profiler.folder import STARTED, JobFolder, read_json, write_json
from autoconfig.profiler.outcome import CANCEL, EXITED, LOSS, outcome_of
from autoconfig.profiler.runner import MEET, Command, Life, RunnerError
from autoconfig.profiler.supervise import GRACE_S
from autoconfig.specs.errors import option
from autoconfig.specs.extras import missing_package
from autoconfig.specs.import_path import with_import_path
from autoconfig.specs.measurement import ExitCode

NAMESPACE = "autoconfig"
CONNECT_S, ANSWER_S = 5.0, 20.0
"""Until the head's port must take a connection, and until what answers there must be a cluster. Ray itself waits minutes."""
LOOK_S = 0.05
END_S = 3 * GRACE_S
"""Until a job that was told to end must be gone; then its actors are killed, which ends it as surely, but unseen."""
ASK = """
import json, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR", configure_logging=False)
print(json.dumps([node["Resources"] for node in ray.nodes() if node["Alive"]]))
"""


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a job has: so many nodes, and of each so many GPUs and CPUs."""

    nodes: int = 1
    gpus: int = 0
    cpus: int = 1

    @property
    def bundle(self) -> dict[str, float]:
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}


class RayRunner:
    """Runs `command` for every job in a placement group of its own."""

    name = "ray"

    def __init__(
        self,
        command: Command,
        address: str,
        share: Share | None = None,
        environment: Mapping[str, str] | None = None,
        *,
        nvml: bool = False,
    ) -> None:
        """`address`: HOST:PORT of the cluster's head. Raises RunnerError where no cluster answers there."""
        self._ray = _connected(address)
        self._command, self._address, self._share, self._nvml = command, address, share or Share(), nvml
        self._environment = dict(environment or {})
        self._seats: dict[Path, tuple[int, list[Any]]] = {}
        self._asked: dict[Path, dict[int, Any]] = {}

    def submit(self, folder: JobFolder, limit_s: float) -> None:
        """Ask for a placement group; the job starts when the cluster has one, whether or not this search still lives."""
        if self.poll(folder) in (Life.WAITING, Life.RUNNING):
            return
        attempt = int(read_json(folder.launch_file).get("attempt", 0)) + 1
        for stale in (folder.end_file, folder.life_file):
            stale.unlink(missing_ok=True)
        how = {"runner": self.name, "address": self._address, "limit_s": limit_s, "attempt": attempt, "nvml": self._nvml}
        share = {"nodes": self._share.nodes, "bundle": self._share.bundle}
        write_json(folder.launch_file, {**how, **share, "command": self._command(folder, folder.job())})
        self._seats[folder.path] = (attempt, self._start(folder, attempt))

    def submit_together(self, jobs: Sequence[tuple[JobFolder, float]]) -> None:
        for folder, limit_s in jobs:
            self.submit(folder, limit_s)

    def _start(self, folder: JobFolder, attempt: int) -> list[Any]:
        """The actors of an attempt; all are asked for at once, and start when their group has its nodes."""
        ray, name = self._ray, _name(folder, attempt)
        nodes, bundle = self._share.nodes, self._share.bundle
        strategy = "STRICT_SPREAD" if nodes > 1 else "PACK"
        group = ray.util.placement_group([bundle] * nodes, strategy=strategy, name=name, lifetime="detached")
        variables = with_import_path({**os.environ}) | self._environment
        kind = ray.remote(ray_seat.Seat)
        seats: list[Any] = []
        for rank in range(nodes):
            place = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
            command = [sys.executable, "-P", "-m", "autoconfig.profiler.on_node", str(folder.path), str(attempt), str(rank)]
            asked = kind.options(
                name=f"{name}-{rank}",
                namespace=NAMESPACE,
                lifetime="detached",
                scheduling_strategy=place,
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
            )
            seats.append(
                asked.remote(command, str(folder.path), variables, name, MEET, ray_seat.LINGER_S, seats[0] if seats else None)
            )
        return seats

    def poll(self, folder: JobFolder) -> Life:
        """Look at the files, then ask the actors. One that died before its job said how it ended is a lost node."""
        launch = read_json(folder.launch_file)
        attempt = launch.get("attempt")
        if launch.get("runner") != self.name or not isinstance(attempt, int):
            return Life.ENDED if outcome_of(folder) is not None else Life.LOST
        if read_json(folder.end_file).get("attempt") == attempt:
            self._clear(folder, attempt)
            return Life.ENDED
        code, lost = self._look(folder, attempt, int(launch.get("nodes", 1)))
        if code is None and not lost:
            started = read_json(folder.life_file)
            return Life.RUNNING if started.get(STARTED) and started.get("attempt") == attempt else Life.WAITING
        self._clear(folder, attempt)
        if read_json(folder.end_file).get("attempt") != attempt:
            self._write_end(folder, attempt, code, lost)
        return Life.ENDED

    def cancel(self, folder: JobFolder) -> None:
        if self.poll(folder) not in (Life.WAITING, Life.RUNNING):
            return
        attempt = int(read_json(folder.launch_file)["attempt"])
        self._clear(folder, attempt)
        if outcome_of(folder) is None:
            write_json(folder.end_file, {"reason": CANCEL, "attempt": attempt})

    def _look(self, folder: JobFolder, attempt: int, nodes: int) -> tuple[int | None, str]:
        """(the first node's exit code, None while it runs; why the job is lost, else empty). A question that is not answered at
        once stays asked: actors that wait for their group answer when they start."""
        ray, errors = self._ray, self._ray.exceptions
        try:
            seats = self._seats_of(folder, attempt, nodes)
        except ValueError:
            return None, "Ray does not know it any more"
        asked = self._asked.setdefault(folder.path, {})
        asked |= {rank: seat.code.remote() for rank, seat in enumerate(seats) if rank not in asked}
        ready, _ = ray.wait([*asked.values()], num_returns=len(asked), timeout=LOOK_S)
        code = None
        for rank, answer in [*asked.items()]:
            if answer not in ready:
                continue
            del asked[rank]
            try:
                said = ray.get(answer)
            except errors.ActorUnavailableError:  # of a network that stumbles: asked again
                continue
            except errors.RayActorError as error:
                return code, f"its node or actor died: {_last_line(error)}"
            code = said if rank == 0 else code
        return code, ""

    def _seats_of(self, folder: JobFolder, attempt: int, nodes: int) -> list[Any]:
        """Of this process, else by name. Raises ValueError where one is gone."""
        known = self._seats.get(folder.path)
        if known is None or known[0] != attempt:
            name = _name(folder, attempt)
            known = attempt, [self._ray.get_actor(f"{name}-{rank}", namespace=NAMESPACE) for rank in range(nodes)]
            self._seats[folder.path] = known
        return known[1]

    def _clear(self, folder: JobFolder, attempt: int) -> None:
        """End what still runs of an attempt, and give its placement group back. Nothing where that was done."""
        ray, name = self._ray, _name(folder, attempt)
        self._asked.pop(folder.path, None)
        try:
            group = ray.util.get_placement_group(name)
        except ValueError:
            self._seats.pop(folder.path, None)
            return
        seats = []
        for rank in range(len(group.bundle_specs)):
            try:
                seats.append(ray.get_actor(f"{name}-{rank}", namespace=NAMESPACE))
            except ValueError:
                continue
        if seats and read_json(folder.life_file).get("attempt") == attempt:  # else it waits, and cannot be told
            ray.wait([seat.end.remote(2 * GRACE_S) for seat in seats], num_returns=len(seats), timeout=END_S)
        for seat in seats:
            ray.kill(seat)
        ray.util.remove_placement_group(group)
        self._seats.pop(folder.path, None)

    def _write_end(self, folder: JobFolder, attempt: int, code: int | None, lost: str) -> None:
        if lost:
            found = outcome_of(folder)
            if found is not None and found.exit_code == ExitCode.PEER_LOST:  # what its other nodes say of the one that died
                folder.result_file.unlink(missing_ok=True)
            write_json(folder.end_file, {"reason": LOSS, "detail": lost, "attempt": attempt})
        else:
            write_json(folder.end_file, {"reason": EXITED, "exit_code": code, "attempt": attempt})


@functools.cache
def check_cluster(address: str | None, share: Share) -> None:
    """A cluster answers within seconds, and has nodes for such a job: those that an autoscaler would add do not count. Asked
    once in a process. Raises RunnerError."""
    checked = check_address(address)
    if importlib.util.find_spec("ray") is None:
        raise missing_package(ModuleNotFoundError(name="ray"), f"{option('runner')} ray")
    _connectable(checked)
    try:
        done = subprocess.run(
            [sys.executable, "-c", ASK, checked], capture_output=True, text=True, timeout=ANSWER_S, check=False, process_group=0
        )
    except subprocess.TimeoutExpired:
        raise RunnerError(
            f"what answers at {option('ray_address')} {checked} is no Ray cluster: it said nothing that Ray "
            f"understands within {ANSWER_S:.0f} s; give HOST:PORT as `ray start --head` prints it"
        ) from None
    try:
        nodes = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError, RecursionError):
        raise RunnerError(f"the Ray cluster at {checked} takes no search from here: {_last_line(done.stderr)}") from None
    wanted = share.bundle
    able = [node for node in nodes if all(node.get(name, 0) >= amount for name, amount in wanted.items())]
    if len(able) < share.nodes:
        need = " and ".join(f"{amount:g} {name}{'s' * (amount > 1)}" for name, amount in wanted.items())
        raise RunnerError(
            f"no job can be measured on the Ray cluster at {checked}: a job needs {share.nodes} node{'s' * (share.nodes > 1)} "
            f"with {need} each, and of its {len(nodes)} {len(able) or 'none'} {'have' if len(able) > 1 else 'has'} them; "
            f"give {option('gpus_per_node')} as the cluster has them, or {option('gpus_here')} to emulate ranks"
        )


def check_address(address: str | None) -> str:
    """HOST:PORT; RAY_ADDRESS where nothing is given. Raises RunnerError."""
    given = address or os.environ.get("RAY_ADDRESS") or ""
    host, _, port = given.rpartition(":")
    if host and port.isdigit() and 0 < int(port) < 65536 and "/" not in given:
        return given
    said = f"{option('ray_address')} {given}: " if given else f"{option('runner')} ray needs {option('ray_address')}: "
    raise RunnerError(
        f"{said}give HOST:PORT of the cluster's head, as `ray start --head` prints it; the search runs on one of "
        "its machines (Ray's client, ray://, is not used)"
    )


def _connectable(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise RunnerError(
            f"no Ray cluster answers at {option('ray_address')} {address}: {error.strerror or error}; start one with "
            "`ray start --head --port=6379`, on each other machine `ray start --address=HOST:6379`"
        ) from None


def _connected(address: str) -> Any:
    """Ray, connected to the cluster: once in a process. Raises InputError where Ray is missing, RunnerError."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise missing_package(error, f"{option('runner')} ray") from None
    if ray.is_initialized():
        return ray
    checked = check_address(address)
    _connectable(checked)
    try:
        ray.init(address=checked, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    except (RuntimeError, ValueError, OSError) as error:
        raise RunnerError(f"the Ray cluster at {checked} takes no search from here: {_last_line(error)}") from error
    ray.cloudpickle.register_pickle_by_value(ray_seat)
    # what happens to nodes would be printed on standard output, where answers go; `poll` says it of those that matter
    ray._private.worker.print_to_stdstream = lambda *_, **__: None
    return ray


def _name(folder: JobFolder, attempt: int) -> str:
    """Of the group of an attempt: the same job in another folder is another one."""
    place = hashlib.sha256(str(folder.path).encode()).hexdigest()[:8]
    return f"autoconfig-{folder.name}-{place}-{attempt}"


def _last_line(text: object) -> str:
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no word of why"
