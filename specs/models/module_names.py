"""Names of a model's linear layers in checkpoints of Hugging Face, and lists of such names: literal, with * and ?, or `re:`."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterable, Iterator, Sequence

from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.models.hybrid import gdn_gemms, mamba_gemms
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import attention_gemms, expert_gemms, latent_gemms, mlp_gemms, mtp_depths_held

MAX_PATTERNS, MAX_CHARACTERS, MAX_STARS = 256, 200, 4
"""Of expressions in one list; beyond, matching would not end in bounded time."""
MAX_WORK = 1e7
"""Of all expressions of a list for one name: characters^stars / stars!, summed."""
LONGEST_NAME = 60
_WRAPPERS = ("model", "language_model", "thinker", "transformer", "llm", "backbone")
_PREFIXES = ("model.", "model.language_model.", "language_model.model.", "backbone.", "")


def _bare(name: str) -> str:
    """Without the names of what wraps the stack of layers."""
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in _WRAPPERS:
        parts = parts[1:]
    return ".".join(parts)


class ModuleNames:
    """A list of modules: `layers.3.mlp` has all modules below it and `gate` all of that name, as engines and transformers
    match them."""

    def __init__(self, names: Iterable[str], where: str) -> None:
        """Raises UnsupportedError where an expression is too long or nests what repeats."""
        self._names: set[str] = set()
        self._expressions: list[re.Pattern[str]] = []
        work = 0.0
        for name in names:
            if name.startswith("re:"):
                text = name[3:]
            elif "*" in name or "?" in name:
                text = fnmatch.translate(name if name.endswith("*") else name + "*")
            else:
                self._names.add(_bare(name))
                continue
            stars = len(re.findall(r"(?<!\\)[*+{]", name))
            work += LONGEST_NAME**stars / math.factorial(min(stars, 20))
            nested = re.search(r"\)[*+{?]", name) is not None
            many = len(self._expressions) >= MAX_PATTERNS or stars > MAX_STARS or work > MAX_WORK
            if len(name) > MAX_CHARACTERS or nested or many:
                raise UnsupportedError(f"{where}: {name[:60]!r}: names are read with up to {MAX_STARS} simple repeats")
            try:
                self._expressions.append(re.compile(text))
            except (re.error, OverflowError) as error:
                raise UnsupportedError(f"{where}: {name[:60]!r} is no expression ({error})") from error
        self.by_expert = any(re.search(r"experts\.\d", name) for name in self._names)

    def has(self, module: str) -> bool:
        """Whether the list names this module, without a wrapper's name (`layers.0.mlp.down_proj`), or one that holds it."""
        parts = _bare(module).split(".")
        runs = (".".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1))
        if any(run in self._names for run in runs):
            return True
        name = ".".join(parts)
        return any(one.match(prefix + name) for one in self._expressions for prefix in _PREFIXES)


Module = tuple[str, tuple[str, ...], float]
"""(part of memory_model.serving, names that checkpoints use, weights)."""


def linear_modules(model: ModelSpec, *, by_expert: bool = False) -> Iterator[Module]:
    """Every linear layer of the stack and the output layer; routers left out. `by_expert`: each routed expert on its own,
    else all of a layer together under the first one's name."""
    for part, names, weights in _modules(model, by_expert):
        if "mamba" in model.layer_kinds:  # Nemotron-H: whatever a layer holds is its mixer
            names = (*names, *(re.sub(r"\.(mlp|self_attn)\.", ".mixer.", name) for name in names))
        yield part, tuple(dict.fromkeys(names)), weights


def _modules(model: ModelSpec, by_expert: bool) -> Iterator[Module]:
    for index, kind in enumerate((*model.layer_kinds, *model.mtp_kinds * mtp_depths_held(model))):
        # a hybrid with Gated DeltaNet has a mixer and an MLP in one layer of Hugging Face, we have two
        layer = f"layers.{index // 2 if 'gdn' in model.layer_kinds else index}"
        if kind in _RECURRENT:
            weights = _RECURRENT[kind](model, 1)
            for name, count in weights.items():
                fused = [name, *_DELTA_RULE.get(name, ())]  # most of a fused projection says how it is stored
                names = tuple(f"{layer}.{inside}.{one}" for inside in ("linear_attn", "mixer") for one in fused)
                yield "recurrent", names, float(count)
        elif kind not in ("mlp", "moe") or not model.is_hybrid:
            yield from _attention(model, layer)
        if kind == "moe":
            yield from _experts(model, layer, by_expert)
        elif kind in ("dense", "mlp"):
            yield from _mlp(model, f"{layer}.mlp", model.ffn_hidden_size)
    if model.untie_embeddings_and_output_weights:
        yield "output", ("lm_head",), float(model.vocab_size * model.hidden_size)


