"""GPUs at a lower power limit, with other memory: what slows down, by how much, and what is refused."""

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import ClusterSpec, cluster_of, load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack
from autoconfig.time_model.hardware.clock import KNEE, clock_ratio
from autoconfig.time_model.predict import estimate_step_time

H100 = load_gpu("h100")


def parts(cluster: ClusterSpec) -> dict[str, float]:
    scenario = Scenario(
        model=load_model("llama3-8b"),
        cluster=cluster,
        numerics=Numerics(precision="bf16"),
        software=load_stack("transformer-engine"),
        workload=Workload(seq_length=8192, global_batch_size=8),
    )
    plan = parse_plan("tp=1,pp=1,mbs=1", 8)
    estimate = estimate_step_time(scenario, scenario.layouts([plan]), [plan.recompute], detail=True)
    return {name: float(values[0, 0]) for name, values in estimate.parts.items()}


def test_clock_follows_the_cube_root_and_below_the_knee_the_power():
    assert clock_ratio(None, 700) == clock_ratio(700, 700) == 1.0
    assert clock_ratio(500, 700) == pytest.approx((325 / 525) ** (1 / 3))  # (500 - 175) / (700 - 175)
    at_knee = 0.25 + 0.75 * KNEE**3
    assert clock_ratio(at_knee * 700 - 1e-6, 700) == pytest.approx(clock_ratio(at_knee * 700 + 1e-6, 700), rel=1e-6)
    assert 617 / 2174 <= clock_ratio(500, 1400) <= 617 / 1600  # cuBLAS on GB300 (pull request 2023 of Meta's triton)


def test_less_power_slows_matrix_products_only():
    full, limited = parts(cluster_of(H100, 8)), parts(cluster_of(H100, 8, power_limit_watts=500))
    expected = 1 / clock_ratio(500, 700)
    for name in ("gemm_seconds", "flash_attention_seconds"):
        assert limited[name] / full[name] == pytest.approx(expected, rel=0.02)
    for name in ("pointwise_seconds", "optimizer_seconds", "gradient_reduction_seconds"):
        assert limited[name] <= full[name]


def test_slower_memory_slows_what_is_bound_by_it():
    full, slow = parts(cluster_of(H100, 8)), parts(cluster_of(H100, 8, hbm_bytes_per_s=H100.hbm_bytes_per_s / 2))
    assert slow["pointwise_seconds"] / full["pointwise_seconds"] == pytest.approx(2.0, rel=0.1)
    assert slow["gemm_seconds"] == pytest.approx(full["gemm_seconds"], rel=0.01)


@pytest.mark.parametrize(("gpu", "watts", "said"), [("h100", 701, "use 245 to 700 W"), ("h100", 200, "use 245 to 700 W"),
                                                     ("gh200-96gb", 500, "is not known")])  # fmt: skip
def test_limits_that_no_measurement_covers_are_refused(gpu, watts, said):
    with pytest.raises(InputError, match=said):
        cluster_of(load_gpu(gpu), 8, gpus_per_node=1, power_limit_watts=watts)
