"""EngineStart: what the start command of one serving engine says, in one record for all engines; and what its memory will be.

A field that is None was not said: the engine's default of the release counts (specs/catalogue/engine_defaults.toml). Readers of
start commands fill it, `deployments` makes it of a plan, memory_model.engine_memory answers it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from autoconfig.specs.errors import InputError, is_count
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.checkpoint import Checkpoint
from autoconfig.specs.software.engine import KV_BYTES, WEIGHT_BYTES, ModuleFormats, module_formats, published_format

ENGINES = ("vllm", "sglang", "tensorrt-llm")
AUTO_LENGTH = -1
"""max_model_len of vLLM's `--max-model-len auto` (-1): as long as fits."""
LONGER = {
    "vllm": ("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "hf-config-path", "config-format"),
    "sglang": ("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",),
    "tensorrt-llm": (),
}
"""What lets a start have a longer max_model_len than the model: first an environment variable, then flags that name another
config. (Mistral's own config format names another length.)"""
DRAFT_METHODS = ("model", "eagle", "mtp", "ngram")
_COUNTS = ("tp", "pp", "dp", "ep")
_POSITIVE = (
    *("max_num_seqs", "max_num_batched_tokens", "kv_cache_bytes", "num_gpu_blocks", "max_total_tokens", "block_size"),
    *("graph_max_batch", "graph_count", "lora_rank", "max_state_slots"),
)


def derived_length(model: ModelSpec, engine: str) -> int:
    """The most tokens of a sequence that an engine derives from the config: max_position_embeddings, which linear scaling of
    the rotary positions makes longer; of YaRN the unscaled positions times the factor, which SGLang leaves at
    max_position_embeddings. Gemma 3 counts scaled ones (vllm-project/vllm, config/model.py, _get_and_verify_max_len;
    sgl-project/sglang, get_context_length)."""
    own, scaling = model.max_position_embeddings, model.rope_scaling
    if scaling is None or scaling.type == "llama3" or model.name.startswith("gemma3"):
        return own
    if scaling.type == "linear":
        return int(own * max(scaling.factor, 1.0))
    scaled = int(scaling.original_max_position_embeddings * scaling.factor)
    if engine == "sglang":
        return own
    return scaled if scaling.type == "yarn" else max(own, scaled)


@dataclass(frozen=True, kw_only=True)
class EngineStart:
    """One instance of one engine as it is started. In brackets the flags of vLLM; SGLang; TensorRT-LLM."""

    engine: str
    """vllm, sglang or tensorrt-llm."""
    release: str = ""
    """Such as 0.19.1; empty: the newest that is known."""
    model: ModelSpec
    gpu: GpuSpec
    gpus_per_node: int | None = None
    """None: as many as the usual server has."""

    weights: str = ""
    """A key of WEIGHT_BYTES by which a published checkpoint goes; empty: as its makers publish it. `checkpoint` goes before."""
    checkpoint: Checkpoint | None = None
    """How the files store the weights, where they say it."""
    stored: ModuleFormats | None = None
    """Format of each kind of module where it is known already; goes before both."""

    tp: int = 1
    """--tensor-parallel-size; --tp-size; --tp_size. With attention_dp all ranks of a stage."""
    pp: int = 1
    dp: int = 1
    """--data-parallel-size; --dp-size. vLLM: beside tp (dp x tp ranks share the experts). SGLang without attention_dp: whole
    replicas behind one port. With attention_dp: inside tp."""
    ep: int = 1
    """Ranks that share the experts out: vLLM tp x dp with --enable-expert-parallel, else 1; --ep-size; --ep_size."""
    attention_dp: bool = False
    """--enable-dp-attention of SGLang, enable_attention_dp of TensorRT-LLM (there dp = tp)."""
    balance_timeout: int | None = None
    """attention_dp_config.timeout_iters of TensorRT-LLM; None: no enable_balance. Likewise batching_wait_iters."""
    balance_batching: int | None = None

    max_model_len: int | None = None
    """--max-model-len (AUTO_LENGTH: as long as fits); --context-length; --max_seq_len. None: the model's own."""
    longer: bool = False
    """max_model_len may pass the model's own length: an environment variable says so, or the config is another."""
    max_num_seqs: int | None = None
    """--max-num-seqs (of each data-parallel rank); --max-running-requests (of all of them); --max_batch_size."""
    max_num_batched_tokens: int | None = None
    """--max-num-batched-tokens; --chunked-prefill-size; --max_num_tokens."""
    memory_fraction: float | None = None
    """--gpu-memory-utilization; --mem-fraction-static; --kv_cache_free_gpu_memory_fraction (free_gpu_memory_fraction)."""
    kv_cache_bytes: int | None = None
    """--kv-cache-memory-bytes of a GPU."""
    num_gpu_blocks: int | None = None
    """--num-gpu-blocks-override."""
    max_total_tokens: int | None = None
    """--max-total-tokens; kv_cache_config.max_tokens."""
    kv: str | None = None
    """--kv-cache-dtype as a key of KV_BYTES; None: auto."""
    block_size: int | None = None
    """--block-size; --page-size; kv_cache_config.tokens_per_block."""
    prefix_caching: bool | None = None
    """--enable-prefix-caching; not --disable-radix-cache; kv_cache_config.enable_block_reuse."""
    hybrid_kv_manager: bool | None = None
    """False: --disable-hybrid-kv-cache-manager."""

    eager: bool | None = None
    """--enforce-eager; --disable-cuda-graph; no cuda_graph_config."""
    graph_max_batch: int | None = None
    """Largest captured batch: --max-cudagraph-capture-size, the largest of --cudagraph-capture-sizes; --cuda-graph-max-bs."""
    graph_count: int | None = None
    """How many sizes are captured, where the command lists them."""
    flashinfer_sampler: bool | None = None
    """VLLM_USE_FLASHINFER_SAMPLER of the environment."""
    charge_graphs: bool | None = None
    """VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS of the environment."""
    attention_backend: str = ""
    moe_backend: str = ""

    lora_slots: int = 0
    """Adapters at once on the GPU: --max-loras with --enable-lora; --max-loras-per-batch; 0: none."""
    lora_rank: int | None = None
    """--max-lora-rank; the largest rank of --lora-paths."""
    draft_method: str = ""
    """model, eagle, mtp or ngram; empty: no speculation."""
    draft_tokens: int = 0
    """num_speculative_tokens; --speculative-num-draft-tokens; 0 with a method: the draft model is not known, and only what the
    engine reserves for the method counts."""
    draft_model: ModelSpec | None = None
    """Of the methods model and eagle."""
    draft_weights: str = "bf16"

    cpu_offload_bytes: int = 0
    """--cpu-offload-gb of a GPU, in bytes."""
    language_only: bool = False
    """No tower and no encoder cache: --language-model-only, --limit-mm-per-prompt of 0 for every kind."""
    skip_mm_profiling: bool = False
    state_dtype: str | None = None
    """--mamba-ssm-cache-dtype; --mamba-ssm-dtype: float32, bfloat16 or float16."""
    state_ratio: float | None = None
    """--mamba-full-memory-ratio."""
    max_state_slots: int | None = None
    """--max-mamba-cache-size."""
    swa_ratio: float | None = None
    """--swa-full-tokens-ratio."""
    symmetric_memory: bool = False
    """--enable-symm-mem."""

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise InputError(f"engine {self.engine[:40]!r}: a start is of {', '.join(ENGINES)}")
        for key in (*_COUNTS, *_POSITIVE):
            value = getattr(self, key)
            if value is not None and not is_count(value):
                raise InputError(f"{key} {value!r}: a whole number of at least 1")
        if self.max_model_len is not None and self.max_model_len != AUTO_LENGTH and self.max_model_len < 1:
            raise InputError(f"max_model_len {self.max_model_len}: a whole number of at least 1, or {AUTO_LENGTH} for auto")
        if self.memory_fraction is not None and not 0.0 < self.memory_fraction <= 1.0:
            raise InputError(f"memory fraction {self.memory_fraction:g}: a share above 0, at most 1")
        forms = (("weights", self.weights, WEIGHT_BYTES), ("kv", self.kv, KV_BYTES))
        for name, form, choices in (*forms, ("draft method", self.draft_method, DRAFT_METHODS)):
            if form and form not in choices:
                raise InputError(f"{name} {form[:40]!r}: one of {', '.join(choices)}")
        if self.attention_dp and self.tp % self.dp:
            raise InputError(f"attention data parallelism: dp={self.dp} must divide tp={self.tp}")

    def replace(self, **changes: object) -> EngineStart:
        """A copy with some fields changed; checked again."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    @property
    def own_length(self) -> int:
        """The most tokens of a sequence that the engine derives from the model's config."""
        return derived_length(self.model, self.engine)

    @property
    def gpus(self) -> int:
        """Of the deployment."""
        return self.tp * self.pp * (1 if self.attention_dp else self.dp)

    @property
    def attention_ranks(self) -> int:
        """Groups of ranks that hold a cache of their own each: the deployment's tokens are so many times a rank's."""
        return self.dp

    @property
    def attention_tp(self) -> int:
        """Ranks that divide attention and its cache."""
        return self.tp // self.dp if self.attention_dp else self.tp

    @property
    def formats(self) -> ModuleFormats:
        """Of each kind of module."""
        if self.stored is not None:
            return self.stored
        if self.checkpoint is not None:
            return self.checkpoint.formats(self.model).on(self.gpu)
        return module_formats(self.model, self.weights or published_format(self.model) or "bf16", self.gpu)

    @property
    def plan(self) -> EnginePlan:
        """The same layout as the search writes it; `batch` and `tokens` are the plan's own defaults where nothing is said."""
        shares = self.attention_dp or (self.engine == "vllm" and self.dp > 1 and self.model.is_moe)
        main = self.checkpoint.main.form if self.checkpoint else self.weights or published_format(self.model) or "bf16"
        stated = {"batch": self.max_num_seqs, "tokens": self.max_num_batched_tokens}
        return EnginePlan(
            tp=self.attention_tp,
            pp=self.pp,
            ep=self.ep,
            adp=self.dp if shares else 1,
            replicas=1 if shares else self.dp,
            weights=main,
            kv=self.kv or (self.checkpoint.kv if self.checkpoint and self.checkpoint.kv else "bf16"),
            **{key: value for key, value in stated.items() if value},
        )


@dataclass(frozen=True, kw_only=True)
class MemoryPart:
    """One part of a GPU's memory."""

    name: str
    gib: float
    source: str
    """Flag, default of the release, formula or measured constant."""


@dataclass(frozen=True, kw_only=True)
class EngineMemory:
    """What memory of a GPU a start takes and leaves for its cache; of the GPU that has least."""

    engine: str
    release: str
    """The release that was reckoned with."""
    parts: tuple[MemoryPart, ...]
    """Of one GPU, the pool among them."""
    weights_gib: float
    kv_pool_gib: float
    """Of one GPU; negative where nothing is left."""
    sequence_gib: float
    """What one sequence of max_model_len takes of the pool."""
    blocks: int
    """Of one rank."""
    block_size: int
    """Tokens."""
    groups: tuple[str, ...]
    """KV groups in words, such as `24 layers, full attention`."""
    kv_tokens: int
    """Of the deployment, as its ranks print them together."""
    max_concurrency: float
    """Sequences of max_model_len that one rank's pool holds, as the engine prints it."""
    max_model_len: int
    longest_max_model_len: int
    """The longest that starts; 0 where none does."""
    max_num_seqs: int
    """Of one rank."""
    max_num_batched_tokens: int
    memory_fraction: float
    least_fraction: float | None
    """The smallest share at which it starts; None: none does, or the share does not decide."""
    starts: str
    """yes, no or uncertain."""
    margin_gib: float
    """How far the start is from its edge: positive where it starts."""
    band_gib: float
    """Half of the width within which the verdict is uncertain."""
    why: str
    """The engine's own words, or the edge that is near."""
    binds: str
    """What limits the sequences that run at once: seqs, pool or states."""
    changes: tuple[str, ...] = field(default=())
    """Flags that would change the verdict, best first."""
