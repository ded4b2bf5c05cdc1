"""Launch scripts for torchrun and Slurm. Every value is quoted; what the user may set is a variable with a default.

Nothing here reads or runs anything: text in, text out.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

import numpy as np

from autoconfig.megatron.batch.container import mount_lines
from autoconfig.megatron.batch.time_limit import exit_lines, has_time, how_long, job_minutes, run_arguments, slurm_time
from autoconfig.megatron.write import MOCK_STEPS, environment, train_arguments
from autoconfig.megatron.write_model import GROUPS, Argument, not_written, unsaid, vocabulary_words
from autoconfig.planning.export_files import MARK, UNWRITTEN, priced_as, quoted, remark, slug
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
    start = 'exec ${CONTAINER[@]+"${CONTAINER[@]}"} '
    return _script(scenario, plan, report, use, [], [*_docker(scenario, plan), start + " \\\n    ".join(launch)])


def _docker(scenario: Scenario, plan: TrainPlan) -> list[str]:
    """Lines that start torchrun inside of a container where an image is named."""
    names = [*environment(scenario, plan), "PYTORCH_CUDA_ALLOC_CONF", "HF_TOKEN", "WANDB_API_KEY"]
    return [
        "CONTAINER=()",
        'if [ -n "$CONTAINER_IMAGE" ]; then',
        "    CONTAINER=(docker run --rm --gpus all --ipc host --network host --ulimit memlock=-1 --ulimit stack=67108864",
        '        --workdir "$PWD")',
        *(f"    {line}" for line in mount_lines(scenario)),
        f'    for name in {" ".join(names)}; do CONTAINER+=(--env "$name"); done',
        '    for mount in ${CONTAINER_MOUNTS//,/ }; do CONTAINER+=(--volume "$mount"); done',
        '    CONTAINER+=("$CONTAINER_IMAGE")',
        "fi",
        "",
    ]


def _program(scenario: Scenario) -> str:
    """Megatron-LM's program that trains such models."""
    model = scenario.model
    if model.encoder_num_layers:
        return "examples/t5/pretrain_t5.py" if model.is_encoder_decoder else "examples/bert/pretrain_bert.py"
    return "pretrain_hybrid.py" if model.is_hybrid else "pretrain_gpt.py"


def start_command(scenario: Scenario) -> str:
    """What to type beside the torchrun script."""
    nodes = scenario.cluster.num_nodes
    if nodes == 1:
        return f"bash {TORCHRUN_SCRIPT}"
    return f"on each of {nodes} nodes: NODE_RANK=(0 to {nodes - 1}) MASTER_ADDR=(host of node 0) bash {TORCHRUN_SCRIPT}"


def sbatch_script(scenario: Scenario, plan: TrainPlan, report: PlanReport | None, slurm: Sequence[str] = ()) -> str:
    """A Slurm batch script: one task a node, each starting torchrun with the node's number; `slurm` holds further options."""
    cluster = scenario.cluster
    per_node = min(cluster.gpus_per_node, cluster.num_gpus)
    directives = [
        f"#SBATCH --job-name={slug(scenario.model.name)}",
        f"#SBATCH --nodes={cluster.num_nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={per_node}",
        "#SBATCH --exclusive",
        "#SBATCH --mem=0",
        *([] if has_time(slurm) else [f"#SBATCH --time={slurm_time(job_minutes(report))}"]),
        "#SBATCH --output=%x-%j.log",
        *(f"#SBATCH {remark(one)}" for one in slurm),
    ]
    launch = [
        *exit_lines(),
        'MASTER_ADDR="${MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}"',
        'MASTER_PORT="${MASTER_PORT:-29500}"',
        "export MASTER_ADDR MASTER_PORT",
        "CONTAINER=()  # for srun with pyxis",
        'if [ -n "$CONTAINER_IMAGE" ]; then',
        *(f"    {line}" for line in mount_lines(scenario)),
        '    CONTAINER=(--container-image "$CONTAINER_IMAGE" --container-mounts "$CONTAINER_MOUNTS")',
        '    CONTAINER+=(--container-workdir "$PWD")',
        "fi",
        "",
        "# shellcheck disable=SC2016  # expanded on each node, where SLURM_NODEID is that node's number",
        'exec srun --kill-on-bad-exit=1 ${CONTAINER[@]+"${CONTAINER[@]}"} bash -c '
        f'\'exec torchrun --nproc-per-node "{per_node}" --nnodes "{cluster.num_nodes}" --node-rank "$SLURM_NODEID" '
        '--master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" "$@"\' \\',
        f'    torchrun "$MEGATRON_PATH/{_program(scenario)}" "${{ARGUMENTS[@]}}"',
    ]
    missing = [name for name in ("--partition", "--account") if not any(one.startswith(name) for one in slurm)]
    add = f" (add {' and '.join(missing)} where your cluster needs {'them' if len(missing) > 1 else 'it'})" if missing else ""
    use = [f"Start: sbatch {SBATCH_SCRIPT}{add}", *how_long(report, slurm)]
    return _script(scenario, plan, report, use, directives, launch)


