"""The simulated scheduler of a serving engine, iteration by iteration, by hand: every iteration takes one second."""

from typing import Any

import numpy as np
from autoconfig.time_model.serving.iteration import _linear, _position
from autoconfig.time_model.serving.simulation import Requests, SchedulerLimits, SimulatedStream, simulate
from tables import tabled


class OneSecond:
    """A table of iterations that remembers what it was asked: sequences that decode, their mean length, prompts that end, new
    tokens, length of a prompt, tokens computed of each sequence, whole prompts that the new tokens' attention is worth."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, ...]] = []

    def seconds(self, *work: float) -> float:
        self.asked.append(tuple(round(one, 6) for one in work))
        return 1.0


def run(
    sizes: list[tuple[float, float]], *, arrival: list[float] | None = None, cached: float = 0.0, users: int | None = None,
    token_s: float = 0.0, **limits: Any,
) -> tuple[SimulatedStream, list[tuple[float, ...]]]:  # fmt: skip
    table, (isl, osl) = OneSecond(), np.array(sizes, dtype=float).T
    requests = Requests(arrival_s=np.array(arrival or [0.0] * len(isl)), isl=isl, osl=osl, cached=cached)
    given = {"batch": 2, "tokens": 100, "kv_tokens": 1000.0, **limits}
    found = simulate(table, requests, SchedulerLimits(**given), request_s=0.25, users=users, token_s=token_s)  # type: ignore[arg-type]
    return found, table.asked


THREE = [(60, 3), (60, 2), (50, 1)]
FIRST = (0, 0, 1, 100, 60, 1, 1.444444)  # one prompt of 60 ends, 40 tokens of the next: (40 / 60)^2 of its attention


def test_a_prompt_is_cut_where_the_iteration_is_full_and_a_third_request_waits_for_a_place():
    served, asked = run(THREE)
    assert asked == [FIRST, (1, 60, 1, 20, 60, 1, 0.555556), (2, 60.5, 0, 0, 1, 1, 0), (0, 0, 1, 50, 50, 1, 1)]
    assert (served.ttft_s - 0.25).tolist() == [1, 2, 4] and (served.e2e_s - 0.25).tolist() == [3, 3, 4]
    assert served.tpot_s[:2].tolist() == [1, 1] and np.isnan(served.tpot_s[2])
    assert (served.duration_s, served.iterations, served.requests_per_s) == (4.25, 4, 3 / 4.25)
    assert served.step_end_s.tolist() == [2.25, 3.25]
    assert served.step_tokens.tolist() == [1, 2] and served.step_s.tolist() == [1, 1]


def test_a_whole_cache_is_reserved_until_a_request_ends():
    """63 and 62 tokens with their outputs: both in 125, one after the other in 124, with what the third has left over."""
    assert run(THREE, kv_tokens=125.0)[1] == run(THREE)[1]
    served, asked = run(THREE, kv_tokens=124.0)
    assert asked == [(0, 0, 1, 60, 60, 1, 1), (1, 60, 0, 0, 1, 1, 0), (0, 0, 1, 100, 55, 1, 1.64),
                     (1, 60, 1, 10, 50, 1, 0.36)]  # fmt: skip
    assert (served.e2e_s - 0.25).tolist() == [3, 5, 5]


def test_prompts_alone_are_asked_for_where_running_requests_may_pause():
    """60 + 60 in 120; one token less holds one prompt beside none."""
    assert run(THREE, kv_tokens=120.0, admission="prompt")[1][0] == FIRST
    assert run(THREE, kv_tokens=119.0, admission="prompt")[1][0] == (0, 0, 1, 60, 60, 1, 1)


def test_whole_prompts_wait_for_an_iteration_that_takes_them():
    _, asked = run(THREE, chunked=False)
    assert asked[:2] == [(0, 0, 1, 60, 60, 1, 1), (1, 60, 1, 60, 60, 1, 1)]


def test_drafts_shorten_the_answer_and_take_tokens_of_the_iteration():
    """Two tokens a step, three computed: 5 tokens are the first and two steps; beside it 97 of the next prompt's 100."""
    served, asked = run([(60, 5), (100, 1)], steps_per_token=0.5, checked=3.0, arrival=[0.0, 0.5])
    assert asked == [(0, 0, 1, 60, 60, 3, 1), (1, 60, 0, 97, 100, 3, 0.9409), (1, 62, 1, 3, 100, 3, 0.0591)]
    assert (served.e2e_s - 0.25).tolist() == [3, 2.5]


