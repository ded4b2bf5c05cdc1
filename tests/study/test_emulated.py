"""Emulated ranks as a stage of a trial: which ranks, which step they make, and what it counts for."""

import math

import pytest
from autoconfig.specs.job import pipeline_stage
from autoconfig.specs.measurement import Measurement, RankFigures
from autoconfig.specs.plan import parse_plan
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState, create_trial

from autoconfig.core.emulate import COMPUTE_PARTS
from autoconfig.study import trials as names
from autoconfig.study.training.candidates import candidates_of
from autoconfig.study.training.proposal import believe, propose, results_of
from autoconfig.study.training.settings import StudySettings
from autoconfig.study.training.work import composed_seconds, emulated_ranks, emulated_stages, stages, verdict_of_ranks
from autoconfig.training.price import report_plan
from autoconfig.training.question import Request, understand
from autoconfig.training.rank import rank_plans

REQUEST = Request(model="175b", gpus=1024, gpu="h100-sxm-80gb", fix=("recompute=none", "mbs=1", "tp=8"), max=("pp=16",))


@pytest.fixture(scope="module")
def scenario():
    return understand(REQUEST).scenario


@pytest.mark.parametrize(
    ("text", "places"), [("tp=8,pp=8,mbs=1", [0, 7]), ("tp=8,pp=1,mbs=1", [0]), ("tp=8,pp=8,mbs=1,first=6,last=6", [0, 1, 7])]
)
def test_ranks_of_the_stages_that_decide(scenario, text, places):
    plan = parse_plan(text, 1024)
    assert [pipeline_stage(plan, rank) for rank in emulated_ranks(scenario, plan)] == places


def measured(plan, scenario, factor: float) -> list[Measurement]:
    """What ranks would measure whose layers take `factor` times the predicted compute of the stage that decides."""
    report, found = report_plan(scenario, plan), []
    m = scenario.workload.global_batch_size // (plan.mbs * plan.dp)
    compute = factor * sum(report.time_parts.get(name, 0.0) for name in COMPUTE_PARTS) / m
    layers = scenario.model.num_layers // plan.pp
    for rank in emulated_ranks(scenario, plan):
        seconds = {"dense.forward": compute / layers / 3, "dense.backward": compute / layers * 2 / 3}
        ranks = (RankFigures(rank=rank, pipeline_stage=0, peak_allocated_bytes=30 * 2**30 - rank, layer_seconds=seconds),)
        found.append(
            Measurement(
                job_hash="",
                plan=str(plan),
                mode="emulate",
                status="ran",
                exit_code=0,
                ranks=ranks,
                step_seconds=1.0,
                step_seconds_samples=(1.0, 1.0),
            )
        )
    return found


def test_the_step_is_the_predicted_one_with_the_measured_compute(scenario):
    """Exactly as predicted gives the prediction; twice the compute adds compute and bubble, and no communication."""
    plan = parse_plan("tp=8,pp=8,mbs=1,sp=1", 1024)
    report = report_plan(scenario, plan)
    assert composed_seconds(scenario, plan, measured(plan, scenario, 1.0)) == pytest.approx(report.step_seconds, rel=1e-9)
    compute = sum(report.time_parts.get(name, 0.0) for name in COMPUTE_PARTS)
    twice = composed_seconds(scenario, plan, measured(plan, scenario, 2.0))
    assert report.step_seconds + compute < twice < 2 * report.step_seconds


def test_a_composed_step_counts_while_there_are_no_gpus_for_full_jobs(scenario):
    """Then it is measured and the plan is done; where full jobs can run it is a hint, and the plan may be measured in full."""
    candidates = candidates_of(rank_plans(scenario, understand(REQUEST).constraints))
    row, settings = 0, StudySettings(request=REQUEST)
    plan, predicted = candidates.plans[row], float(candidates.predicted_s[row])
    jobs = emulated_stages(scenario, plan, predicted, settings)
    assert [stage.job.mode for stage in jobs] == ["emulate"] * len(jobs) and {stage.job.num_processes for stage in jobs} == {1}
    assert [stage.job.mode for stage in stages(scenario, plan, predicted, settings)][-1] == "run"
    verdict = verdict_of_ranks(scenario, plan, measured(plan, scenario, 1.2), predicted, settings, 70 * 2**30)
    assert verdict.attributes[names.PEAK_BYTES] == 30 * 2**30, "the largest of the ranks"
    trial = create_trial(
        state=TrialState.COMPLETE, params=dict(candidates.params[row]), user_attrs=verdict.attributes, values=verdict.values,
        distributions={name: CategoricalDistribution(values) for name, values in candidates.choices.items()},
    )  # fmt: skip
    counted, hint = results_of([trial], candidates, emulated=True), results_of([trial], candidates)
    assert believe(candidates, counted).measured == {row: verdict.values[0]} and believe(candidates, hint).measured == {}
    moved = [believe(candidates, found).posterior.mean[row] - math.log(predicted) for found in (counted, hint)]
    assert moved[0] == pytest.approx(moved[1]) and moved[0] > 0.05
    arguments = {"name": "s", "seed": 0, "number": 1}
    assert propose(candidates, counted, **arguments).row != row
    assert not propose(candidates, hint, **arguments).settled
