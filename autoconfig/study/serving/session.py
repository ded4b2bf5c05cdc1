"""Studies of serving: from their question to what they measure."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from autoconfig.profiler.errors import RunnerError
from autoconfig.serving.calibration_file import write_serving_calibration
from autoconfig.serving.question import ServeQuestion, understand
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.local_gpu import gpu_of_file
from autoconfig.specs.units import GIB
from autoconfig.study.interpreter import asked
from autoconfig.study.serving.candidates import candidates_of
from autoconfig.study.serving.found import ServingFound, study_found
from autoconfig.study.serving.proposal import measured_rows
from autoconfig.study.serving.settings import ServingSettings
from autoconfig.study.serving.work import ServingWork
from autoconfig.study.session import Options, Session, StudyKind
from autoconfig.study.this_machine import rank_memory_bytes

CAN_BENCHMARK = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('torch', 'scipy'))))"


class ServingKind(StudyKind[ServingSettings, ServingWork]):
    """Studies of deployments."""

    command = "autoconfig search --inference"
    settings = ServingSettings

    def ask(self, settings: ServingSettings, options: Options, table: Path | None = None) -> ServingWork:
        """Its deployments, priced. Without `table` a CPU has a GPU's speed and memory. Raises InputError and its kinds."""
        question = understand(settings.request)
        _check_length(question)
        limit, assumed = settings.device_memory_bytes, question.assumed
        if settings.device == "cpu":
            limit = rank_memory_bytes(question.num_gpus) if limit is None else limit
            settings = replace(settings, device_memory_bytes=limit)
        if table is not None:
            assert limit is not None
            gpu, source = gpu_of_file(str(table))
            assumed = (
                f"{source}, in fp32", f"{limit / GIB:.3g} GiB for each of {question.num_gpus} ranks (--device-memory)",
                f"prompts of {settings.request.isl} tokens, answers of {settings.request.osl} (--isl, --osl)",
            )  # fmt: skip
            question = replace(question, gpu=replace(gpu, memory_bytes=limit), gpus_per_node=question.num_gpus)
        elif settings.device == "cuda" and limit is not None:
            question = replace(question, gpu=replace(question.gpu, memory_bytes=limit))
        work = ServingWork(settings=settings, question=question, candidates=candidates_of(question), assumed=assumed)
        work.job(0)
        return work

    def benchmark_python(self, python: str) -> str:
        """The engine's interpreter, else this one. Raises RunnerError."""
        for one in (python, sys.executable):
            if asked(one, CAN_BENCHMARK).returncode == 0:
                return one
        raise RunnerError(
            f"neither {python} nor {sys.executable} has torch and scipy, which measure this CPU: pip install scipy"
        )

    def found(self, session: Session[ServingWork], price_per_gpu_hour: float | None = None) -> ServingFound:
        """Everything that the finished trials say."""
        return study_found(session)

    def write_learned(self, session: Session[ServingWork], target: Path) -> str | None:
        """The constants that the study's points give, for its engine and GPU. Raises FileError."""
        choices, question = session.work.candidates, session.work.question
        measured = measured_rows(session.study.get_trials(deepcopy=False), choices)
        if not measured:
            return None
        origin = f"study {session.name}, {len(measured)} points"
        return write_serving_calibration(question.engine.name, question.gpu.id, origin, choices.learned(measured), target)


def _check_length(question: ServeQuestion) -> None:
    model, length = question.model, int(question.lengths.isl + question.lengths.osl)
    limited = question.engine.framework == "vllm" or model.position_embedding_type == "learned_absolute"
    if limited and length > model.max_position_embeddings:
        raise InputError(f"--isl + --osl = {length}: {model.name} has {model.max_position_embeddings} positions")


SERVING = ServingKind()
