"""What a run is priced from: numerics, workload, calibration, the Scenario that holds them; what Megatron runs of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

import numpy as np
from autoconfig.specs.errors import NOT_PRICED, InputError, option, refuse
from autoconfig.specs.hardware.cluster import ClusterSpec
from autoconfig.specs.json_record import AboveZero, Keywords, Positive
from autoconfig.specs.layouts import Layouts, layouts_of
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.plan import TrainPlan, parse_plan
from autoconfig.specs.run_settings import (
    NOTHING_GIVEN,
    GivenSettings,
    RunSettings,
    Switches,
    resolve_settings,
    with_run_options,
    without_ring,
)
from autoconfig.specs.software.bitsandbytes import FROZEN_BYTES
from autoconfig.specs.software.software import SoftwareStack

POOL = "*"
"""Generation name of the entry that stands in where neither a generation nor an ancestor has one."""
DEFAULTS_VERSION = "documented-defaults"
MOST = 4.0
"""Factors beyond 1/MOST to MOST are not believed: fitting stops there, and a file that holds one is refused."""


@dataclass(frozen=True, kw_only=True)
class Factors:
    """Seconds over the formula's, by what they scale."""

    step: float = 1.0
    memory: float = 1.0
    """Memory-bound chains."""
    communication: float = 1.0
    attention: float = 1.0
    moe: float = 1.0
    """Grouped GEMMs, routing, permutation."""
    host: float = 1.0
    """The host's floor per layer."""


NAMES = tuple(f.name for f in fields(Factors))


@dataclass(frozen=True, kw_only=True)
class OwnRuns:
    """The runs of one cluster's own that an entry was refined on, and how they scatter around it."""

    runs: int
    log_sd: float
    """Scatter of log(measured / predicted) around the refined entry."""
    degrees_of_freedom: float
    """Runs less the effective number of factors that they determined."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What was fitted for one (architecture, generation)."""

    architecture: str
    generation: str
    kind: str = "dense"
    """dense or moe: mixtures of experts have factors of their own."""
    factors: Factors
    log_sd: dict[str, float] = field(default_factory=dict)
    """Posterior standard deviation of each factor's logarithm; the prior's where the runs do not determine it."""
    determined: tuple[str, ...] = ()
    """Factors that the runs narrowed to less than half of their prior's width."""
    rows: tuple[str, ...] = ()
    """Ids of the measured runs behind it."""
    sources: tuple[str, ...] = ()
    own: OwnRuns | None = None
    """None: published runs, of clusters that are not the user's."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """All entries and a version that answers name."""

    version: str
    entries: tuple[Entry, ...] = ()


DOCUMENTED_DEFAULTS = Calibration(version=DEFAULTS_VERSION)
"""No calibration: every factor is 1."""


MX_BYTES = 1 + 1 / 32
"""One byte and a shared scale per 32 elements (OCP Microscaling specification 1.0, section 5.2)."""
NVFP4_BYTES = 1 / 2 + 1 / 16
"""Half a byte and a shared scale of one byte per 16 elements (Transformer Engine, NVFP4Tensor)."""
Flags = tuple[tuple[str, str | int | None], ...]


@dataclass(frozen=True, kw_only=True)
class GemmFormat:
    """One number format of the layers' GEMMs: a new precision or scaling recipe is a new row of FORMATS. Bytes are of one
    element.

    What a GPU reaches in a format stands in `time_model/data/gpu_efficiency.json` under the format's `peak`, and what it casts
    for a recipe under `cast_RECIPE_bytes` and `recipe_RECIPE`.
    """

    peak: str
    """Key of GpuSpec.flops_per_s."""
    recipe: str = ""
    """How a quantised format is scaled."""
    activation_bytes: int = 2
    """Of what no GEMM quantises."""
    quantised: bool = False
    """Operands are cast from 16 bits; all that is no GEMM of a layer stays in 16 bits."""
    operand_bytes: float = 2.0
    """Of an operand that a GEMM reads."""
    gathered_bytes: float = 2.0
    """Of a weight that is gathered where weights are kept in this format: MXFP8 and NVFP4 go through the 16-bit gradient buffer
    (Megatron-Bridge, reuse_grad_buf_for_mxfp8_param_ag)."""
    cast_kernels: float = 1.0
    """That start for each local expert's tensor that is cast (`fp8_casts` of the time model says the source)."""
    saved_bytes: float = 2.0
    """Of a GEMM's input that is saved in this format, and of one orientation of a weight."""
    both_orientations: bool = False
    """A weight is kept along rows and columns on every GPU; else where GEMMs take one layout only (below Blackwell)."""
    least_compute_capability: float = 0.0
    flags: Flags = ()
    """Megatron-LM's arguments, without the dashes."""

    def weight_copy_bytes(self, compute_capability: float | None) -> float:
        """Bytes of a quantised weight with every orientation that the GPU needs. No measured row.

        Source: Transformer Engine's Float8Tensor, MXFP8Tensor.
        """
        return self.saved_bytes * (2.0 if self.both_orientations or (compute_capability or 0.0) < BLACKWELL else 1.0)