def test_decoding_stops_where_a_request_arrives():
    served, asked = run([(60, 10), (50, 2)], arrival=[0.0, 3.5])
    assert asked == [(0, 0, 1, 60, 60, 1, 1), (1, 60, 0, 0, 1, 1, 0), (1, 63, 1, 50, 50, 1, 1), (2, 57, 0, 0, 1, 1, 0),
                     (1, 65, 0, 0, 1, 1, 0)]  # fmt: skip
    assert (served.ttft_s - 0.25).tolist() == [1, 1.5] and (served.e2e_s - 0.25).tolist() == [10, 2.5]


def test_a_cached_prefix_is_not_computed_but_held():
    """40 of 100 tokens are there: 60 new ones of a prompt of 100, which is 103 tokens with its output."""
    served, asked = run([(60, 3)], cached=40.0, kv_tokens=103.0)
    assert asked == [(0, 0, 1, 60, 100, 1, 0.84), (1, 100, 0, 0, 1, 1, 0)] and served.iterations == 3


def test_a_user_asks_again_when_he_has_his_answer():
    served, asked = run([(60, 2)] * 3, users=1)
    assert [work[0] for work in asked] == [0, 1] * 3 and (served.ttft_s - 0.25).tolist() == [1, 1, 1]
    assert served.duration_s == 3 * 2.25


DECODE, SECOND = (1, 60, 0, 0, 1, 1, 0), (1, 61, 0, 0, 1, 1, 0)


def test_prompts_that_go_alone_hold_decoding_up():
    served, asked = run([(60, 3), (50, 2)], arrival=[0.0, 1.5], alone=True)
    assert asked == [(0, 0, 1, 60, 60, 1, 1), DECODE, (0, 0, 1, 50, 50, 1, 1), (2, 55.5, 0, 0, 1, 1, 0)]
    assert (served.e2e_s - 0.25).tolist() == [4, 2.5] and (served.ttft_s - 0.25).tolist() == [1, 1.5]


def test_a_scheduler_one_step_behind_sees_a_request_an_iteration_later():
    """It is there in the second iteration; the third was put together when that began."""
    prompt = (50, 50, 1, 1)
    early, late = (run([(60, 5), (50, 2)], arrival=[0.0, 1.5], late=late)[1] for late in (False, True))
    assert early[:3] == [(0, 0, 1, 60, 60, 1, 1), DECODE, (1, 61, 1, *prompt)]
    assert late[:4] == [(0, 0, 1, 60, 60, 1, 1), DECODE, SECOND, (1, 62, 1, *prompt)]


def test_requests_are_looked_for_every_third_iteration():
    served, asked = run([(60, 10), (50, 2)], arrival=[0.0, 1.5], receive_every=3)
    assert [work[3] for work in asked[:5]] == [60, 0, 0, 0, 50] and served.ttft_s[1] - 0.25 == 3.5


def test_the_newest_sequence_is_thrown_out_where_the_cache_is_full_and_begins_again():
    """60 + 60 and two tokens each in 125; the first then runs alone, and the second comes back with 63 tokens and 6 to get."""
    served, asked = run([(60, 10), (60, 10)], tokens=200, kv_tokens=125.0, admission="prompt")
    assert asked[0] == (0, 0, 2, 120, 60, 1, 2) and (0, 0, 1, 63, 63, 1, 1) in asked
    assert (served.e2e_s - 0.25).tolist() == [10, 17] and (served.ttft_s - 0.25).tolist() == [1, 1]


def test_a_share_of_what_is_to_come_is_kept_free():
    """60 + 20 of the first, of whose 20 to come 0.7 count: 74, and 60 + 10 of the second; one token less takes it later."""
    sizes, arrival = [(60, 20), (60, 10)], [0.0, 0.5]
    assert run(sizes, arrival=arrival, kv_tokens=144.0, admission="estimated")[1][1][3] == 60
    assert run(sizes, arrival=arrival, kv_tokens=143.0, admission="estimated")[1][1][3] == 0


def test_ranks_that_step_together_take_as_long_as_the_busiest():
    """Two prompts, one a rank; then one sequence each; of three prompts one rank has two, cut at its 100 tokens."""
    assert run([(60, 2)] * 2, ranks=2)[1] == [(0, 0, 1, 60, 60, 1, 1), DECODE]
    assert run([(60, 1)] * 3, ranks=2, batch=3)[1] == [(0, 0, 1.666667, 100, 60, 1, 1.666667)]


def test_a_burst_waits_for_the_tokeniser():
    """0.6 s a prompt of 60, one after the other."""
    served, _ = run([(60, 3), (60, 3)], token_s=0.01)
    assert served.ttft_s.tolist() == [1.85, 2.85]


@tabled
def test_tables_are_linear_between_their_points_and_constant_outside(x, place, value):
    assert list(_position([1.0, 2.0, 4.0], x)) == place
    if value is not None and x >= 1:
        assert _linear([1.0, 2.0, 4.0], [10.0, 20.0, 40.0], x) == value
