"""What torch's FSDP holds beside the shards, by hand, and the two sums over it."""

from dataclasses import replace

import numpy as np
import pytest
from autoconfig.memory_model.fsdp import ACCUMULATED, FIRST_LAYER, LAYERS, NEXT_LAYER, OUTPUT, Units, unit_bytes
from autoconfig.memory_model.peaks import MOMENTS
from autoconfig.memory_model.predict import estimate_memory
from autoconfig.memory_model.tables import stage_terms
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack

NUMERICS = Numerics(attention_dropout=0.0, hidden_dropout=0.0)
UNITS = Units(layer=100.0, layer_trained=100.0, stage=900.0, stage_trained=900.0, embedding=400.0, output=300.0, shard=8.0)
ONE = {"whole": False, "syncs_late": False, "several": True}


def found(units: Units = UNITS, **changes: object) -> dict[str, float]:
    options = {"apart": True, "tied": False, **ONE, **changes}
    return {name: float(size) for name, size in unit_bytes(units, NUMERICS, **options).items()}  # type: ignore[arg-type]


def test_units_of_their_own() -> None:
    """2 bytes of what is gathered, 4 of what is reduced; torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py."""
    assert found() == {
        "loss": 2 * 300,
        "output_layer_backward": 2 * (300 + 100),
        OUTPUT: (2 + 4) * 300 + 2 * 100,
        LAYERS: 2 * 2 * 100 + 4 * 300,
        NEXT_LAYER: 2 * 2 * 100 + 4 * 100,
        FIRST_LAYER: 2 * (100 + 400) + 4 * 100,
        "embedding_backward": 4 * 400,
        ACCUMULATED: 0,
    }


def test_of_a_single_micro_batch_no_gradient_is_there_before_its_layer() -> None:
    several, single = found(), found(several=False)
    changes = {name: single[name] - several[name] for name in several}
    made = {OUTPUT: 4 * 300 / 8, LAYERS: 4 * 300 / 8, NEXT_LAYER: 4 * (300 + 100) / 8, FIRST_LAYER: -4 * (100 + 400) / 8}
    assert changes == {name: made.get(name, 0.0) for name in several}


def test_units_of_the_root_stay_gathered() -> None:
    """The loss of Hugging Face models is made inside the root, whose backward gathers a layer first. A tied matrix has two
    gradients and their sum."""
    root = found(apart=False)
    assert root["loss"] == 2 * (400 + 300 + 100) and root[LAYERS] == 2 * (400 + 300) + 2 * 300 + 2 * 2 * 100
    one_matrix = replace(UNITS, output=1.0)  # the norm alone
    tied = found(one_matrix, apart=False, tied=True)
    assert tied["embedding_backward"] == 2 * 1 + 2 * 401 + 4 * 100 + 2 * 400


def test_the_whole_tables_gradient_is_gone_when_a_rank_s_part_is_reduced() -> None:
    """The moment holds it: 900 bytes are not there beside the reduction of 4 * 400, and 2 * 400 + 4 * 100 come first."""
    whole = replace(UNITS, whole_table=900.0)
    assert found(whole)["embedding_backward"] == 2 * 400 + 4 * 100 > 4 * 400 - 900
    assert found(whole, several=False)["embedding_backward"] == 2 * 400 + 4 * 100 - 4 * 400 / 8


def test_a_table_that_each_rank_reduces_whole_waits_whole_in_pipelines() -> None:
    """500 bytes of 16 bits are 250 parameters, 100 of them other ranks'; no part is copied before the reduction."""
    whole = replace(UNITS, embedding=150.0, whole_table=500.0)
    assert found(whole, syncs_late=True)[LAYERS] == (2 + 4) * 900 + 4 * (250 - 150)
    assert found(whole, syncs_late=True)["embedding_backward"] == (2 + 4) * 900 + 4 * (250 - 150) - 2 * 150


def test_without_reshard_and_in_pipelines() -> None:
    """All of the stage is gathered at the loss; in a pipeline as long as it runs, beside whole fp32 gradients."""
    assert found(whole=True)["loss"] == 2 * 900 and found(whole=True)[NEXT_LAYER] == 2 * (900 - 300 - 100) + 4 * 100
    all_held = found(syncs_late=True, all_held=True)
    assert all_held[LAYERS] == 2 * 900 and all_held[ACCUMULATED] == 4 * 900 and found(syncs_late=True)[ACCUMULATED] == 0
    assert found(syncs_late=True)[LAYERS] == (2 + 4) * 900 and found(syncs_late=True, several=False)[LAYERS] == 2 * 900


@pytest.mark.parametrize("stack", ["torchtitan", "torch-eager", "prime-rl", "nanotron"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("model", ["llama3-8b", "qwen3-0.6b", "mixtral-8x7b"])
def test_the_search_and_the_detailed_sum_agree(stack: str, count: int, model: str) -> None:
    """Plans of every moment: with short sequences the embedding's and the first layer's decide."""
    moments = set()
    for length in (128, 8192):
        asked = Scenario(
            model=load_model(model), cluster=cluster_of(load_gpu("h100"), 8), numerics=NUMERICS, software=load_stack(stack),
            workload=Workload(seq_length=length, global_batch_size=8 * count),
        )  # fmt: skip
        texts = ("mbs=1,fsdp=3", "mbs=1,fsdp=2", "mbs=1", "tp=2,mbs=2,fsdp=3", "pp=2,mbs=1,fsdp=3", "pp=4,mbs=1,fsdp=2")
        layouts = asked.layouts([asked.read_plan(text) for text in texts])
        recomputes = [
            asked.read_plan(f"mbs=1,recompute={text}").recompute for text in ("none", "full:uniform:1", "selective:op")
        ]
        detailed, quick = (estimate_memory(asked, layouts, recomputes, detail=detail) for detail in (True, False))
        assert np.allclose(detailed.peak_bytes, quick.peak_bytes, rtol=1e-12)
        assert np.allclose(sum(detailed.parts.values()), detailed.per_stage_bytes, rtol=1e-12)
        moments |= {MOMENTS[int(number)] for number in np.unique(detailed.moment)}
    assert {"loss", "mlp_backward"} <= moments or stack == "nanotron"


def test_ends_of_automodel_are_units_of_mixtures_alone() -> None:
    """components/moe/parallelizer.py shards embedding and output layer alone; the dense parallelizer leaves them to the root,
    whose weights stay gathered through the layers' backward."""
    for name, own in (("llama3-8b", False), ("qwen3-30b-a3b", True)):
        sizes = []
        for software in ("automodel", "torchtitan"):
            asked = Scenario(
                model=load_model(name),
                cluster=cluster_of(load_gpu("h100"), 8),
                numerics=NUMERICS,
                software=load_stack(software),
                workload=Workload(seq_length=2048, global_batch_size=8),
            )
            layouts = asked.layouts([asked.read_plan("mbs=1,fsdp=3")])
            sizes.append(float(stage_terms(asked, layouts, every=True).unit_bytes[LAYERS][0, 0]))
        assert (sizes[0] == sizes[1]) == own
