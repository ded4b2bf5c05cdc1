"""A search by bounds answers as one that prices every plan: the same order, counts, ties, Pareto set and safe plan."""

import numpy as np
import pytest
from autoconfig.memory_model.predict import estimate_memory, fit_probability, plans_that_fit
from autoconfig.memory_model.tables import least_state_bytes, stage_terms
from autoconfig.time_model.job import TrainingJob
from autoconfig.time_model.predict import StepTimes, estimate_step_time

from autoconfig.training import price
from autoconfig.training.question import Request, understand
from autoconfig.training.rank import pareto_positions, rank, tie_groups
from autoconfig.training.space import enumerate_space, legal_mask, recompute_options

pytestmark = pytest.mark.xdist_group("prune")
FIRST = 50
QUESTIONS = {
    "dense": {"model": "175b", "gpus": 256, "gpu": "a100-80gb"},
    "fp8": {"model": "llama3-70b", "gpus": 64, "gpu": "h100", "numerics": {"precision": "fp8"}},
    "local": {"model": "175b", "gpus": 64, "software": "megatron-local"},
    "lora": {"model": "llama3-70b", "gpus": 16, "numerics": {"peft": "lora"}},
    "mixture": {"model": "qwen3-235b-a22b", "gpus": 64},
    "tight": {"model": "mixtral-8x22b", "gpus": 32, "memory_margin": 0.3},
    "hybrid": {"model": "nemotron-3-nano-30b-a3b", "gpus": 16},
    "leading dense layers": {"model": "deepseek-v3", "gpus": 192},
}


class Exhaustive:
    """Every plan of a question, priced without any bound."""

    def __init__(self, question, margin):
        self.scenario, self.space = question.scenario, enumerate_space(question.scenario, question.constraints)
        self.layouts = self.space.layouts
        self.options = rank(question.scenario, question.constraints, margin, first=1).options
        memory = estimate_memory(self.scenario, self.layouts, self.options, margin=margin)
        self.legal = legal_mask(self.options, self.layouts, self.scenario)
        self.fits, self.peaks = memory.fits & self.legal, memory.peak_bytes
        self.steps = estimate_step_time(self.scenario, self.layouts, self.options).step_seconds
        self.row, self.option = np.nonzero(self.fits)
        step, self.limit = self.steps[self.fits], memory.limit_bytes[self.row]
        peak = memory.peak_bytes[self.fits]
        order = np.lexsort((peak - self.limit, step))
        self.row, self.option, self.limit = self.row[order], self.option[order], self.limit[order]
        self.step, self.peak = step[order], peak[order]
        _, first = np.unique(self.space.layout_id[self.row], return_index=True)
        self.best = np.sort(first)


@pytest.fixture(scope="module", params=list(QUESTIONS))
def asked(request):
    given = QUESTIONS[request.param]
    question, margin = understand(Request(**given)), given.get("memory_margin", 0.0)
    return question, margin, Exhaustive(question, margin)


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch):
    monkeypatch.setattr(price, "FIRST_ROWS", 16)


def test_the_first_plans_and_all_counts_are_those_of_pricing_everything(asked):
    question, margin, every = asked
    found = rank(question.scenario, question.constraints, margin, first=FIRST)
    many = len(found.row)
    assert many >= min(FIRST, len(every.row)) and len(found.best) >= min(FIRST, len(every.best))
    for ours, theirs in ((found.row, every.row), (found.option, every.option), (found.step_seconds, every.step)):
        np.testing.assert_array_equal(ours, theirs[:many])
    np.testing.assert_array_equal(found.peak_bytes, every.peak[:many])
    np.testing.assert_array_equal(found.best, every.best[: len(found.best)])
    assert (found.funnel.fit, found.funnel.priced) == (len(every.best), len(every.row))
    assert found.whole == (many == len(every.row))
    groups, theirs = tie_groups(found.step_seconds[found.best]), tie_groups(every.step[every.best])
    assert (groups == 1).sum() == (theirs == 1).sum()
    np.testing.assert_array_equal(groups[:FIRST], theirs[:FIRST])


def test_the_pareto_set_and_the_safe_plan_are_those_of_the_whole_ranking(asked):
    question, margin, every = asked
    found = rank(question.scenario, question.constraints, margin, first=1)
    whole = rank(question.scenario, question.constraints, margin)
    np.testing.assert_array_equal(whole.row, every.row)
    assert pareto_positions(found) == pareto_positions(whole)
    safe = fit_probability(every.peak, every.limit, question.scenario.cluster.memory_bytes) >= price.SAFE_FIT
    ours = np.flatnonzero(found.fit_chances() >= price.SAFE_FIT)
    assert (len(ours) > 0) == safe.any() and (not len(ours) or ours[0] == np.flatnonzero(safe)[0])


def test_bounds_are_bounds(asked):
    _, margin, every = asked
    memory = plans_that_fit(every.scenario, every.layouts, every.options, every.legal, margin=margin)
    np.testing.assert_array_equal(memory.fits, every.fits)
    rows = np.flatnonzero(memory.fits.any(axis=1))[::5]
    np.testing.assert_array_equal(memory.peak_bytes(rows)[memory.fits[rows]], every.peaks[rows][memory.fits[rows]])
    times = StepTimes.of(TrainingJob.of(every.scenario), every.layouts, every.options)
    rows = np.arange(len(every.layouts))
    assert np.all(times.least_seconds(rows) <= every.steps.min(axis=1))
    least = times.least_seconds(rows, every.fits)
    quickest = np.where(every.fits, every.steps, np.inf).min(axis=1)
    some = np.isfinite(quickest)
    assert np.all(least <= quickest) and (not some.any() or np.median(least[some] / quickest[some]) > 0.5)
    some = every.layouts.take(slice(None, None, 7))
    state = stage_terms(every.scenario, some, every=True).state.max(axis=1)
    least = least_state_bytes(every.scenario, some)
    assert np.all(least <= state * (1 + 1e-12)) and np.median(least / state) > 0.2


def test_peaks_of_the_search_are_those_of_every_stage_in_detail(asked):
    _, margin, every = asked
    some = every.layouts.take(np.random.default_rng(5).choice(len(every.layouts), 150))
    quick = estimate_memory(every.scenario, some, every.options, margin=margin).peak_bytes
    detailed = estimate_memory(every.scenario, some, every.options, margin=margin, detail=True).peak_bytes
    legal = legal_mask(every.options, some, every.scenario)
    np.testing.assert_allclose(quick[legal], detailed[legal], rtol=1e-12)


def test_every_stage_and_option_decides_alike_where_nothing_is_legal():
    scenario = understand(Request(model="llama3-8b", gpus=8)).scenario
    layouts = enumerate_space(scenario).layouts.take(slice(0, 0))
    options = recompute_options(scenario, understand(Request(model="llama3-8b", gpus=8)).constraints, 4)
    legal = legal_mask(options, layouts, scenario)
    assert plans_that_fit(scenario, layouts, options, legal).fits.shape == (0, len(options))
