"""Megatron-FSDP's own rules, as validate_args has them (megatron/training/arguments.py of 0.19.2).

Ids are those of `autoconfig/data/megatron_constraints.csv`. Plans cannot say Megatron-FSDP: these rules are of files only.
"""

from __future__ import annotations

from dataclasses import replace

from autoconfig.megatron.argument_list import Arguments
from autoconfig.specs.plan import TrainPlan
from autoconfig.training.price import Violation

CHECKPOINT = "NV102"
ONE_CONNECTION = "CUDA_DEVICE_MAX_CONNECTIONS"
OPTIMIZERS = ("adam", "sgd")


def fsdp_violations(a: Arguments) -> list[Violation]:
    """Rules that the arguments break; none without `--use-megatron-fsdp` (its older name, `--use-custom-fsdp`, had none)."""
    if not a.has("--use-megatron-fsdp"):
        return []
    strategy, form = a.text("--data-parallel-sharding-strategy") or "no_shard", a.text("--ckpt-format") or "torch_dist"
    optimizer = a.text("--optimizer") or "adam"
    interval = "--check-weight-hash-across-dp-replicas-interval"
    broken = [
        (CHECKPOINT, form != "fsdp_dtensor", f"needs --ckpt-format fsdp_dtensor, and this is {form}"),
        (CHECKPOINT, optimizer not in OPTIMIZERS, f"needs --optimizer adam or sgd, and this is {optimizer}"),
        (
            CHECKPOINT,
            a.has("--moe-single-grouped-weight", "--moe-single-grouped-bias"),
            "excludes --moe-single-grouped-weight and --moe-single-grouped-bias",
        ),
        (
            CHECKPOINT,
            a.has(interval) and strategy == "optim_grads_params",
            f"with --data-parallel-sharding-strategy optim_grads_params excludes {interval}",
        ),
        (
            "NV105",
            a.has("--init-model-with-meta-device") and strategy == "no_shard",
            "with --data-parallel-sharding-strategy no_shard excludes --init-model-with-meta-device",
        ),
        (
            "NV108",
            a.has("--fsdp-manual-registration") and not a.has("--use-nccl-ub"),
            "takes --fsdp-manual-registration with --use-nccl-ub only",
        ),
        (CHECKPOINT, a.has("--hybrid-context-parallel"), "excludes --hybrid-context-parallel"),
    ]
    return [Violation(rule=rule, text=f"Megatron-FSDP {text}") for rule, is_broken, text in broken if is_broken]


def connections_violation(value: str) -> list[Violation]:
    """The environment: `value` is what the script sets CUDA_DEVICE_MAX_CONNECTIONS to, empty where it does not."""
    if value != "1":
        return []
    return [Violation(rule=CHECKPOINT, text=f"Megatron-FSDP needs {ONE_CONNECTION} unset or above 1; the file sets it to 1")]


def as_megatron_takes_it(plan: TrainPlan) -> TrainPlan:
    """The plan whose rules hold: the distributed optimizer is forced on (NV103), and torch FSDP2's rules are not its."""
    return replace(plan, fsdp=0, dist_opt=True)
