"""Launch scripts for torchrun and Slurm, by the templates of autoconfig/data/templates. Every value is quoted; what the user
may set is a variable with a default.

Nothing here reads or runs anything: text in, text out.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

import numpy as np

from autoconfig.megatron.batch.time_limit import SAVING_MINUTES, has_time, how_long, job_minutes, slurm_time
from autoconfig.megatron.flag_table import GROUPS, Argument
from autoconfig.megatron.write import MOCK_STEPS, environment, train_arguments
from autoconfig.megatron.write_model import not_written, unsaid, vocabulary_words
from autoconfig.planning.export_files import MARK, UNWRITTEN, filled_template, priced_as, quoted, remark, slug
from autoconfig.specs.errors import GIB, chance_text
from autoconfig.specs.models.model_catalogue import load_model, model_names
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.training.answer import largest_parts
from autoconfig.training.price import FLOPS_CONVENTION, PlanReport

TORCHRUN_SCRIPT = "train.sh"
SBATCH_SCRIPT = "train.sbatch"
TITLES = {
    "model": "Model",
    "plan": "Plan",
    "batch": "Batch",
    "numerics": "Numerics",
    "optimizer": "Optimizer",
    "overlap": "What runs beside what",
}
DISTRIBUTED_TIMEOUT_MINUTES = 60
"""For ten by default, in which a large checkpoint or the first compilation may not end: Megatron-LM,
examples/llama/train_llama3_8b_h100_fp8.sh."""
GC_INTERVAL = 100
"""Steps between collections of Python's garbage, on all ranks at once, for a rank that collects alone holds up all others:
NVIDIA-NeMo/Megatron-Bridge, recipes (train.manual_gc_interval)."""


def torchrun_script(scenario: Scenario, plan: TrainPlan, report: PlanReport | None) -> str:
    """Return a script that starts this node's processes with torchrun; on several nodes it runs once on each."""
    passed = [*environment(scenario, plan), "PYTORCH_CUDA_ALLOC_CONF", "HF_TOKEN", "WANDB_API_KEY"]
    launch = _launch("launch.torchrun.sh", scenario, NODES_BEYOND_ONE=scenario.cluster.num_nodes - 1, PASSED=" ".join(passed))
    return _script(scenario, plan, report, [f"Start: {start_command(scenario)}"], [], launch)


def _launch(template: str, scenario: Scenario, **values: object) -> list[str]:
    """Return the lines that start torchrun, inside of a container where an image is named."""
    cluster = scenario.cluster
    mounts = filled_template("mounts.sh", ENCODER=scenario.model.encoder_num_layers).splitlines()
    return filled_template(
        template,
        MOUNTS=[f"    {line}" for line in mounts],
        PER_NODE=min(cluster.gpus_per_node, cluster.num_gpus),
        NODES=cluster.num_nodes,
        PROGRAM=_program(scenario),
        **values,
    ).splitlines()


def _program(scenario: Scenario) -> str:
    """Return Megatron-LM's program that trains such models."""
    model = scenario.model
    if model.encoder_num_layers:
        return "examples/t5/pretrain_t5.py" if model.is_encoder_decoder else "examples/bert/pretrain_bert.py"
    return "pretrain_hybrid.py" if model.is_hybrid else "pretrain_gpt.py"


def start_command(scenario: Scenario) -> str:
    """Return what to type beside the torchrun script."""
    nodes = scenario.cluster.num_nodes
    if nodes == 1:
        return f"bash {TORCHRUN_SCRIPT}"
    return f"on each of {nodes} nodes: NODE_RANK=(0 to {nodes - 1}) MASTER_ADDR=(host of node 0) bash {TORCHRUN_SCRIPT}"


