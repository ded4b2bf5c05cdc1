"""Collectives, placement, pipeline and data-parallel formulas."""

from __future__ import annotations

import numpy as np
import pytest
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.layouts import layouts_of
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.software.software import load_stack
from autoconfig.time_model.hardware.efficiency import CollectiveEfficiency
from autoconfig.time_model.network.collectives import (
    Links,
    collective_seconds,
    context_group,
    data_group,
    expert_data_group,
    expert_group,
    exposed_seconds,
    group_of,
    pipeline_crosses,
    rate_share,
    ring_factor,
    send_seconds,
    tensor_group,
)
from autoconfig.time_model.operators.layer import tp_communication_seconds
from autoconfig.time_model.step.rows import (
    block_recomputed_layers,
    bucketed_exposed_seconds,
    embedding_gradient_seconds,
    fsdp_seconds,
    p2p_message_bytes,
    p2p_seconds,
    pipeline_bubble_seconds,
    reduction_communication,
)

IDEAL = CollectiveEfficiency(alpha_s=0.0, link_share=1.0, sqrt_s=0.0)
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
LINKS = Links(
    link_bytes_per_s=300e9,
    nic_bytes_per_s=20e9,
    nic_hop_s=0.0,
    collectives=dict.fromkeys(KINDS, IDEAL),
    size_ranks=(2.0, 4.0, 8.0),
    size_alpha=(1.0, 1.0, 1.0),
    size_bandwidth=(1.0, 1.0, 1.0),
)


def test_ring_volumes() -> None:
    assert ring_factor("all_reduce", 8) == pytest.approx(2 * 7 / 8)
    assert ring_factor("all_gather", 4) == ring_factor("reduce_scatter", 4) == pytest.approx(3 / 4)
    reduce = collective_seconds("all_reduce", 8e9, group_of(8, 1, 8), LINKS)
    assert reduce == pytest.approx(2 * 7 / 8 * 8e9 / 300e9)
    parts = [collective_seconds(kind, 8e9, group_of(8, 1, 8), LINKS) for kind in ("reduce_scatter", "all_gather")]
    assert sum(parts) == pytest.approx(reduce)  # an all-reduce is a reduce-scatter and an all-gather
    assert collective_seconds("all_reduce", 8e9, group_of(1, 1, 8), LINKS) == 0.0


def test_network_ring_uses_the_cards_of_its_members_in_a_node() -> None:
    # 16 ranks, stride 8: one member a node, one card. Stride 1: eight members, eight cards (160 GB/s, below the link's 300).
    alone = collective_seconds("all_gather", 1e9, group_of(16, 8, 8), LINKS)
    together = collective_seconds("all_gather", 1e9, group_of(16, 1, 8), LINKS)
    assert alone == pytest.approx(15 / 16 * 1e9 / 20e9)
    assert together == pytest.approx(15 / 16 * 1e9 / 160e9)
    inside = collective_seconds("all_gather", 1e9, group_of(8, 1, 8), LINKS)
    assert inside < together < alone


def test_all_to_all_over_nodes_is_bound_by_the_own_card() -> None:
    seconds = collective_seconds("all_to_all", 1e9, group_of(64, 1, 8), LINKS)
    assert seconds == pytest.approx(56 / 64 * 1e9 / 20e9)
    assert collective_seconds("all_to_all", 1e9, group_of(8, 1, 8), LINKS) == pytest.approx(7 / 8 * 1e9 / 300e9)
    assert collective_seconds("all_to_all", 1e9, group_of(64, 1, 8), LINKS, outside_share=0.5) == pytest.approx(seconds / 2)
    inside = collective_seconds("all_to_all", 1e9, group_of(8, 1, 8), LINKS, inside_share=0.5)
    assert inside == pytest.approx(7 / 16 * 1e9 / 300e9)


