"""GPT-NeoX: one YAML (or a JSON-like one) with DeepSpeed's keys and the model's (configs/*.yml of EleutherAI/gpt-neox)."""

from __future__ import annotations

from typing import Any

from autoconfig.formats.hooks.deepspeed import not_modelled, sharding_of
from autoconfig.formats.record import Document, TrainerRun, needed, other_optimizer, record
from autoconfig.formats.words import accumulation
from autoconfig.maps.table import load_map
from autoconfig.maps.tree import Section
from autoconfig.megatron.check_input import CheckInput
from autoconfig.megatron.read_vocabulary import tokenizer_entries
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import NONE, Recompute, TrainPlan
from autoconfig.specs.remarks import Effect, Remark
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.optimizers import other_state
from autoconfig.training.plan_rules import spread_layers
from autoconfig.training.space import Constraints

NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm", "te_layernorm": "LayerNorm", "te_rmsnorm": "RMSNorm"}
POSITIONS = {"rotary": "rope", "learned": "learned_absolute", "sinusoidal": "none", "alibi": "alibi", "none": "none"}
ACTIVATIONS = {"gelu": "gelu", "swiglu": "swiglu", "geglu": "geglu", "silu": "gelu", "relu": "gelu"}
GPT2_VOCABULARY = 50_257
GPT2_TOKENIZERS = ("GPT2BPETokenizer", "HFGPT2Tokenizer")
"""Types of megatron/tokenizer/tokenizer.py that read GPT-2's vocabulary; the first is the default (neox_args.py)."""


WISH = Constraints(
    fixed={
        **{key: frozenset({1}) for key in ("cp", "ep", "etp", "vpp")},
        "recompute": frozenset({NONE, *(Recompute("full", (), "uniform", layers) for layers in (1, 2, 4))}),
    }
)
"""Plans that a file can say."""


def settings(scenario: Scenario, plan: TrainPlan) -> dict[str, tuple[str, ...]]:
    """The values that depend on the plan."""
    full = plan.recompute != NONE
    return {
        "pipe_parallel_size": (str(plan.pp),),
        "model_parallel_size": (str(plan.tp),),
        "train_micro_batch_size_per_gpu": (str(plan.mbs),),
        "gradient_accumulation_steps": (str(accumulation(scenario, plan)),),
        "zero_optimization.stage": (str(plan.fsdp or int(plan.dist_opt)),),
        "zero_optimization.cpu_offload": (str(plan.offload > 0.0).lower(),),
        "checkpoint_activations": (str(full).lower(),),
        **({"checkpoint_num_layers": (str(plan.recompute.num_layers),)} if full else {}),
    }


def read(document: Document) -> CheckInput:
    """The record. Keys may have - or _. GPUs: `--gpus`. Raises InputError, UnsupportedError."""
    values = _underscored(document.values)
    section = Section(values, document.text, document.request.settings)
    assumed: list[Remark] = []
    model = _model(section, assumed)
    stage = section.whole("zero_optimization.stage") or 0
    pp = max(1, section.whole("pipe_parallel_size") or 1)
    run = TrainerRun(
        model=model, software="gpt-neox", gpus=None,
        tp=section.count("model_parallel_size") or 1, pp=pp,
        split=spread_layers(model.num_layers, pp) if model.num_layers % pp else None,
        cp=section.count("context_parallel_size") or 1,
        micro_batch=needed(section.count("train_micro_batch_size_per_gpu", "train_micro_batch_size"), section,
                           "train_micro_batch_size_per_gpu"),
        accumulation=section.count("gradient_accumulation_steps", "gas"), global_batch=section.count("train_batch_size"),
        seq_length=needed(section.count("seq_length"), section, "seq_length"),
        recompute=_recompute(section), numerics=_numerics(section), assumed=assumed, **sharding_of(section, stage, assumed),
        table=load_map("gpt_neox").beside(load_map("deepspeed")),
    )  # fmt: skip
    run.not_modelled += not_modelled(section)
    if other := other_optimizer(section, "optimizer.type"):
        run.not_modelled.append(other_state("optimizer.type", other))
    if section.flag("partition_activations"):
        why = "checkpointed inputs are divided over tensor parallelism: less memory"
        run.not_modelled.append(Remark("partition_activations", None, why, Effect.LESS_MEMORY))
    if run.accumulation is None and run.global_batch is None:
        run.accumulation = 1
    return record(document, run, section, settings, WISH)


