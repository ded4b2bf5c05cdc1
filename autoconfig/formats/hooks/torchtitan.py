"""torchtitan's TOML (data/maps/torchtitan.toml): its stages, batches and quantised modules.

Stages: torchtitan spreads layers with embedding and output counted as layers (`generate_llm_fqn_per_model_part`,
torchtitan/distributed/pipeline_parallel.py): the first stages take one more where they do not divide.
"""

from __future__ import annotations

from typing import Any

from autoconfig.formats.mapped import Hooks, MappedFormat
from autoconfig.formats.record import Document, TrainerRun
from autoconfig.formats.words import catalogue_name
from autoconfig.maps.read import Reading
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.remarks import Effect, Remark
from autoconfig.specs.scenario import Scenario
from autoconfig.training.plan_rules import PipelineSplit

WITHOUT_PIPELINE = ("qwen3", "gpt_oss")
"""Models of torchtitan 0.2.2 whose pipelining_fn is None (train.py raises)."""
FLOAT8 = "quantize.linear.float8"
"""Its converter and its table (torchtitan/components/quantization/float8.py); without a recipe's name it scales by tensor."""
BY_FLEX = ("deepseek_v3", "gpt_oss")
"""Models whose attention is torch's FlexAttention, beside which it has no context parallelism (infra/parallelize.py)."""
SAME = {"llama3-8b": "llama3.1-8b", "llama3-70b": "llama3.1-70b"}
"""Catalogue models of the shape of another one, which is read."""


def _model(name: str) -> str | None:
    """Return the catalogue's name of a registry's name and flavour, of which the table does not hold all; None: one lacks."""
    words = name.split(" ", 1)
    return "-".join(words).lower().replace("_", "-") if all(words) else None


