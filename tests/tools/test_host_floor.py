"""The host's time per layer is what the CI runs of Megatron-LM say."""

import pytest
from autoconfig.specs.software.software import load_stack

from tools.host_floor import ARCHITECTURES, host_seconds, launch_bound_runs, slopes


def test_the_catalogue_holds_what_the_runs_say():
    assert load_stack("transformer-engine").time.host_floor_seconds == pytest.approx(host_seconds(), rel=0.03)
    counts = [len(launch_bound_runs(name)) for name in ARCHITECTURES]
    assert min(counts) > 30 and all(slopes(launch_bound_runs(name)) for name in ARCHITECTURES)