def _underscored(values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise InputError("this is no mapping of settings")
    return {str(key).replace("-", "_"): value for key, value in values.items()}


def _model(section: Section, assumed: list[Remark]) -> ModelSpec:
    _plain_layers(section)
    activation, norm = section.word("activation") or "gelu", section.word("norm") or "layernorm"
    hidden, heads = needed(section.count("hidden_size"), section, "hidden_size"), section.count("num_attention_heads")
    heads = needed(heads, section, "num_attention_heads")
    position = section.word("pos_emb") or "learned"
    if norm not in NORMS or position not in POSITIONS or activation not in ACTIVATIONS:
        raise UnsupportedError(f"norm {norm!r}, pos_emb {position!r} or activation {activation!r} is not read")
    kind = ACTIVATIONS[activation]
    gated = kind != "gelu"
    seq = section.count("max_position_embeddings") or section.count("seq_length") or 2048
    biases = section.flag("use_bias_in_attn_linear", default=True)
    return ModelSpec(
        name="model of the file",
        num_layers=needed(section.count("num_layers"), section, "num_layers"),
        hidden_size=hidden,
        num_attention_heads=heads,
        kv_channels=hidden // heads,
        num_query_groups=section.count("num_kv_heads") or heads,
        ffn_hidden_size=section.count("intermediate_size") or (hidden * 8 // 3 if gated else 4 * hidden),
        activation=kind,
        gated_linear_unit=gated,
        normalization=NORMS[norm],
        position_embedding_type=POSITIONS[position],
        max_position_embeddings=seq,
        **(_rotary(section) if position == "rotary" else {"rotary_base": None}),
        add_bias_linear=biases,
        parallel_attention=section.flag("gpt_j_residual"),
        untie_embeddings_and_output_weights=section.flag("no_weight_tying"),
        vocab_size=_vocabulary(section, assumed),
        make_vocab_size_divisible_by=section.count("make_vocab_size_divisible_by") or 128,
    )


def _rotary(section: Section) -> dict[str, Any]:
    return {
        "rotary_base": section.whole("rotary_emb_base") or 10_000,
        "rotary_percent": section.number("rotary_pct") or 1.0,
    }


def _vocabulary(section: Section, assumed: list[Remark]) -> int:
    """Entries that the file gives, those of the tokenizer that vocab_file names, or GPT-2's. Raises InputError where a
    tokenizer of another type bears no name that is known."""
    if (given := section.count("padded_vocab_size", "vocab_size")) is not None:
        return given
    kind, file = section.word("tokenizer_type") or GPT2_TOKENIZERS[0], section.word("vocab_file") or ""
    named = tokenizer_entries(file)
    if named is None and file and kind not in GPT2_TOKENIZERS:
        raise InputError(
            f"{section.place('vocab_file')}: the vocabulary of {file[:80]!r} ({kind[:40]}) is not known; say --set vocab_size=N"
        )
    number = named or GPT2_VOCABULARY
    assumed.append(Remark("vocab_size", number, f"that of {file[:80] if named else 'GPT-2'}: --set vocab_size=N"))
    return number


def _plain_layers(section: Section) -> None:
    """attention_config lists [[kinds], layers]: read are attention over all of the past, by whichever kernel, and no
    experts. Raises UnsupportedError."""
    for name in ("num_experts", "moe_num_experts"):
        if (section.whole(name) or 1) > 1:
            raise UnsupportedError(f"{section.place(name)}: mixtures of experts of GPT-NeoX are not read")
    found: list[Any] = [value for path, value in section.flat.items() if path.startswith("attention_config")]
    kinds: set[str] = set()
    while found:
        one = found.pop()
        found += one if isinstance(one, list) else []
        kinds |= {one} if isinstance(one, str) else set()
    if other := kinds - {"global", "flash", "all"}:
        raise UnsupportedError(f"{section.place('attention_config')}: attention of kind {sorted(other)[0][:40]!r} is not read")
    section.used |= {path for path in section.flat if path.startswith("attention_config")}


def _recompute(section: Section) -> Recompute:
    if not section.flag("checkpoint_activations"):
        return NONE
    return Recompute("full", (), "uniform", section.count("checkpoint_num_layers") or 1)


def _numerics(section: Section) -> dict[str, Any]:
    word = section.word("precision") or ""
    bf16 = word == "bfloat16" or section.flag("bf16.enabled") or (section.word("fp16.type") or "") == "bfloat16"
    fp16 = not bf16 and (section.flag("fp16.enabled") or section.flag("fp16.fp16") or word == "fp16")
    return {
        "precision": "bf16" if bf16 else "fp16" if fp16 else "fp32",
        "grad_reduce_dtype": "fp32" if section.word("data_types.grad_accum_dtype", "grad_accum_dtype") == "fp32" else "bf16",
        "hidden_dropout": section.number("hidden_dropout") or 0.0,
        "attention_dropout": section.number("attention_dropout") or 0.0,
    }
