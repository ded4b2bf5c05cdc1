"""One search on a study: asks for plans, has them measured, tells what came of them, until something says stop.

Everything is in the storage and the job folders: a worker that was killed is followed by one that takes up its running trials.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from autoconfig.profiler.folder import JobFolder, prepare, read_json
from autoconfig.profiler.outcome import FINAL, Kind, Outcome, outcome_of
from autoconfig.profiler.runner import Life, Runner
from autoconfig.specs.errors import AutoconfigError, InputError
from autoconfig.specs.measurement import ExitCode, is_plausible
from autoconfig.study import trials as names
from autoconfig.study.job_log import noticed, timed_steps
from autoconfig.study.settings import Budget
from autoconfig.study.trials import as_stored, begin, is_stored, stored_trials, taken_up
from autoconfig.study.work import Proposal, Stage, StudyWork, Verdict, compared

MAX_ATTEMPTS = 3
"""How often a job that was lost is started again."""
MAX_FAILURES = 5
"""Jobs that may fail before anything was measured."""
PRUNE_LEFT_S = 10.0
"""A job whose timed steps are done in less is let finish."""
DECISION_S = 20.0
"""How long another worker may take to claim a plan that both chose."""


class JobsFailError(InputError):
    """No job can be measured here; the message says how they end."""


class Listener:
    """Is told what happens; this one keeps it to itself."""

    def started(self, trial: FrozenTrial, stage: Stage, again: bool) -> None:
        """A job was started, or found again."""

    def ended(self, trial: FrozenTrial, verdict: Verdict) -> None:
        """A trial is over."""

    def tick(self, worker: Worker) -> None:
        """Now and then."""

    def say(self, text: str) -> None:
        """Something to know."""


@dataclass
class Running:
    """A trial whose job runs."""

    trial: Trial
    row: int
    stages: list[Stage]
    stage: Stage
    folder: JobFolder
    since: float
    steps_seen: int = 0


@dataclass
class Control:
    """Set by signals: `finish` starts nothing more, `cancel` ends what runs."""

    finish: bool = False
    cancel: bool = False


@dataclass
class Worker:
    """One search process. `run` returns why it stopped."""

    study: Study
    work: StudyWork
    runner: Runner
    jobs_folder: Path
    owner: str
    listener: Listener
    budget: Budget = field(default_factory=Budget)
    slots: int = 1
    job_limit_s: float = 3600.0
    control: Control = field(default_factory=Control)
    poll_s: float = 0.2
    clock: Callable[[], float] = time.monotonic
    running: list[Running] = field(default_factory=list)
    waiting: list[tuple[JobFolder, float]] = field(default_factory=list)
    ended_here: int = 0
    job_seconds: list[float] = field(default_factory=list)
    proposal: Proposal | None = None
    started_at: float = 0.0

    def run(self) -> str:
        """Until the study is settled, the budget is spent, nothing is left, or a signal came."""
        self.started_at = self.clock()
        try:
            self._adopt()
            while True:
                reason = self._fill()
                self._submit()
                if not self.running:
                    return reason or "nothing is left to measure"
                if self.control.cancel or reason == _BUDGET:
                    self._cancel_all("interrupted" if self.control.cancel else reason or "")
                    return "cancelled" if self.control.cancel else _BUDGET
                for one in list(self.running):
                    self._look(one)
                self._submit()
                self.listener.tick(self)
                if self.running:
                    time.sleep(self.poll_s)
        except JobsFailError:
            self._cancel_all("no job can be measured here")
            raise
        except KeyError as error:  # what Optuna raises where it finds no study or trial
            if not is_stored(self.study):
                raise InputError(f"study {self.study.study_name} is gone: it was deleted under this search") from error
            raise

    def abandon(self) -> bool:
        """After an error that ended `run`: end its jobs, and tell nobody; the next search starts them again. Whether there were
        any. One that cannot be ended is found again."""
        running, self.running = self.running, []
        with contextlib.suppress(AutoconfigError, OSError):
            for one in running:
                self.runner.cancel(one.folder)
        return bool(running)

    @property
    def gpu_hours(self) -> float:
        now = self.clock()
        return self.work.gpus * (sum(self.job_seconds) + sum(now - r.since for r in self.running)) / 3600

    def seconds_left(self) -> float | None:
        if self.budget.seconds is None:
            return None
        return self.budget.seconds - (self.clock() - self.started_at)

    def _fill(self) -> str | None:
        """Start trials until every slot has one; why not, where that ends."""
        reason = self._reason_to_stop()
        while reason is None and len(self.running) < self.slots:
            reason = self._start() or self._reason_to_stop()
        return reason

    def _reason_to_stop(self) -> str | None:
        if self.control.finish or self.control.cancel:
            return "interrupted"
        left = self.seconds_left()
        if left is not None and left <= 0:
            return _BUDGET
        if self.budget.gpu_hours is not None and self.gpu_hours >= self.budget.gpu_hours:
            return _BUDGET
        if self.budget.trials is not None and self.ended_here + len(self.running) >= self.budget.trials:
            return "the budget of trials is spent"
        if left is not None and self.job_seconds and max(self.job_seconds[-3:]) > left and not self.running:
            return "the budget left is shorter than a trial"
        return None

    def _trials(self, without: Trial | None = None) -> list[FrozenTrial]:
        return [t for t in stored_trials(self.study) if without is None or t.number != without.number]

    def _start(self) -> str | None:
        trials = self._trials()
        self.proposal = proposal = self.work.propose(self.study.study_name, trials, len(trials))
        if proposal.row is None:
            return "every candidate was tried"
        if proposal.settled:
            return _SETTLED
        attributes = self._attributes(proposal.row, trials)
        attributes |= {names.OWNER: self.owner, names.WHY: proposal.why, names.CHANCE: proposal.chance}
        self._begin(begin(self.study, self.work.candidates, proposal.row, attributes), proposal.row)
        return None

    def _attributes(self, row: int, earlier: Sequence[FrozenTrial]) -> dict[str, Any]:
        fidelity = self.work.fidelity
        same = [
            t for t in earlier if self.work.candidates.row_of(t.params) == row and t.user_attrs.get(names.FIDELITY) == fidelity
        ]
        return {
            **({} if fidelity is None else {names.FIDELITY: fidelity}),
            names.REPEAT: sum(names.STEP_SECONDS in t.user_attrs for t in same),
            **self.work.notes(row),
        }

    def _begin(self, trial: Trial, row: int) -> None:
        if not self._claim(trial, row):
            self._tell(trial, Verdict(state=TrialState.FAIL, attributes={names.OUTCOME: names.DUPLICATE}))
            return
        planned = self._stages(trial, row)
        self._launch(trial, row, planned, planned[0])

    def _stages(self, trial: Trial, row: int) -> list[Stage]:
        """The trial's jobs; its number of earlier measurements is kept, so that they are the same after a kill."""
        attributes = trial.user_attrs
        return self.work.stages(row, int(attributes.get(names.REPEAT, 0)), attributes.get(names.FIDELITY))

    def _claim(self, trial: Trial, row: int) -> bool:
        """Whether the plan is ours. Of workers that chose the same at once exactly one goes on: whoever sees a lower number,
        or a claim, gives way; a lower number waits for higher ones to decide.
        """
        deadline, mine = self.clock() + DECISION_S, trial.user_attrs
        while True:
            same = [t for t in self._trials(without=trial) if self.work.candidates.row_of(t.params) == row and _counts(t, mine)]
            if any(t.number < trial.number or t.user_attrs.get(names.CLAIMED) or t.state.is_finished() for t in same):
                return False
            if not same or self.clock() > deadline:
                trial.set_user_attr(names.CLAIMED, True)
                return True
            time.sleep(self.poll_s)

    def _launch(self, trial: Trial, row: int, planned: list[Stage], stage: Stage, again: bool = False) -> None:
        folder = prepare(self.jobs_folder, stage.job)
        self._note(trial, {names.STAGE: stage.name, names.JOB: folder.name})
        life = self.runner.poll(folder)  # first: it may learn how the job ended
        found = outcome_of(folder)
        if life not in (Life.RUNNING, Life.WAITING) and (found is None or found.kind not in FINAL):
            # never shortened by the budget: a job that outlives a killed search would end as timed out, which is final
            self.waiting.append((folder, stage.limit_s(self.job_limit_s)))
        self.running.append(Running(trial=trial, row=row, stages=planned, stage=stage, folder=folder, since=self.clock()))
        self.listener.started(as_stored(trial), stage, again)

    def _submit(self) -> None:
        waiting, self.waiting = self.waiting, []
        if waiting and not self.control.cancel:
            self.runner.submit_together(waiting)

    def _look(self, one: Running) -> None:
        life = self.runner.poll(one.folder)
        if life in (Life.RUNNING, Life.WAITING):
            if life is Life.WAITING:
                one.since = self.clock()  # no GPU time passes in a queue
            self._look_at_steps(one)
            return
        outcome = _outcome(one) or Outcome(kind=Kind.LOST, message="it vanished without a result")
        attempts = int(read_json(one.folder.launch_file).get("attempt", 1))
        if outcome.kind not in FINAL and attempts < MAX_ATTEMPTS and not self.control.cancel:
            self.listener.say(f"trial {one.trial.number}: {outcome.message}; started again")
            self.runner.submit(one.folder, one.stage.limit_s(self.job_limit_s))
            return
        if outcome.kind is Kind.LOST and not self.control.cancel:  # else it would be proposed again, without end
            self.runner.cancel(one.folder)
            end = " | ".join(one.folder.last_lines(2)) or "is empty"
            outcome = Outcome(
                kind=Kind.FAILED, message=f"lost {attempts} times, {outcome.message}; log {one.folder.log_file} ends: {end}"
            )
        self.running.remove(one)
        self.job_seconds.append(self.clock() - one.since)
        if outcome.hopeless:
            self._tell(one.trial, self._verdict(outcome, one))
            hint = (
                "; fewer GPUs than the plan's: --gpus-here N emulates ranks" if outcome.exit_code == ExitCode.NO_DEVICE else ""
            )
            raise JobsFailError(f"no job can be measured here: {outcome.message}{hint}")
        if outcome.kind is Kind.MEASURED and one.stage is not one.stages[-1]:
            self._after_stage(one, outcome)
            return
        self._tell(one.trial, self._verdict(outcome, one))
        self._check_failures(outcome)

    def _look_at_steps(self, one: Running) -> None:
        """Steps that were printed go to the storage; a plan that they rule out is ended before the others."""
        steps = [step for step in timed_steps(one.folder) if is_plausible(step, one.stage.predicted_s)]
        if len(steps) == one.steps_seen or not steps or one.stage.job.mode == "emulate":
            return
        if self.work.keeps_steps:
            for number in range(one.steps_seen, len(steps)):
                one.trial.report(steps[number], number)
        one.steps_seen = len(steps)
        left = (one.stage.job.steps - len(steps)) * min(steps)
        if left < PRUNE_LEFT_S:
            return
        verdict = self._ruled_out(one, steps)
        if verdict is not None:
            self.runner.cancel(one.folder)
            self.running.remove(one)
            self.job_seconds.append(self.clock() - one.since)
            self._tell(one.trial, verdict)

    def _after_stage(self, one: Running, outcome: Outcome) -> None:
        assert outcome.measurement is not None and outcome.measurement.step_seconds is not None
        verdict = self._ruled_out(one, [outcome.measurement.step_seconds])
        if verdict is not None:
            self._tell(one.trial, verdict)
            return
        self._launch(one.trial, one.row, one.stages, one.stages[one.stages.index(one.stage) + 1])

    def _check_failures(self, outcome: Outcome) -> None:
        if outcome.kind in (Kind.MEASURED, Kind.OUT_OF_MEMORY, Kind.CANCELLED, Kind.LOST):
            return
        trials = self._trials()
        good = any(
            t.user_attrs.get(names.OUTCOME) in (names.MEASURED, names.EMULATED, names.PRUNED, names.OUT_OF_MEMORY)
            for t in trials
        )
        failed = sum(t.state == TrialState.FAIL and t.user_attrs.get(names.OUTCOME) not in names.AGAIN for t in trials)
        if not good and failed >= MAX_FAILURES:
            raise JobsFailError(f"the first {failed} jobs all failed, the last: {outcome.message}")

    def _adopt(self) -> None:
        trials = self._trials()
        for frozen in trials:
            if frozen.state != TrialState.RUNNING or frozen.user_attrs.get(names.OWNER) != self.owner:
                continue
            trial, row = taken_up(self.study, frozen), self.work.candidates.row_of(frozen.params)
            if row is None:  # killed by an earlier version while it wrote the parameters
                trial.set_user_attr(names.OUTCOME, names.LOST)
                self.study.tell(trial, state=TrialState.FAIL)
                continue
            if names.JOB not in frozen.user_attrs:
                earlier = [t for t in trials if t.number < frozen.number]
                self._note(trial, {**self._attributes(row, earlier), **frozen.user_attrs})
                self._begin(trial, row)
                continue
            planned = self._stages(trial, row)
            stage = next((s for s in planned if s.name == frozen.user_attrs.get(names.STAGE)), planned[0])
            self._launch(trial, row, planned, stage, again=True)
        self._submit()

    def _cancel_all(self, why: str) -> None:
        self.waiting.clear()
        for one in self.running:
            self.runner.cancel(one.folder)
        for one in self.running:
            outcome = _outcome(one)
            part = one.stage is not one.stages[-1] and outcome is not None and outcome.kind is Kind.MEASURED
            if part or outcome is None or outcome.kind not in FINAL:
                outcome = Outcome(kind=Kind.CANCELLED, message=why)
            self._tell(one.trial, self._verdict(outcome, one))
        self.running.clear()

    def _tell(self, trial: Trial, verdict: Verdict) -> None:
        self._note(trial, verdict.attributes)
        self.study.tell(trial, values=verdict.values, state=verdict.state, skip_if_finished=True)
        if verdict.attributes.get(names.OUTCOME) != names.DUPLICATE:
            self.ended_here += 1
            self.listener.ended(as_stored(trial), verdict)

    def _ruled_out(self, one: Running, steps: Sequence[float]) -> Verdict | None:
        return self.work.ruled_out(one.row, one.stage, steps, one.trial.number, self._trials(without=one.trial))

    def _verdict(self, outcome: Outcome, one: Running) -> Verdict:
        found = self.work.verdict(outcome, one.row, one.stage, one.stages, self.jobs_folder)
        if outcome.kind is not Kind.MEASURED or not (odd := noticed(one.folder)):
            return found
        message = "; ".join(filter(None, (found.attributes.get(names.MESSAGE), *odd)))
        return replace(found, attributes={**found.attributes, names.MESSAGE: message})

    def _note(self, trial: Trial, attributes: dict[str, Any]) -> None:
        for name, value in attributes.items():
            trial.set_user_attr(name, value)


def _outcome(one: Running) -> Outcome | None:
    """Of its job; a step that is none of this job is no measurement."""
    found = outcome_of(one.folder)
    if found is None or found.kind is not Kind.MEASURED or found.measurement is None:
        return found
    return compared(found, "step_seconds", found.measurement.step_seconds, one.stage.predicted_s)


def _counts(trial: FrozenTrial, mine: Mapping[str, Any]) -> bool:
    """A trial of a plan that makes another one of the same plan a duplicate: it runs, or it said something, as the same repeat
    of the same kind of job.
    """
    theirs, running = trial.user_attrs, trial.state == TrialState.RUNNING
    if not running and theirs.get(names.OUTCOME) in names.AGAIN:
        return False
    repeat = theirs.get(names.REPEAT, mine[names.REPEAT] if running else 0)
    return repeat == mine[names.REPEAT] and (
        theirs.get(names.FIDELITY) == mine.get(names.FIDELITY) or names.REPEAT not in theirs
    )


_BUDGET = "the budget is spent"
_SETTLED = "settled: no plan that was not measured is likely to be faster"
