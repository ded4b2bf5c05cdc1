"""What an emulated rank computes on: numbers, as its peers would bring, and not counted as the rank's time."""

import json
import math

import pytest
import torch
import torch.distributed as dist
from autoconfig.specs.measurement import Measurement, measurement_text, read_measurement_text
from autoconfig.trainer.host.timers import Apart, LayerTimers
from autoconfig.trainer.process import numbers
from autoconfig.trainer.tracing.fake_ranks import fake_process_group, made_up_by

pytestmark = pytest.mark.torch

RANKS = 4


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")  # of torch: megatron-core calls these names
def test_peers_bring_what_the_rank_has():
    """Without the stand-in, what is gathered stays memory as it lies: here not a number."""
    apart, ticks = Apart(), iter(range(100))
    apart.mark = lambda: next(ticks)
    mine = torch.arange(8.0).reshape(4, 2)
    with fake_process_group(1, RANKS), made_up_by(apart):
        gathered = torch.full((RANKS * 4, 2), math.nan)
        dist.all_gather_into_tensor(gathered, mine)
        reduced = torch.full((1, 2), math.nan)
        dist.reduce_scatter_tensor(reduced, mine)
        exchanged = torch.full((7, 2), math.nan)
        dist.all_to_all_single(exchanged, mine, [1, 2, 2, 2], [1, 1, 1, 1])
        in_place = torch.zeros(RANKS * 2)
        dist.all_gather_into_tensor(in_place, in_place[2:4])  # as the distributed optimizer gathers weights
    assert torch.equal(gathered, mine.repeat(RANKS, 1)) and torch.equal(reduced, mine[1:2])
    assert torch.equal(exchanged, torch.cat([mine, mine[:3]]))
    assert apart.spans == [(0, 1), (2, 3), (4, 5)], "one span for each that was made up; none for what was there"


def test_a_layer_is_timed_without_what_stands_apart():
    """A clock that only the work moves: 5 forward of which 2 apart, 7 backward of which 1 apart."""
    clock, apart = [0.0], Apart()
    timers = LayerTimers(lambda: clock[0], lambda start, end: end - start, apart)

    def pass_time(seconds: float, aside: float) -> None:
        clock[0] += seconds - aside
        with apart.span():
            clock[0] += aside

    class Pass(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            pass_time(5.0, 2.0)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            pass_time(7.0, 1.0)
            return gradient * 2

    layer = torch.nn.Identity()
    layer.forward = Pass.apply
    apart.mark = timers._mark
    timers._time(layer, "dense")
    x = torch.ones(1, requires_grad=True)
    (layer(x * 1.0)).sum().backward()
    assert timers.medians() == pytest.approx({"dense.forward": 3.0, "dense.backward": 6.0})
    timers.detach()
    assert apart.mark is None


def test_a_loss_that_is_no_number_is_written_as_null():
    """JSON has none, and a job without a result would be lost."""
    found = Measurement(job_hash="0" * 64, plan="tp=1", status="ran", exit_code=0, losses=numbers([1.5, math.nan, math.inf]))
    text = measurement_text(found)
    assert json.loads(text)["losses"] == [1.5, None, None] and read_measurement_text(text).losses == (1.5, None, None)
