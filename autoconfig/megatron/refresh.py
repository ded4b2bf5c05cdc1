"""What a script of ours says of its plan in comments, written anew after the plan was edited; all other lines stay."""

from __future__ import annotations

import re

from autoconfig.megatron.argument import Argument
from autoconfig.megatron.scripts import argument_line, story
from autoconfig.megatron.write import train_arguments
from autoconfig.planning.export_files import MARK
from autoconfig.planning.script_text import remark
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.training.price import PlanReport

OF_THE_PLAN = ("Plan:", "Predicted ", "Calibration:", "Largest parts of the step:", "WARNING: this plan", "fp8_param_gather:")
"""How the lines of the head begin that change with the plan (scripts.story)."""
_ARGUMENT = re.compile(r"    (--[a-z0-9-]+)(?P<values>(?: \S+)*)(?:  # .*)?")


def is_ours(text: str) -> bool:
    """A script that `export` wrote."""
    return any(line.startswith(MARK) for line in text.splitlines()[:12])


def refreshed(text: str, scenario: Scenario, plan: TrainPlan, report: PlanReport | None) -> str:
    """The text with the head and the comments of arguments for `plan`."""
    lines = text.split("\n")
    mark = next(at for at, line in enumerate(lines) if line.startswith(MARK))
    end = next((at for at in range(mark, len(lines)) if not lines[at].startswith("#")), len(lines))
    name = lines[mark].removeprefix(f"{MARK}: ").rpartition(", tp=")[0] or remark(scenario.model.name)
    head = [line for line in lines[mark + 1 : end] if not line.startswith(tuple(f"# {start}" for start in OF_THE_PLAN))]
    new = [f"# {remark(line)}" for line in story(scenario, plan, report) if line.startswith(OF_THE_PLAN)]
    known = {argument.flag: argument for argument in train_arguments(scenario, plan)}
    rest = [_with_comment(line, known) for line in lines[end:]]
    return "\n".join([*lines[:mark], f"{MARK}: {name}, {plan}", *head[:2], *new, *head[2:], *rest])


def _with_comment(line: str, known: dict[str, Argument]) -> str:
    """An argument's line as `export` writes it, where it holds one argument of the plan with just its values."""
    match = _ARGUMENT.fullmatch(line)
    argument = known.get(match[1]) if match else None
    if match is None or argument is None:
        return line
    plain = match["values"].replace("'", "").split()
    return argument_line(argument) if tuple(plain) == argument.values else line
