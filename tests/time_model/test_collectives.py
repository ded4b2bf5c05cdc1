"""Collectives and sends: which links a group uses, by hand, and what compute hides of them."""

from types import SimpleNamespace

import pytest
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.layouts import layouts_of
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import parse_plan
from autoconfig.time_model.hardware.efficiency import CollectiveEfficiency
from autoconfig.time_model.job import (
    Links,
    collective_seconds,
    context_group,
    data_group,
    expert_data_group,
    expert_group,
    exposed_seconds,
    group_of,
    links_of,
    pipeline_crosses,
    rate_share,
    send_seconds,
    small_group_factor,
    tensor_group,
)
from autoconfig.time_model.step.rows import embedding_gradient_seconds, reduction_communication
from small_models import job_and_shapes
from tables import tabled


@tabled
def test_members_of_a_group_in_a_domain(size, stride, domain, local, domains):
    found = group_of(size, stride, domain)
    assert (float(found.local), float(found.domains)) == (local, domains)


SLOW_LINKS = Links(
    link_bytes_per_s=400.0, nic_bytes_per_s=50.0, nic_hop_s=1.0, size_ranks=(2, 4, 8), size_alpha=(0.25, 0.5, 1.0),
    size_bandwidth=(0.5, 0.75, 1.0),
    collectives={kind: SimpleNamespace(alpha_s=8.0, link_share=0.5, sqrt_s=0.25) for kind in (
        "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")},
)  # fmt: skip


@pytest.mark.parametrize(("kind", "size", "stride", "seconds"), [
    # 10,000 bytes: 25 of the root; alpha 8 x (0.25, 0.5, 1); 200 B/s x (0.5, 0.75, 1) on the links, 50 a card
    ("all_gather", 2, 1, 2 + 5_000 / 100 + 25), ("all_reduce", 2, 1, 2 + 10_000 / 100 + 25),
    ("reduce_scatter", 4, 1, 4 + 7_500 / 150 + 25), ("all_gather", 8, 1, 8 + 8_750 / 200 + 25), ("all_gather", 1, 1, 0),
    ("all_gather", 4, 8, 4 + 3 + 7_500 / 50 + 25), ("all_reduce", 4, 8, 4 + 6 + 15_000 / 50 + 25),
    ("all_gather", 4, 4, 4 + 1 + 7_500 / 100 + 25), ("all_gather", 32, 2, 8 + 7 + 10_000 * 31 / 32 / 150 + 25),
    ("all_to_all", 4, 1, 4 + 7_500 / 150 + 25), ("all_to_all", 4, 4, 4 + 1 + max(2_500 / 100, 5_000 / 50) + 25),
    ("all_to_all", 16, 1, 8 + 1 + max(10_000 * 7 / 16 / 200, 5_000 / 50) + 25),
])  # fmt: skip
def test_collectives(kind, size, stride, seconds):
    """Inside a domain of 8 and over several: a hop for each further one, two of an all-reduce, and the cards of the members."""
    assert float(collective_seconds(kind, 10_000.0, group_of(size, stride, 8), SLOW_LINKS)) == pytest.approx(seconds)


@pytest.mark.parametrize(("communication", "compute", "exposed"), [(4.0, 10.0, 1.0), (10.0, 4.0, 7.0), (4.0, 0.0, 4.0)])
def test_what_is_exposed_beside_compute(communication, compute, exposed):
    assert exposed_seconds(communication, compute, 0.25) == exposed


IDEAL = CollectiveEfficiency(alpha_s=0.0, link_share=1.0, sqrt_s=0.0)
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
LINKS = Links(
    link_bytes_per_s=300e9, nic_bytes_per_s=20e9, nic_hop_s=0.0, collectives=dict.fromkeys(KINDS, IDEAL),
    size_ranks=(2.0, 4.0, 8.0), size_alpha=(1.0, 1.0, 1.0), size_bandwidth=(1.0, 1.0, 1.0),
)  # fmt: skip


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


def test_a_send_takes_its_bytes_over_the_link_or_the_card() -> None:
    assert send_seconds(1e9, True, LINKS) == pytest.approx(0.05)
    assert send_seconds(1e9, False, LINKS) == pytest.approx(1e9 / 300e9)


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


def test_every_further_link_domain_adds_a_hop_and_an_all_reduce_passes_it_twice():
    job, _ = job_and_shapes("tp=1", gpus=64)
    links = links_of(job.cluster, job.gpu)
    for kind, hops in (("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)):
        empty = [float(collective_seconds(kind, 0.0, group_of(size, 1, 8), links)) for size in (8, 16, 64)]
        start = [now - empty[0] for now in empty]  # start-up is that of 8 ranks from 8 on
        assert start == pytest.approx([0, hops * links.nic_hop_s, 7 * hops * links.nic_hop_s]), kind


def test_sharded_reduction_moves_half_of_an_all_reduce() -> None:
    group = group_of(16, 8, 8)
    whole = reduction_communication(1e9, group, LINKS, 4, False)
    assert reduction_communication(1e9, group, LINKS, 4, True) == pytest.approx(whole / 2)
    assert reduction_communication(1e9, group, LINKS, 2, False) == pytest.approx(whole / 2)
    assert embedding_gradient_seconds(1e9, 1, True, 4, LINKS) == 0.0
    assert embedding_gradient_seconds(1e9, 4, True, 4, LINKS) == pytest.approx(0.2)


def test_constants_between_measured_sizes_are_linear_in_the_logarithm():
    assert [float(small_group_factor(n, (2.0, 8.0), (1.0, 3.0))) for n in (1, 2, 4, 8, 64)] == [1, 1, 2, 3, 3]