def _script(
    scenario: Scenario, plan: TrainPlan, report: PlanReport | None, use: list[str], directives: list[str], launch: list[str]
) -> str:
    arguments = train_arguments(scenario, plan)
    lines = ["#!/usr/bin/env bash", *directives, f"{MARK}: {remark(scenario.model.name)}, {plan}", "#"]
    lines += [f"# {remark(line)}".rstrip() for line in [*story(scenario, plan, report), "", *use]]
    lines += [*_as_it_stands(scenario, report), "# CHECKPOINT_DIR, and its own LEARNING_RATE where it has one."]
    lines += ["set -eu", "", *_variables(scenario, report, starts_elsewhere=bool(directives))]
    exports = environment(scenario, plan).items()
    lines += [f"unset {name}" if value is None else f"export {name}={quoted(value)}" for name, value in exports]
    if not scenario.settings(plan).cuda_graphs:  # graphs and NCCL's buffers do not go with it
        lines.append("# less fragmentation than the prediction takes")
        lines.append('export PYTORCH_CUDA_ALLOC_CONF="${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}"')
    lines += [""]
    for group in GROUPS:
        chosen = [argument for argument in arguments if argument.group == group]
        if chosen:
            lines += [f"# --- {TITLES[group]} ---", f"{group.upper()}_ARGUMENTS=(", *map(argument_line, chosen), ")", ""]
    lines += _data(scenario, plan)
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
    """What the script does where no variable is set; without the end of its last sentence."""
    steps = None if report is None else report.steps_to_train
    mock = not scenario.model.encoder_num_layers
    smoke = f"# As it stands this is a smoke test: {MOCK_STEPS} steps{' on mock data' if mock else ''}, nothing saved."
    if steps is None:
        return [f"{smoke} A real job sets DATA_PATH, TRAIN_STEPS,"]
    whole = f"trains the {steps:,} steps of the tokens asked for. A real job sets"
    return [smoke, f"# With DATA_PATH it {whole}"] if mock else [f"# It {whole}"]


def _steps(scenario: Scenario, report: PlanReport | None) -> list[str]:
    """The number of steps: of the tokens asked for where there are data, else of a smoke test."""
    steps = None if report is None else report.steps_to_train
    if report is None or steps is None:
        return [f'TRAIN_STEPS="${{TRAIN_STEPS:-{MOCK_STEPS}}}"']
    said = f"# the tokens asked for, {scenario.workload.tokens_per_step:,.0f} a step: {report.days_to_train:,.3g} days"
    if scenario.model.encoder_num_layers:
        return [said, f'TRAIN_STEPS="${{TRAIN_STEPS:-{steps}}}"']
    return [
        f"{said}; on mock data a smoke test",
        'REAL_DATA="$DATA_PATH$TRAIN_DATA_PATH$DATA_ARGS_PATH"',
        f'TRAIN_STEPS="${{TRAIN_STEPS:-${{REAL_DATA:+{steps}}}}}"',
        f'TRAIN_STEPS="${{TRAIN_STEPS:-{MOCK_STEPS}}}"',
    ]


