"""SlurmRunner: jobs as Slurm batch jobs, through sbatch, squeue, scontrol and scancel; sacct only where accounting runs.

The scheduler says what lives; result.json says what came of it. A job carries its folder's name as its job name, so that a
search that was killed between sbatch and writing the job's number finds it again; tasks of an array by its name and theirs.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoconfig.profiler.folder import (
    LOG_CUT,
    LOG_KEPT_BYTES,
    LOG_LOOK_S,
    LOG_MOST_BYTES,
    NAME_DIGITS,
    JobFolder,
    read_json,
    write_json,
    write_text,
)
from autoconfig.profiler.outcome import CANCEL, EXITED, LOSS, TIMEOUT, outcome_of
from autoconfig.profiler.processes import MARK
from autoconfig.profiler.runner import Command, Life, RunnerError

PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel")
NAME_PREFIX = "autoconfig-"
SCRIPT = "job.sbatch"
EXIT_NOTE = """printf '{"exit_code": %d, "restarts": %d}\\n' $code "${SLURM_RESTART_COUNT:-0}\""""
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
ALIVE = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
OUT_OF_MEMORY = "OUT_OF_MEMORY"
"""The host's memory that the job may have: Slurm may kill the script with the command."""
LOST_STATES = frozenset({"NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED"})
CALL_S = 60.0
"""What one call of a Slurm program may take: the controller answers late when it is busy."""
CALLS = 3
"""How often a program is called that a signal ended."""
CANCEL_S = 90.0
"""Until a cancelled job must be gone: Slurm's KillWait is 30 s by default."""
POLL_S = 0.5
SRUN = "srun --kill-on-bad-exit=1 --cpu-bind=none "
"""One task a node, on all CPUs of the job there: bound, it would have a task's share of them for all of the node's ranks."""
SHARES = ("--exclusive", "--oversubscribe", "-s", "--cpus-per-task", "-c", "--cpus-per-gpu")
"""Options of sbatch that say themselves which of a node's CPUs a job gets, or beside whom."""


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """What a cluster needs to be told. Names are sbatch's."""

    nodes: int = 1
    gpus_per_node: int = 0
    cpus_per_task: int | None = None
    partition: str | None = None
    account: str | None = None
    extra: tuple[str, ...] = ()

    @property
    def whole_nodes(self) -> bool:
        """Whether nodes are asked for alone, with all their CPUs: unless an option says otherwise. One task a node gets one CPU
        else, which all ranks of the node would share, and a neighbour's load would be measured with the job."""
        said = {one.replace("=", " ").split()[0] for one in self.extra if one.strip()}
        return self.cpus_per_task is None and not said & set(SHARES)

    def lines(self) -> list[str]:
        found = [f"--nodes={self.nodes}", "--ntasks-per-node=1", *(["--exclusive"] if self.whole_nodes else [])]
        if self.gpus_per_node:
            found.append(f"--gpus-per-node={self.gpus_per_node}")
        for name in ("cpus_per_task", "partition", "account"):
            if (value := getattr(self, name)) is not None:
                found.append(f"--{name.replace('_', '-')}={value}")
        return [f"#SBATCH {option}" for option in (*found, *self.extra)]


