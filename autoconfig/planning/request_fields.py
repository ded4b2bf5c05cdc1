"""Every field of every request, declared once: the options of the command line, the bodies of HTTP and Python's keywords derive
from these tables. Names are Megatron's flags where Megatron has one.

This module loads no table and no search: the command line reads it before it knows what is asked.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from autoconfig.planning.resolve import Bounds, Field, Fields
from autoconfig.specs.errors import parse_count, parse_seconds
from autoconfig.specs.models.overrides import BOOLEAN_FIELDS, INTEGER_FIELDS, SHORT_NAMES
from autoconfig.specs.scenario import CHOICES
from autoconfig.specs.software.software import DEFAULT_STACK


def _tokens(given: str | float) -> float:
    """A number of tokens like 300B."""
    return parse_count(given, "tokens") if isinstance(given, str) else given


# Training: what is asked of one plan or of a search

SORTS = ("step", "memory", "cost")
SHARE = Bounds(low=0, high=1, without_high=True, says="give the share of GPU memory to keep free, from 0 to below 1")
MONEY = Bounds(
    low=0, high=1e6, without_low=True, without_high=True, says="give money per GPU and hour, above 0 and below 1,000,000"
)
PLANS = Bounds(low=1, high=100_000, says="give a number of plans from 1 to 100,000")

MODEL = Field("model", "Catalogue name (175b, llama3-70b), a size (13b), or a Hugging Face config.json.")
GPUS = Field("gpus", "Number of GPUs.", int)
GPU = Field("gpu", "GPU type (`autoconfig gpus`), or `local`: this machine's (`autoconfig calibrate`).")
GPU_TABLE = Field("gpu_table", "File of measured operators, in place of --gpu.", metavar="FILE", remote=False)
CLUSTER = Field("cluster", "JSON or TOML file that describes other hardware.")
GPUS_PER_NODE = Field("gpus_per_node", "GPUs in one node, where it is not the usual server.", int)
SOFTWARE = Field("software", f"Software stack (see `autoconfig software`); {DEFAULT_STACK} where the GPU runs it.")
CALIBRATION = Field(
    "calibration", "Written by `autoconfig calibrate`; `none`: no measured runs.  [default: the shipped one]", metavar="FILE"
)
SEQ_LENGTH = Field("seq_length", "Tokens of one sample.", int)
GLOBAL_BATCH_SIZE = Field("global_batch_size", "Samples of one optimizer step.", int)
MEMORY_MARGIN = Field("memory_margin", "Share of GPU memory to keep free.", float, 0.0, bounds=SHARE)
TOKENS = Field("tokens", "Tokens to train on, like 300B: prints days.", float, parse=_tokens, metavar="COUNT", printed=True)
PRICE = Field("price", "Money per GPU and hour: with --tokens prints the cost.", float, bounds=MONEY, printed=True)
NUMERICS: Fields = (
    Field("precision", "fp8: GEMMs in fp8, the rest in bf16.", choices=CHOICES["precision"]),
    Field("fp8_recipe", "Scaling recipe of fp8.", choices=CHOICES["fp8_recipe"]),
    Field("fp8_param_gather", "Keep and gather weights in fp8.", bool),
    Field("grad_reduce_dtype", "Type of the gradient buffer and its reduction.", choices=CHOICES["grad_reduce_dtype"]),
    Field("main_params_dtype", "Type of the optimizer's master weights.", choices=CHOICES["main_params_dtype"]),
    Field("exp_avg_dtype", "Type of the first moment.", choices=CHOICES["exp_avg_dtype"]),
    Field("exp_avg_sq_dtype", "Type of the second moment.", choices=CHOICES["exp_avg_sq_dtype"]),
    Field("store_param_remainders", "Master weights as 16-bit remainders.", bool),
    Field("attention_dropout", "Dropout of attention scores.", float),
    Field("hidden_dropout", "Dropout of the residual stream.", float),
    Field("moe_capacity_factor", "Experts drop and pad to this multiple of a balanced load.", float),
    Field("moe_imbalance", "Dropless experts: rows of the busiest rank over a balanced load.", float),
    Field("deterministic", "Megatron's --deterministic-mode.", bool),
    Field("peft", "Train adapters only.", choices=CHOICES["peft"]),
    Field("lora_rank", "Rank of the LoRA adapters.", int),
)
ARCHITECTURE: Fields = (
    *(Field(name, f"Change the model: {name}.", int) for name in INTEGER_FIELDS if name not in SHORT_NAMES.values()),
    *(Field(name, f"Change the model: {name}.", bool, negative=f"no-{name.replace('_', '-')}") for name in BOOLEAN_FIELDS),
)


def _question(gpus: Field = GPUS, gpu: Field = GPU, *more: Field) -> Fields:
    """Model, cluster, workload, numerics: everything but the plan."""
    hardware = (gpus, gpu, *more, CLUSTER, GPUS_PER_NODE, SOFTWARE, CALIBRATION)
    workload = (SEQ_LENGTH, GLOBAL_BATCH_SIZE, MEMORY_MARGIN, TOKENS, PRICE)
    return (MODEL, *hardware, *workload, *NUMERICS, *ARCHITECTURE)


QUESTION: Fields = _question(GPUS, GPU, GPU_TABLE)
FIX = Field("fix", "Only plans with this, e.g. tp=8; repeat to allow more values.", many=True, metavar="KEY=VALUE")
MAX = Field("max", "Only plans with at most this, e.g. tp=8.", many=True, metavar="KEY=VALUE")
EXCLUDE = Field("exclude", "No plans with this, e.g. pp=16.", many=True, metavar="KEY=VALUE")
SEARCH: Fields = (
    Field("top", "Plans to show.", int, 20, bounds=PLANS, printed=True),
    Field("include", "Also report this plan: rank, ratio, or why not.", many=True, metavar="PLAN"),
    FIX,
    MAX,
    EXCLUDE,
    Field("gpus_at_most", "The best plan on this many GPUs or fewer.", int),
    Field("sort_by", "Order of the table.", default="step", choices=SORTS, printed=True),
)
"""What chooses among plans: a search has it, a question about one plan has not."""
OUTPUT: Fields = (
    Field("output", "Write the whole ranked table to FILE.parquet or FILE.csv.", metavar="FILE", remote=False),
    Field("report", "Write the plans with their charts as one page to FILE.html.", metavar="FILE", remote=False),
    Field("export", "Write launch scripts and plan.json of the first plan into DIR.", metavar="DIR", remote=False),
    Field("force", "With --export: replace files that autoconfig did not write.", bool, False, remote=False),
)
"""What a search writes, where it is asked on this machine."""
BINDS = Field("binds", "Also say what more memory, bandwidth, compute or batch would buy.", bool, True, negative="no-binds")


# GPU counts and types

DEFAULT_MTBF_HOURS_PER_GPU = 50_700.0
"""419 unexpected interruptions in 54 days on 16,384 H100 (Llama 3 paper, section 3.3.4): 16,384 x 54 x 24 / 419."""
DEFAULT_CHECKPOINT_GB_PER_S_PER_NODE = 1.0
"""2 TB/s sustained for 2,048 nodes (Llama 3 paper, section 3.3.1, storage)."""
DEFAULT_RESTART_SECONDS = 600.0
"""An assumption: detect, reschedule, load, warm up."""
DEFAULT_REPAIR_HOURS = 24.0
"""An assumption: until a broken node is back, where no spare takes its place."""
GPU_COUNTS = Field("gpus", "64,128,256; 64:1024 doubles; 64:1024:64 goes in steps of 64.", metavar="COUNTS", required=True)
GPU_TYPES = Field("gpu", "One or more GPU types with commas between (see `autoconfig gpus`).", metavar="TYPES")
RELIABILITY: Fields = (
    Field("spares", "GPUs kept idle to replace broken ones.  [default: replacements are at hand]", int),
    Field("mtbf", "Mean time between failures of one GPU with its share of the node.", float,
          DEFAULT_MTBF_HOURS_PER_GPU, attribute="mtbf_hours_per_gpu", metavar="HOURS"),
    Field("checkpoint_rate", "Checkpoint bandwidth of one node.", float, DEFAULT_CHECKPOINT_GB_PER_S_PER_NODE,
          attribute="checkpoint_gb_per_s_per_node", metavar="GB/S"),
    Field("restart_seconds", "From a failure until training goes on, loading excluded.", float, DEFAULT_RESTART_SECONDS),
    Field("repair_hours", "Until a broken node is back; counts with --spares.", float, DEFAULT_REPAIR_HOURS),
)  # fmt: skip
SCALING: Fields = (
    *_question(GPU_COUNTS, GPU_TYPES),
    *(FIX, MAX, EXCLUDE),
    Field("keep", "Hold a key over all counts: tp (of the first), or tp=8.", many=True, metavar="KEY[=VALUE]"),
    Field("days", "Deadline, with --tokens: names the fewest GPUs that meet it.", float),
    *RELIABILITY,
    Field("plot", "Draw throughput over GPUs to FILE.png or FILE.svg.", metavar="FILE", remote=False),
)


# Files: one that is checked, a plan that is exported

CHECK: Fields = (
    replace(MODEL, help="Catalogue name or config.json, instead of the file's model."),
    replace(GPUS, help="Number of GPUs, where the file does not say it."),
    replace(GPU, help="GPU type (see `autoconfig gpus`), or `local`."),
    CLUSTER,
    GPUS_PER_NODE,
    replace(SOFTWARE, help="Software stack (see `autoconfig software`); default: what the arguments show."),
    replace(SEQ_LENGTH, help="Tokens of one sample, instead of the file's."),
    replace(GLOBAL_BATCH_SIZE, help="Samples of one optimizer step, instead of the file's."),
    MEMORY_MARGIN,
    Field("set", "A variable that the script does not set; repeat.", many=True, metavar="NAME=VALUE", remote=False),
    Field("apply_to", "Write the improved file here; only changed arguments are edited.", metavar="FILE", remote=False),
    Field("force", "Let --apply-to replace a file that exists.", bool, False, remote=False),
)
EXPORT: Fields = (
    Field("output", "Folder to write into; made if missing.", metavar="DIR", required=True, remote=False),
    Field("format", "megatron: torchrun and sbatch scripts for Megatron-LM, and plan.json; plan: plan.json only.",
          default="megatron", choices=("megatron", "plan")),
    Field("force", "Replace files that autoconfig did not write.", bool, False, remote=False),
    Field("even_if_too_large", "Write a plan that is predicted not to fit, too.", bool, False, remote=False),
)  # fmt: skip


# Serving

GOALS = ("throughput", "ttft", "tpot", "gpus", "cost")
MAX_SERVING_GPUS = 4096
POSITIVE = Bounds(low=0, high=1e9, without_low=True, says="use a positive number")

SERVED_MODEL = Field("model", "Catalogue name (llama3-70b), a size, or a Hugging Face config.json.")
SERVING_GPUS = Field(
    "gpus", "Number of GPUs; with --goal gpus the most there are.", int, bounds=Bounds(low=1, high=MAX_SERVING_GPUS)
)
SERVING: Fields = (
    SERVED_MODEL,
    SERVING_GPUS,
    Field("gpu", "GPU type (see `autoconfig gpus`).  [default: h100-sxm-80gb]"),
    Field("gpus_per_node", "GPUs that reach each other over the link; the usual server's if not given.", int),
    Field("engine", "Engine generation (see `autoconfig engines`).  [default: trtllm-1.2]"),
    Field("isl", "Input tokens of a request, on average.  [default: 1000]", int),
    Field("osl", "Output tokens of a request, on average.  [default: 1000]", int),
    Field("isl_stddev", "Standard deviation of the input tokens.  [default: 0]", float),
    Field("osl_stddev", "Standard deviation of the output tokens.  [default: 0]", float),
    Field(
        "trace",
        "Requests as recorded, in place of lengths and rate: CSV of the Azure or BurstGPT traces, JSON lines of Mooncake's.",
        metavar="FILE",
    ),
    Field("ttft", "Limit of the mean time to first token, like 2s.", float, parse=parse_seconds, attribute="ttft_s",
          bounds=POSITIVE, metavar="DURATION"),
    Field("tpot", "Limit of the mean time per output token, like 50ms.", float, parse=parse_seconds, attribute="tpot_s",
          bounds=POSITIVE, metavar="DURATION"),
    Field(
        "rate",
        "Requests per second that arrive (Poisson; a trace's times are stretched); without it the queue is never empty.",
        float,
        0.0,
        bounds=Bounds(low=0, high=1e9),
        shows_default=False,
    ),
    Field("goal", "What is best.", default="throughput", choices=GOALS),
    Field("fix", "Only deployments with this, e.g. tp=4; repeat to allow more values.", many=True, metavar="KEY=VALUE"),
    Field("include", "Also report this plan, or why not.", many=True, metavar="PLAN"),
    Field("prefix_hit", "Share of the input whose cache is there already.", float, 0.0, bounds=Bounds(low=0, high=1),
          shows_default=False),
    Field("draft_tokens", "Draft tokens checked per step (speculative decoding, MTP).", int, 0, bounds=Bounds(low=0, high=64),
          shows_default=False),
    Field("acceptance", "Chance that a draft token is accepted; goes with --draft-tokens.", float,
          bounds=Bounds(low=0, high=1)),
    Field("imbalance", "Experts: rows of the busiest rank over the mean.  [default: 1.4]", float,
          bounds=Bounds(low=1, high=100)),
    Field("disaggregated", "Also separate prefill and decode instances.", bool, True, negative="aggregated-only"),
    Field("chunked_prefill", "Split prompts over iterations; the engine's default.", bool, negative="whole-prompts",
          attribute="chunked"),
    Field("kv_memory_ratio", "Share of free memory for the cache; the engine's default.", float,
          bounds=Bounds(low=0, high=1, without_low=True, says="use a share above 0, at most 1")),
    Field("price", "Money per GPU and hour.", float, bounds=POSITIVE, printed=True),
    Field("calibration", "Constants that a study learned (--save-calibration).", metavar="FILE", remote=False),
    Field("top", "Deployments to show.", int, 10, bounds=Bounds(low=1, high=1000), printed=True),
    Field("simulate", "Finalists to simulate event by event.", int, 3, bounds=Bounds(low=0, high=100)),
)  # fmt: skip
SERVING_OUTPUT: Fields = (
    Field("export", "Write start scripts and benchmark of the first deployment into DIR.", metavar="DIR", remote=False),
    Field("report", "Write the answer as one HTML file that needs nothing else.", metavar="OUT.html", remote=False),
    Field("force", "With --export: replace files that autoconfig did not write.", bool, False, remote=False),
)
"""What a search writes, where it is asked on this machine."""


# Searches that measure

DEFAULT_FOLDER = "autoconfig-profile"
DEFAULT_BUDGET = "30m"
RUNNERS = ("local", "slurm")
DEVICES = ("cuda", "cpu")
OBJECTIVES = ("step", "headroom", "cost")

FOLDER = Field("folder", "Studies, jobs and logs.", Path, Path(DEFAULT_FOLDER), remote=False)
STORAGE = Field("storage", "postgresql://... for many workers.  [default: SQLite in --folder]", metavar="URL", remote=False)
SAVE_CALIBRATION = Field("save_calibration", "Write what was learned, for --calibration (.json).", metavar="FILE", remote=False)
QUIET = Field("quiet", "No progress.", bool, False, remote=False)
GPUS_HERE = Field(
    "gpus_here",
    "GPUs that jobs can have; below --gpus, ranks of each plan are emulated on one.  [default: --gpus]",
    int,
    range=(1, None),
    metavar="N",
    remote=False,
)
DEVICE = Field("device", "Where jobs run.  [default: cuda]", choices=DEVICES)
DEVICE_MEMORY = Field("device_memory", "Limit of each rank, like 2GiB.  [CPU: half of all, shared out]", metavar="SIZE")
STEPS = Field("steps", "Timed steps of a job.", int, 5)
WARMUP_STEPS = Field("warmup_steps", "Steps before them.", int, 2)
OBJECTIVE = Field(
    "objective",
    "headroom: step time against free memory; cost: tokens per money, with --price.",
    default="step",
    choices=OBJECTIVES,
)
SEED = Field("seed", "Of the study.", int, 0)
STORED: Fields = (DEVICE, DEVICE_MEMORY, STEPS, WARMUP_STEPS, OBJECTIVE, SEED)
"""Those that are stored with the question."""
RUNNER: Fields = (
    Field("runner", "Jobs as processes of this machine, or through sbatch.", default="local", choices=RUNNERS, remote=False),
    Field(
        "slurm",
        "A further #SBATCH option, like --qos=low. Jobs have their nodes alone, but for --oversubscribe or -c.",
        many=True,
        metavar="OPTION",
        remote=False,
    ),
    Field("partition", "Slurm partition.", remote=False),
    Field("account", "Slurm account.", remote=False),
    Field("jobs", "Slurm jobs at once.", int, 1, range=(1, 64), remote=False),
    GPUS_HERE,
    Field(
        "python",
        "Interpreter with torch and megatron-core.  [default: this one]",
        default=sys.executable,
        shows_default=False,
        remote=False,
    ),
)
"""How jobs run: of a search that measures, and of a worker that does."""
PROFILE: Fields = (
    Field("profile", "Measure the most promising plans with short jobs; needs --study.", bool, False),
    Field("study", "With --profile: name of the study; one that is there goes on.", metavar="NAME", remote=False),
    Field("resume", "Go on with a study; its question is stored.", metavar="NAME", remote=False),
    Field("budget", f"Like 30m, 2h, 16gpu-hours, 20trials.  [default: {DEFAULT_BUDGET}]"),
    *(STORAGE, FOLDER, DEVICE, DEVICE_MEMORY),
    Field("job_timeout", "A job's most time.", default="1h", metavar="TIME"),
    *(STEPS, WARMUP_STEPS, OBJECTIVE, SEED, QUIET, SAVE_CALIBRATION),
    *RUNNER,
)
"""What only a search that measures has."""
SERVING_PROFILE: Fields = tuple(field for field in PROFILE if field not in (GPUS_HERE, OBJECTIVE))
"""Of a search that measures serving: nothing is emulated, and there are always two objectives."""