_RECURRENT = {"mamba": mamba_gemms, "gdn": gdn_gemms}
_DELTA_RULE = {"in_proj": ("in_proj_qkvz", "in_proj_qkv")}
"""The first projection of Gated DeltaNet in checkpoints of Qwen3-Next and Qwen3.5, without the few columns of its gates."""
_LATENT = {
    "linear_q_down_proj": "q_a_proj",
    "linear_q_up_proj": "q_b_proj",
    "linear_q_proj": "q_proj",
    "linear_kv_down_proj": "kv_a_proj_with_mqa",
    "linear_kv_up_proj": "kv_b_proj",
    "linear_proj": "o_proj",
    "indexer.linear_wq_b": "indexer.wq_b",
    "indexer.linear_wk": "indexer.wk",
    "indexer.linear_weights_proj": "indexer.weights_proj",
}
"""Megatron's module of latent attention, and of what chooses its keys, -> Hugging Face's."""


def _attention(model: ModelSpec, layer: str) -> Iterator[Module]:
    gemms = {name: float(count) for name, count in attention_gemms(model, 1).items()}
    if model.multi_latent_attention:
        parts = {_LATENT[name]: count for name, count in gemms.items()}
    else:
        keys = float(model.hidden_size * model.num_query_groups * model.kv_channels)
        queries = gemms["linear_qkv"] - 2.0 * keys
        parts = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "o_proj": gemms["linear_proj"]}
    for name, count in parts.items():
        fused = ("qkv_proj", "query_key_value") if name in ("q_proj", "k_proj", "v_proj") else ("dense", "out_proj")
        yield "attention", (f"{layer}.self_attn.{name}", *(f"{layer}.self_attn.{one}" for one in fused)), count


def _mlp(model: ModelSpec, name: str, width: int, part: str = "mlp") -> Iterator[Module]:
    gemms = {key: float(count) for key, count in mlp_gemms(model, width, 1).items()}
    first = ("gate_proj", "up_proj") if model.gated_linear_unit else ("up_proj",)
    for one in first:
        other = tuple(f"{name}.{alias}" for alias in ("gate_up_proj", "w1" if one == "gate_proj" else "w3"))
        yield part, (f"{name}.{one}", *other), gemms["linear_fc1"] / len(first)
    yield part, (f"{name}.down_proj", f"{name}.w2"), gemms["linear_fc2"]


def _under(holders: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{holder}.{name}" for holder in holders for name in names)


def _experts(model: ModelSpec, layer: str, by_expert: bool) -> Iterator[Module]:
    total, gemms = model.num_moe_experts or 0, expert_gemms(model, 1)
    each = {"gate_proj": "w1", "up_proj": "w3"} if model.gated_linear_unit else {"up_proj": "w3"}
    count = 1.0 if by_expert else float(total)
    for number in range(total if by_expert else 1):
        holders = [f"{layer}.{mlp}.experts.{number}" for mlp in ("mlp", "block_sparse_moe", "mixer")]
        for aliases in each.items():
            yield "experts", _under(holders, aliases), count * float(gemms["linear_fc1"]) / len(each)
        yield "experts", _under(holders, ("down_proj", "w2")), count * float(gemms["linear_fc2"])
    if model.moe_shared_expert_intermediate_size:
        for part, names, weights in _mlp(model, f"{layer}.mlp.shared_experts", model.moe_shared_expert_intermediate_size):
            yield part, (*names, *(name.replace("shared_experts", "shared_expert") for name in names)), weights
    for name, weight in latent_gemms(model).items():
        yield "mlp", (f"{layer}.mixer.{name}",), float(weight)
