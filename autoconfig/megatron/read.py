"""From a list of Megatron-LM arguments to a question and a plan: what `autoconfig check` reads.

Every argument is used, listed as ignored (known, but it changes neither memory nor time nor legality: data, paths, logging), or
listed as unknown. Contradictory ones are InputErrors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoconfig.megatron.argument_list import Arguments, Choices, split_arguments
from autoconfig.megatron.read_model import read_model
from autoconfig.megatron.read_plan import read_numerics, read_plan, read_seq_length
from autoconfig.megatron.read_software import read_software, software_name
from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.hardware.cluster import ClusterSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import resolve_model
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import SoftwareStack, load_stack
from autoconfig.training.pipeline_split import PipelineSplit
from autoconfig.training.price import Violation

_READ_ELSEWHERE = ("--world-size", "--local-rank", "--rank", "--deepspeed-config", "--nnodes", "--nproc-per-node")

_NOT_TRAINING = {
    "--out-seq-length": "text generation",
    "--sample-input-file": "text generation",
    "--text-generate-input-file": "text generation",
    "--text-generate-output-file": "text generation",
    "--model-provider": "inference",
    "--task": "an evaluation task",
    "--task-list": "an evaluation task",
    "--language-model-type": "a multimodal model",
}
"""Arguments of programs that train no language model."""
CHECKPOINT = "NV102"
ONE_CONNECTION = "CUDA_DEVICE_MAX_CONNECTIONS"
OPTIMIZERS = ("adam", "sgd")


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """What the caller says instead of the file; None or empty: as the file says."""

    model: str | None = None
    software: str | None = None
    seq_length: int | None = None
    global_batch_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class ArgumentsRead:
    """What an argument list says."""

    model: ModelSpec
    numerics: Numerics
    stack: SoftwareStack
    workload: Workload
    plan: TrainPlan
    split: PipelineSplit | None
    """Where the file places the layers itself (a layout or the account-for flags)."""
    megatron_fsdp: bool
    fsdp_broken: tuple[Violation, ...]
    """Rules of Megatron-FSDP that the arguments break."""
    unknown: tuple[str, ...]
    ignored: tuple[str, ...]
    assumed: tuple[str, ...]
    arguments: Arguments


def read_arguments(
    argv: Sequence[str],
    cluster: ClusterSpec,
    overrides: Overrides | None = None,
    unread: Mapping[int, str] | None = None,
    choices: Choices | None = None,
) -> ArgumentsRead:
    """Model, numerics, software, workload and plan of an argument list on a cluster. Raises InputError."""
    overrides = overrides or Overrides()
    arguments = split_arguments(argv, unread, choices)
    for name, kind in _NOT_TRAINING.items():
        if arguments.has(name):
            raise UnsupportedError(f"{name}: this is {kind}; only the training of decoder-only transformers can be checked")
    assumed = [f"{name} is given more than once: the last one counts" for name in arguments.repeated]
    model = _model(arguments, overrides, assumed)
    seq = overrides.seq_length or read_seq_length(arguments)
    arguments.has("--seq-length")
    found = read_plan(arguments, model, cluster.num_gpus, assumed)
    batch = overrides.global_batch_size or found.global_batch_size
    if seq > model.max_position_embeddings:
        assumed.append(f"max_position_embeddings raised from {model.max_position_embeddings} to the sequence length {seq}")
        model = model.replace(max_position_embeddings=seq)
    numerics = read_numerics(arguments, model, assumed)
    workload = Workload(seq_length=seq, global_batch_size=batch)
    stack = load_stack(overrides.software or software_name(arguments, assumed))
    plain = Scenario(model=model, cluster=cluster, numerics=numerics, software=stack, workload=workload)
    stack = read_software(arguments, plain, found.plan, assumed, megatron_fsdp=found.megatron_fsdp)
    fsdp_broken = tuple(fsdp_violations(arguments))
    for name in _READ_ELSEWHERE:
        arguments.has(name)
    return ArgumentsRead(
        model=model,
        numerics=numerics,
        stack=stack,
        workload=workload,
        plan=found.plan,
        split=found.split,
        megatron_fsdp=found.megatron_fsdp,
        fsdp_broken=fsdp_broken,
        unknown=(*arguments.unknown, *arguments.depends()),
        ignored=arguments.not_used(),
        assumed=tuple(assumed),
        arguments=arguments,
    )


def _model(arguments: Arguments, overrides: Overrides, assumed: list[str]) -> ModelSpec:
    if overrides.model is None:
        return read_model(arguments, assumed)
    model, notes = resolve_model(overrides.model)
    assumed += [*notes, f"model {model.name} instead of the file's (--model)"]
    return model


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