class SlurmRunner:
    """Runs `command` for every job as a batch job."""

    name = "slurm"

    def __init__(self, command: Command, options: SlurmOptions, environment: Mapping[str, str] | None = None) -> None:
        """Raises RunnerError where Slurm's programs are missing."""
        check_programs()
        self._command = command
        self._options = options
        self._environment = dict(environment or {})

    def submit(self, folder: JobFolder, limit_s: float) -> None:
        self.submit_together([(folder, limit_s)])

    def submit_together(self, jobs: Sequence[tuple[JobFolder, float]]) -> None:
        """One sbatch: several jobs are one job array, whose time limit is the longest one's. Raises RunnerError."""
        wanted = [
            (folder, limit_s)
            for folder, limit_s in jobs
            if self._job_id(folder) is None or self.poll(folder) not in (Life.WAITING, Life.RUNNING)
        ]
        if not wanted:
            return
        digest = hashlib.sha256(" ".join(folder.name for folder, _ in wanted).encode()).hexdigest()
        name = wanted[0][0].name if len(wanted) == 1 else f"array-{digest[:NAME_DIGITS]}"
        for task, (folder, limit_s) in enumerate(wanted):
            self._write_script(folder, limit_s, None if len(wanted) == 1 else (name, task))
        script = wanted[0][0].path / SCRIPT
        if len(wanted) > 1:
            script = wanted[0][0].path / f"{name}.sbatch"
            write_text(script, self._array_script(name, wanted))
        done = _call(["sbatch", "--parsable", str(script)], wanted[0][0].path)
        if done.returncode < 0:  # ended by a signal: what it submitted is found by its name
            self.submit_together(wanted)
            return
        if done.returncode:
            raise RunnerError(f"sbatch refuses the job: {_said(done)} (script {script})")
        number = done.stdout.strip().split(";")[0]
        for task, (folder, _) in enumerate(wanted):
            write_json(folder.life_file, {"slurm_job_id": number if len(wanted) == 1 else f"{number}_{task}"})

    def _write_script(self, folder: JobFolder, limit_s: float, array: tuple[str, int] | None) -> None:
        attempt = int(read_json(folder.launch_file).get("attempt", 0)) + 1
        for stale in (folder.end_file, folder.life_file, folder.exit_file):
            stale.unlink(missing_ok=True)
        command = self._command(folder, folder.job())
        launch = {"runner": self.name, "command": command, "limit_s": limit_s, "attempt": attempt}
        write_json(folder.launch_file, launch if array is None else {**launch, "array": array[0], "task": array[1]})
        write_text(folder.path / SCRIPT, self._script(folder, command, limit_s))

    def poll(self, folder: JobFolder) -> Life:
        """Ask squeue, then scontrol, then sacct. What is not known any more and left no result or exit code is lost."""
        job_id = self._job_id(folder)
        if job_id is None:
            return Life.ENDED if outcome_of(folder) is not None else Life.LOST
        state, restarts = self._state(job_id)
        if state in WAITING:
            return Life.WAITING
        if state in ALIVE:
            return Life.RUNNING
        if not folder.end_file.exists():
            write_json(folder.end_file, _end_of(state, job_id, _exit_code(folder, restarts)))
        return Life.ENDED

    def cancel(self, folder: JobFolder) -> None:
        job_id = self._job_id(folder)
        if job_id is None:
            return
        _call(["scancel", job_id])
        deadline = time.monotonic() + CANCEL_S
        while self.poll(folder) in (Life.WAITING, Life.RUNNING):
            if time.monotonic() > deadline:
                raise RunnerError(f"Slurm job {job_id} is still there {CANCEL_S:.0f} s after scancel; end it by hand")
            time.sleep(POLL_S)

    def _job_id(self, folder: JobFolder) -> str | None:
        """From life.json; where the search was killed before it was written, by the job's or array's name. Raises RunnerError
        where squeue does not answer."""
        known = read_json(folder.life_file).get("slurm_job_id")
        if known is not None:
            return str(known)
        launch = read_json(folder.launch_file)
        if not launch:
            return None
        array = launch.get("array")
        done = _call(["squeue", "--noheader", "--array", f"--name={NAME_PREFIX}{array or folder.name}", "--format=%i"])
        if done.returncode:  # not "no such job": to take it so would submit the job a second time
            raise RunnerError(f"squeue does not answer: {_said(done)}")
        found = [number for number in done.stdout.split() if array is None or number.endswith(f"_{launch['task']}")]
        if not found:
            return None
        write_json(folder.life_file, {"slurm_job_id": found[0]})
        return found[0]

    def _state(self, job_id: str) -> tuple[str, int | None]:
        """(state, how often the job was queued again, where that is known); an empty state where nobody knows the job."""
        done = _call(["squeue", "--noheader", f"--jobs={job_id}", "--format=%T"])
        if done.returncode and "Invalid job id" not in done.stderr:
            raise RunnerError(f"squeue does not answer: {_said(done)}")
        state = done.stdout.strip()
        if state in WAITING or state in ALIVE:
            return state, None
        done = _call(["scontrol", "show", "job", job_id, "--oneliner"])
        fields = dict(re.findall(r"(\S+?)=(\S*)", done.stdout))
        if done.returncode == 0 and fields.get("JobState"):
            restarts = fields.get("Restarts", "")
            return fields["JobState"], int(restarts) if restarts.isdigit() else None
        if shutil.which("sacct") is not None:
            done = _call(["sacct", f"--jobs={job_id}", "--noheader", "--parsable2", "--allocations", "--format=State"])
            if done.returncode == 0 and done.stdout.strip():
                return done.stdout.strip().splitlines()[-1].split()[0], None
        return "", None

    def _script(self, folder: JobFolder, command: Sequence[str], limit_s: float) -> str:
        environment = {**self._environment, MARK: str(folder.path)}
        lines = [
            *self._header(folder.name, limit_s),
            f"#SBATCH --output={folder.log_file}",
            "#SBATCH --open-mode=append",
            f"cd {shlex.quote(str(folder.path))} || exit 1",
            f"rm -f {folder.exit_file.name}",
            *_log_limit(),
            *(f"export {name}={shlex.quote(value)}" for name, value in environment.items()),
            f"{SRUN if self._options.nodes > 1 else ''}{shlex.join(command)}",
            "code=$?",
            "kill $cutter 2> /dev/null",
            f"{EXIT_NOTE} > {folder.exit_file.name}",
            "exit $code",
        ]
        return "\n".join(lines) + "\n"

    def _array_script(self, name: str, jobs: Sequence[tuple[JobFolder, float]]) -> str:
        """Every task runs its folder's own script, and what it prints goes to that folder's log."""
        folders = " ".join(shlex.quote(str(folder.path)) for folder, _ in jobs)
        lines = [
            *self._header(name, max(limit_s for _, limit_s in jobs)),
            f"#SBATCH --array=0-{len(jobs) - 1}",
            "#SBATCH --output=/dev/null",
            f"folders=({folders})",
            "folder=${folders[$SLURM_ARRAY_TASK_ID]}",
            f'exec bash "$folder/{SCRIPT}" >> "$folder/{jobs[0][0].log_file.name}" 2>&1',
        ]
        return "\n".join(lines) + "\n"

    def _header(self, name: str, limit_s: float) -> list[str]:
        minutes = max(1, math.ceil(limit_s / 60))  # Slurm keeps limits in minutes
        return [
            "#!/bin/bash",
            f"#SBATCH --job-name={NAME_PREFIX}{name}",
            f"#SBATCH --time={minutes}",
            "#SBATCH --requeue",
            *self._options.lines(),
        ]


