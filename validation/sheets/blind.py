"""The hardest reading of every bar: what is known of a run whose paper nobody has read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from autoconfig.specs.software.software import SoftwareStack, load_stack

from autoconfig.calibration.observe import Run
from validation.published import published_runs
from validation.sheets.groups import Bar, Constants, Figures, Predicted, bars, figures_of, predict_runs, predictions
from validation.sources import blind_reading, source_of

LEFT_OUT = ("source", "model", "pair", "release")


@dataclass(frozen=True, kw_only=True)
class BlindBar:
    """A bar, what it is judged by, and the blind reading of the same rows."""

    bar: Bar
    blind: Figures

    @property
    def most(self) -> float:
        """Most mean error of the blind reading."""
        return blind_reading().times_bar * self.bar.most

    @property
    def holds(self) -> bool:
        return self.blind.mean <= self.most


def generic(stack: SoftwareStack) -> SoftwareStack:
    """The stack with the rates and the calibration of the generic one of its kind; a stack without a kind stays as it is."""
    reading = blind_reading()
    name = reading.generic.get(stack.priced_as or stack.name)
    if name is None:
        return stack
    kind = load_stack(name)
    rates = {rate: getattr(kind.time, rate) for rate in reading.rates}
    return replace(stack, generation=kind.generation, parent=kind.parent, time=replace(stack.time, **rates))


def _without_its_stack(run: Run) -> Run:
    scenario = run.case.scenario
    return replace(run, case=replace(run.case, scenario=replace(scenario, software=generic(scenario.software))))


@cache
def blind_predictions() -> tuple[Predicted, ...]:
    """Every whole step, with the generic stack of its kind and constants that have not seen its publisher."""
    runs = [_without_its_stack(run) for run in published_runs().runs if source_of(run.case.source).whole_step]
    return tuple(predict_runs(runs, Constants("publisher")))


def blind_bars() -> list[BlindBar]:
    """Every bar, in the order in which they are declared for each way of leaving out."""
    blind = {name: bar.reached for left_out in LEFT_OUT for name, bar in _named(blind_predictions(), left_out).items()}
    usual = [bar for left_out in LEFT_OUT for bar in bars(predictions(left_out), left_out)]
    return [BlindBar(bar=bar, blind=blind[bar.name] or figures_of([])) for bar in usual]


def _named(predicted: tuple[Predicted, ...], left_out: str) -> dict[str, Bar]:
    return {bar.name: bar for bar in bars(predicted, left_out)}
