"""Everything that Megatron-LM's pretrain_gpt.py needs to start a plan, as an ordered list of arguments."""

from __future__ import annotations

from autoconfig.megatron.argument import Argument, Collector
from autoconfig.megatron.write_model import model_arguments
from autoconfig.megatron.write_run import (
    batch_arguments,
    numerics_arguments,
    optimizer_arguments,
    overlap_arguments,
    plan_arguments,
)
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario

MOCK_STEPS = 50
EVAL_INTERVAL = 1000


def train_arguments(scenario: Scenario, plan: TrainPlan) -> list[Argument]:
    """All arguments but data, schedule and checkpoints. Raises UnsupportedError for what Megatron-LM cannot run."""
    return [
        *model_arguments(scenario),
        *plan_arguments(scenario, plan),
        *batch_arguments(scenario, plan),
        *numerics_arguments(scenario, plan),
        *optimizer_arguments(scenario, plan),
        *overlap_arguments(scenario, plan),
    ]


def mock_data_arguments(scenario: Scenario) -> list[Argument]:
    """Data that needs no file: random tokens of the model's vocabulary."""
    out = Collector("data")
    out.add("mock-data", why="random tokens")
    out.add("tokenizer-type", "NullTokenizer")
    out.add("vocab-size", scenario.model.vocab_size)
    return out.arguments


def schedule_arguments(steps: str = str(MOCK_STEPS), learning_rate: str = "1e-4") -> list[Argument]:
    """Length of the run and logging."""
    out = Collector("run")
    out.add("train-iters", steps)
    out.add("lr", learning_rate)
    out.add("min-lr", "0")
    out.add("lr-decay-style", "cosine")
    out.add("eval-interval", EVAL_INTERVAL, why="Megatron divides by it even where nothing is evaluated")
    out.add("eval-iters", 0)
    out.add("log-interval", 1)
    out.add("log-throughput")
    return out.arguments


def mock_arguments(scenario: Scenario, plan: TrainPlan) -> list[Argument]:
    """A whole argument list on mock data: what the scripts run when no variable is set."""
    return [*train_arguments(scenario, plan), *mock_data_arguments(scenario), *schedule_arguments()]
