"""A job that stands in for the training core: real processes, no torch. What it does is in the job's seed (see BEHAVIOUR).

Every start leaves a line in runs.txt, so that tests can count. oracle.json beside the job folders maps a plan to its step
seconds, or to "oom"; without one a plan takes 0.1 s.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autoconfig.specs.job import read_job  # noqa: E402
from autoconfig.specs.measurement import Measurement, RankFigures, measurement_text, step_statistics  # noqa: E402

MEASURE, HANG, DIE, GARBAGE, OTHERS, OUT_OF_MEMORY, HIDE, SLOW, FAIL = range(9)
BEHAVIOUR = {
    MEASURE: "measures", HANG: "never ends, deaf to SIGTERM", DIE: "ends with 1 and no result", GARBAGE: "half a result",
    OTHERS: "another job's result", OUT_OF_MEMORY: "oom", HIDE: "a child in a session of its own, then hangs",
    SLOW: "measures after a while", FAIL: "says that it failed",
}  # fmt: skip


def main() -> int:
    folder = Path.cwd()
    job = read_job(folder / "job.json")
    with (folder / "runs.txt").open("a") as runs:
        runs.write(f"{os.getpid()}\n")
    print("started", flush=True)
    behaviour = job.seed % 1000
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


def write(folder: Path, job, behaviour: int) -> None:
    oracle = Path(os.environ.get("STAND_IN_ORACLE", folder.parent / "oracle.json"))
    step = json.loads(oracle.read_text()).get(str(job.plan), 0.1) if oracle.exists() else 0.1
    time.sleep(float(os.environ.get("STAND_IN_EVERY_SECONDS", "0")))
    while (token := os.environ.get("STAND_IN_TOKEN")) and not taken(Path(token)):
        time.sleep(0.05)
    status = "oom" if behaviour == OUT_OF_MEMORY or step == "oom" else "failed" if behaviour == FAIL else "ran"
    digest = "0" * 64 if behaviour == OTHERS else job.content_hash
    times = step_statistics((step, step, step)) if status == "ran" else {}
    ranks = (RankFigures(rank=0, pipeline_stage=0, peak_allocated_bytes=2**20),)
    measurement = Measurement(
        job_hash=digest, plan=str(job.plan), status=status, exit_code={"ran": 0, "oom": 10, "failed": 1}[status],
        message="" if status == "ran" else "as told", ranks=ranks, **times,
    )  # fmt: skip
    temporary = folder / "result.tmp"
    temporary.write_text(measurement_text(measurement))
    temporary.replace(folder / "result.json")


if __name__ == "__main__":
    sys.exit(main())
