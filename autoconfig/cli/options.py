"""The options that every question shares, and how they become a Request. Names are Megatron's flags where Megatron has one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from autoconfig.specs.errors import InputError
from autoconfig.specs.models.overrides import BOOLEAN_FIELDS, INTEGER_FIELDS
from autoconfig.specs.numerics import FP8_RECIPES, PEFT, PRECISIONS
from autoconfig.specs.software.software import DEFAULT_STACK
from autoconfig.specs.units import parse_count
from autoconfig.training.question import SORTS, Request

Command = TypeVar("Command", bound=Callable[..., Any])

_NOT_FLAGS = ("default_seq_length", "default_global_batch_size")
_ARCHITECTURE = tuple(name for name in INTEGER_FIELDS if name not in _NOT_FLAGS)
_NUMERICS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("precision", {"type": click.Choice(PRECISIONS), "help": "fp8: GEMMs in fp8, the rest in bf16."}),
    ("fp8_recipe", {"type": click.Choice(FP8_RECIPES), "help": "Scaling recipe of fp8."}),
    ("fp8_param_gather", {"is_flag": True, "default": None, "help": "Keep and gather weights in fp8."}),
    ("grad_reduce_dtype", {"type": click.Choice(("fp32", "bf16")), "help": "Type of the gradient buffer and its reduction."}),
    ("main_params_dtype", {"type": click.Choice(("fp32", "fp16")), "help": "Type of the optimizer's master weights."}),
    ("exp_avg_dtype", {"type": click.Choice(("fp32", "bf16", "fp16", "fp8")), "help": "Type of the first moment."}),
    ("exp_avg_sq_dtype", {"type": click.Choice(("fp32", "bf16", "fp16", "fp8")), "help": "Type of the second moment."}),
    ("store_param_remainders", {"is_flag": True, "default": None, "help": "Master weights as 16-bit remainders."}),
    ("attention_dropout", {"type": float, "help": "Dropout of attention scores."}),
    ("hidden_dropout", {"type": float, "help": "Dropout of the residual stream."}),
    ("moe_capacity_factor", {"type": float, "help": "Experts drop and pad to this multiple of a balanced load."}),
    ("moe_imbalance", {"type": float, "help": "Dropless experts: rows of the busiest rank over a balanced load."}),
    ("deterministic", {"is_flag": True, "default": None, "help": "Megatron's --deterministic-mode."}),
    ("peft", {"type": click.Choice(PEFT), "help": "Train adapters only."}),
    ("lora_rank", {"type": int, "help": "Rank of the LoRA adapters."}),
)


def tokens(text: str) -> float:
    """A number of tokens like 300B; see specs.units.parse_count."""
    return parse_count(text, "tokens")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


calibration_option = click.option(
    "--calibration",
    metavar="FILE",
    help="Written by `autoconfig calibrate`; `none`: no measured runs.  [default: the shipped one]",
)


def question_options(command: Command) -> Command:
    """Model, cluster, workload, numerics: everything but the plan."""
    gpus = click.option("--gpus", type=int, help="Number of GPUs.")
    gpu = click.option("--gpu", help="GPU type (`autoconfig gpus`), or `local`: this machine's (`autoconfig calibrate`).")
    table = click.option("--gpu-table", metavar="FILE", help="File of measured operators, in place of --gpu.")
    return _options_around(command, (gpus, gpu, table))


def scaling_options(command: Command) -> Command:
    """As `question_options`, over several GPU counts and types."""
    gpus = click.option(
        "--gpus", required=True, metavar="COUNTS", help="64,128,256; 64:1024 doubles; 64:1024:64 goes in steps of 64."
    )
    gpu = click.option("--gpu", metavar="TYPES", help="One or more GPU types with commas between (see `autoconfig gpus`).")
    return _options_around(command, (gpus, gpu))


def _options_around(command: Command, gpus: tuple[Callable[..., Any], ...]) -> Command:
    for name in reversed(BOOLEAN_FIELDS):
        command = click.option(
            f"{_option(name)}/--no-{name.replace('_', '-')}", name, default=None, help=f"Change the model: {name}."
        )(command)
    for name in reversed(_ARCHITECTURE):
        command = click.option(_option(name), name, type=int, help=f"Change the model: {name}.")(command)
    for name, arguments in reversed(_NUMERICS):
        command = click.option(_option(name), name, **arguments)(command)
    shared = (
        click.option("--model", help="Catalogue name (175b, llama3-70b), a size (13b), or a Hugging Face config.json."),
        *gpus,
        click.option("--cluster", help="JSON or TOML file that describes other hardware."),
        click.option("--gpus-per-node", type=int, help="GPUs in one node, where it is not the usual server."),
        click.option("--software", help=f"Software stack (see `autoconfig software`); {DEFAULT_STACK} where the GPU runs it."),
        calibration_option,
        click.option("--seq-length", type=int, help="Tokens of one sample."),
        click.option("--global-batch-size", type=int, help="Samples of one optimizer step."),
        click.option("--memory-margin", type=float, default=0.0, show_default=True, help="Share of GPU memory to keep free."),
        click.option("--tokens", type=tokens, metavar="COUNT", help="Tokens to train on, like 300B: prints days."),
        click.option("--price", type=float, help="Money per GPU and hour: with --tokens prints the cost."),
    )
    for option in reversed(shared):
        command = option(command)
    return command


def search_options(command: Command) -> Command:
    """What only a search has."""
    own = (
        click.option("--top", type=int, default=20, show_default=True, help="Plans to show."),
        click.option("--include", multiple=True, metavar="PLAN", help="Also report this plan: rank, ratio, or why not."),
        click.option(
            "--fix", multiple=True, metavar="KEY=VALUE", help="Only plans with this, e.g. tp=8; repeat to allow more values."
        ),
        click.option("--max", "at_most", multiple=True, metavar="KEY=VALUE", help="Only plans with at most this, e.g. tp=8."),
        click.option("--exclude", multiple=True, metavar="KEY=VALUE", help="No plans with this, e.g. pp=16."),
        click.option("--gpus-at-most", type=int, help="The best plan on this many GPUs or fewer."),
        click.option("--sort-by", type=click.Choice(SORTS), default="step", show_default=True, help="Order of the table."),
        click.option("--output", metavar="FILE", help="Write the whole ranked table to FILE.parquet or FILE.csv."),
        click.option("--report", metavar="FILE", help="Write the plans with their charts as one page to FILE.html."),
        click.option("--export", metavar="DIR", help="Write launch scripts and plan.json of the first plan into DIR."),
        click.option("--force", is_flag=True, help="With --export: replace files that autoconfig did not write."),
    )
    for option in reversed(own):
        command = option(command)
    return command


def request_of(options: dict[str, Any]) -> Request:
    """A Request from the parsed options of any command that uses `question_options`."""
    if options["model"] is None:
        raise InputError("Missing option '--model': say --model 175b (autoconfig models lists them), or a config.json")
    architecture = {name: options.get(name) for name in (*_ARCHITECTURE, *BOOLEAN_FIELDS) if options.get(name) is not None}
    numerics = {name: options.get(name) for name, _ in _NUMERICS}
    return Request(
        model=options["model"],
        gpus=options["gpus"],
        gpu=options["gpu"],
        gpu_table=options.get("gpu_table"),
        cluster=options["cluster"],
        gpus_per_node=options["gpus_per_node"],
        software=options["software"],
        calibration=options.get("calibration"),
        seq_length=options["seq_length"],
        global_batch_size=options["global_batch_size"],
        architecture=architecture,
        numerics=numerics,
        memory_margin=options["memory_margin"],
        tokens=options["tokens"],
        price=options["price"],
        fix=options.get("fix", ()),
        max=options.get("at_most", ()),
        exclude=options.get("exclude", ()),
        include=options.get("include", ()),
        gpus_at_most=options.get("gpus_at_most"),
        sort_by=options.get("sort_by", "step"),
        top=options.get("top", 20),
    )