def sbatch_script(scenario: Scenario, plan: TrainPlan, report: PlanReport | None, slurm: Sequence[str] = ()) -> str:
    """Return a Slurm batch script: one task a node, each starting torchrun with the node's number; `slurm`: further options."""
    cluster = scenario.cluster
    directives = [
        f"#SBATCH --job-name={slug(scenario.model.name)}",
        f"#SBATCH --nodes={cluster.num_nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={min(cluster.gpus_per_node, cluster.num_gpus)}",
        "#SBATCH --exclusive",
        "#SBATCH --mem=0",
        *([] if has_time(slurm) else [f"#SBATCH --time={slurm_time(job_minutes(report))}"]),
        "#SBATCH --output=%x-%j.log",
        *(f"#SBATCH {remark(one)}" for one in slurm),
    ]
    missing = [name for name in ("--partition", "--account") if not any(one.startswith(name) for one in slurm)]
    add = f" (add {' and '.join(missing)} where your cluster needs {'them' if len(missing) > 1 else 'it'})" if missing else ""
    use = [f"Start: sbatch {SBATCH_SCRIPT}{add}", *how_long(report, slurm)]
    return _script(scenario, plan, report, use, directives, _launch("launch.sbatch.sh", scenario, SAVING=SAVING_MINUTES))


def _script(
    scenario: Scenario, plan: TrainPlan, report: PlanReport | None, use: list[str], directives: list[str], launch: list[str]
) -> str:
    """Return a whole script. One with `directives` starts on the batch host, which may have other software than the nodes."""
    model, work = scenario.model, scenario.workload
    rate, source = learning_rate(scenario)
    arguments = train_arguments(scenario, plan)
    chosen = {group: rows for group in GROUPS if (rows := [argument for argument in arguments if argument.group == group])}
    arrays: list[str] = []
    for group, rows in chosen.items():
        arrays += [f"# --- {TITLES[group]} ---", f"{group.upper()}_ARGUMENTS=(", *map(argument_line, rows), ")", ""]
    rope = _fuses_rope(scenario)
    names = [*chosen, "data", "run", *(["rope"] if rope else []), "checkpoint"]
    size, extra = vocabulary_words(model)
    exports = environment(scenario, plan).items()
    story_lines = [f"# {remark(line)}".rstrip() for line in [*story(scenario, plan, report), "", *use]]
    return filled_template(
        "train.sh",
        DIRECTIVES=directives,
        HEAD=[f"{MARK}: {remark(model.name)}, {plan}", "#", *story_lines, *_as_it_stands(scenario, report)],
        ENCODER=model.encoder_num_layers,
        STEPS=_steps(scenario, report),
        RATE=rate,
        RATE_SOURCE=source,
        WARMUP=math.ceil(WARMUP_TOKENS / (work.seq_length * work.global_batch_size)),
        BASE_UNKNOWN=_base_unknown(scenario),
        TO_DECIDE=[*_longer_context(scenario), *_unwritten(scenario)],
        FUSES_ROPE=rope,
        HOST_RUNS=not directives,
        PERMUTES=model.is_moe and scenario.software.name != "megatron-local",
        EXPORTS=[f"unset {name}" if value is None else f"export {name}={quoted(value)}" for name, value in exports],
        GRAPHS=scenario.settings(plan).cuda_graphs,  # graphs and NCCL's buffers do not go with expandable segments
        ARRAYS=arrays,
        VOCABULARY=size,
        SENTINELS=extra if model.is_encoder_decoder else "",
        LOCAL=scenario.software.name == "megatron-local",
        RANKS=scenario.cluster.num_gpus > 1,
        TIMEOUT=DISTRIBUTED_TIMEOUT_MINUTES,
        GC_INTERVAL=GC_INTERVAL,
        FSDP=plan.fsdp,
        NAMES=[f'    "${{{name.upper()}_ARGUMENTS[@]}}"' for name in names],
        LAUNCH=launch,
    )


def _unwritten(scenario: Scenario) -> list[str]:
    """Return what of the model the script leaves out, or does not know."""
    missing = not_written(scenario.model)
    title = "# NOT WRITTEN, set them as your model's config.json has them (they change results, not time or memory):"
    lines = [f"{UNWRITTEN}{remark(reason)}" for reason in unsaid(scenario.model)]
    return [*lines, title, *(f"#   {name}" for name in missing)] if missing else lines