def _variables(scenario: Scenario, report: PlanReport | None, *, starts_elsewhere: bool) -> list[str]:
    """`starts_elsewhere`: on the batch host, which may have other software than the nodes where the job runs."""
    work, (rate, source) = scenario.workload, learning_rate(scenario)
    warm = math.ceil(WARMUP_TOKENS / (work.seq_length * work.global_batch_size))
    lines = [
        "# --- Yours to set, here or in the environment ---",
        'MEGATRON_PATH="${MEGATRON_PATH:-./Megatron-LM}"  # a checkout of Megatron-LM (core_v0.19.x)',
        *_data_variables(scenario),
        'CHECKPOINT_DIR="${CHECKPOINT_DIR:-}"  # empty: nothing is saved or loaded',
        *_steps(scenario, report),
        f"# {source}",
        f'LEARNING_RATE="${{LEARNING_RATE:-{rate}}}"',
        "# the first 375 million tokens (Brown et al. 2020, appendix B), a tenth of a short run",
        f'WARMUP_STEPS="${{WARMUP_STEPS:-$((TRAIN_STEPS / 10 < {warm} ? TRAIN_STEPS / 10 : {warm}))}}"',
        'EVAL_STEPS="${EVAL_STEPS:-0}"  # steps of an evaluation, every 1,000 steps',
        'SAVE_INTERVAL="${SAVE_INTERVAL:-1000}"  # steps between checkpoints',
        'TENSORBOARD_DIR="${TENSORBOARD_DIR:-}"',
        'WANDB_PROJECT="${WANDB_PROJECT:-}"',
        'WANDB_NAME="${WANDB_NAME:-${SLURM_JOB_NAME:-train}}"',
        'CONTAINER_IMAGE="${CONTAINER_IMAGE:-}"  # with PyTorch and Transformer Engine; empty: no container',
        'CONTAINER_MOUNTS="${CONTAINER_MOUNTS:-}"  # like /data:/data,/checkpoints:/checkpoints',
    ]
    if _base_unknown(scenario):
        lines.append("ROTARY_BASE=\"${ROTARY_BASE:-10000}\"  # Megatron's default: set your model's rope_theta")
    lines += _longer_context(scenario)
    lines += [f"{UNWRITTEN}{remark(reason)}" for reason in unsaid(scenario.model)]
    if missing := not_written(scenario.model):
        lines.append("# NOT WRITTEN, set them as your model's config.json has them (they change results, not time or memory):")
        lines += [f"#   {name}" for name in missing]
    if _fuses_rope(scenario):
        lines.append("# yes: the fused RoPE kernel, which is Transformer Engine's; no: where the job finds none")
        probe = "import importlib.util as u; print('yes' if u.find_spec('transformer_engine') else 'no')"
        asked = f'$(python3 -c "{probe}" 2>/dev/null || true)'
        if not starts_elsewhere:
            lines.append('ROPE_FUSION="${ROPE_FUSION:-${CONTAINER_IMAGE:+yes}}"  # without a container the host is asked')
        lines.append(f'ROPE_FUSION="${{ROPE_FUSION:-{"yes" if starts_elsewhere else asked}}}"')
    if _permutes(scenario):
        lines.append('PERMUTE_FUSION="${PERMUTE_FUSION:-yes}"  # tokens to experts by one kernel of Transformer Engine 2.1')
    return [*lines, ""]


