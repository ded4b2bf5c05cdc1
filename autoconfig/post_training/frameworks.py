"""Algorithms and frameworks of post-training as data (data/post_training.toml), with the constants that measured runs gave."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import resources
from math import exp
from typing import Any

from autoconfig.specs.errors import InputError, UnknownNameError

STANDARD_90 = 1.645
"""Half a 90 % interval of a normal law, in standard deviations."""
FACTORS = ("generation", "forward", "training")
"""Phases whose priced seconds a calibration scales."""
OF_A_STEP = ("fixed_s", "seconds_per_sample", "seconds_per_gb", "split_seconds_per_gb", "rounds", "scatter", "scatter_assumed")


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """What one step runs besides generation and training of the policy."""

    name: str
    policy_passes: int
    """Forward passes of the policy over all samples."""
    reference_passes: int
    critic: bool = False
    """A value model is evaluated and trained."""
    generates: bool = True
    sequences_per_sample: int = 1
    rounds_spread: float = 0.0
    """Standard deviation of ln(step) by rounds of dynamic sampling, of which nothing says how many there are."""
    response_tokens: int = 0
    """Of a response where no length is given; 0: the usual of `[lengths]`."""


PADS = ("none", "micro-batch", "mini-batch", "step", "cap")
"""What padded samples are as long as, the shortest first."""


@dataclass(frozen=True, kw_only=True)
class Framework:
    """Defaults of a framework where a run does not say."""

    name: str
    version: str
    """That files are written for."""
    cuda_graphs: bool
    memory_share: float
    prompts: int
    group: int
    stacks: Mapping[str, str] = field(hash=False)
    """megatron, fsdp: the software stack of the training model that prices each back end."""
    sync: Mapping[str, str] = field(hash=False)
    """Method of weight synchronisation of colocated_megatron, colocated_fsdp, split."""
    minibatch_in_prompts: bool = False
    continuous: bool = True
    """Engines batch continuously; False: static batches, one after the other."""
    rollout_batch: int = 0
    """Sequences of a static batch; 0: all that an engine has room for."""
    removes_padding: bool = False
    """A micro-batch of given sequences holds their tokens alone."""
    pads_to: str = "micro-batch"
    """Whose longest sample a padded one is as long as: `micro-batch`, `mini-batch` or `step` of a rank, or the `cap`; `none`:
    its trainer pads none."""
    pads: Mapping[str, Mapping[str, str]] = field(default_factory=dict, hash=False)
    """The same by release up to which it holds and back end, oldest first; releases after the last: `pads_to`."""
    packs: bool = True
    """Samples are packed into micro-batches of so many tokens; False: padded, a number of them to a micro-batch."""
    offloads: tuple[bool, ...] = (False, True)
    """Whether training may wait on the host, or always does, while engines on its GPUs generate."""
    fp32_shards: bool = False
    """Sharded parameters are fp32 and their own master weights; 16-bit ones are gathered (PyTorch's FSDP)."""
    frees_gradients: tuple[str, ...] = ()
    """Back ends whose gradients are freed when a step's training ends."""
    hands_samples: bool = False
    """Its controller hands the samples to workers in each phase, whose timer holds that; False: beside the phases."""
    tokens_per_gpu: int = 0
    """Of a packed micro-batch where none is given; 0: 8,192."""
    total_tokens: int = 0
    """Most tokens of prompt and response together where no length is given; 0: the usual lengths."""
    back_ends: tuple[str, ...] = ("megatron", "fsdp")
    """What trains: Megatron's parallelism, or sharding over all GPUs (FSDP, ZeRO-3)."""
    recomputes: tuple[str, ...] = ("megatron", "fsdp")
    """Back ends that recompute activations where a run does not say."""
    splits: tuple[str, ...] = ("sync", "async")
    """How engines may have GPUs of their own: waiting for training, or ahead of the weights."""
    critic_apart: bool = True
    """Critic and reward model may have nodes of their own."""
    versions: tuple[str, ...] = ()
    """Releases that are known, oldest first; empty: none is looked at."""
    eager_to: str = ""
    """Newest release whose vLLM runs eagerly where a run does not say; empty: none does, or all as `cuda_graphs` says."""

    def padded_to(self, version: str, back_end: str) -> str:
        """`pads_to` of a release and a back end."""
        for last, words in self.pads.items():
            if release_numbers(version) <= release_numbers(last):
                return words.get(back_end, self.pads_to)
        return self.pads_to

    def padded_at_most(self, back_end: str) -> str:
        """The longest `pads_to` that any release has of a back end."""
        words = [self.pads_to, *(words.get(back_end, self.pads_to) for words in self.pads.values())]
        return max(words, key=PADS.index)

    def graphs(self, name: str, engine: str) -> bool:
        """Whether engines run CUDA graphs where a run does not say; `said`: the framework as it is named, `verl 0.4.0`."""
        version = re.search(r"[@\s]v?(\d+(?:\.\d+)+)", name)
        if not version or not self.eager_to or engine not in ("", "vllm"):
            return self.cuda_graphs
        return release_numbers(version[1]) > release_numbers(self.eager_to)


@cache
def _data() -> dict[str, Any]:
    text = (resources.files("autoconfig") / "data" / "post_training.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def section(name: str) -> dict[str, Any]:
    """A section of data/post_training.toml: engine_host, lengths, weight_sync."""
    return _data()[name]


def algorithm_names() -> list[str]:
    """Canonical names."""
    return list(_data()["algorithms"])


def framework_names() -> list[str]:
    """Canonical names."""
    return list(_data()["frameworks"])


def load_algorithm(name: str) -> Algorithm:
    """The algorithm of this name; words behind it (`DAPO multi-turn tools`, `GRPO-LoRA`) change nothing. Raises
    UnknownNameError."""
    wanted = name.strip().lower()
    table = _data()["algorithms"]
    spellings = sorted(((s, key) for key, entry in table.items() for s in (key, *entry["names"])), key=lambda x: -len(x[0]))
    for spelling, key in spellings:
        if re.search(rf"(?<![a-z]){re.escape(spelling)}(?![a-z])", wanted) or (len(spelling) > 3 and spelling in wanted):
            return Algorithm(name=key, **_own(Algorithm, table[key]))
    raise UnknownNameError("algorithm", name[:40], algorithm_names(), f"there are {', '.join(algorithm_names())}", "algorithm")


def release_numbers(version: str) -> tuple[int, ...]:
    """`0.5.0.post1` -> (0, 5, 0)."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


OTHER_FRAMEWORK = "other"
"""Stands for frameworks of which no run was measured."""


def load_framework(name: str) -> Framework:
    """The framework of `name`, `name version` or `name@version`. Raises UnknownNameError."""
    wanted = name.strip().lower()
    table = _data()["frameworks"]
    for key, entry in table.items():
        for spelling in sorted((key, *entry["names"]), key=len, reverse=True):
            if re.match(rf"{re.escape(spelling)}(?![a-z])", wanted):
                return Framework(name=key, **_own(Framework, entry))
    raise UnknownNameError("framework", name[:40], framework_names(), f"there are {', '.join(framework_names())}", "framework")


def asked_version(name: str, framework: Framework) -> str:
    """The release behind the name (`verl@0.5.0`); empty where none is asked for. Raises InputError for others."""
    match = re.search(r"@\s*v?(.*)$|\sv?(\d.*)$", name.strip().lower())
    if match is None or not framework.versions:
        return ""
    wanted = (match[1] or match[2] or "").strip()
    if wanted not in framework.versions:
        raise InputError(
            f"{framework.name} {wanted[:40] or '(no version behind the @)'} is not known: use {framework.name}@"
            f"{framework.version}" + (f", or one of {', '.join(framework.versions[:-1])}" if framework.versions[1:] else "")
        )
    return wanted


def _own(kind: Any, entry: Mapping[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(kind)}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items() if key in names}


@dataclass(frozen=True, kw_only=True)
class PhaseConstants:
    """What measured runs say of a class of runs (framework, GPU architecture, dense or experts)."""

    generation: float = 1.0
    forward: float = 1.0
    training: float = 1.0
    """Seconds measured over seconds priced."""
    fixed_s: float = 5.0
    """Of a step beside its phases: data, rewards, advantages, waking and sleeping of engines."""
    seconds_per_sample: float = 0.005
    """The same for each sample trained on: rewards, padding, moving batches between workers."""
    seconds_per_gb: float = 0.05
    """The same for each GB of 16-bit weights where engines share the GPUs of training and sleep meanwhile."""
    split_seconds_per_gb: float = 0.03
    """The same where engines have GPUs of their own."""
    scatter: float = 0.4
    """Standard deviation of ln(measured / predicted) of the step where the model was not among those that were fitted."""
    rounds: float = 1.0
    """Of an algorithm's `rounds_spread` what is not known: none of it after measured steps, which hold their rounds."""
    scatter_assumed: float = 0.7
    """The same where model, GPU, batch or lengths had to be assumed."""


Constants = Mapping[str, Mapping[str, float]]
"""Framework (`all` for any other) -> numbers: OF_A_STEP, and ln of a factor by phase, alone or
with `:experts`, `:blackwell`, `:fsdp` behind it."""


@cache
def shipped_constants() -> Constants:
    """data/post_training_calibration.json, written by `make calibration`."""
    text = (resources.files("autoconfig") / "data" / "post_training_calibration.json").read_text(encoding="utf-8")
    return json.loads(text)["frameworks"]


def constants_of(measured: Constants, framework: str, marks: Collection[str]) -> PhaseConstants:
    """Of a class of runs; marks: those of experts, blackwell and fsdp that hold. How training is sharded says nothing of
    engines."""
    numbers = measured.get(framework) or measured.get("all") or {}
    factors = {}
    for phase in FACTORS:
        own = [mark for mark in marks if (phase, mark) != ("generation", "fsdp")]
        factors[phase] = exp(sum(numbers.get(name, 0.0) for name in (phase, *(f"{phase}:{mark}" for mark in own))))
    rest = {name: numbers[name] for name in OF_A_STEP if name in numbers}
    return PhaseConstants(**factors, **rest)
