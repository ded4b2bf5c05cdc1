"""`autoconfig convert`: a file of one trainer as a file of another, with what the other cannot say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autoconfig.formats.check import read_any, read_file
from autoconfig.formats.words import Written
from autoconfig.formats.writers.table import WRITERS
from autoconfig.megatron.batch.scripts import TORCHRUN_SCRIPT, torchrun_script
from autoconfig.megatron.check_input import CheckInput, CheckRequest
from autoconfig.megatron.export import plan_text
from autoconfig.specs.errors import InputError, UnsupportedError, option
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.remarks import sentences
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.software import GRAD_REDUCE, PARAM_GATHER, load_stack

SERVERS = ("vllm", "sglang", "tensorrt-llm")
"""Engines as whose start the start of another one is written (autoconfig.engines.convert)."""
FORMATS = ("megatron", "plan", *WRITERS, *SERVERS)


@dataclass(frozen=True, kw_only=True)
class Converted:
    """A file in another format."""

    format: str
    """What it is now."""
    source: CheckInput
    """What it was."""
    written: Written

    @property
    def unsaid(self) -> tuple[str, ...]:
        """What the target leaves to other places, or loses."""
        read = self.source
        lost = (*(f"{text} (unknown in the file)" for text in sentences(read.unknown)), *sentences(read.not_modelled))
        return (*self.written.unsaid, *_lost_switches(read.question.scenario, self.format), *lost)


def _lost_switches(scenario: Scenario, form: str) -> list[str]:
    """Switches of the file's run, as sentences, that the target does not say and its reader takes as the stack has them."""
    run, usual = scenario.software.time, load_stack(scenario.software.name).time
    lost = []
    if scenario.model.is_moe and scenario.numerics.moe_imbalance is not None:
        lost.append("--moe-router-force-load-balancing: routing of benchmarks, which trains nothing")
    if form == "plan":
        overlaps = ((GRAD_REDUCE, "overlap_grad_reduce"), (PARAM_GATHER, "overlap_param_gather"))
        for flag, name in overlaps:
            if (on := getattr(run, name)) != getattr(usual, name):
                lost.append(f"--{flag} is {'on' if on else 'off'} in the file; a plan is read with the software's own")
    return lost


def write_plan(scenario: Scenario, plan: TrainPlan, form: str) -> Written:
    """A plan in a format. Raises UnsupportedError listing what the format has no words for."""
    if form not in FORMATS:
        raise InputError(f"{option('format')} {form[:40]!r}: use one of {', '.join(FORMATS)}")
    if form in SERVERS:
        raise InputError(f"{option('format')} {form}: that is a server's start, and this file trains", field="format")
    if form == "plan":
        return Written(file_name="plan.json", text=plan_text(scenario, plan, None))
    if form == "megatron":
        return Written(file_name=TORCHRUN_SCRIPT, text=torchrun_script(scenario, plan, None))
    writer = WRITERS[form]
    if refused := writer.refused(scenario, plan):
        able = ["megatron"] if scenario.numerics.peft == "none" else []
        able += ["plan", *(name for name, other in WRITERS.items() if not other.refused(scenario, plan))]
        raise UnsupportedError(
            f"{form} cannot say {'; '.join(refused)}: nothing is written; {option('format')} {', '.join(able)} can "
            f"(autoconfig search {option('format')} {form} ranks what {form} says)"
        )
    return writer.write(scenario, plan)


def convert(text: str, request: CheckRequest, form: str) -> Converted:
    """A file's text in another format. Raises InputError for what cannot be read or said."""
    return _converted(read_any(text, request), form)


def convert_file(path: Path, request: CheckRequest, form: str) -> Converted:
    """The file at `path` in another format. Raises InputError."""
    return _converted(read_file(path, request), form)


def _converted(source: CheckInput, form: str) -> Converted:
    source.require_taken()
    split = source.split
    if split is not None and not split.even_inside:
        raise UnsupportedError(
            f"stages of {', '.join(map(str, split.layers))} layers: a plan has no words for them; "
            "even out the stages inside, or give first and last stages of another size only"
        )
    return Converted(format=form, source=source, written=write_plan(source.question.scenario, source.plan, form))
