"""GPUs at a lower power limit, with other memory: what slows down, by how much, and what is refused."""

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import ClusterSpec, cluster_of, load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack
from autoconfig.time_model.operators.kernels import FIXED_SHARE, KNEE, clock_ratio
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


def test_clock_is_the_one_whose_power_is_the_limit():
    for duty in (0.3, 0.6, 0.9, 1.0):
        for limit in (300.0, 500.0, 700.0):
            f = float(clock_ratio(duty, limit, 700.0, 1000.0))
            busy = duty / (duty + f * (1.0 - duty))
            watts = FIXED_SHARE * 700.0 + busy * 1000.0 * f * max(f, KNEE) ** 2
            assert watts == pytest.approx(limit) or (f == 1.0 and watts < limit)
    assert clock_ratio(0.5, 700.0, 700.0, 1000.0) == 1.0  # 140 + 500 W


def test_clock_of_a_gpu_at_a_third_of_its_power():
    at, own = (clock_ratio(1.0, watts, 1400.0, 1900.0) for watts in (500.0, 1400.0))
    assert 617 / 2174 <= at / own <= 617 / 1600  # cuBLAS on GB300 (pull request 2023 of Meta's triton)


def test_less_power_slows_matrix_products_only():
    full, limited = parts(cluster_of(H100, 8)), parts(cluster_of(H100, 8, power_limit_watts=500))
    slower = limited["gemm_seconds"] / full["gemm_seconds"]
    assert 1.1 < slower < (560 / 360) ** 0.5
    assert limited["flash_attention_seconds"] / full["flash_attention_seconds"] == pytest.approx(slower, rel=0.01)
    for name in ("pointwise_seconds", "optimizer_seconds", "gradient_reduction_seconds"):
        assert limited[name] <= full[name]


def test_slower_memory_slows_what_is_bound_by_it():
    full, slow = parts(cluster_of(H100, 8)), parts(cluster_of(H100, 8, hbm_bytes_per_s=H100.hbm_bytes_per_s / 2))
    assert slow["pointwise_seconds"] / full["pointwise_seconds"] == pytest.approx(2.0, rel=0.1)
    assert 0.9 < slow["gemm_seconds"] / full["gemm_seconds"] <= 1.0  # less busy: a higher clock


@pytest.mark.parametrize(("gpu", "watts", "said"), [("h100", 701, "use 245 to 700 W"), ("h100", 200, "use 245 to 700 W"),
                                                     ("gh200-96gb", 500, "is not known")])  # fmt: skip
def test_limits_that_no_measurement_covers_are_refused(gpu, watts, said):
    with pytest.raises(InputError, match=said):
        cluster_of(load_gpu(gpu), 8, gpus_per_node=1, power_limit_watts=watts)