BLACKWELL = 10.0
"""Compute capability from which fp8 GEMMs read either layout, and microscaling formats exist (Transformer Engine)."""


def _fp8(recipe: str, form: str, *more: tuple[str, str | int], **changes: float) -> GemmFormat:
    flags: Flags = (("bf16", None), ("fp8-format", form), ("fp8-recipe", recipe), *more)
    values = {"operand_bytes": 1.0, "saved_bytes": 1.0, "gathered_bytes": 1.0, **changes}
    return GemmFormat(peak="fp8", recipe=recipe, quantised=True, flags=flags, **values)  # type: ignore[arg-type]


_DELAYED: tuple[tuple[str, str | int], ...] = (("fp8-amax-history-len", 1024), ("fp8-amax-compute-algo", "max"))
FORMATS: dict[tuple[str, str], GemmFormat] = {
    ("bf16", ""): GemmFormat(peak="bf16", flags=(("bf16", None),)),
    ("fp16", ""): GemmFormat(peak="fp16", flags=(("fp16", None),)),
    ("fp8", "delayed"): _fp8("delayed", "hybrid", *_DELAYED, cast_kernels=0.0),
    ("fp8", "tensorwise"): _fp8("tensorwise", "hybrid", cast_kernels=3.0),
    ("fp8", "blockwise"): _fp8("blockwise", "e4m3"),
    ("fp8", "mxfp8"): _fp8(
        "mxfp8", "e4m3", saved_bytes=MX_BYTES, gathered_bytes=2.0, both_orientations=True, least_compute_capability=BLACKWELL
    ),
    ("nvfp4", ""): GemmFormat(
        peak="fp4", recipe="nvfp4", quantised=True, cast_kernels=2.0, operand_bytes=NVFP4_BYTES, saved_bytes=NVFP4_BYTES,
        gathered_bytes=2.0, both_orientations=True, least_compute_capability=BLACKWELL,
        flags=(("bf16", None), ("fp4-format", "e2m1"), ("fp4-recipe", "nvfp4")),
    ),
    ("fp32", ""): GemmFormat(peak="tf32", activation_bytes=4, operand_bytes=4.0, saved_bytes=4.0),
}  # fmt: skip
"""(precision, fp8 recipe; empty where there is none) -> format."""
PRECISIONS = tuple(dict.fromkeys(precision for precision, _ in FORMATS))
FP8_RECIPES = tuple(recipe for precision, recipe in FORMATS if precision == "fp8")
PRECISION_WORDS = (*PRECISIONS, *reversed(FP8_RECIPES[1:]))
"""What a question may call a precision: those of FORMATS, and recipes of fp8 by their own names, but for the usual one."""
NARROW = ("adam8bit", "paged_adam8bit")
"""Optimizers whose moments are bitsandbytes' 8 bits."""
TYPE_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
FROZEN_IN_FP8 = f"; under {option('precision')} fp8 frozen weights are kept in it by {option('fp8_param_gather')}"
CHOICES: dict[str, tuple[str, ...]] = {
    "precision": PRECISIONS,
    "fp8_recipe": FP8_RECIPES,
    "peft": ("none", "lora"),
    "grad_reduce_dtype": ("fp32", "bf16"),
    "frozen_dtype": ("bf16", "fp32", *FROZEN_BYTES),
    "optimizer": ("adamw", *NARROW, "adafactor", "muon"),
    "main_params_dtype": ("fp32", "fp16"),
    **dict.fromkeys(("exp_avg_dtype", "exp_avg_sq_dtype"), ("fp32", "bf16", "fp16", "fp8")),
}
"""What the fields of Numerics that name a type or recipe may be."""
LORA_MODULES = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
Dropout = Annotated[float, Keywords(minimum=0, exclusiveMaximum=1)]


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """Types of the run, in Megatron's words. Raises InputError for values that do not exist."""

    precision: Annotated[str, Keywords(enum=CHOICES["precision"])] = "bf16"
    """bf16, fp16, fp8 or nvfp4 (GEMMs of the layers in fp8 or fp4, the rest in bf16) or fp32."""
    fp8_recipe: Annotated[str, Keywords(enum=CHOICES["fp8_recipe"])] = "delayed"
    fp8_param_gather: bool = False
    """Weights kept and gathered in fp8."""
    grad_reduce_dtype: Annotated[str, Keywords(enum=CHOICES["grad_reduce_dtype"])] = "fp32"
    """Type of the gradient buffer and its reduction: fp32 (accumulate_allreduce_grads_in_fp32) or bf16."""
    main_params_dtype: Annotated[str, Keywords(enum=CHOICES["main_params_dtype"])] = "fp32"
    optimizer: Annotated[str, Keywords(enum=CHOICES["optimizer"])] = "adamw"
    """adamw; adam8bit and paged_adam8bit are bitsandbytes' AdamW8bit and PagedAdamW8bit, whose moments are in pages that
    move to host memory. adafactor: a second moment as sums of rows and columns, no first one (transformers' Adafactor without
    beta1); muon: one momentum of the layers' matrices, AdamW of all else (torch.optim.Muon)."""
    exp_avg_dtype: Annotated[str, Keywords(enum=CHOICES["exp_avg_dtype"])] = "fp32"
    exp_avg_sq_dtype: Annotated[str, Keywords(enum=CHOICES["exp_avg_sq_dtype"])] = "fp32"
    """Types of the optimizer's master weights and moments; other than fp32 means the precision-aware optimizer."""
    store_param_remainders: bool = False
    """Master weights kept as the 16 bits that the bf16 weight lacks."""
    optimizer_in_backward: bool = False
    """Each weight steps as soon as its gradient is there, which is then freed (torchtune's optimizer_in_bwd): gradients of one
    layer at most are alive."""
    weights_are_masters: bool = False
    """No copies: moments in the weights' own type, as torch.optim.AdamW of a model in 16 bits (zeros_like in optim/adam.py)."""
    attention_dropout: Dropout = 0.1
    hidden_dropout: Dropout = 0.1
    """Megatron's defaults are 0.1 and 0.1."""
    moe_capacity_factor: AboveZero | None = None
    """Experts drop and pad to this multiple of a balanced load; None: dropless."""
    moe_imbalance: Annotated[float, Keywords(minimum=1)] | None = None
    """Dropless: rows of the busiest rank over a balanced load; None: what real routing sends (StackTime.moe_imbalance)."""
    deterministic: bool = False
    """Megatron's --deterministic-mode: limits which attention kernels may run."""
    peft: Annotated[str, Keywords(enum=CHOICES["peft"])] = "none"
    frozen_dtype: Annotated[str, Keywords(enum=CHOICES["frozen_dtype"])] = "bf16"
    """Of the weights beside adapters: bf16 (the 16 bits of `precision`), or fp32 under autocast; nf4 (with double
    quantisation), nf4_single (without) and int8 are bitsandbytes' linear layers, beside embedding, output layer and norms in
    16 bits."""
    lora_rank: Positive = 8
    lora_target_modules: tuple[str, ...] = LORA_MODULES
    """Linear layers with adapters."""

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if (given := getattr(self, name)) not in allowed:
                raise InputError(f"{name}={given!r} is not one of {', '.join(allowed)}{NOT_PRICED.get(str(given), '')}")
        in_16_bits = self.peft != "none" and self.precision in ("bf16", "fp16")
        modules = self.lora_target_modules
        refuse(
            (
                self.freezes_quantised and not in_16_bits,
                f"frozen_dtype={self.frozen_dtype} is of the weights beside adapters in 16 bits: say {option('peft')} lora and "
                f"{option('precision')} bf16{FROZEN_IN_FP8 if self.frozen_dtype == 'fp8' else ''}",
            ),
            (
                self.narrow_moments and {self.exp_avg_dtype, self.exp_avg_sq_dtype} != {"fp32"},
                f"optimizer={self.optimizer} keeps both moments in 8 bits: leave out {option('exp_avg_dtype')} or "
                f"{option('exp_avg_sq_dtype')}",
            ),
            *(
                (not 0.0 <= getattr(self, name) < 1.0, f"{name}={getattr(self, name)!r} must be at least 0 and below 1")
                for name in ("attention_dropout", "hidden_dropout")
            ),
            (
                self.fp8_param_gather and not self.format.quantised,
                f"fp8_param_gather needs precision fp8 ({option('precision')} fp8)",
            ),
            (
                not modules or not set(modules) <= set(LORA_MODULES),
                f"lora_target_modules={' '.join(modules)[:60]!r}: give one or more of {', '.join(LORA_MODULES)}",
            ),
            (not 1 <= self.lora_rank <= 65_536, f"lora_rank={self.lora_rank} must be from 1 to 65,536"),
            (
                self.moe_imbalance is not None and not 1.0 <= self.moe_imbalance <= 1000.0,
                f"moe_imbalance={self.moe_imbalance!r} must be from 1 (balanced) to 1,000",
            ),
        )
        if self.moe_capacity_factor is not None and not 0.0 < self.moe_capacity_factor <= 1000.0:
            raise InputError(f"moe_capacity_factor={self.moe_capacity_factor!r} must be above 0 and at most 1,000")

    @property
    def format(self) -> GemmFormat:
        """The number format of the layers' GEMMs."""
        return FORMATS[self.precision, self.fp8_recipe if self.precision == "fp8" else ""]

    @property
    def trains_all(self) -> bool:
        """The model's own weights have gradients; else those of adapters beside it alone, and embedding, norms and output layer
        are frozen, too."""
        return self.peft == "none"

    @property
    def narrow_moments(self) -> bool:
        """Both moments are bitsandbytes' 8 bits."""
        return self.optimizer in NARROW

    @property
    def freezes_quantised(self) -> bool:
        """The linear layers that adapters stand beside are kept in 4 or 8 bits."""
        return self.frozen_dtype in FROZEN_BYTES

    @property
    def activation_bytes(self) -> int:
        """Bytes of one activation outside quantised GEMM inputs."""
        return self.format.activation_bytes

    @property
    def gemm_precision(self) -> str:
        """Key of GpuSpec.flops_per_s for the GEMMs of the layers."""
        return self.format.peak


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What one step trains on."""

    seq_length: Positive
    """Tokens of one sample; of an encoder and a decoder those of the encoder."""
    global_batch_size: Positive
    """Samples of one optimizer step over the whole cluster."""
    decoder_seq_length: Positive | None = None
    """Tokens of one sample in the decoder behind an encoder; None: no such decoder, or as many as in the encoder."""
    packed_length: Positive | None = None
    """Of samples packed from shorter sequences: length of the sequence that a token stands in, on average over the tokens (the
    sum of squared lengths over the sum of lengths); None: a sample is one sequence."""
    schedule_calls: Positive = 1
    """Times that a pipeline's schedule runs in a step, each on its share of the micro-batches and empty before and after:
    gradient accumulation outside of it (torchtitan, NeMo AutoModel)."""

    def __post_init__(self) -> None:
        for name in ("seq_length", "global_batch_size", "decoder_seq_length", "packed_length", "schedule_calls"):
            value, most = getattr(self, name), 2**24
            if name in ("decoder_seq_length", "packed_length") and value is None:
                continue
            if not isinstance(value, int) or not 1 <= value <= most:
                raise InputError(f"{name}={value!r} must be a whole number from 1 to {most:,}")

        if self.packed_length is not None and self.packed_length > self.seq_length:
            said = f"more than the {self.seq_length:,} tokens of a sample ({option('seq_length')})"
            raise InputError(f"packed_length={self.packed_length:,} is {said}: give the length of one of its sequences")

    @property
    def attended_length(self) -> int:
        """Tokens of the sequence that a token attends within."""
        return self.packed_length or self.seq_length

    def tokens_of(self, kind: str) -> int:
        """Tokens of one sample in a layer of this kind (ModelSpec.kinds)."""
        return (self.decoder_seq_length or self.seq_length) if kind == "decoder" else self.seq_length

    @property
    def tokens_per_step(self) -> int:
        """Without those of a decoder behind an encoder, as publications of T5 count."""
        return self.seq_length * self.global_batch_size


def all_biases(model: ModelSpec) -> bool:
    """Megatron's add_bias_linear: attention output, MLP, experts and router have biases, all or none."""
    return model.add_bias_linear or (model.add_attention_output_bias and model.moe_expert_bias)


