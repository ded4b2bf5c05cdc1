"""R02, R03: links that are slower than the catalogue's, and communication that nothing hides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from autoconfig.diagnosis import solve, timers
from autoconfig.diagnosis.expectation import CP, EXPERTS, GATHERS, GRADIENTS, TP
from autoconfig.diagnosis.finding import (
    CERTAIN,
    CONSISTENT,
    LIKELY,
    Cause,
    Cleared,
    Finding,
    RunCase,
    Undecided,
    caused,
    longest_phase,
    threshold,
)
from autoconfig.evidence.records import CollectiveUse, LinkFact, Origin, TraceParts, Variable
from autoconfig.specs.scenario import Scenario

SLOW_NETWORKS = re.compile(r"(?<![a-z])(?:sockets?|ethernet|tcp|udp)(?![a-z])")
"""Words in names of networks over the kernel's sockets; a plugin like GPUDirectTCPX is none, whose name goes on."""
PEERS = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")
"""Variables of transfers inside a node; the others of OFF are of the network."""
OFF = {
    "NCCL_IB_DISABLE": ("1", "InfiniBand is switched off (NCCL_IB_DISABLE=1)", "unset NCCL_IB_DISABLE"),
    "NCCL_P2P_DISABLE": ("1", "direct transfers between GPUs are switched off (NCCL_P2P_DISABLE=1)", "unset NCCL_P2P_DISABLE"),
    "NCCL_P2P_LEVEL": ("LOC", "direct transfers between GPUs are switched off (NCCL_P2P_LEVEL=LOC)", "unset NCCL_P2P_LEVEL"),
    "NCCL_NET": ("Socket", "the network is forced to sockets (NCCL_NET=Socket)", "unset NCCL_NET"),
    "NCCL_NET_GDR_LEVEL": ("LOC", "the network card does not reach GPU memory (NCCL_NET_GDR_LEVEL=LOC)", "unset it"),
}
"""Variable of NCCL -> value that makes links slow, in words, and what to do (NCCL's documentation, environment variables)."""
BRINGS_ABOUT = {
    "NCCL_IB_DISABLE": ("network", "no_device", "interface"),
    "NCCL_NET": ("network", "no_device", "interface"),
    "NCCL_P2P_DISABLE": ("transport",),
    "NCCL_P2P_LEVEL": ("transport",),
    "NCCL_NET_GDR_LEVEL": ("gpu_direct",),
}
"""Variable of OFF -> kinds of facts that it brings about; other facts of a log have another cause."""
REFIT = ("refit", "update_weights", "weight_sync", "sync_weights", "update_weight", "prepare_for_generation")
"""What moves the weights to the generating engine is called so (NeMo-RL, verl, OpenRLHF, slime)."""
USUAL_REFIT = 0.06
"""Share of a step of reinforcement learning that 39 of 40 published steps spend on it at most."""
SLOW_PROVIDERS = ("tcp", "sockets", "udp")
"""Providers of libfabric over the kernel's sockets (fi_provider(7)); tcp;ofi_rxm among them."""
_REMEDY_OF_RATE = "run nccl-tests on these nodes; NCCL_DEBUG=INFO names the network and the transport that are used"
BY_BYTES = {"all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0, "send_recv": 1.0, "broadcast": 1.0, "all_reduce": 2.0}
"""Bytes that cross a GPU's link for each byte of the larger side of a message, of many ranks (nccl-tests, doc/PERFORMANCE.md):
(n - 1) / n is taken as 1."""


def slow_link(case: RunCase) -> Cause | Cleared | Undecided | None:
    """R02: NCCL says a fallback; a test or a trace reaches less than half of the catalogue's rate; a timer of communication or
    the weights' way to the engine takes far longer than priced; or only a slower link explains the step."""
    tried = [test(case) for test in (_said, _tested, _traced, _of_kernels, _timed, _refit)]
    proven = next((one for one in tried if isinstance(one, Cause)), None) or _solved(case)
    open_one = next((one for one in tried if isinstance(one, Undecided)), None)
    return proven or open_one or (Cleared() if any(one is not None for one in tried) else None)


def _said(case: RunCase) -> Finding | None:
    """What NCCL says outright. It names a network on one node, too, which does not use it."""
    links, variables = case.evidence.links, case.evidence.variables
    slow = [fact for fact in links if _is_fallback(fact, case)]
    facts = sorted((fact for fact in slow if _is_used(fact, case)), key=lambda fact: SEVERITY.index(fact.kind))
    off = [one for one in variables if _switches_off(one, case)]
    if facts or off:
        return _fallback(case, facts, off)
    if slow:
        return Undecided("whether the run has several nodes: NCCL_DEBUG=INFO lines of a second host, or the plan")
    return Cleared() if any(fact.kind in ("network", "transport") for fact in links) else None


def _fallback(case: RunCase, facts: Sequence[LinkFact], off: Sequence[Variable]) -> Cause:
    """Name the variable that switches a link off, where it is why NCCL falls back, else the fallback."""
    off = sorted(off, key=lambda one: bool(facts) and not _brings_about(one, facts[0]))
    origins = (*(one.origin for one in off[:2]), *(fact.origin for fact in _distinct(facts)))
    if off and (not facts or _brings_about(off[0], facts[0])):
        _, words, remedy = OFF[off[0].name]
        certain = _is_certain(off[0].name in PEERS, case)
    else:
        words, remedy = _fallback_words(facts[0]), _fallback_remedy(facts[0], case.evidence.variables)
        certain = facts[0].kind != "gpu_direct" and _is_certain(_is_host_memory(facts[0]), case)
    return _caused(case, words, CERTAIN if certain else LIKELY, evidence=origins, remedy=remedy)


SEVERITY = ("network", "no_device", "interface", "transport", "gpu_direct")
"""Kinds of facts, the one that costs most first."""


def _brings_about(variable: Variable, fact: LinkFact) -> bool:
    """Whether a variable of OFF is why NCCL falls back so. Over sockets a channel is one of the network's facts."""
    kind = "network" if fact.value.lower().startswith("net/socket") else fact.kind
    return kind in BRINGS_ABOUT.get(variable.name, ())


def _switches_off(one: Variable, case: RunCase) -> bool:
    """Whether a variable makes links slow that the run has: a network over nodes, or direct transfers between GPUs."""
    if one.name not in OFF or one.value.strip().lower() != OFF[one.name][0].lower() or _goes_around(one, case):
        return False
    return _has_peers(case) is not False if one.name in PEERS else not _on_one_node(case)


def _goes_around(variable: Variable, case: RunCase) -> bool:
    """Whether NCCL says that it uses what a variable seems to switch off: a plugin's network without InfiniBand (EFA, Google
    Cloud's), direct transfers, or a card that reaches GPU memory."""
    if variable.name in PEERS:
        vias = [fact.value.lower() for fact in case.evidence.links if fact.kind == "transport"]
        return any(via.startswith("p2p") for via in vias) and not any(via.startswith("shm") for via in vias)
    if variable.name == "NCCL_NET_GDR_LEVEL":
        return _reaches_memory(case)
    networks = [fact.value for fact in case.evidence.links if fact.kind == "network"]
    return bool(networks) and not any(_is_slow(value) for value in networks)


def _is_certain(of_peers: bool, case: RunCase) -> bool:
    """Whether the plan, or what NCCL says beside it, shows that the run uses the links that are slow."""
    return _has_peers(case) is True if of_peers else _over_nodes(case)


def _has_peers(case: RunCase) -> bool | None:
    """Whether GPUs of a node have links of their own (NVLink, xGMI); boards on PCIe reach each other through host memory where
    the driver grants no access to peers, as it does of GeForce. None: nothing says the GPU."""
    return None if case.scenario is None else case.scenario.cluster.gpu.link != "pcie"


def _is_host_memory(fact: LinkFact) -> bool:
    return fact.kind == "transport" and fact.value.lower().startswith("shm")


def _is_used(fact: LinkFact, case: RunCase) -> bool:
    """Whether the run is known to use what a line names: transports are, a network where there are several nodes."""
    return fact.kind == "transport" or _over_nodes(case)


def _is_fallback(fact: LinkFact, case: RunCase) -> bool:
    value = fact.value.lower()
    if fact.kind in ("no_device", "network", "interface", "gpu_direct") and _on_one_node(case):
        return False
    if fact.kind == "interface":
        return "provider is" in value and value.rpartition(" ")[2] in SLOW_PROVIDERS
    if fact.kind == "gpu_direct":
        return value == "disabled" and not _reaches_memory(case)
    if fact.kind == "no_device":
        return not any(other.kind == "network" and not _is_slow(other.value) for other in case.evidence.links)
    if fact.kind == "network":
        return _is_slow(value)
    if _is_host_memory(fact):
        return _has_peers(case) is not False
    return fact.kind == "transport" and value.startswith("net/socket")


def _on_one_node(case: RunCase) -> bool:
    """Whether no network is used: NCCL names one all the same. Without a plan by the transports that it prints."""
    scenario = case.scenario
    if scenario is not None:
        return scenario.cluster.num_gpus <= scenario.cluster.link_domain_size
    transports = [fact.value.lower() for fact in case.evidence.links if fact.kind == "transport"]
    if any(value.startswith("net") for value in transports) or _nodes(case) > 1:
        return False
    return bool(transports) or _nodes(case) == 1


def _nodes(case: RunCase) -> int:
    """Nodes of the largest communicator, as NCCL prints them; 0 where it does not."""
    return max((int(fact.value) for fact in case.evidence.links if fact.kind == "nodes"), default=0)


def _over_nodes(case: RunCase) -> bool:
    """Whether the plan, a communicator, a transport over the network or lines of two hosts say that there are nodes."""
    scenario = case.scenario
    if scenario is not None:
        return not _on_one_node(case)
    if len({host.name for host in case.evidence.hosts}) > 1 or _nodes(case) > 1:
        return True
    return any(fact.kind == "transport" and fact.value.lower().startswith("net") for fact in case.evidence.links)


def _reaches_memory(case: RunCase) -> bool:
    """Whether a network card reaches some GPU's memory: NCCL prints each pair, and far ones are switched off."""
    links = case.evidence.links
    return any(
        (fact.kind == "gpu_direct" and fact.value.lower() == "enabled")
        or (fact.kind == "transport" and "gdrdma" in fact.value.lower())
        for fact in links
    )


def _is_slow(value: str) -> bool:
    return SLOW_NETWORKS.search(value.lower()) is not None


def _distinct(facts: Iterable[LinkFact]) -> list[LinkFact]:
    distinct: dict[tuple[str, str], LinkFact] = {}
    for fact in facts:
        distinct.setdefault((fact.kind, fact.value), fact)
    return list(distinct.values())[:2]


def _fallback_words(fact: LinkFact) -> str:
    if _is_host_memory(fact):
        return "GPUs of a node reach each other through host memory"
    if fact.kind == "interface":
        return f"libfabric runs over {fact.value.rpartition(' ')[2]}, not over the fabric"
    if fact.kind == "gpu_direct":
        return "the network card does not reach GPU memory: every message goes through the host's"
    return "no InfiniBand device is used" if fact.kind == "no_device" else "the network is Ethernet sockets"


def _fallback_remedy(fact: LinkFact, variables: Iterable[Variable]) -> str:
    if _is_host_memory(fact):
        return "let NCCL use peer-to-peer: no ACS on the PCIe switches, no NCCL_P2P_DISABLE (nvidia-smi topo -p2p r)"
    if fact.kind == "interface":
        return "FI_PROVIDER=efa (or the fabric's own provider), and give the containers its devices"
    if fact.kind == "gpu_direct":
        return "load nvidia-peermem (or DMA-BUF), and let PCIe switches pass peer-to-peer (no ACS)"
    named = next((one for one in variables if one.name in ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA")), None)
    more = f"; the log sets {named.name}={named.value}" if named else ""
    return f"give the containers the InfiniBand devices and name them with NCCL_IB_HCA{more}"


def _tested(case: RunCase) -> Cause | Cleared | Undecided | None:
    """nccl-tests against the catalogue's rate; messages that their start-up bounds say nothing of it."""
    measured = [fact for fact in case.evidence.links if fact.kind == "bandwidth" and fact.bus_bytes_per_s]
    large = [fact for fact in measured if (fact.size_bytes or 0) >= threshold("R02", "message_bytes")]
    scenario = case.scenario
    if not large:
        return Undecided("nccl-tests with large messages (-b 64M -e 8G)") if measured else None
    best = max(large, key=lambda fact: fact.bus_bytes_per_s or 0.0)
    reached = best.bus_bytes_per_s or 0.0
    if scenario is None:
        return _slow_anywhere(case, best, reached)
    rate = _rate_between(case, scenario, None)
    if reached >= threshold("R02", "rate_share") * rate:
        return Cleared(f"nccl-tests reach {reached / 1e9:.0f} GB/s")
    words, figures = _rate_words(reached, rate)
    return _caused(case, words, CERTAIN, evidence=(best.origin,), figures=figures)


def _slow_anywhere(case: RunCase, best: LinkFact, reached: float) -> Cause | None:
    """Without a plan: slower than any link that GPUs are meant to train over."""
    if reached >= threshold("R02", "slow_anywhere_gb_s") * 1e9:
        return None
    words = f"links run at {reached / 1e9:.3g} GB/s a GPU{_of_a_kind(reached, ': as {} does')}"
    return _caused(case, words, LIKELY, evidence=(best.origin,))


def _rate_between(case: RunCase, scenario: Scenario, use: CollectiveUse | None) -> float:
    """The rate that ranks of a group reach each other at, bytes per second of one GPU: links where one domain holds them
    all; `use` None: all ranks. Ranks stand in Megatron's order, tp-cp-ep-dp-pp."""
    cluster, plan = scenario.cluster, case.plan
    span = cluster.num_gpus if use is None else use.ranks or cluster.num_gpus
    if plan is not None and use is not None:
        stage = cluster.num_gpus // plan.pp
        spans = {"tp": plan.tp, "cp": plan.tp * plan.cp, "ep": plan.tp * plan.ep, "dp": stage, "fsdp": stage}
        span = {**spans, "pp": cluster.num_gpus}.get(use.group, span)
    return cluster.nic_bytes_per_s if span > cluster.link_domain_size else cluster.link_bytes_per_s


def _rate_words(reached: float, asked: float) -> tuple[str, str]:
    words = f"links run at {reached / 1e9:.3g} GB/s a GPU where {asked / 1e9:.3g} are there"
    return words + _of_a_kind(reached, ": as {} does"), f"{reached / 1e9:.3g} of {asked / 1e9:.3g} GB/s"


def _traced(case: RunCase) -> Cause | Cleared | None:
    """Bytes over seconds of the collectives of a trace. A collective also waits for its last rank: only the sum over a group
    of large messages is looked at, and with several traces the rank that waits least."""
    if case.expectation is None or case.expectation.scenario is None:
        return None
    by_group: dict[tuple[str, str], list[tuple[CollectiveUse, TraceParts]]] = {}
    for trace in case.evidence.traces:
        for use in trace.collectives:
            by_group.setdefault((use.name, use.group), []).append((use, trace))
    seen, slow = False, []
    for uses in by_group.values():
        use, trace = min(uses, key=lambda item: item[0].seconds)
        rate = _rate_between(case, case.expectation.scenario, use)
        moved = (use.size_bytes or 0.0) * BY_BYTES.get(use.name, 1.0)
        if not moved or moved / max(1, use.count) < threshold("R02", "start_ups") * threshold("R02", "start_up_s") * rate:
            continue
        seen = True
        reached, exposed = moved / use.seconds, use.exposed_s / max(1, trace.steps)
        if reached < threshold("R02", "rate_share") * rate and case.share(exposed) >= threshold("R02", "share"):
            slow.append((exposed * (1.0 - reached / rate), reached, rate, use, trace))
    if not slow:
        return Cleared() if seen else None
    lost, reached, rate, use, trace = max(slow, key=lambda one: one[0])
    words, figures = _rate_words(reached, rate)
    origins = (trace.origin.saying(f"{use.name} of {use.group or 'all'}: {use.count} calls, {use.seconds:.3g} s"),)
    return _caused(case, words, CERTAIN, evidence=origins, figures=figures, seconds=lost)


def _of_kernels(case: RunCase) -> Cause | Cleared | None:
    """A profiler's table whose device time is one collective of data parallelism."""
    rows = [row for row in case.evidence.kernels if "nccl" in row.name.lower() and "sendrecv" not in row.name.lower()]
    if not rows:
        return None
    largest = max(rows, key=lambda row: row.share)
    if largest.share < threshold("R02", "kernel_share"):
        return Cleared()
    each = largest.seconds / max(1, largest.calls)
    figures = f"{largest.share:.0%} of the device's time, {each * 1e3:.3g} ms a call"
    words = "collectives take most of the GPU's time: the network between the ranks is slow, or nothing hides them"
    return _caused(case, words, LIKELY, evidence=(largest.origin,), figures=figures)


def _timed(case: RunCase) -> Cause | Cleared | None:
    """Timers of the reduction and the gather against their price."""
    seen = False
    for name, names in ((GRADIENTS, timers.REDUCTION), (GATHERS, timers.GATHER)):
        timer = timers.timed(case.evidence, names)
        if timer is None:
            continue
        if case.expectation is None or case.expectation.scenario is None:
            if (cause := _large_share(case, timer)) is not None:
                return cause
            continue
        seen = True
        price = case.expected(name)
        # What ranks have beyond the least is a wait for the last of them.
        lost, moving = timer.most - price, timer.least - price
        if timer.least > threshold("R02", "growth") * price and case.share(moving) >= threshold("R02", "share"):
            figures = f"{timer.name} {timer.most:.3g} s where {price:.3g} s are expected{_rate_that_explains(case, lost)}"
            words = f"{name} takes far longer than this network should need"
            return _caused(case, words, LIKELY, evidence=timer.origins, figures=figures, seconds=lost)
    return Cleared() if seen else None


def _large_share(case: RunCase, timer: timers.Timed) -> Cause | None:
    """Without a plan: a timer of communication that is most of the step."""
    step = case.step_seconds or timers.timed_step(case.evidence)
    if not step or timer.least < threshold("R02", "timer_share") * step:
        return None
    figures = f"{timer.name} {timer.least:.3g} s, {timer.least / step:.0%} of the step"
    words = f"{timer.name} takes most of the step: the network between the ranks is slow, or nothing hides it"
    return _caused(case, words, LIKELY, evidence=timer.origins, figures=figures, seconds=timer.least)


def _rate_that_explains(case: RunCase, lost: float) -> str:
    if case.planned is None:
        return ""
    e, scenario, plan = case.planned
    step = e.step_seconds + lost
    solved = solve.slow_network(scenario, plan, step) or solve.slow_link(scenario, plan, step)
    return f"; {solved.value / 1e9:.3g} GB/s a GPU explain it{_of_a_kind(solved.value, ' ({})')}" if solved else ""


def _refit(case: RunCase) -> Cause | Cleared | None:
    """The weights' way to the engine, of a step of reinforcement learning."""
    longest, total = longest_phase(case, REFIT)
    if longest is None:
        return None
    share = longest.seconds / total
    if share < threshold("R02", "refit_share"):
        return Cleared()
    figures = f"{longest.seconds:.3g} s, {share:.0%} of the step; 39 of 40 published steps spend at most 6 % on it"
    words = "moving the weights to the generating engine is slow"
    remedy = "move weights by NCCL or CUDA IPC within a node, in large buckets; check the network between the two groups"
    lost = longest.seconds - USUAL_REFIT * total
    return _caused(case, words, LIKELY, evidence=(longest.origin,), figures=figures, remedy=remedy, seconds=lost)


def _solved(case: RunCase) -> Cause | None:
    """Only the step's length is known: the rate that explains it."""
    step = case.step_seconds
    if case.planned is None or step is None or not case.above_band or (case.ratio or 0.0) < threshold("R02", "ratio"):
        return None
    tried = (look(*case.planned[1:], step) for look in (solve.slow_network, solve.slow_link))
    slow = [one for one in tried if one is not None and one.ratio < threshold("R02", "rate_share")]
    if not slow:
        return None
    places = {"network": "the network", "links": "links inside the node"}
    words = ", or ".join(f"{places[one.what]} at {one.value / 1e9:.3g} GB/s a GPU" for one in slow)
    figures = (f"{one.value / 1e9:.3g} of {one.expected / 1e9:.3g} GB/s{_of_a_kind(one.value, ': {}')}" for one in slow)
    return _caused(case, f"a slow link would explain the step: {words}", CONSISTENT, figures="; ".join(figures))


def _of_a_kind(rate: float, words: str) -> str:
    """The kind of link that runs at this rate, in words; empty where none does."""
    kind = solve.link_class(rate)
    return words.format(kind) if kind else ""


def _caused(
    case: RunCase,
    words: str,
    certainty: str,
    *,
    evidence: Sequence[Origin] = (),
    figures: str = "",
    remedy: str = "",
    seconds: float | Literal["all"] = "all",
) -> Cause:
    """A cause of R02."""
    remedy = remedy or _REMEDY_OF_RATE
    return caused(case, "R02", words, certainty, evidence=evidence, figures=figures, remedy=remedy, seconds=seconds)


ONE_CONNECTION = "CUDA_DEVICE_MAX_CONNECTIONS"
OVERLAP_FLAGS = ("overlap_grad_reduce", "overlap_param_gather", "tp_comm_overlap", "overlap_moe_expert_parallel_comm")
HIDDEN_IN = {"dp": GRADIENTS, "fsdp": GATHERS, "ep": EXPERTS, "tp": TP, "cp": CP}
"""Group of a trace's collectives -> phase of the plan that they are."""
OVERLAP = {
    "dp": "--overlap-grad-reduce --overlap-param-gather",
    "fsdp": "prefetch the gathers (FSDP2: set_modules_to_forward_prefetch)",
    "ep": "--overlap-moe-expert-parallel-comm",
    "tp": "--tp-comm-overlap",
    "cp": "--cp-comm-type p2p",
}


def not_hidden(case: RunCase) -> Cause | Cleared | None:
    """R03: a trace in which nothing hides the communication of a group that the plan asks to overlap or prices as hidden; or
    one connection to the device where neither tensor nor context parallelism needs it. Without a plan nothing says what should
    be hidden: what is exposed rules nothing out."""
    groups = [use for trace in case.evidence.traces for group in HIDDEN_IN if (use := _Exposed.of(case, trace, group)).total]
    exposed = [use for use in groups if use.is_much]
    hidable = next((use for use in exposed if _should_hide(case, use.group, use.total)), None)
    if hidable is not None:
        group = hidable.group
        text = f"{group}: {hidable.exposed:.3g} of {hidable.total:.3g} s a step beside no compute"
        words, origin = f"communication of the {group} group is not hidden", hidable.trace.origin.saying(text)
        remedy = _overlap_remedy(case, group)
        return caused(case, "R03", words, CERTAIN, evidence=(origin,), figures=text, remedy=remedy, seconds=hidable.lost)
    return _one_connection(case) or (Cleared() if groups and (case.plan is not None or not exposed) else None)


@dataclass(frozen=True, kw_only=True)
class _Exposed:
    """Seconds a step that collectives of one group take in a trace, and of them those beside no compute."""

    trace: TraceParts
    group: str
    total: float
    exposed: float
    lost: float
    """Exposed beyond what is expected."""
    step: float

    @classmethod
    def of(cls, case: RunCase, trace: TraceParts, group: str) -> _Exposed:
        """Sum up the group's collectives."""
        uses, steps = [use for use in trace.collectives if use.group == group], max(1, trace.steps)
        exposed = sum(use.exposed_s for use in uses) / steps
        return cls(
            trace=trace,
            group=group,
            total=sum(use.seconds for use in uses) / steps,
            exposed=exposed,
            lost=exposed - case.expected(HIDDEN_IN[group]),
            step=case.step_seconds or trace.span_s / steps,
        )

    @property
    def is_much(self) -> bool:
        """Whether it is a share of the group's time, and of the step, that counts."""
        much = self.exposed >= threshold("R03", "exposed_share") * self.total
        return much and self.lost >= threshold("R03", "share") * self.step


def _should_hide(case: RunCase, group: str, total: float) -> bool:
    """Whether the run asks for the overlap, or the plan's price holds it."""
    if _asked(case, group):
        return True
    return case.plan is not None and case.expected(HIDDEN_IN[group]) < (1 - threshold("R03", "hidden_share")) * total


def _asked(case: RunCase, group: str) -> bool:
    asked = {"dp": OVERLAP_FLAGS[:2], "fsdp": OVERLAP_FLAGS[:2], "tp": OVERLAP_FLAGS[2:3], "ep": OVERLAP_FLAGS[3:]}
    values = [plan.values for plan in case.evidence.plans]
    return any(one.get(flag, "").lower() == "true" for one in values for flag in asked.get(group, ()))


def _overlap_remedy(case: RunCase, group: str) -> str:
    if any(one.value.strip() == "1" for one in _connections(case)) and not _needs_one_connection(case):
        return f"unset {ONE_CONNECTION}: only tensor and context parallelism need it"
    return OVERLAP[group]


def _connections(case: RunCase) -> list[Variable]:
    return [one for one in case.evidence.variables if one.name == ONE_CONNECTION]


def _needs_one_connection(case: RunCase) -> bool:
    """Tensor or context parallelism, which order their kernels by it; as long as nobody says otherwise."""
    if case.plan is not None:
        return case.plan.tp > 1 or case.plan.cp > 1
    values = [one.values for one in case.evidence.plans]
    return not values or any(
        one.get(name, "1") != "1" for one in values for name in ("tensor_model_parallel_size", "context_parallel_size")
    )


def _one_connection(case: RunCase) -> Cause | None:
    variables = _connections(case)
    if not variables or variables[0].value.strip() != "1" or _needs_one_connection(case):
        return None
    words = f"{ONE_CONNECTION}=1 keeps communication from running beside compute, and this plan does not need it"
    certainty = LIKELY if case.above_band or _asked(case, "dp") else CONSISTENT
    return caused(case, "R03", words, certainty, evidence=(variables[0].origin,), remedy=f"unset {ONE_CONNECTION}")