def test_a_ring_on_slow_wires_takes_less_of_the_gpu() -> None:
    assert rate_share("all_gather", group_of(8, 1, 8), LINKS) == 1.0
    assert rate_share("all_gather", group_of(16, 8, 8), LINKS) == pytest.approx(20 / 300)
    assert rate_share("all_gather", group_of(16, 1, 8), LINKS) == pytest.approx(160 / 300)


def test_sends_and_overlap() -> None:
    assert send_seconds(1e9, True, LINKS) == pytest.approx(0.05)
    assert send_seconds(1e9, False, LINKS) == pytest.approx(1e9 / 300e9)
    assert exposed_seconds(3.0, 0.0, 0.25) == 3.0
    assert exposed_seconds(3.0, 5.0, 0.25) == pytest.approx(0.75)
    assert exposed_seconds(3.0, 2.0, 0.0) == pytest.approx(1.0)
    assert exposed_seconds(3.0, 5.0, 1.0) == 3.0  # interference 1 is no overlap


def test_megatron_rank_order_decides_the_links() -> None:
    model, cluster = load_model("gpt3-175b"), cluster_of(load_gpu("a100-80gb"), 1024)
    plans = [parse_plan(text, 1024) for text in ("tp=8,pp=8", "tp=2,cp=2,pp=8", "tp=16,pp=8", "tp=1,pp=1")]
    layouts = layouts_of(plans, model, 1024)
    assert tensor_group(layouts, cluster).local.tolist() == [8, 2, 8, 1]
    assert tensor_group(layouts, cluster).domains.tolist() == [1, 1, 2, 1]
    assert context_group(layouts, cluster).local.tolist() == [1, 2, 1, 1]
    assert data_group(layouts, cluster).size.tolist() == [16, 64, 8, 1024]
    assert data_group(layouts, cluster).local.tolist() == [1, 4, 1, 8]
    assert pipeline_crosses(layouts, cluster).tolist() == [True] * 4


def test_expert_groups_are_carved_out_of_the_data_parallel_ranks() -> None:
    model, cluster = load_model("mixtral-8x7b"), cluster_of(load_gpu("h100"), 64)
    layouts = layouts_of([parse_plan("tp=2,pp=2,ep=8,mbs=1,sp=1", 64)], model, 256)
    group = expert_group(layouts, cluster)
    assert (group.size.item(), group.local.item()) == (8, 8)
    rest = expert_data_group(layouts, cluster)  # edp = tp cp dp / (etp ep) = 2 x 16 / 8
    assert (rest.size.item(), rest.local.item()) == (4, 1)
    sliced = layouts_of([parse_plan("tp=2,pp=2,ep=8,etp=2,mbs=1,sp=1", 64)], model, 256)
    assert expert_group(sliced, cluster).local.item() == 4  # every second rank: 4 of 8 share a node


def test_bubble_is_narayanans() -> None:
    # Narayanan et al. 2021, section 2.2: bubble over ideal time = (p - 1) / (m v) for equal stages.
    for p, m, v in ((8, 64, 1), (8, 64, 3), (64, 512, 1)):
        stage = 0.37
        bubble = pipeline_bubble_seconds(stage, p * stage, v)
        assert bubble / (m * stage) == pytest.approx((p - 1) / (m * v))
    assert pipeline_bubble_seconds(0.5, 0.5, 1) == 0.0


def test_p2p_terms() -> None:
    assert p2p_message_bytes(2048, 12288, 2, 8) == 2048 * 12288 * 2 / 8
    assert p2p_seconds(1e-3, 1, 1, 64, 0.7) == 0.0
    assert p2p_seconds(1e-3, 8, 1, 64, 0.7) == pytest.approx(1e-3 * (2 * 64 + 14))  # hidden only where interleaved
    assert p2p_seconds(1e-3, 8, 3, 64, 0.7) == pytest.approx(1e-3 * (2 * 64 * 3 * 0.3 + 14))


def test_block_recomputation_counts_layers_per_chunk() -> None:
    assert block_recomputed_layers(12, 3, 2) == 6
    assert block_recomputed_layers(12, 3, 100) == 12


