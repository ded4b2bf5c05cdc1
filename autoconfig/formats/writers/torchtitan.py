"""torchtitan's settings: TOML as its trainer of 2025 reads them."""

from __future__ import annotations

from typing import Any

from autoconfig.formats.words import NumericsWords, Settings, Written, catalogue_name, flat, foreign, head
from autoconfig.specs.plan import NONE, OP, Recompute, TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.training.space import Constraints

NUMERICS: NumericsWords = {
    "precision": {"bf16", "fp8"},
    "fp8_recipe": {"tensorwise"},
    "fp8_param_gather": {False, True},
    "grad_reduce_dtype": {"fp32"},
}
KEYS = ("tp", "pp", "cp", "ep", "etp", "sp", "fsdp", "recompute", "vpp", "first", "last")
FULL, BY_OPERATOR = Recompute("full", (), "uniform", 1), Recompute("selective", (OP,))
FLAVOURS = {
    "llama3-8b": ("llama3", "8B"), "llama3-70b": ("llama3", "70B"), "llama3.1-8b": ("llama3", "8B"),
    "llama3.1-70b": ("llama3", "70B"), "llama3.1-405b": ("llama3", "405B"), "deepseek-v3": ("deepseek_v3", "671B"),
    "deepseek-v2-lite": ("deepseek_v3", "16B"), "gpt-oss-20b": ("gpt_oss", "20b"), "gpt-oss-120b": ("gpt_oss", "120b"),
    "qwen3-0.6b": ("qwen3", "0.6B"), "qwen3-1.7b": ("qwen3", "1.7B"), "qwen3-4b": ("qwen3", "4B"),
    "qwen3-8b": ("qwen3", "8B"), "qwen3-14b": ("qwen3", "14B"), "qwen3-32b": ("qwen3", "32B"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B"), "qwen3-235b-a22b": ("qwen3", "235B-A22B"), "deepseek-v2": ("deepseek_v3", "236B"),
    "llama4-scout": ("llama4", "17bx16e"), "llama4-maverick": ("llama4", "17bx128e"),
}  # fmt: skip
"""Names of torchtitan's registries for catalogue models (torchtitan/models/*/__init__.py)."""
WITHOUT_PIPELINE = ("qwen3", "gpt_oss")
"""Models of torchtitan 0.2.2 whose pipelining_fn is None (train.py raises)."""
FLOAT8 = "quantize.linear.float8"
"""Its converter and its table (torchtitan/components/quantization/float8.py); without a recipe's name it scales by tensor."""
BY_FLEX = ("deepseek_v3", "gpt_oss")
"""Models whose attention is torch's FlexAttention, beside which it has no context parallelism (infra/parallelize.py)."""
WISH = Constraints(
    fixed={
        "recompute": frozenset({NONE, FULL, BY_OPERATOR}),
        "fsdp": frozenset({0, 2, 3}),
        "dist_opt": frozenset({False}),
        "offload": frozenset({0.0}),
    }
)
"""Plans that a file can say."""


def values(scenario: Scenario, plan: TrainPlan) -> dict[str, Any]:
    """The file's tables that a plan decides."""
    name, flavour = FLAVOURS.get(catalogue_name(scenario.model), ("", ""))
    workload = scenario.workload
    local = workload.global_batch_size // plan.dp // workload.schedule_calls if plan.pp > 1 else plan.mbs
    parallel: dict[str, Any] = {
        "data_parallel_replicate_degree": 1 if plan.fsdp else plan.dp,
        "data_parallel_shard_degree": plan.dp if plan.fsdp else 1,
        "fsdp_reshard_after_forward": "always" if plan.fsdp == 3 else "never",
        "tensor_parallel_degree": plan.tp,
        "pipeline_parallel_degree": plan.pp,
        "context_parallel_degree": plan.cp,
        "expert_parallel_degree": plan.ep,
    }
    if scenario.given.async_tp:
        parallel["enable_async_tensor_parallel"] = True
    if plan.etp > 1:
        parallel["expert_tensor_parallel_degree"] = plan.etp
    if plan.pp > 1:
        each, first, last = _stages(scenario, plan)
        parallel |= {
            "pipeline_parallel_schedule": "Interleaved1F1B" if plan.vpp > 1 else "1F1B",
            "pipeline_parallel_microbatch_size": plan.mbs,
            "pipeline_parallel_first_stage_less_layers": first,
            "pipeline_parallel_last_stage_less_layers": last,
            "pipeline_parallel_layers_per_stage": each,
        }
    return {
        "model": {
            "name": name,
            "flavor": flavour,
            "converters": [FLOAT8] if scenario.numerics.precision == "fp8" else [],
        },
        "training": {
            "local_batch_size": local,
            "global_batch_size": scenario.workload.global_batch_size,
            "seq_len": scenario.workload.seq_length,
        },
        "parallelism": parallel,
        "activation_checkpoint": _checkpoint(plan.recompute),
        **({"compile": {"enable": True}} if scenario.given.compile else {}),
        **(
            {FLOAT8: {"enable_fsdp_float8_all_gather": scenario.numerics.fp8_param_gather}}
            if scenario.numerics.precision == "fp8"
            else {}
        ),
    }


def _stages(scenario: Scenario, plan: TrainPlan) -> tuple[int, int, int]:
    """(layers of a full stage, those that the first one lacks, those that the last one lacks); a rank has `vpp` stages."""
    layers, stages = scenario.model.num_layers, plan.pp * plan.vpp
    if plan.first is None or plan.last is None:
        return -(-layers // stages), 0, 0
    between = (layers - plan.first - plan.last) // max(plan.pp - 2, 1)
    full = max(plan.first, plan.last) if plan.pp == 2 else between
    return full // plan.vpp, full - plan.first, full - plan.last


def _checkpoint(recompute: Recompute) -> dict[str, str]:
    if recompute == BY_OPERATOR:
        return {"mode": "selective", "selective_ac_option": "op"}
    return {"mode": "none" if recompute == NONE else "full"}


def settings(scenario: Scenario, plan: TrainPlan) -> Settings:
    """The values that depend on the plan, by path."""
    found = flat(values(scenario, plan))
    return {path: texts for path, texts in found.items() if not path.startswith("model.") and path != "training.seq_len"}


def refused(scenario: Scenario, plan: TrainPlan) -> list[str]:
    """What a file has no words for."""
    found = foreign(scenario, plan, KEYS, NUMERICS, options=("compile", "async_tp"))
    if plan.recompute not in (NONE, FULL, BY_OPERATOR):
        found.append(f"recompute={plan.recompute}")
    if plan.tp > 1 and not plan.sp:
        found.append("sp=0 (its tensor parallelism divides the sequence, too)")
    alone, unsharded = plan.fsdp and plan.dp * plan.cp == 1, not plan.fsdp and plan.cp > 1
    if alone or unsharded:
        found.append(f"fsdp={plan.fsdp} (it shards over data and context parallelism, wherever there is any)")
    if not plan.fsdp and plan.dp > 1 and max(plan.tp, plan.pp, plan.ep) > 1:
        found.append("fsdp=0 beside other parallelism (its DDP stands alone: models/*/infra/parallelize.py)")
    family, _ = FLAVOURS.get(catalogue_name(scenario.model), ("", ""))
    if plan.pp > 1 and family in WITHOUT_PIPELINE:
        found.append(f"pp={plan.pp} (its {family} has no pipeline)")
    if plan.cp > 1 and family in BY_FLEX:
        found.append(f"cp={plan.cp} (its {family} has FlexAttention, which its context parallelism refuses)")
    layers, stages = scenario.model.num_layers, plan.pp * plan.vpp
    each, *lacking = _stages(scenario, plan)
    if min(lacking) < 0 or max(lacking) >= each or layers + sum(lacking) != each * stages:
        found.append(f"stages of {layers} layers over {stages}: first={plan.first},last={plan.last}")
    if catalogue_name(scenario.model) not in FLAVOURS:
        found.append(f"model {scenario.model.name}: none of torchtitan's flavours")
    return found


def write(scenario: Scenario, plan: TrainPlan) -> Written:
    """train.toml."""
    lines = [f"# {head(scenario, plan)}"]
    for table, inside in values(scenario, plan).items():
        lines += ["", f"[{table}]", *(f"{key} = {_toml(value)}" for key, value in inside.items())]
    nodes = f"on {scenario.cluster.num_nodes} nodes" if scenario.cluster.num_nodes > 1 else "on one node"
    unsaid = (f"{scenario.cluster.num_gpus} GPUs {nodes}: torchrun's --nnodes and --nproc-per-node",)
    return Written(file_name="train.toml", text="\n".join([*lines, ""]), unsaid=unsaid)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)
