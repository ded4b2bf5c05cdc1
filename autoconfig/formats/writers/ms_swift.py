"""ms-swift's Megatron-SWIFT: a script that starts `megatron sft` with Megatron-LM's arguments in its spelling."""

from __future__ import annotations

from autoconfig.formats.words import Settings, Written, catalogue_name, foreign, head
from autoconfig.formats.writers.megatron_yaml import refused as refused_by_megatron
from autoconfig.maps.table import load_map
from autoconfig.megatron.check import plan_flags
from autoconfig.planning.export_files import quoted, remark
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import hub_id
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario

SWIFT = load_map("ms_swift").more


def settings(scenario: Scenario, plan: TrainPlan) -> Settings:
    """Return the arguments that depend on the plan."""
    texts: Settings = {}
    for flag, values in plan_flags(scenario, plan).items():
        if flag not in SWIFT["sets_itself"]:
            texts["--" + flag.removeprefix("--").replace("-", "_")] = values or ("true",)
    texts.setdefault("--recompute_granularity", ("none",))  # selective is its default
    texts["--use_distributed_optimizer"] = (str(plan.dist_opt).lower(),)
    return texts


def refused(scenario: Scenario, plan: TrainPlan) -> list[str]:
    """Return what it has no arguments for."""
    odd = foreign(scenario, plan, **SWIFT["says"])
    if plan.cp > 1 and (scenario.model.window_size or scenario.model.attention_sinks):
        odd.append(f"cp={plan.cp} of windows or sinks, whose exchange it does not say (--cp-comm-type)")
    return odd or refused_by_megatron(scenario, plan)


def _checkpoint(model: ModelSpec) -> str:
    """Return the id on the hub that ms-swift loads, where the catalogue knows one; else the model's name."""
    name = catalogue_name(model) or model.name
    return hub_id(name) or name


def write(scenario: Scenario, plan: TrainPlan) -> Written:
    """Return swift.sh."""
    cluster, dtype = scenario.cluster, "float16" if scenario.numerics.precision == "fp16" else "bfloat16"
    per_node = min(cluster.gpus_per_node, cluster.num_gpus)
    arguments = {
        "--model": ('"$MODEL"',),
        "--dataset": ('"$DATASET"',),
        "--torch_dtype": (dtype,),
        "--train_type": ("full",),
        "--max_length": (str(scenario.workload.seq_length),),
        "--global_batch_size": (str(scenario.workload.global_batch_size),),
    } | {flag: tuple(map(quoted, values)) for flag, values in settings(scenario, plan).items()}
    lines = [f"    {' '.join([flag, *values])}" for flag, values in arguments.items()]
    text = "\n".join(
        [
            "#!/usr/bin/env bash",
            f"# {remark(head(scenario, plan))}",
            "set -eu",
            f'MODEL="${{MODEL:-{_checkpoint(scenario.model)}}}"  # id or path of the checkpoint',
            'DATASET="${DATASET:?set it to a data set of ms-swift}"',
            f'export NPROC_PER_NODE="{per_node}" NNODES="{cluster.num_nodes}"',
            "megatron sft \\",
            " \\\n".join(lines),
            "",
        ]
    )
    return Written(file_name="swift.sh", text=text, unsaid=("data, learning rate: ms-swift's own arguments",))
