"""The legal space: every layout that divisibility and the rules allow, as columns. Nothing comes from size tables.

The grid is the product of the axes below. It is walked level by level; a combination that a rule forbids is counted under
that rule times the combinations that would have hung below it, so `enumerated = legal + sum(rejected)` holds exactly while
only the legal part is ever written out.

    level 1  tp, pp, cp         divisors of the number of GPUs
    level 2  sp                 off, on
    level 3  ep, etp            divisors of the number of experts; divisors of the number of GPUs (1, 1 for dense models)
    level 4  vpp, first, last   divisors of the layers per stage; even stages, and stages with fewer first and last layers;
                                where the caller fixes vpp, stages that a pipeline layout places, too (`layout_splits`)
    level 5  mbs                divisors of the global batch
    level 6  sharding           the choices of `sharding_choices` (not a part of a layout, so not counted)

The recomputation options that are combined with every layout are derived from the model, never from a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from autoconfig.specs.errors import InputError, option
from autoconfig.specs.layouts import Layouts, divisors, middle_layers
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import active_matmul_parameters
from autoconfig.specs.plan import ENDS, MODULES, NONE, OUTPUT_DISCARDING, SHARDING, Recompute, TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.training.plan_rules import is_idle
from autoconfig.training.recompute_rules import recompute_fits_layers, recompute_rule
from autoconfig.training.rules import RULES, Rule

Ints = npt.NDArray[np.int64]
LEVELS: tuple[tuple[str, ...], ...] = (("tp", "pp", "cp"), ("sp",), ("ep", "etp"), ("vpp", *ENDS), ("mbs",))
ATTENTION_TILE_TOKENS = 128
"""Queries of one tile of the flash-attention kernels (Dao 2023, section 3.3); a context-parallel chunk below it wastes it."""
MIN_EXPERT_WIDTH = 256
"""Columns of an expert's first matrix on one rank: two tiles of 128 of the GEMM kernels."""
USUAL_NODE_SIZE = 8
MAX_ROWS = 10_000_000
"""Combinations held at once: 1 to 2 GB. The largest sensible questions stay below a tenth of it."""


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """What the caller fixes, caps or excludes, by short key: {"tp": {8}}, {"tp": 8}, {"pp": {16}}."""

    fixed: Mapping[str, frozenset[Any]] = field(default_factory=dict)
    at_most: Mapping[str, int] = field(default_factory=dict)
    excluded: Mapping[str, frozenset[Any]] = field(default_factory=dict)

    def allows(self, key: str, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Mask of the values that the constraints on this key leave."""
        ok = np.ones(len(values), bool)
        if key in self.fixed:
            ok &= np.isin(values, list(self.fixed[key]))
        if key in self.at_most:
            ok &= values <= self.at_most[key]
        if key in self.excluded:
            ok &= ~np.isin(values, list(self.excluded[key]))
        return ok

    def keeps(self, plan: TrainPlan) -> bool:
        """Whether a plan has what is fixed and nothing that is excluded."""
        fixed = all(getattr(plan, key) in allowed for key, allowed in self.fixed.items())
        return fixed and not any(getattr(plan, key) in values for key, values in self.excluded.items())


@dataclass(frozen=True, kw_only=True)
class Space:
    """The legal layouts and the count of everything else."""

    layouts: Layouts
    """One row per (layout, sharding choice)."""
    layout_id: Ints
    """Which rows are the same layout with another sharding."""
    enumerated: int
    legal: int
    legal_even: int
    rejected_by_rule: dict[str, int]
    """Rule id (or `wish`: fixed, capped or excluded by the caller; or a search bound) -> layouts."""


@dataclass
class _Level:
    columns: dict[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        return len(self.columns["tp"])


def stage_splits(num_layers: int, pp: int) -> list[tuple[int, int, int]]:
    """(vpp, first, last) candidates of one pp: every divisor of the stages' layers, even stages and uneven ones.

    Uneven: the middle stages hold M layers each, first and last at most M and the rest between them; M is the even share
    rounded up, or one more where the layers divide. With two stages, the first takes up to two layers more or less than half.
    """
    if pp == 1:
        return [(1, num_layers, num_layers)]
    ends: list[tuple[int, int, int]] = []
    even = num_layers // pp
    if num_layers % pp == 0:
        ends.append((even, even, even))
    if pp == 2:
        ends += [
            (first, first, num_layers - first)
            for first in range(max(1, num_layers - even - 2), min(num_layers - 1, even + 2) + 1)
            if 2 * first != num_layers
        ]
    else:
        middle = even + 1
        both = num_layers - middle * (pp - 2)
        ends += [(middle, first, both - first) for first in range(max(1, both - middle), min(middle, both - 1) + 1)]
    splits = []
    for middle, first, last in ends:
        shared = np.gcd.reduce([first, last, middle])
        splits += [(vpp, first, last) for vpp in divisors(int(shared))]
    return splits


def layout_splits(model: ModelSpec, pp: int) -> list[tuple[int, int, int]]:
    """(vpp, first, last) of stages that a pipeline layout places, where the layers do not divide over pp: chunks of one size
    but for the first and the last one. At most two a vpp: the first chunk full and the rest with the loss, as NVIDIA places
    DeepSeek-V3; and the last one short by what output layer and multi-token prediction take, in layers by matmul parameters.
    """
    layers, splits = model.num_layers, []
    if pp < 3 or layers % pp == 0:
        return []
    head = model.vocab_size * model.hidden_size * (1 + model.mtp_num_layers)
    layer = (active_matmul_parameters(model) - head) / (layers + model.mtp_num_layers)
    extra = round(head / layer) + model.mtp_num_layers
    for vpp in range(2, layers // pp + 2):
        chunk = -(-layers // (pp * vpp))
        rest = layers - chunk * (pp * vpp - 2)
        full = min(chunk, rest)
        short = max(0, rest - min(chunk, max(chunk - extra, rest - chunk, 0)))
        whole = chunk * (vpp - 1)
        ends = dict.fromkeys((whole + a, whole + rest - a) for a in (full, short) if rest >= 0 and 0 <= rest - a <= chunk)
        splits += [(vpp, first, last) for first, last in ends if first % vpp or last % vpp]
    return splits


def axes(scenario: Scenario) -> dict[str, list[Any]]:
    """Values of every axis but the stage splits."""
    gpus, model = scenario.cluster.num_gpus, scenario.model
    return {
        "tp": divisors(gpus),
        "pp": divisors(gpus),
        "cp": divisors(gpus),
        "sp": [False, True],
        "ep": divisors(model.num_moe_experts) if model.num_moe_experts else [1],
        "etp": divisors(gpus) if model.is_moe else [1],
        "mbs": divisors(scenario.workload.global_batch_size),
    }


def search_bounds(scenario: Scenario, constraints: Constraints) -> dict[str, int]:
    """Largest tp, etp and cp that are searched; none for a key that the caller fixes or caps.

    Tensor parallelism stays inside a node or link domain; a rank keeps at least two tiles of an expert's width, and its two
    context-parallel chunks hold an attention tile each.
    Beyond, plans are legal and can be named with --include or --fix, but are never worth searching.
    """
    inside = max(scenario.cluster.link_domain_size, scenario.cluster.gpus_per_node, USUAL_NODE_SIZE)
    tiles = max(1, scenario.model.moe_ffn_hidden_size // MIN_EXPERT_WIDTH)
    bounds = {
        "tp": inside,
        "etp": min(inside, tiles),
        "cp": max(1, scenario.workload.seq_length // (2 * ATTENTION_TILE_TOKENS)),
    }
    return {key: most for key, most in bounds.items() if key not in constraints.fixed and key not in constraints.at_most}


def usual_fsdp(scenario: Scenario) -> frozenset[int]:
    """Levels of FSDP that are searched where none is fixed: of adapters and packed samples on Megatron none, as
    Megatron-Bridge's recipes, which train them, are written without (formats/writers/bridge.py)."""
    by_recipe = scenario.numerics.peft == "lora" or scenario.workload.packed_length is not None
    return frozenset({0} if by_recipe and scenario.software.sharding == "megatron" else {0, 3})


def sharding_choices(
    constraints: Constraints, default_dist_opt: bool, levels: frozenset[int] = frozenset({0, 3})
) -> list[tuple[bool, int, float]]:
    """(dist_opt, fsdp, offload) to combine with every layout: the stack's usual optimizer and FSDP, or what is fixed.

    Unsharded optimizer state beside the distributed optimizer is never faster and never smaller, so it is priced only
    where the stack has nothing else or the caller fixes dist_opt=0.
    """
    offload = sorted(set(constraints.fixed.get("offload", {0.0})) - set(constraints.excluded.get("offload", ())))
    excluded = set(constraints.excluded.get("dist_opt", ()))
    usual = {default_dist_opt} - excluded or {not default_dist_opt} - excluded
    stages = [f for f in sorted(constraints.fixed.get("fsdp", levels)) if f not in constraints.excluded.get("fsdp", ())]
    choices: list[tuple[bool, int, float]] = []
    for level in stages:
        dist_opts = ({False} if level else set(constraints.fixed.get("dist_opt", usual))) - excluded
        if level and True in constraints.fixed.get("dist_opt", ()):
            continue
        choices += [(bool(d), int(level), float(o)) for d in sorted(dist_opts) for o in offload]
    return choices


def enumerate_space(scenario: Scenario, constraints: Constraints | None = None) -> Space:
    """Walk the grid. An empty space is a Space with legal = 0. Raises InputError where the grid is too large to hold."""
    constraints = constraints or Constraints()
    values = axes(scenario)
    splits = {pp: _splits(scenario, constraints, pp) for pp in values["pp"]}
    below = _sizes_below(values)
    bounds = search_bounds(scenario, constraints)
    rejected: dict[str, int] = {}
    level = _Level(columns={})
    done: set[str] = set()
    for number, keys in enumerate(LEVELS):
        level = _expand(level, keys, values, splits)
        done |= set(keys)
        if "mbs" in keys:
            level = _derive_dp(level, scenario, constraints, rejected)
        rules = [rule for rule in RULES if set(rule.needs) <= done | {"dp"} and set(rule.needs) & set(keys)]
        for rule in rules:
            level = _filter(
                level,
                below[number] * _split_counts(level, splits, number),
                [(rule.id, rule.legal(scenario, level.columns | _sizes(scenario)))],
                rejected,
            )
        checks = [("wish", constraints.allows(k, level.columns[k])) for k in keys]
        checks += [(f"{k} beyond search bounds", level.columns[k] <= bounds[k]) for k in keys if k in bounds]
        level = _filter(level, below[number] * _split_counts(level, splits, number), checks, rejected)
    enumerated = sum(len(splits[pp]) for pp in values["pp"]) * len(values["tp"]) * len(values["cp"]) * below[0]
    choices = sharding_choices(constraints, scenario.software.supports_distributed_optimizer, usual_fsdp(scenario))
    return _with_sharding(level, scenario, choices, enumerated, rejected)


def _splits(scenario: Scenario, constraints: Constraints, pp: int) -> list[tuple[int, int, int]]:
    """(vpp, layers of the first stage, of the last) of the stages that layers fall into; one that is not legal where there are
    more stages than layers."""
    model = scenario.model
    if pp > model.num_layers:
        return [(1, 1, 1)]
    placed = "vpp" in constraints.fixed and scenario.software.supports_pipeline_layout and not model.is_hybrid
    return [*stage_splits(model.num_layers, pp), *(layout_splits(model, pp) if placed else [])]


def _sizes(scenario: Scenario) -> dict[str, Ints]:
    """What every layout of the space has in common."""
    return {"num_gpus": np.array(scenario.cluster.num_gpus), "global_batch_size": np.array(scenario.workload.global_batch_size)}


def _sizes_below(values: Mapping[str, Sequence[Any]]) -> list[int]:
    """Combinations below one row of each level, the stage splits not counted (they depend on pp)."""
    sizes = [1] * len(LEVELS)
    for number in range(len(LEVELS) - 2, -1, -1):
        extra = 1
        for key in LEVELS[number + 1]:
            extra *= len(values[key]) if key in values else 1
        sizes[number] = sizes[number + 1] * extra
    return sizes


def _split_counts(level: _Level, splits: Mapping[int, Sequence[Any]], number: int) -> Ints:
    if number >= 3:
        return np.ones(len(level), np.int64)
    table = np.zeros(max(splits) + 1, np.int64)
    for pp, found in splits.items():
        table[pp] = len(found)
    return table[level.columns["pp"]]


def _expand(
    level: _Level,
    keys: tuple[str, ...],
    values: Mapping[str, Sequence[Any]],
    splits: Mapping[int, Sequence[tuple[int, int, int]]],
) -> _Level:
    """The level's rows times the values of the next keys."""
    if "vpp" in keys:
        return _expand_splits(level, splits)
    grids = np.meshgrid(*[np.array(values[key]) for key in keys], indexing="ij")
    new = {key: grid.ravel() for key, grid in zip(keys, grids, strict=True)}
    if not level.columns:
        return _Level(new)
    size, rows = len(next(iter(new.values()))), len(level)
    _check_size(rows * size)
    columns = {key: np.repeat(column, size) for key, column in level.columns.items()}
    return _Level({**columns, **{key: np.tile(column, rows) for key, column in new.items()}})


def _check_size(rows: int) -> None:
    if rows > MAX_ROWS:
        raise InputError(
            f"this question has at least {rows:,} layouts to look at, more than {MAX_ROWS:,}; narrow it with "
            f"{option('fix')} tp=..., pp=... or cp=..., or choose numbers of GPUs, experts or samples with fewer divisors"
        )


def _expand_splits(level: _Level, splits: Mapping[int, Sequence[tuple[int, int, int]]]) -> _Level:
    counts = _split_counts(level, splits, 0)
    _check_size(int(counts.sum()))
    rows = np.repeat(np.arange(len(level)), counts)
    start = np.repeat(np.cumsum(counts) - counts, counts)
    position = np.arange(len(rows)) - start
    offsets: dict[int, int] = {}
    flat: list[tuple[int, int, int]] = []
    for pp, found in splits.items():
        offsets[pp] = len(flat)
        flat += list(found)
    table = np.zeros(max(splits) + 1, np.int64)
    table[list(offsets)] = list(offsets.values())
    chosen = (
        np.array(flat, dtype=np.int64)[table[level.columns["pp"][rows]] + position] if len(rows) else np.zeros((0, 3), np.int64)
    )
    columns = {key: column[rows] for key, column in level.columns.items()}
    return _Level({**columns, "vpp": chosen[:, 0], "first": chosen[:, 1], "last": chosen[:, 2]})


def _filter(
    level: _Level, weights: Ints, checks: Sequence[tuple[str, npt.NDArray[np.bool_]]], rejected: dict[str, int]
) -> _Level:
    """Keep rows that pass; count the others, each under the first check that it fails."""
    keep = np.ones(len(level), bool)
    for name, ok in checks:
        lost = keep & ~ok
        if lost.any():
            rejected[name] = rejected.get(name, 0) + int(weights[lost].sum())
            keep &= ok
    return level if keep.all() else _Level({key: column[keep] for key, column in level.columns.items()})


def _derive_dp(level: _Level, scenario: Scenario, constraints: Constraints, rejected: dict[str, int]) -> _Level:
    columns = level.columns
    dp = scenario.cluster.num_gpus // (columns["tp"] * columns["pp"] * columns["cp"])
    level = _Level({**columns, "dp": dp})
    return _filter(level, np.ones(len(level), np.int64), [("wish", constraints.allows("dp", dp))], rejected)


def _with_sharding(
    level: _Level, scenario: Scenario, choices: Sequence[tuple[bool, int, float]], enumerated: int, rejected: dict[str, int]
) -> Space:
    rules: list[Rule] = [rule for rule in RULES if set(rule.needs) & {*SHARDING}]
    rows, ids, columns_list = len(level), [], []
    for dist_opt, fsdp, offload in choices:
        extra = {"dist_opt": np.full(rows, dist_opt), "fsdp": np.full(rows, fsdp), "offload": np.full(rows, offload)}
        columns = {**level.columns, **extra}
        ok = np.ones(rows, bool)
        for rule in rules:
            ok &= rule.legal(scenario, columns | _sizes(scenario))
        ids.append(np.flatnonzero(ok))
        columns_list.append({key: column[ok] for key, column in columns.items()})
    merged = {key: np.concatenate([c[key] for c in columns_list]) for key in columns_list[0]} if columns_list else {}
    layout_id = np.concatenate(ids) if ids else np.zeros(0, np.int64)
    if not merged:
        merged = {**level.columns, "dist_opt": np.zeros(0, bool), "fsdp": np.zeros(0, np.int64), "offload": np.zeros(0)}
        merged = {key: column[:0] for key, column in merged.items()}
    legal_ids = np.flatnonzero(np.bincount(layout_id, minlength=rows))
    dropped = rows - len(legal_ids)
    if dropped:
        rejected["NV100"] = rejected.get("NV100", 0) + dropped
    values: dict[str, Any] = {**merged, "switches": np.zeros(len(layout_id), np.int64)}
    values |= {key: np.full(len(layout_id), size) for key, size in _sizes(scenario).items()}
    layouts = Layouts(**values).with_switches(scenario.switches)
    even = (level.columns["first"] * level.columns["pp"] == scenario.model.num_layers) & (
        level.columns["last"] == level.columns["first"]
    )
    return Space(
        layouts=layouts,
        layout_id=layout_id,
        enumerated=enumerated,
        legal=len(legal_ids),
        legal_even=int(even[legal_ids].sum()),
        rejected_by_rule=dict(sorted(rejected.items(), key=lambda x: -x[1])),
    )


MODULES_TOGETHER = 2
"""Selective options name up to this many modules, besides all output-discarding ones together."""


def recompute_options(scenario: Scenario, constraints: Constraints, max_layers: int) -> list[Recompute]:
    """none; selective by one or two modules and by all output-discarding ones; full uniform and block by layer count.

    `max_layers` is the largest number of layers on one stage. Counts run 1, 2, 3, 4, then in steps of about a quarter.
    """
    excluded = constraints.excluded.get("recompute", frozenset())
    if "recompute" in constraints.fixed:
        return [o for o in sorted(constraints.fixed["recompute"] - excluded, key=str) if recompute_rule(scenario, o) is None]
    options = [NONE, *_selective(scenario)]
    options += [Recompute("full", (), "block", n) for n in layer_counts(max_layers - 1)]
    options += [Recompute("full", (), "uniform", n) for n in layer_counts(max_layers) if n & (n - 1) == 0]
    graphs = {"NV081", "NV122", "NV146", "AC012"}  # whatever the number of layers
    return [o for o in options if o not in excluded and recompute_rule(scenario, o) not in graphs]


def _selective(scenario: Scenario) -> Iterator[Recompute]:
    """Recomputation of one or two modules, and of all output-discarding ones together."""
    legal = [m for m in MODULES if recompute_rule(scenario, Recompute("selective", (m,))) is None]
    modules = [m for m in legal if not is_idle(scenario, m)]
    for size in range(1, MODULES_TOGETHER + 1):
        yield from (Recompute("selective", chosen) for chosen in combinations(modules, size))
    discarding = tuple(m for m in OUTPUT_DISCARDING if m in modules)
    if len(discarding) > MODULES_TOGETHER:
        yield Recompute("selective", discarding)


def layer_counts(most: int) -> list[int]:
    """1, 2, 3, 4, 5, 6, 8, 10, 12, 15, ... up to `most`."""
    counts, n = [], 1
    while n <= most:
        counts.append(n)
        n = max(n + 1, n * 5 // 4)
    return counts


def legal_mask(options: list[Recompute], layouts: Layouts, scenario: Scenario) -> npt.NDArray[np.bool_]:
    """[n, R]: the option is legal for the layout (NV111).

    A block as large as the chunk is the same as uniform, so it is left out.
    """
    middle = middle_layers(scenario.model, layouts)
    last = np.where(layouts.pp > 1, layouts.last, layouts.first)
    largest = np.maximum(np.maximum(layouts.first, last), middle)
    chunk = largest // layouts.vpp
    mask = np.ones((len(layouts), len(options)), bool)
    for r, recompute in enumerate(options):
        if recompute.granularity == "full":
            mask[:, r] = recompute_fits_layers(recompute, chunk, chunk)
            if recompute.method == "block":
                mask[:, r] &= recompute.num_layers < chunk
    return mask
