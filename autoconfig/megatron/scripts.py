"""Launch scripts for torchrun and Slurm. Every value is quoted; what the user may set is a variable with a default.

Nothing here reads or runs anything: text in, text out.
"""

from __future__ import annotations

from autoconfig.megatron.write import MOCK_STEPS, environment, train_arguments
from autoconfig.megatron.write_model import GROUPS, Argument, not_written, unsaid_scaling
from autoconfig.planning.export_files import MARK, quoted, remark, slug
from autoconfig.specs.errors import GIB
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
WIDTH = 128


def torchrun_script(scenario: Scenario, plan: TrainPlan, report: PlanReport | None) -> str:
    """A script that starts this node's processes with torchrun; on several nodes it runs once on each."""
    cluster = scenario.cluster
    per_node = min(cluster.gpus_per_node, cluster.num_gpus)
    last = cluster.num_nodes - 1
    rank = f"${{NODE_RANK:?set it to the number of this node, 0 to {last}}}" if last else "${NODE_RANK:-0}"
    address = "${MASTER_ADDR:?set it to the host name of node 0}" if last else "${MASTER_ADDR:-localhost}"
    launch = [
        "torchrun",
        f'--nproc-per-node "{per_node}"',
        f'--nnodes "{cluster.num_nodes}"',
        f'--node-rank "{rank}"',
        f'--master-addr "{address}"',
        '--master-port "${MASTER_PORT:-29500}"',
        f'"$MEGATRON_PATH/{_program(scenario)}" "${{ARGUMENTS[@]}}"',
    ]
    use = [f"Start: {start_command(scenario)}"]
    return _script(scenario, plan, report, use, [], ["exec " + " \\\n    ".join(launch)])


def _program(scenario: Scenario) -> str:
    """Megatron-LM's program that trains such models."""
    return "pretrain_hybrid.py" if scenario.model.is_hybrid else "pretrain_gpt.py"


def start_command(scenario: Scenario) -> str:
    """What to type beside the torchrun script."""
    nodes = scenario.cluster.num_nodes
    if nodes == 1:
        return f"bash {TORCHRUN_SCRIPT}"
    return f"on each of {nodes} nodes: NODE_RANK=(0 to {nodes - 1}) MASTER_ADDR=(host of node 0) bash {TORCHRUN_SCRIPT}"


def sbatch_script(scenario: Scenario, plan: TrainPlan, report: PlanReport | None) -> str:
    """A Slurm batch script: one task a node, each starting torchrun with the node's number."""
    cluster = scenario.cluster
    per_node = min(cluster.gpus_per_node, cluster.num_gpus)
    directives = [
        f"#SBATCH --job-name={slug(scenario.model.name)}",
        f"#SBATCH --nodes={cluster.num_nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={per_node}",
        "#SBATCH --exclusive",
        "#SBATCH --output=%x-%j.log",
    ]
    launch = [
        'MASTER_ADDR="${MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}"',
        'MASTER_PORT="${MASTER_PORT:-29500}"',
        "export MASTER_ADDR MASTER_PORT",
        "",
        "# shellcheck disable=SC2016  # expanded on each node, where SLURM_NODEID is that node's number",
        "exec srun --kill-on-bad-exit=1 bash -c "
        f'\'exec torchrun --nproc-per-node "{per_node}" --nnodes "{cluster.num_nodes}" --node-rank "$SLURM_NODEID" '
        '--master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" "$@"\' \\',
        f'    torchrun "$MEGATRON_PATH/{_program(scenario)}" "${{ARGUMENTS[@]}}"',
    ]
    use = [f"Start: sbatch {SBATCH_SCRIPT} (add --partition and --account where your cluster needs them)"]
    return _script(scenario, plan, report, use, directives, launch)


def _script(
    scenario: Scenario, plan: TrainPlan, report: PlanReport | None, use: list[str], directives: list[str], launch: list[str]
) -> str:
    arguments = train_arguments(scenario, plan)
    lines = ["#!/usr/bin/env bash", *directives, f"{MARK}: {remark(scenario.model.name)}, {plan}", "#"]
    lines += [f"# {remark(line)}".rstrip() for line in [*story(scenario, plan, report), "", *use]]
    lines += ["set -eu", "", *_variables(scenario, starts_elsewhere=bool(directives))]
    exports = environment(scenario, plan).items()
    lines += [f"unset {name}" if value is None else f"export {name}={quoted(value)}" for name, value in exports]
    lines += [""] if exports else []
    for group in GROUPS:
        chosen = [argument for argument in arguments if argument.group == group]
        if chosen:
            lines += [f"# --- {TITLES[group]} ---", f"{group.upper()}_ARGUMENTS=(", *map(argument_line, chosen), ")", ""]
    lines += _data(scenario)
    written = [group for group in GROUPS if any(a.group == group for a in arguments)]
    optional = ["rope"] if _fuses_rope(scenario) else []
    names = [f'"${{{group.upper()}_ARGUMENTS[@]}}"' for group in [*written, "data", "run", *optional, "checkpoint"]]
    lines += ["ARGUMENTS=(", *(f"    {name}" for name in names), '    "$@"', ")", ""]
    return "\n".join([*lines, *launch, ""])