def _complete(reading: Reading, document: Document) -> None:
    """Add batches, GPUs and precision. Raises InputError, UnsupportedError."""
    fields = reading.fields
    local, pp, whole = fields["local_batch"], fields["pp"], fields.get("global_batch", -1)
    micro = local if pp == 1 else fields["pipeline_batch"]
    if local % micro:
        raise InputError(f"training.local_batch_size {local} is no multiple of the pipeline's micro-batch {micro}")
    fields |= {"micro_batch": micro, "global_batch": whole if whole > 0 else None}
    fields |= {"accumulation": local // micro if whole < 0 else None, "schedule_samples": local if pp > 1 else None}
    copies, shards = fields["copies"], fields["shards"]
    if copies > 1 and shards != 1:
        raise UnsupportedError(
            f"data_parallel_replicate_degree {copies}: weights, gradients and optimizer are sharded over part of the GPUs "
            "only, with a copy in each such part, which plans cannot say; set it to 1 to check sharding over all"
        )
    fields["gpus"] = shards * copies * fields["tp"] * pp * fields["cp"] if shards > 0 else None
    fields.setdefault("fsdp", 3 if pp == 1 else 2)
    if shards == 1 and fields["cp"] == 1:
        fields["fsdp"] = 0
    _read_compilation(reading)
    _read_quantisation(reading)


def _read_compilation(reading: Reading) -> None:
    """Add what torch.compile fuses: layers and loss, or the named components (compile.components, by default both)."""
    fields = reading.fields
    fields["async_tp"] = fields["async_tp"] or None
    if not fields["compile"]:
        reading.assumed.append(Remark("compile", False, "the file does not switch it on", Effect.MEMORY_AND_TIME))
        return
    parts = fields.get("compiled_parts", ["model", "loss"])
    fields |= {"compiled": "model" in parts, "loss_fusion": "compiled" if "loss" in parts else ""}


def _read_quantisation(reading: Reading) -> None:
    """Add the precision of modules that converters quantise. Raises UnsupportedError."""
    fields = reading.fields
    names = [name for name in fields["converters"] if "grouped_mm" not in name]
    if any("float8" in name for name in names) or fields["float8"]:
        if fields["float8_recipe"] != "tensorwise":
            raise UnsupportedError(f"float8 recipe {fields['float8_recipe'][:40]!r}: only tensorwise is read")
        fields |= {"precision": "fp8", "fp8_recipe": "tensorwise", "fp8_param_gather": fields["float8_gather"]}
    if any("mx" in name for name in names):
        fields |= {"precision": "fp8", "fp8_recipe": "mxfp8"}


def _finish(reading: Reading, run: TrainerRun) -> None:
    """Add what depends on the model: stages, and whether its experts are quantised. Raises InputError."""
    fields = reading.fields
    if run.pp > 1:
        run.vpp, run.split = _stages(reading, run.model.num_layers)
    if fields["balanced"] and run.model.is_moe:
        run.numerics = {**run.numerics, "moe_imbalance": 1.0}
    names = fields["converters"]
    experts = [name for name in names if "grouped_mm" in name]
    if experts and len(experts) == len(names):
        why = "GEMMs of routed experts in 8 bits are priced in 16: a step may be faster"
        run.not_modelled.insert(0, Remark("model.converters", ",".join(experts), why, Effect.TIME))
    elif run.model.is_moe and not experts and any("float8" in name or "mx" in name for name in names):
        why = "leaves routed experts in 16 bits (quantize.grouped_mm.* quantises them); priced in 8: a step is slower"
        run.not_modelled.insert(0, Remark("model.converters", ",".join(names), why, Effect.TIME))
    if run.numerics.get("optimizer") == "muon":
        why = "its Newton-Schulz iterations are left out of the time"
        run.assumed.append(Remark("optimizer", "muon", why, Effect.TIME))


def _stages(reading: Reading, layers: int) -> tuple[int, PipelineSplit]:
    """Return the stages of a rank and where the layers are. Raises InputError."""
    fields = reading.fields
    pp, schedule, each = fields["pp"], fields["schedule"], fields.get("stage_layers")
    counted = layers + fields["first_less"] + fields["last_less"]
    stages = -(-counted // each) if each else pp * (2 if schedule == "several" else 1)
    if stages % pp:
        raise InputError(f"pipeline_parallel_layers_per_stage {each}: {stages} stages are no multiple of {pp} ranks")
    if (stages == pp) != (schedule == "one"):
        wanted = "one stage" if schedule == "one" else "at least two stages"
        name = (reading.section.word(*TORCHTITAN.table.entry("schedule").keys) or "1F1B").lower()
        raise InputError(f"pipeline_parallel_schedule {name} has {wanted} a rank, and the file gives {stages // pp}")
    sizes = [counted // stages + int(number < counted % stages) for number in range(stages)]
    sizes[0] -= fields["first_less"]
    sizes[-1] -= fields["last_less"]
    if min(sizes) < 1:
        raise InputError(f"{layers} layers are too few for {stages} pipeline stages")
    return stages // pp, PipelineSplit(vpp=stages // pp, layers=tuple(sum(sizes[rank::pp]) for rank in range(pp)))


def _written(scenario: Scenario, plan: TrainPlan, fields: dict[str, Any]) -> None:
    """Add the fields that torchtitan has another way."""
    each, first, last = _written_stages(scenario, plan)
    workload, by_float8 = scenario.workload, scenario.numerics.precision == "fp8"
    fields |= {
        "model": SAME.get(fields["model"], fields["model"]),
        "converters": [FLOAT8] if by_float8 else [],
        "float8_gather": scenario.numerics.fp8_param_gather if by_float8 else None,
        "local_batch": workload.global_batch_size // plan.dp // workload.schedule_calls if plan.pp > 1 else plan.mbs,
        "copies": 1 if plan.fsdp else plan.dp,
        "shards": plan.dp if plan.fsdp else 1,
        "schedule": "several" if plan.vpp > 1 else "one",
        "pipeline_batch": plan.mbs,
        "first_less": first,
        "last_less": last,
        "stage_layers": each,
    }


def _written_stages(scenario: Scenario, plan: TrainPlan) -> tuple[int, int, int]:
    """Return layers of a full stage, those that the first one lacks, those that the last one lacks; a rank has `vpp` stages."""
    layers, stages = scenario.model.num_layers, plan.pp * plan.vpp
    if plan.first is None or plan.last is None:
        return -(-layers // stages), 0, 0
    between = (layers - plan.first - plan.last) // max(plan.pp - 2, 1)
    full = max(plan.first, plan.last) if plan.pp == 2 else between
    return full // plan.vpp, full - plan.first, full - plan.last


def _refused(scenario: Scenario, plan: TrainPlan) -> list[str]:
    """Return what torchtitan does not do."""
    name = catalogue_name(scenario.model)
    flavour = TORCHTITAN.table.entry("model").word_of({"model": SAME.get(name, name)})
    family = (flavour or "").partition(" ")[0]
    unsharded = plan.fsdp == 0
    odd = {
        f"recompute={plan.recompute}": plan.recompute not in TORCHTITAN.wish.fixed["recompute"],
        "sp=0 (its tensor parallelism divides the sequence, too)": plan.tp > 1 and not plan.sp,
        f"fsdp={plan.fsdp} (it shards over data and context parallelism, wherever there is any)": (
            plan.cp > 1 if unsharded else plan.dp * plan.cp == 1
        ),
        "fsdp=0 beside other parallelism (its DDP stands alone: models/*/infra/parallelize.py)": (
            unsharded and plan.dp > 1 and max(plan.tp, plan.pp, plan.ep) > 1
        ),
        f"pp={plan.pp} (its {family} has no pipeline)": plan.pp > 1 and family in WITHOUT_PIPELINE,
        f"cp={plan.cp} (its {family} has FlexAttention, which its context parallelism refuses)": (
            plan.cp > 1 and family in BY_FLEX
        ),
        f"stages of {scenario.model.num_layers} layers over {plan.pp * plan.vpp}: first={plan.first},last={plan.last}": (
            not _is_even(scenario, plan)
        ),
        f"model {scenario.model.name}: none of torchtitan's flavours": flavour is None,
    }
    return [text for text, holds in odd.items() if holds]


def _is_even(scenario: Scenario, plan: TrainPlan) -> bool:
    """Return whether its stages, of which the first and the last may be smaller, hold the layers of the plan."""
    each, *lacking = _written_stages(scenario, plan)
    whole = scenario.model.num_layers + sum(lacking) == each * plan.pp * plan.vpp
    return min(lacking) >= 0 and max(lacking) < each and whole


def _unsaid(scenario: Scenario, plan: TrainPlan) -> list[str]:
    nodes = f"on {scenario.cluster.num_nodes} nodes" if scenario.cluster.num_nodes > 1 else "on one node"
    return [f"{scenario.cluster.num_gpus} GPUs {nodes}: torchrun's --nnodes and --nproc-per-node"]


TORCHTITAN = MappedFormat(
    name="torchtitan",
    hooks=Hooks(model=_model, complete=_complete, finish=_finish, written=_written, refused=_refused, unsaid=_unsaid),
)