def not_buildable(model: ModelSpec, *, encoders: bool = False, gemma: bool = False) -> list[str]:
    """What Megatron has no setting for; of T5 and BERT (`encoders`) gated GELU has one, of Gemma without norms behind."""
    geglu = model.activation == "geglu" and not (encoders and model.encoder_num_layers) and not gemma
    reasons = {
        "an encoder": model.encoder_num_layers > 0 and not encoders,
        "alibi positions": model.position_embedding_type == "alibi",
        "attention and MLP in parallel": model.parallel_attention,
        "a norm behind the embedding": model.embedding_layernorm,
        "a LayerNorm without bias": model.normalization == "LayerNorm" and not model.layernorm_bias,
        f"the activation {model.activation}": geglu or model.activation == "relu",
        "norms behind attention and MLP (four a layer)": model.num_layernorms_per_layer > 2
        and not (model.parallel_attention or gemma),
        "norms over all channels of queries and keys": model.qk_layernorm_full,
        "biases in some linear layers only": not model.add_bias_linear
        and (model.add_mlp_bias or model.add_attention_output_bias != all_biases(model)),
    }
    return [reason for reason, holds in reasons.items() if holds]


def endless_recomputation(model: ModelSpec, modules: Sequence[str]) -> str | None:
    """Why this selective recomputation never ends in megatron-core, or None.

    An MLP with biases returns its last bias, a parameter, as an output of `checkpoint` (tensor_parallel/random.py,
    0.16.1 and 0.19.2); autograd then takes the checkpoint for the parameter's history, and its backward runs itself again.
    """
    if "mlp" not in modules or not all_biases(model) or not model.has_dense_mlp:
        return None
    return (
        "recomputing mlp where linear layers have biases never ends in megatron-core (the checkpoint returns the bias, a "
        "parameter, as its output); take full recomputation, or other modules"
    )