def _log_limit() -> list[str]:
    """Lines of a job's script that cut its logs in the background, as `folder.cut_logs` does."""
    last = f"{{ printf {shlex.quote(LOG_CUT)}; cat .$log.last; }} >> $log"
    cut = f"tail -c {LOG_KEPT_BYTES} $log > .$log.last && : > $log && {last}"
    look = f'[ "$(stat -c %s $log)" -le {LOG_MOST_BYTES} ] || {{ {cut}; rm -f .$log.last; }}'
    return [f"( while sleep {LOG_LOOK_S:g}; do for log in *.log; do {look}; done; done ) > /dev/null 2>&1 &", "cutter=$!"]


def check_programs() -> None:
    """Raises RunnerError where Slurm's programs are missing."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise RunnerError(f"Slurm's {', '.join(missing)} is not on PATH; run on a login node, or say --runner local")


def _exit_code(folder: JobFolder, restarts: int | None) -> int | None:
    """What the command ended with, as the job's script says; None where the script did not come to its end, or where only an
    earlier run did (`restarts`: how often Slurm queued the job again)."""
    said = read_json(folder.exit_file)
    code = said.get("exit_code")
    return code if isinstance(code, int) and restarts in (None, said.get("restarts")) else None


def _end_of(state: str, job_id: str, code: int | None) -> dict[str, object]:
    """end.json from a final state. FAILED alone does not mean that the command died: Slurm says so too of a job that it queued
    again after its node was lost and then could not start, because the node still holds the first run. The command's own exit
    code tells them apart."""
    if state == "TIMEOUT" or state == "DEADLINE":
        return {"reason": TIMEOUT, "detail": state, "seconds": 0.0}
    if state.startswith("CANCELLED"):
        return {"reason": CANCEL, "detail": state}
    if state in LOST_STATES:
        return {"reason": LOSS, "detail": f"Slurm job {job_id} ended as {state}"}
    if code is not None or state == OUT_OF_MEMORY:
        return {"reason": EXITED, "exit_code": "unknown" if code is None else code, "detail": state}
    if not state:
        return {"reason": LOSS, "detail": f"Slurm does not know job {job_id} any more"}
    why = "its node was lost, could not start it, or does not see its folder"
    return {"reason": LOSS, "detail": f"Slurm job {job_id} ended as {state} and its script did not come to its end: {why}"}


def _call(command: Sequence[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """One Slurm program; English messages. Raises RunnerError where it does not answer.

    In a process group of its own: a signal to ours (Ctrl-C, `kill -- -PGID`) asks for the end of the search, not of the
    program. One that a signal ended all the same (systemd's goes to all of a service) is called again, but for sbatch.
    """
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        for _ in range(1 if command[0] == "sbatch" else CALLS):
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=CALL_S,
                check=False,
                env=environment,
                cwd=cwd,
                errors="replace",
                process_group=0,
            )
            if done.returncode >= 0:
                break
        return done
    except subprocess.TimeoutExpired as error:
        raise RunnerError(f"{command[0]} does not answer within {CALL_S:.0f} s; is the Slurm controller up?") from error
    except OSError as error:
        raise RunnerError(f"{command[0]} cannot be started: {error.strerror or error}") from error


def _said(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join((done.stderr or done.stdout).split())[:300] or f"exit code {done.returncode}"
