"""Studies of training: from their question to what they measure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autoconfig.planning.calibration_file import write_calibration
from autoconfig.specs.hardware.gpu import CPU_ARCHITECTURE
from autoconfig.study.session import NothingFitsError, Options, Session, StudyKind
from autoconfig.study.training.candidates import candidates_of
from autoconfig.study.training.found import TrainingFound, learned_calibration, study_found
from autoconfig.study.training.settings import StudySettings, on_this_device
from autoconfig.study.training.work import TrainingWork, full_job
from autoconfig.training.question import understand
from autoconfig.training.rank import rank_plans
from autoconfig.training.reasons import nothing_legal
from autoconfig.training.space import Constraints


class TrainingKind(StudyKind[StudySettings, TrainingWork]):
    """Studies of training plans."""

    command = "autoconfig search"
    settings = StudySettings

    def ask(self, settings: StudySettings, options: Options, table: Path | None = None) -> TrainingWork:
        """What the time and memory models say. Without `table` a CPU has a GPU's speed. Raises InputError and its kinds."""
        settings, assumed = on_this_device(settings, table)
        question = understand(settings.request)
        scenario = question.scenario
        if settings.device_memory_bytes is not None:
            scenario = replace(scenario, cluster=replace(scenario.cluster, memory_bytes=settings.device_memory_bytes))
        if settings.device == "cpu" and table is None:
            gpu = replace(scenario.cluster.gpu, architecture=CPU_ARCHITECTURE)
            scenario = replace(scenario, cluster=replace(scenario.cluster, gpu=gpu))
        ranking = rank_plans(scenario, _buildable(question.constraints), settings.request.memory_margin)
        if ranking.funnel.legal == 0:
            raise nothing_legal(question, ranking.space)
        if not len(ranking.row):
            raise NothingFitsError("no plan fits the memory limit: raise --device-memory, or see what autoconfig search says")
        candidates = candidates_of(ranking)
        full_job(scenario, candidates.plans[0], settings)
        return TrainingWork(
            settings=settings,
            question=replace(question, scenario=scenario),
            candidates=candidates,
            assumed=(*question.assumed, *assumed),
            emulated=options.emulates(scenario.cluster.num_gpus),
        )

    def benchmark_python(self, python: str) -> str:
        """The jobs' own."""
        return python

    def found(self, session: Session[TrainingWork], price_per_gpu_hour: float | None = None) -> TrainingFound:
        """Everything that the finished trials say."""
        return study_found(session, price_per_gpu_hour)

    def write_learned(self, session: Session[TrainingWork], target: Path) -> str | None:
        """The question's calibration, refined with what was measured. Raises FileError."""
        learned = learned_calibration(session)
        if learned is None:
            return None
        write_calibration(learned, target)
        return learned.version


def _buildable(constraints: Constraints) -> Constraints:
    """Without what the training core does not build: sharding beyond the distributed optimizer, optimizer state on the CPU."""
    fsdp = constraints.excluded.get("fsdp", frozenset()) | {2, 3}
    return replace(constraints, excluded={**constraints.excluded, "fsdp": fsdp})


TRAINING = TrainingKind()