def gathers_fp8(numerics: Numerics, stack: SoftwareStack, fsdp: Number) -> Number:
    """Whether fp8_param_gather holds in a plan (scalar fsdp), or in each of many (a column).

    Megatron-LM switches it off under torch FSDP2 and gathers in bf16 (megatron/training/arguments.py of 0.19.2, validate_args:
    "FSDP2 FP8 param gather is not supported yet in TE 2.0"). Megatron-FSDP keeps it (core/distributed/fsdp).
    """
    return numerics.fp8_param_gather & (np.equal(fsdp, 0) | stack.supports_fp8_param_gather_with_fsdp)


def userbuffers_know(model: ModelSpec, numerics: Numerics, stack: SoftwareStack) -> bool:
    """The stack overlaps tensor-parallel communication with GEMMs, and model and numerics are of a kind that it is made for.

    Dense models without multi-latent attention: Transformer Engine has buffers for qkv, proj, fc1 and fc2 only
    (transformer_engine/pytorch/module/base.py, initialize_ub), and NVIDIA's recipes leave it off in every mixture of experts
    (autoconfig/data/bridge_recipes.csv, column tpovl). Megatron-LM refuses it in deterministic mode (validate_args).
    """
    plain = not (model.is_moe or model.multi_latent_attention or numerics.deterministic)
    return plain and stack.time.tp_overlap_share > 0


