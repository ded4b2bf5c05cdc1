"""Stands where Megatron-LM's pretrain_gpt.py is on a cluster: trains on the CPU, with the project's training core and real
megatron-core, what plan.json in the working folder says, and refuses where the command line says something else."""

import os
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from autoconfig.specs.job import Job, job_text  # noqa: E402

from autoconfig.megatron.export import read_plan_text  # noqa: E402


def told(option: str) -> int:
    return int(sys.argv[sys.argv.index(option) + 1])


if __name__ == "__main__":
    scenario, plan = read_plan_text(Path("plan.json").read_text())
    assert told("--tensor-model-parallel-size") == plan.tp and told("--micro-batch-size") == plan.mbs
    assert told("--num-layers") == scenario.model.num_layers and int(os.environ["WORLD_SIZE"]) == plan.world_size
    job = Job(
        model=scenario.model, plan=plan, workload=scenario.workload, numerics=scenario.numerics, device="cpu",
        steps=2, warmup_steps=1,
    )  # fmt: skip
    own = Path(f"job-{os.environ['RANK']}.json")
    own.write_text(job_text(job))
    sys.argv = ["trainer", "--job", str(own), "--output", "."]
    runpy.run_module("autoconfig.trainer", run_name="__main__")
