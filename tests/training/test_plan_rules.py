"""Pipeline layouts and splits of whole plans."""

from types import SimpleNamespace

import numpy as np
import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.plan import TrainPlan
from small_models import scenario
from tables import listed, tabled

from autoconfig.training.plan_rules import PipelineSplit, broken_rules, layout_chunks, split_by_accounting, split_of_layout
from autoconfig.training.rules import chunk_layers


def test_plans_of_other_sizes_are_judged_with_their_own():
    plan = TrainPlan(tp=1, pp=1, dp=8, mbs=1)
    assert broken_rules(scenario(), [plan]) == [["AC005"]] and broken_rules(scenario(), [plan], [8]) == [[]]
    assert broken_rules(scenario(), [plan], [8], [12]) == [["NV007"]]
    assert "AC007" in broken_rules(scenario(), [TrainPlan(tp=1, pp=1, dp=16, mbs=1, first=3, last=3)])[0]
    assert "NV024" in broken_rules(scenario(), [TrainPlan(tp=1, pp=3, dp=1, mbs=1)], [3])[0]


@pytest.mark.parametrize(("text", "chunks"), [
    ("Ett|(tt|)*2tL", ["Ett", "tt", "tt", "tL"]), ("Et*3|tL", ["Ettt", "tL"]), ("Et, t | tL", ["Ett", "tL"]),
    ("[['embedding', 'decoder'], ['decoder', 'mtp', 'loss']]", ["Et", "tmL"]), ("Etx|L", None), ("", None), ("[[3]]", None),
    ("(t)*100000", ["t" * 100_000]), ("(t)*100001", None), ("t*100000", ["t" * 100_000]), ("t*100001", None),
])  # fmt: skip
def test_letters_of_a_layout(text, chunks):
    if chunks is None:
        with pytest.raises(InputError, match="pipeline layout"):
            layout_chunks(text)
    else:
        assert layout_chunks(text) == chunks


@tabled
def test_ends_of_the_plan_that_stands_for_a_split(layers, total, ends):
    assert PipelineSplit(vpp=1, layers=layers).ends(total) == tuple(ends)


@tabled
def test_embedding_and_loss_count_as_a_layer(layers, vpp, embedding, loss, stages, broken):
    found = split_by_accounting(layers, 4, vpp, embedding=embedding, loss=loss)
    assert listed(found.broken) == broken and stages in (None, listed(found.layers))


@tabled
def test_a_layout_of_four_layers_starts_with_the_embedding_and_ends_with_the_loss(text, mtp, layers, vpp, broken):
    """Chunks go round the two stages; depths of multi-token prediction are all there or not named."""
    found = split_of_layout(text, 2, 4, mtp)
    assert listed((found.layers, found.vpp, found.broken)) == [layers, vpp, broken]


@tabled
def test_stages_of_whole_chunks_or_short_ends(first, last, vpp, legal):
    """Four stages, two of 8 layers between the ends: an end is of whole chunks, or lacks at most one chunk's layers."""
    software = SimpleNamespace(supports_pipeline_layout=True)
    asked = SimpleNamespace(model=SimpleNamespace(num_layers=16 + first + last, is_hybrid=False), software=software)
    columns = {name: np.array([value]) for name, value in (("pp", 4), ("first", first), ("last", last), ("vpp", vpp))}
    assert chunk_layers(asked, columns).tolist() == [legal]