def story(scenario: Scenario, plan: TrainPlan, report: PlanReport | None) -> list[str]:
    """Return what was chosen, for what, and what is expected of it."""
    cluster, numerics, workload = scenario.cluster, scenario.numerics, scenario.workload
    nodes = "1 node" if cluster.num_nodes == 1 else f"{cluster.num_nodes} nodes"
    lines = [
        f"{scenario.model.name} on {cluster.num_gpus:,} x {cluster.gpu.id} ({nodes}); {numerics.precision}, "
        f"sequence {workload.seq_length:,}, global batch {workload.global_batch_size:,}; for megatron-core 0.19, "
        f"{priced_as(scenario)}.",
        f"Plan: {plan}",
    ]
    if report is not None:
        confidence = report.confidence
        lines += [
            f"Predicted step: {report.step_seconds:.3g} s (90 % band {confidence.step_seconds_p5:.3g} to "
            f"{confidence.step_seconds_p95:.3g} s), {report.tokens_per_second_per_gpu:,.0f} tokens/s/GPU, "
            f"{report.model_flops_per_second_per_gpu / 1e12:,.0f} TFLOPS/GPU ({FLOPS_CONVENTION} attention), "
            f"MFU {report.mfu:.1%}.",
            f"Predicted memory: {report.peak_bytes / GIB:.1f} GiB allocated on stage {report.worst_stage.stage}, limit "
            f"{report.limit_bytes / GIB:.1f} GiB, chance to fit {chance_text(confidence.fit_probability)}.",
            f"Calibration: {confidence.level}; {confidence.calibrated_on}.",
            f"Largest parts of the step: {largest_parts(report)}.",
        ]
        if not report.fits:
            lines.append("WARNING: this plan is predicted not to fit; it was asked for by name.")
    if plan.fsdp and numerics.fp8_param_gather:
        other = f"; {scenario.software.name}'s own FSDP, which is priced, keeps it"
        lines.append(
            "fp8_param_gather: not written, Megatron-LM switches it off under torch FSDP2 and gathers weights in bf16"
            + (f"{other}." if scenario.software.supports_fp8_param_gather_with_fsdp else ".")
        )
    if not scenario.software.generation.startswith(("megatron", "nemo")) and scenario.software.name != "transformer-engine":
        lines.append(f"The prediction is for {scenario.software.name}; Megatron-LM behaves otherwise.")
    return lines


def _as_it_stands(scenario: Scenario, report: PlanReport | None) -> list[str]:
    """Return what the script does where no variable is set; without the end of its last sentence."""
    steps = None if report is None else report.steps_to_train
    mock = not scenario.model.encoder_num_layers
    smoke = f"# As it stands this is a smoke test: {MOCK_STEPS} steps{' on mock data' if mock else ''}, nothing saved."
    if steps is None:
        return [f"{smoke} A real job sets DATA_PATH, TRAIN_STEPS,"]
    whole = f"trains the {steps:,} steps of the tokens asked for. A real job sets"
    return [smoke, f"# With DATA_PATH it {whole}"] if mock else [f"# It {whole}"]


def _steps(scenario: Scenario, report: PlanReport | None) -> list[str]:
    """Return the number of steps: of the tokens asked for where there are data, else of a smoke test."""
    steps = None if report is None else report.steps_to_train
    if report is None or steps is None:
        return [f'TRAIN_STEPS="${{TRAIN_STEPS:-{MOCK_STEPS}}}"']
    tokens = f"# the tokens asked for, {scenario.workload.tokens_per_step:,.0f} a step: {report.days_to_train:,.3g} days"
    if scenario.model.encoder_num_layers:
        return [tokens, f'TRAIN_STEPS="${{TRAIN_STEPS:-{steps}}}"']
    return [
        f"{tokens}; on mock data a smoke test",
        'REAL_DATA="$DATA_PATH$TRAIN_DATA_PATH$DATA_ARGS_PATH"',
        f'TRAIN_STEPS="${{TRAIN_STEPS:-${{REAL_DATA:+{steps}}}}}"',
        f'TRAIN_STEPS="${{TRAIN_STEPS:-{MOCK_STEPS}}}"',
    ]