def story(scenario: Scenario, plan: TrainPlan, report: PlanReport | None) -> list[str]:
    """What was chosen, for what, and what is expected of it."""
    cluster, numerics, workload = scenario.cluster, scenario.numerics, scenario.workload
    nodes = "1 node" if cluster.num_nodes == 1 else f"{cluster.num_nodes} nodes"
    lines = [
        f"{scenario.model.name} on {cluster.num_gpus:,} x {cluster.gpu.id} ({nodes}); {numerics.precision}, "
        f"sequence {workload.seq_length:,}, global batch {workload.global_batch_size:,}; for megatron-core 0.19.",
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
            f"{report.limit_bytes / GIB:.1f} GiB, chance to fit {confidence.fit_probability:.0%}.",
            f"Calibration: {confidence.level}; {confidence.calibrated_on}.",
            f"Largest parts of the step: {largest_parts(report)}.",
        ]  # fmt: skip
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


def _variables(scenario: Scenario, *, starts_elsewhere: bool) -> list[str]:
    """`starts_elsewhere`: on the batch host, which may have other software than the nodes where the job runs."""
    lines = [
        "# --- Yours to set, here or in the environment ---",
        'MEGATRON_PATH="${MEGATRON_PATH:-./Megatron-LM}"  # a checkout of Megatron-LM (core_v0.19.x)',
        'DATA_PATH="${DATA_PATH:-}"  # prefix of preprocessed data (.bin, .idx); empty: mock data',
        'TOKENIZER_TYPE="${TOKENIZER_TYPE:-HuggingFaceTokenizer}"  # used with DATA_PATH',
        'TOKENIZER_MODEL="${TOKENIZER_MODEL:-}"  # name or path of the tokenizer, used with DATA_PATH',
        'CHECKPOINT_DIR="${CHECKPOINT_DIR:-}"  # empty: nothing is saved or loaded',
        f'TRAIN_STEPS="${{TRAIN_STEPS:-{MOCK_STEPS}}}"',
        'LEARNING_RATE="${LEARNING_RATE:-1e-4}"',
    ]
    if _base_unknown(scenario):
        lines.append("ROTARY_BASE=\"${ROTARY_BASE:-10000}\"  # Megatron's default: set your model's rope_theta")
    if reason := unsaid_scaling(scenario.model):
        lines.append(f"# NOT WRITTEN, Megatron-LM has no argument for it: scaling of rotary positions, {remark(reason)}")
    if missing := not_written(scenario.model):
        lines.append("# NOT WRITTEN, set them as your model's config.json has them (they change results, not time or memory):")
        lines += [f"#   {name}" for name in missing]
    if _fuses_rope(scenario):
        lines.append("# yes: the fused RoPE kernel, which is Transformer Engine's; no: where the job finds none")
        probe = "import importlib.util as u; print('yes' if u.find_spec('transformer_engine') else 'no')"
        asked = f'$(python3 -c "{probe}" 2>/dev/null || true)'
        lines.append(f'ROPE_FUSION="${{ROPE_FUSION:-{"yes" if starts_elsewhere else asked}}}"')
    return [*lines, ""]


def _base_unknown(scenario: Scenario) -> bool:
    """Positions are rotary, and of which base the model's source does not say."""
    return scenario.model.position_embedding_type in ("rope", "yarn") and scenario.model.rotary_base is None


def _fuses_rope(scenario: Scenario) -> bool:
    """Megatron refuses to start with its default, the fused kernel, where Transformer Engine is missing."""
    model = scenario.model
    return (
        model.position_embedding_type == "rope"
        and not model.multi_latent_attention
        and scenario.software.name != "megatron-local"
    )


def argument_line(argument: Argument) -> str:
    """One line of an array: the argument, its values in quotes, its comment."""
    line = "    " + " ".join([argument.flag, *map(quoted, argument.values)])
    return f"{line}  # {remark(argument.comment)}" if argument.comment else line


def _data(scenario: Scenario) -> list[str]:
    vocab = quoted(str(scenario.model.vocab_size))
    lines = [
        "# --- Data, length of the run, checkpoints ---",
        f"DATA_ARGUMENTS=(--mock-data --tokenizer-type 'NullTokenizer' --vocab-size {vocab})",
        'if [ -n "$DATA_PATH" ]; then',
        '    DATA_ARGUMENTS=(--data-path "$DATA_PATH" --split \'99,1,0\' --tokenizer-type "$TOKENIZER_TYPE"',
        '        --tokenizer-model "$TOKENIZER_MODEL")',
        "fi",
        "RUN_ARGUMENTS=(--train-iters \"$TRAIN_STEPS\" --lr \"$LEARNING_RATE\" --min-lr '0' --lr-decay-style 'cosine'",
        "    --eval-interval '1000' --eval-iters '0' --log-interval '1' --log-throughput)",
    ]
    if _base_unknown(scenario):
        lines.append('RUN_ARGUMENTS+=(--rotary-base "$ROTARY_BASE")')
    if _fuses_rope(scenario):
        lines += ["ROPE_ARGUMENTS=()", 'if [ "$ROPE_FUSION" != "yes" ]; then', "    ROPE_ARGUMENTS=(--no-rope-fusion)", "fi"]
    return [
        *lines,
        "CHECKPOINT_ARGUMENTS=()",
        'if [ -n "$CHECKPOINT_DIR" ]; then',
        '    CHECKPOINT_ARGUMENTS=(--save "$CHECKPOINT_DIR" --load "$CHECKPOINT_DIR" --save-interval \'1000\')',
        "fi",
        "",
    ]