def _data_variables(scenario: Scenario) -> list[str]:
    if scenario.model.encoder_num_layers:
        return [
            'DATA_PATH="${DATA_PATH:?prefix of preprocessed data (.bin, .idx): this program has no mock data}"',
            'VOCAB_FILE="${VOCAB_FILE:?vocabulary of the tokenizer}"',
            'TOKENIZER_TYPE="${TOKENIZER_TYPE:-BertWordPieceLowerCase}"',
            'export PYTHONPATH="$MEGATRON_PATH:${PYTHONPATH:-}"  # the program lies in examples/ and imports from the root',
        ]
    return [
        '# prefix of preprocessed data (.bin, .idx), or a blend like "0.7 /data/a 0.3 /data/b"; empty: mock data',
        'DATA_PATH="${DATA_PATH:-}"',
        'TRAIN_DATA_PATH="${TRAIN_DATA_PATH:-}"  # in its place: one blend for each split, with the two below',
        'VALID_DATA_PATH="${VALID_DATA_PATH:-}"',
        'TEST_DATA_PATH="${TEST_DATA_PATH:-}"',
        'DATA_ARGS_PATH="${DATA_ARGS_PATH:-}"  # in its place: a file that holds the words of a long blend',
        'DATA_CACHE_PATH="${DATA_CACHE_PATH:-}"  # a folder that all nodes see, for the index of a blend',
        'TOKENIZER_TYPE="${TOKENIZER_TYPE:-HuggingFaceTokenizer}"  # used with DATA_PATH',
        'TOKENIZER_MODEL="${TOKENIZER_MODEL:-}"  # name or path of the tokenizer, used with DATA_PATH',
    ]


def _permutes(scenario: Scenario) -> bool:
    """Tokens are permuted by one kernel, as mixtures of experts are priced."""
    return scenario.model.is_moe and scenario.software.name != "megatron-local"


def _base_unknown(scenario: Scenario) -> bool:
    """Positions are rotary, and of which base the model's source does not say."""
    return scenario.model.position_embedding_type in ("rope", "yarn") and scenario.model.rotary_base is None


LONG_CONTEXT = 8192
"""Positions up to which models of no known origin are not taken for extended ones."""


def _longer_context(scenario: Scenario) -> list[str]:
    """What to decide about rotary positions where sequences are longer than the model was made for. Of a model that is not in
    the catalogue it is not known: it is said where a long sequence is just what the model holds."""
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


LEARNING_RATES = (
    (125e6, 6e-4), (350e6, 3e-4), (760e6, 2.5e-4), (1.3e9, 2e-4), (2.7e9, 1.6e-4), (6.7e9, 1.2e-4), (13e9, 1e-4), (175e9, 6e-5),
)  # fmt: skip
"""Parameters and learning rate of GPT-3's sizes: Brown et al. 2020, Table 2.1."""
WARMUP_TOKENS = 375e6
"""Brown et al. 2020, appendix B: linear warm-up over the first 375 million tokens."""


def learning_rate(scenario: Scenario) -> tuple[str, str]:
    """(rate, where it is from): between GPT-3's sizes interpolated in the logarithms of parameters and rate, beyond them the
    nearest one's. An assumption for models of other kinds; their own papers name better ones."""
    parameters = total_parameters(scenario.model)
    sizes, rates = zip(*LEARNING_RATES, strict=True)
    rate = math.exp(np.interp(math.log(parameters), np.log(sizes), np.log(rates)))
    above = bisect.bisect(sizes, parameters)
    near = sizes[max(0, above - 1) : above + 1]
    said = " and ".join(f"{size / 1e9:.3g} B" for size in near)
    how = f"interpolated between GPT-3's of {said}" if len(near) > 1 else f"GPT-3's of {said}"
    return f"{rate:.1e}".replace("e-0", "e-"), f"for {parameters / 1e9:.3g} B parameters, {how} (Brown et al. 2020, Table 2.1)"


