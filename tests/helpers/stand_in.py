"""A job that stands in for the training core: real processes, no torch. What it does is in the job's seed (see BEHAVIOUR).
Hundreds are started, so it imports nothing of ours: it reads job.json and hashes it by the rule of specs/job.py.

Every start leaves a line in runs.txt, so that tests can count. oracle.json beside the job folders maps a plan to its step
seconds, or to "oom"; without one a plan takes 0.1 s.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

NOT_CONTENT = ("name", "default_seq_length", "default_global_batch_size", "published_parameters", "norm_epsilon", "router")
"""Of the model: they change nothing in the run."""
MEASURE, HANG, DIE, GARBAGE, OTHERS, OUT_OF_MEMORY, HIDE, SLOW, FAIL = range(9)
BEHAVIOUR = {
    MEASURE: "measures", HANG: "never ends, deaf to SIGTERM", DIE: "ends with 1 and no result", GARBAGE: "half a result",
    OTHERS: "another job's result", OUT_OF_MEMORY: "oom", HIDE: "a child in a session of its own, then hangs",
    SLOW: "measures after a while", FAIL: "says that it failed",
}  # fmt: skip


def main() -> int:
    folder = Path.cwd()
    job = json.loads((folder / "job.json").read_text())
    with (folder / "runs.txt").open("a") as runs:
        runs.write(f"{os.getpid()}\n")
    print("started", flush=True)
    behaviour = job["seed"] % 1000
    if behaviour == HANG:
        subprocess.run(["bash", "-c", "trap '' TERM; while true; do sleep 1; done"], check=False)
    if behaviour == HIDE:
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        time.sleep(1000)
    if behaviour == DIE:
        print("the reason is here", flush=True)
        return 1
    if behaviour == SLOW:
        time.sleep(float(os.environ.get("STAND_IN_SECONDS", "2")))
    if behaviour == GARBAGE:
        (folder / "result.json").write_text('{"schema_version": 1, "job_ha')
        return 0
    write(folder, job, behaviour)
    return 0


def taken(token: Path) -> bool:
    """Whether the file was there, which lets one job end."""
    try:
        token.unlink()
    except FileNotFoundError:
        return False
    return True


def content_hash(job: dict) -> str:
    content = {key: value for key, value in job.items() if key != "generation" or value is not None}
    usual = {"weights_are_masters": False, "optimizer": "adamw", "optimizer_in_backward": False}
    content["numerics"] = {key: value for key, value in job["numerics"].items() if key not in usual or value != usual[key]}
    content["workload"] = {key: value for key, value in job["workload"].items() if key != "schedule_calls" or value != 1}
    content["model"] = {key: value for key, value in job["model"].items() if key not in NOT_CONTENT}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write(folder: Path, job: dict, behaviour: int) -> None:
    oracle = Path(os.environ.get("STAND_IN_ORACLE", folder.parent / "oracle.json"))
    step = json.loads(oracle.read_text()).get(job["plan"], 0.1) if oracle.exists() else 0.1
    time.sleep(float(os.environ.get("STAND_IN_EVERY_SECONDS", "0")))
    while (token := os.environ.get("STAND_IN_TOKEN")) and not taken(Path(token)):
        time.sleep(0.05)
    status = "oom" if behaviour == OUT_OF_MEMORY or step == "oom" else "failed" if behaviour == FAIL else "ran"
    times = {"step_seconds": step, "step_seconds_spread": 0.0, "step_seconds_samples": [step] * 3} if status == "ran" else {}
    measurement = {
        "schema_version": 1, "job_hash": "0" * 64 if behaviour == OTHERS else content_hash(job), "plan": job["plan"],
        "status": status, "exit_code": {"ran": 0, "oom": 10, "failed": 1}[status],
        "message": "" if status == "ran" else "as told",
        "ranks": [{"rank": 0, "pipeline_stage": 0, "peak_allocated_bytes": 2**20}], **times,
    }  # fmt: skip
    temporary = folder / "result.tmp"
    temporary.write_text(json.dumps(measurement))
    temporary.replace(folder / "result.json")


if __name__ == "__main__":
    sys.exit(main())