def _base_unknown(scenario: Scenario) -> bool:
    """Whether positions are rotary and the model's source does not say of which base."""
    return scenario.model.position_embedding_type in ("rope", "yarn") and scenario.model.rotary_base is None


LONG_CONTEXT = 8192
"""Positions up to which models of no known origin are not taken for extended ones."""


def _longer_context(scenario: Scenario) -> list[str]:
    """Return what to decide about rotary positions where sequences are longer than the model was made for. Of a model that is
    not in the catalogue that length is not known: a long sequence that is just what the model holds is named."""
    model, length = scenario.model, scenario.workload.seq_length
    if model.position_embedding_type not in ("rope", "yarn"):
        return []
    own = load_model(model.name).max_position_embeddings if model.name in model_names() else None
    if length <= own if own is not None else length <= LONG_CONTEXT or length < model.max_position_embeddings:
        return []
    made = f"longer than the {own:,} that {model.name} was made for" if own is not None else "as long as the model holds"
    base = "ROTARY_BASE above" if model.rotary_base is None else f"--rotary-base {model.rotary_base} below, the model's own,"
    return [
        f"# TO DECIDE: sequences of {length:,} are {remark(made)}.",
        f"# {base} is kept: extending a context takes a larger base (Code Llama: 10,000 to",
        "# 1,000,000 for 16,384; Roziere et al. 2023) or scaled positions; both change what is learned, not time or memory.",
    ]


def _fuses_rope(scenario: Scenario) -> bool:
    """Whether Megatron's default is the fused kernel, with which it refuses to start where Transformer Engine is missing."""
    model = scenario.model
    return (
        model.position_embedding_type == "rope"
        and not model.multi_latent_attention
        and scenario.software.name != "megatron-local"
    )


def argument_line(argument: Argument) -> str:
    """Return one line of an array: the argument, its values in quotes, its comment."""
    line = "    " + " ".join([argument.flag, *map(quoted, argument.values)])
    return f"{line}  # {remark(argument.comment)}" if argument.comment else line


LEARNING_RATES = (
    (125e6, 6e-4), (350e6, 3e-4), (760e6, 2.5e-4), (1.3e9, 2e-4), (2.7e9, 1.6e-4), (6.7e9, 1.2e-4), (13e9, 1e-4), (175e9, 6e-5),
)  # fmt: skip
"""Parameters and learning rate of GPT-3's sizes: Brown et al. 2020, Table 2.1."""
WARMUP_TOKENS = 375e6
"""Brown et al. 2020, appendix B: linear warm-up over the first 375 million tokens."""


def learning_rate(scenario: Scenario) -> tuple[str, str]:
    """Return (rate, where it is from): between GPT-3's sizes interpolated in the logarithms of parameters and rate, beyond them
    the nearest one's. An assumption for models of other kinds; their own papers name better ones."""
    parameters = total_parameters(scenario.model)
    sizes, rates = zip(*LEARNING_RATES, strict=True)
    rate = math.exp(np.interp(math.log(parameters), np.log(sizes), np.log(rates)))
    above = bisect.bisect(sizes, parameters)
    near = sizes[max(0, above - 1) : above + 1]
    sizes_near = " and ".join(f"{size / 1e9:.3g} B" for size in near)
    how = f"interpolated between GPT-3's of {sizes_near}" if len(near) > 1 else f"GPT-3's of {sizes_near}"
    return f"{rate:.1e}".replace("e-0", "e-"), f"for {parameters / 1e9:.3g} B parameters, {how} (Brown et al. 2020, Table 2.1)"