def _data_arguments(scenario: Scenario) -> list[str]:
    size, extra = (quoted(str(number)) for number in vocabulary_words(scenario.model))
    if scenario.model.encoder_num_layers:
        sentinels = f" --vocab-extra-ids {extra}" if scenario.model.is_encoder_decoder else ""
        return [
            "# shellcheck disable=SC2206  # a blend is several words",
            "DATA_ARGUMENTS=(--data-path $DATA_PATH --split '99,1,0' --tokenizer-type \"$TOKENIZER_TYPE\"",
            f'    --vocab-file "$VOCAB_FILE" --vocab-size {size}{sentinels})',
        ]
    whole_masks = scenario.software.name == "megatron-local"
    return [
        f"DATA_ARGUMENTS=(--mock-data --tokenizer-type 'NullTokenizer' --vocab-size {size})",
        "# shellcheck disable=SC2206  # a blend is several words",
        'if [ -n "$DATA_PATH" ]; then',
        "    DATA_ARGUMENTS=(--data-path $DATA_PATH --split '99,1,0')",
        'elif [ -n "$TRAIN_DATA_PATH" ]; then',
        "    DATA_ARGUMENTS=(--train-data-path $TRAIN_DATA_PATH --valid-data-path $VALID_DATA_PATH"
        " --test-data-path $TEST_DATA_PATH)",
        'elif [ -n "$DATA_ARGS_PATH" ]; then',
        "    DATA_ARGUMENTS=(--data-args-path \"$DATA_ARGS_PATH\" --split '99,1,0')",
        "else",
        '    echo "smoke test: $TRAIN_STEPS steps on mock data (set DATA_PATH for a real run)" >&2',
        "fi",
        'if [ -n "$DATA_PATH$TRAIN_DATA_PATH$DATA_ARGS_PATH" ]; then',
        '    DATA_ARGUMENTS+=(--tokenizer-type "$TOKENIZER_TYPE" --tokenizer-model'
        ' "${TOKENIZER_MODEL:?give the tokenizer of the data, its name or path}")',
        "fi",
        'if [ -n "$DATA_CACHE_PATH" ]; then',
        '    DATA_ARGUMENTS+=(--data-cache-path "$DATA_CACHE_PATH")',
        "fi",
        *([] if whole_masks else ["DATA_ARGUMENTS+=(--no-create-attention-mask-in-dataloader)  # kernels need none"]),
    ]


def _data(scenario: Scenario, plan: TrainPlan) -> list[str]:
    lines = [
        "# --- Data, length of the run, checkpoints ---",
        *_data_arguments(scenario),
        "RUN_ARGUMENTS=(--train-iters \"$TRAIN_STEPS\" --lr \"$LEARNING_RATE\" --min-lr '0' --lr-decay-style 'cosine'",
        "    --lr-warmup-iters \"$WARMUP_STEPS\" --eval-interval '1000' --eval-iters \"$EVAL_STEPS\" --log-interval '1'",
        "    --log-throughput)",
        *run_arguments(scenario),
        'if [ -n "$TENSORBOARD_DIR" ]; then',
        '    RUN_ARGUMENTS+=(--tensorboard-dir "$TENSORBOARD_DIR")',
        "fi",
        'if [ -n "$WANDB_PROJECT" ]; then',
        '    RUN_ARGUMENTS+=(--wandb-project "$WANDB_PROJECT" --wandb-exp-name "$WANDB_NAME")',
        "fi",
    ]
    if _base_unknown(scenario):
        lines.append('RUN_ARGUMENTS+=(--rotary-base "$ROTARY_BASE")')
    if _fuses_rope(scenario):
        lines += ["ROPE_ARGUMENTS=()", 'if [ "$ROPE_FUSION" != "yes" ]; then', "    ROPE_ARGUMENTS=(--no-rope-fusion)", "fi"]
    if _permutes(scenario):
        lines += ['if [ "$PERMUTE_FUSION" = "yes" ]; then', "    RUN_ARGUMENTS+=(--moe-permute-fusion)", "fi"]
    beside = " --async-save --use-persistent-ckpt-worker" if not plan.fsdp else ""
    return [
        *lines,
        "CHECKPOINT_ARGUMENTS=()",
        'if [ -n "$CHECKPOINT_DIR" ]; then',
        '    CHECKPOINT_ARGUMENTS=(--save "$CHECKPOINT_DIR" --load "$CHECKPOINT_DIR" --save-interval "$SAVE_INTERVAL"',
        f"        --ckpt-format 'torch_dist'{beside})",
        "fi",
        "",
    ]
