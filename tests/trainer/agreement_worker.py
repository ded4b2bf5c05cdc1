"""Under torchrun: runs every case of cases.json and writes losses and gradients to answers.json. Started by test_agreement.py.

A case is a job. Per parameter of the undivided model: the norm of its gradient, and its product with a random tensor that
is drawn by name, whole, so that a gradient in the wrong place shows. Ranks that hold the same share must hold the same numbers.
"""

import contextlib
import gc
import hashlib
import json
import math
import signal
import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from autoconfig.specs.job import Job, read_job_text  # noqa: E402
from autoconfig.trainer.host.limits import leave_out_compiler  # noqa: E402

leave_out_compiler()  # two fifths of the start of every rank
from autoconfig.trainer.host.cpu import cpu_for_cuda, without_engine  # noqa: E402
from autoconfig.trainer.host.live_memory import LiveMemory  # noqa: E402
from autoconfig.trainer.optimizer import parallel_groups  # noqa: E402
from autoconfig.trainer.training import Training, build, forward_backward, forward_backward_and_update, mean_over_ranks  # noqa: E402
from autoconfig.trainer.weights import global_parameters, is_divided, local_share, tensor_group  # noqa: E402


def answer(job: Job) -> dict:
    with contextlib.ExitStack() as scope, parallel_groups(job, 120.0):
        memory = LiveMemory()
        scope.enter_context(memory)
        training = build(job, torch.device("cpu"), memory)
        losses, norms = [], []
        gradients = {} if job.plan.dist_opt else gradients_by_parameter(training)
        for step in range(3):
            reports, norm = forward_backward_and_update(training, step)
            losses.append(mean_over_ranks(reports, torch.device("cpu")))
            norms.append(norm)
        found = {"losses": losses, "norms": norms, "gradients": gradients, "peak": memory.peak}
        release(training)
    return found


def release(training: Training) -> None:
    """Take model and optimizer apart. Hooks of autograd's nodes and caches of methods hold them out of the garbage collector's
    sight; each case would keep its process groups, whose threads gloo ends with the last reference."""
    modules = [module for chunk in training.chunks for module in chunk.modules()]
    optimizers = getattr(training.optimizer, "chained_optimizers", [])
    for part in (*modules, *optimizers, training.optimizer, training):
        vars(part).clear()
    gc.collect()


def gradients_by_parameter(training: Training) -> dict:
    """{name: [norm, product]} of the first step's gradient, the same on every rank."""
    for chunk in training.chunks:
        chunk.zero_grad_buffer()
    forward_backward(training, 0)
    mine = []
    for name, parameter in global_parameters([chunk.module for chunk in training.chunks], training.job.model):
        probe = local_share(probe_for(name, parameter), name, parameter, training.job.model)
        gradient = parameter.main_grad.double()
        place = tensor_group(parameter)[0] if is_divided(parameter) else 0
        mine.append([name, place, float(gradient.square().sum()), float((gradient * probe).sum())])
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    shares: dict[tuple[str, int], list[float]] = {}
    for name, place, square, product in (entry for rank in everyone for entry in rank):
        known = shares.setdefault((name, place), [square, product])
        assert math.isclose(known[0], square, rel_tol=1e-9, abs_tol=1e-18), f"{name}: replicas differ"
    whole: dict[str, list[float]] = {}
    for (name, _), values in shares.items():
        total = whole.setdefault(name, [0.0, 0.0])
        whole[name] = [total[0] + values[0], total[1] + values[1]]
    return {name: [math.sqrt(square), product] for name, (square, product) in whole.items()}


def probe_for(name: str, parameter: torch.nn.Parameter) -> torch.Tensor:
    shape = list(parameter.shape)
    if is_divided(parameter):
        shape[parameter.partition_dim] *= tensor_group(parameter)[1]
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def main(folder: Path) -> None:
    signal.alarm(300)  # whatever happens, this process ends
    cases = json.loads((folder / "cases.json").read_text())
    answers = {}
    with cpu_for_cuda(), without_engine():
        dist.init_process_group("gloo")
        for name, text in cases.items():
            try:
                answers[name] = answer(read_job_text(text))
            except Exception as error:
                raise RuntimeError(f"case {name}: {type(error).__name__}: {error}") from error
        if dist.get_rank() == 0:
            (folder / "answers.json").write_text(json.dumps(answers))
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