def test_tp_communication_overlaps_where_the_software_does() -> None:
    common = {"all_reduce": (2.0, 2.0), "gather": (1.0, 1.0), "scatter": (1.0, 1.0), "dgrad": 10.0, "wgrad": 10.0}
    shown = tp_communication_seconds(**common, sp=False, asynchronous=False, interference=0.25, hidden=0.0)
    behind = tp_communication_seconds(**common, sp=False, asynchronous=True, interference=0.25, hidden=0.0)
    assert shown == (2.0, 2.0)
    assert behind == (2.0, pytest.approx(0.5))
    sharded = tp_communication_seconds(**common, sp=True, asynchronous=True, interference=0.25, hidden=0.0)
    assert sharded == (2.0, pytest.approx(1.5))
    userbuffers = tp_communication_seconds(**common, sp=True, asynchronous=True, interference=0.25, hidden=0.6)
    assert userbuffers == (pytest.approx(0.8), pytest.approx(0.6))


def test_data_parallel_exposure() -> None:
    shown = bucketed_exposed_seconds(4.0, 10.0, 8, 8, 1, overlaps=False, interference=0.0)
    assert shown == 4.0
    assert bucketed_exposed_seconds(4.0, 10.0, 8, 8, 1, overlaps=True, interference=0.0) == pytest.approx(0.5)  # last bucket
    assert bucketed_exposed_seconds(4.0, 1.0, 8, 8, 1, overlaps=True, interference=0.0) == pytest.approx(3.0)
    assert bucketed_exposed_seconds(4.0, 1.0, 8, 8, 4, overlaps=True, interference=0.0) == pytest.approx(0.75)
    assert bucketed_exposed_seconds(40.0, 1.0, 8, 8, 4, overlaps=True, interference=0.0) == pytest.approx(32.0)
    work = (0.0, 1.0, 3.0, 9.0)
    exposed = np.array([bucketed_exposed_seconds(4.0, w, 8, 8, 2, overlaps=True, interference=0.25) for w in work])
    assert np.all(np.diff(exposed) <= 0) and exposed[0] <= 4.0


def test_sharded_reduction_moves_half_of_an_all_reduce() -> None:
    group = group_of(16, 8, 8)
    whole = reduction_communication(1e9, group, LINKS, 4, False)
    assert reduction_communication(1e9, group, LINKS, 4, True) == pytest.approx(whole / 2)
    assert reduction_communication(1e9, group, LINKS, 2, False) == pytest.approx(whole / 2)
    assert embedding_gradient_seconds(1e9, 1, True, 4, LINKS) == 0.0
    assert embedding_gradient_seconds(1e9, 4, True, 4, LINKS) == pytest.approx(0.2)


def test_fsdp_stages() -> None:
    assert fsdp_seconds(1.0, 2.0, 5.0, 10.0, stage=0, interference=0.5) == 0.0
    assert fsdp_seconds(1.0, 2.0, 5.0, 10.0, stage=2, interference=0.5) == pytest.approx(1.0)
    assert fsdp_seconds(1.0, 2.0, 5.0, 10.0, stage=3, interference=0.5) == pytest.approx(0.5 + 1.5)
    assert fsdp_seconds(10.0, 20.0, 5.0, 10.0, stage=3, interference=0.0) == pytest.approx(5.0 + 20.0)


def test_default_stack_overlaps_and_old_ones_do_not() -> None:
    new, old = load_stack("transformer-engine").time, load_stack("megatron-lm-2021").time
    assert (new.tp_overlap_share, new.p2p_overlap_share, new.overlap_grad_reduce, new.overlap_param_gather) == (
        0.6,
        0.7,
        True,
        True,
    )
    assert (old.tp_overlap_share, old.p2p_overlap_share, old.overlap_grad_reduce, old.tp_async_backward) == (
        0.0,
        0.0,
        False,
        False,
    )
