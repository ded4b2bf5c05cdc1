"""Published A100 step times against the documented default constants; nothing here was fitted on these 18 rows."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import Recompute, TrainPlan
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack
from autoconfig.time_model.predict import estimate_step_time

PUBLISHED = Path(__file__).parent / "published"


def rows(name: str) -> list[dict[str, str]]:
    with (PUBLISHED / name).open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def predicted_seconds(row: dict[str, str]) -> float:
    number = {
        key: int(row[key])
        for key in ("layers", "hidden", "heads", "vocab", "seq", "gpus", "tp", "sp", "pp", "vpp", "dp", "mbs", "gbs")
    }
    model = ModelSpec(
        name=row["model"],
        num_layers=number["layers"],
        hidden_size=number["hidden"],
        num_attention_heads=number["heads"],
        num_query_groups=number["heads"],
        kv_channels=number["hidden"] // number["heads"],
        ffn_hidden_size=4 * number["hidden"],
        vocab_size=number["vocab"],
    )
    plan = TrainPlan(
        **{key: number[key] for key in ("tp", "pp", "vpp", "dp", "mbs")},
        sp=bool(number["sp"]),
        recompute=Recompute.parse(row["recompute"]),
        dist_opt=False,
    )
    nic = float(row["nic_gbit_per_s_per_gpu"]) / 8 * 1e9
    scenario = Scenario(
        model=model,
        cluster=cluster_of(load_gpu("a100-80gb"), number["gpus"], nic_bytes_per_s=nic),
        numerics=Numerics(precision=row["precision"]),
        software=load_stack(row["software"]),
        workload=Workload(seq_length=number["seq"], global_batch_size=number["gbs"]),
    )
    estimate = estimate_step_time(scenario, scenario.layouts([plan]), [plan.recompute])
    return float(estimate.step_seconds[0, 0])


def measured_seconds(row: dict[str, str]) -> float:
    """The published step time, or Narayanan's eq. 3 over the published rate: 96 B s l h^2 (1 + s/6h + V/16lh) FLOPs a step."""
    if "step_seconds" in row:
        return float(row["step_seconds"])
    batch, s, layers, h, vocab = (int(row[key]) for key in ("gbs", "seq", "layers", "hidden", "vocab"))
    flops = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    return flops / (float(row["tflops_per_gpu"]) * 1e12 * int(row["gpus"]))


@pytest.mark.parametrize(("name", "count", "most"), [("korthikanti_table5.csv", 8, 0.06), ("narayanan_table1.csv", 10, 0.08)])
def test_mean_error_on_published_runs(name: str, count: int, most: float) -> None:
    errors = []
    for row in rows(name):
        predicted, measured = predicted_seconds(row), measured_seconds(row)
        errors.append(predicted / measured - 1)
        print(
            f"{row['id']} {row['model']:9} predicted {predicted:8.3f} s  measured {measured:8.3f} s  {100 * errors[-1]:+5.1f} %"
        )
    print(f"mean {100 * np.mean(np.abs(errors)):.2f} %")
    assert len(errors) == count
    assert np.mean(np.abs(errors)) <= most