def userbuffers_run(
    model: ModelSpec, numerics: Numerics, stack: SoftwareStack, cluster: ClusterSpec, *, tp: Number, sp: Number, fsdp: Number
) -> Number:
    """Whether userbuffers run in a plan (scalars), or in each of many (columns).

    With sequence parallelism (validate_args) and inside one link domain. Not with FSDP on GPUs before Blackwell: there
    userbuffers want CUDA_DEVICE_MAX_CONNECTIONS to be 1, and FSDP wants it to be unset (validate_args). torch's async TP
    knows no such bond: its copies run on streams of their own (torch/distributed/_symmetric_memory).
    """
    one_connection = one_connection_needed(cluster) and stack.sharding == "megatron"
    inside = (tp > 1) & (tp <= cluster.link_domain_size) & sp
    return userbuffers_know(model, numerics, stack) & inside & ((fsdp == 0) | (not one_connection))


def one_connection_needed(cluster: ClusterSpec) -> bool:
    """Kernels overlap in order only with CUDA_DEVICE_MAX_CONNECTIONS=1: GPUs before Blackwell (validate_args)."""
    capability = cluster.gpu.compute_capability
    return capability is None or capability < BLACKWELL


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is trained, on what, with which software; plans differ inside of it."""

    model: ModelSpec
    cluster: ClusterSpec
    numerics: Numerics
    software: SoftwareStack
    workload: Workload
    calibration: Calibration = field(default=DOCUMENTED_DEFAULTS, hash=False)
    """What measured runs say of the formulas; none unless given."""
    given: GivenSettings = NOTHING_GIVEN
    """Switches of the run that the question gives."""

    def __post_init__(self) -> None:
        stack = with_run_options(self.software, self.given)
        object.__setattr__(self, "software", without_ring(self.model, stack))
        if (calls := self.workload.schedule_calls) > 1 and stack.sharding != "torch":
            raise InputError(
                f"{option('schedule_calls')} {calls}: the pipeline of {stack.name} takes all micro-batches of a step in one "
                f"run of its schedule; leave it out, or say {option('software')} torchtitan or automodel",
                field="schedule_calls",
            )
        model = self.model
        if self.numerics.freezes_quantised and (model.is_moe or model.is_hybrid or model.encoder_num_layers):
            odd = "experts" if model.is_moe else "recurrent layers" if model.is_hybrid else "an encoder"
            raise InputError(
                f"frozen_dtype={self.numerics.frozen_dtype}: {model.name} has {odd}, whose weights in 4 or 8 bits are not "
                f"priced; say {option('frozen_dtype')} bf16, an upper bound of the memory"
            )

    @property
    def switches(self) -> Switches:
        """Every switch of the runs: given, or the default of software, GPU and model where the plan allows it."""
        return resolve_settings(
            self.given,
            self.model,
            self.cluster,
            self.software,
            precision=self.numerics.format.recipe or self.numerics.precision,
            dropless=self.numerics.moe_capacity_factor is None,
            seq_length=self.workload.seq_length,
        )

    def settings(self, plan: TrainPlan | None = None) -> RunSettings:
        """The switches of a plan, beside its recomputation; without one those of a plan that every switch can run in."""
        return self.switches.widest if plan is None else self.switches.of(plan)

    def stack(self, kind: str) -> Scenario:
        """The same with `ModelSpec.stack` and its sequence; itself where there are no two stacks."""
        if not self.model.is_encoder_decoder:
            return self
        workload = replace(self.workload, seq_length=self.workload.tokens_of(kind), decoder_seq_length=None)
        return replace(self, model=self.model.stack(kind), workload=workload)

    def layouts(
        self, plans: Sequence[TrainPlan], batches: Sequence[int] | None = None, gpus: int | Sequence[int] | None = None
    ) -> Layouts:
        """The plans as columns, of the scenario's size, or each with its batch and on its GPUs. Raises PlanError where stages
        or micro-batches are not whole."""
        batch = self.workload.global_batch_size if batches is None else batches
        size = self.cluster.num_gpus if gpus is None else gpus
        return layouts_of(plans, self.model, batch, size).with_switches(self.switches)

    def read_plan(self, text: str) -> TrainPlan:
        """A plan in short form; what it leaves out is what people mean with this software. Raises PlanError."""
        stack = self.software
        sp, dist_opt = stack.supports_sequence_parallel, stack.supports_distributed_optimizer
        return parse_plan(text, self.cluster.num_gpus, dist_opt=dist_opt, sp=sp)

    def on(self, **cluster: Any) -> Scenario:
        """The same on another cluster: `num_gpus` and other fields of ClusterSpec. Raises InputError as ClusterSpec does."""
        return replace(self, cluster=replace(self.cluster, **cluster))

    def with_batch(self, global_batch_size: int) -> Scenario:
        """The same with another global batch. Raises InputError as Workload does."""
        return replace(self, workload=replace(self.workload, global_batch_size=global_batch_size))
