"""Everything that Megatron-LM's pretrain_gpt.py needs to start a plan, as an ordered list of arguments.

Every function takes any plan, legal or not: the judge must see what a broken rule looks like in Megatron's own words.
"""

from __future__ import annotations

from autoconfig.megatron.switches import switch_arguments
from autoconfig.megatron.write_model import PIPELINE_OF_T5, Argument, Collector, model_arguments, vocabulary_words
from autoconfig.specs.errors import UnsupportedError, option
from autoconfig.specs.layouts import layout_text, staged_pattern
from autoconfig.specs.plan import Recompute, TrainPlan
from autoconfig.specs.scenario import Scenario, one_connection_needed, userbuffers_run

CP_COMM_TYPES = {"p2p": "p2p", "a2a": "a2a", "allgather": "all_gather"}


def plan_arguments(scenario: Scenario, plan: TrainPlan) -> list[Argument]:
    """Parallelism, stages, recomputation, sharding."""
    model, out = scenario.model, Collector("plan")
    out.add("tensor-model-parallel-size", plan.tp, why=f"{plan.tp} GPUs share every layer" if plan.tp > 1 else "")
    stages = f"{model.num_layers} layers over {plan.pp} stages"
    out.add("pipeline-model-parallel-size", plan.pp, why=stages if plan.pp > 1 else "")
    _stages(out, scenario, plan)
    out.add("context-parallel-size", plan.cp, why=f"{plan.cp} GPUs share a sequence" if plan.cp > 1 else "")
    kind = CP_COMM_TYPES[scenario.software.memory.cp_comm_type] if plan.cp > 1 else None
    why = "as this software stack is priced"
    if model.window_size or model.attention_sinks:
        why = "Transformer Engine has no ring of keys for " + ("sinks" if model.attention_sinks else "windows")
    out.add("cp-comm-type", kind, why=why)
    out.add("expert-model-parallel-size", plan.ep, why=f"{model.num_moe_experts} experts over {plan.ep}" if plan.ep > 1 else "")
    out.add("expert-tensor-parallel-size", plan.etp, why="written always: Megatron's own default is tp")
    out.add("sequence-parallel", plan.sp, why="norms and residuals are divided over tp, too")
    _recompute(out, plan.recompute)
    _sharding(out, scenario, plan)
    return out.arguments


def _stages(out: Collector, scenario: Scenario, plan: TrainPlan) -> None:
    if scenario.model.is_hybrid:
        why = "M Mamba-2, G Gated DeltaNet, * attention, - MLP, E experts; | between stages, / before multi-token prediction"
        out.add("hybrid-layer-pattern", staged_pattern(scenario.model, plan), why=why)
        return
    if layout := layout_text(scenario.model, plan):
        out.add("pipeline-model-parallel-layout", layout, why="E embedding, t a layer, m multi-token prediction, L loss")
        return
    whole = plan.pp == 1 and {plan.first, plan.last} <= {None, scenario.model.num_layers}
    first, last = (None, None) if whole else (plan.first, plan.last)
    out.add("decoder-first-pipeline-num-layers", first, why="the first stage also holds the embedding")
    out.add("decoder-last-pipeline-num-layers", last, why="the last stage also holds the output layer and the loss")
    if plan.vpp == 1:
        return
    layers = scenario.model.num_layers
    if plan.first is None and plan.last is None and layers % (plan.pp * plan.vpp) == 0:
        per_chunk = layers // (plan.pp * plan.vpp)
        out.add("num-layers-per-virtual-pipeline-stage", per_chunk, why=f"interleaved: {plan.vpp} chunks a stage")
    else:
        out.add("num-virtual-stages-per-pipeline-rank", plan.vpp, why="interleaved")


def _recompute(out: Collector, recompute: Recompute) -> None:
    if recompute.granularity == "selective":
        out.add("recompute-granularity", "selective", why="only these modules are computed again in backward")
        out.add("recompute-modules", *recompute.modules)
    elif recompute.granularity == "full":
        out.add("recompute-granularity", "full", why="whole layers are computed again in backward")
        out.add("recompute-method", recompute.method)
        out.add("recompute-num-layers", recompute.num_layers)


def _sharding(out: Collector, scenario: Scenario, plan: TrainPlan) -> None:
    if plan.fsdp:
        out.add("use-torch-fsdp2", why="ZeRO-3" if plan.fsdp == 3 else "ZeRO-2: weights stay whole after forward")
        out.add("torch-fsdp2-no-reshard-after-forward", plan.fsdp == 2)
        out.add("no-gradient-accumulation-fusion", why="FSDP2 needs plain gradients")
    why = f"optimizer state divided over {plan.dp * plan.cp} data-parallel ranks"
    out.add("use-distributed-optimizer", plan.dist_opt, why=why)
    out.add("optimizer-cpu-offload", plan.offload > 0)
    out.add("optimizer-offload-fraction", plan.offload or None)
    out.add("overlap-cpu-optimizer-d2h-h2d", plan.offload > 0)


def batch_arguments(scenario: Scenario, plan: TrainPlan) -> list[Argument]:
    """Sequence length and batch."""
    out, workload = Collector("batch"), scenario.workload
    if scenario.model.is_encoder_decoder:
        out.add("encoder-seq-length", workload.seq_length)
        out.add("decoder-seq-length", workload.decoder_seq_length or workload.seq_length)
    else:
        out.add("seq-length", workload.seq_length)
    out.add("micro-batch-size", plan.mbs)
    microbatches = workload.global_batch_size / (plan.mbs * plan.dp)
    out.add("global-batch-size", workload.global_batch_size, why=f"{microbatches:g} micro-batches for each of {plan.dp}")
    return out.arguments


def numerics_arguments(scenario: Scenario, plan: TrainPlan) -> list[Argument]:
    """Types and dropout. Raises UnsupportedError for what Megatron-LM does not train: adapters, 16-bit masters."""
    out, numerics = Collector("numerics"), scenario.numerics
    if numerics.peft != "none":
        raise UnsupportedError(
            f"peft {numerics.peft}: Megatron-LM's pretrain_gpt.py trains all weights; leave {option('peft')} out, or "
            "take the plan with "
            f"{option('format')} plan to a framework that has adapters"
        )
    if (packed := scenario.workload.packed_length) is not None:
        raise UnsupportedError(
            f"packed_length {packed}: a sample of Megatron-LM's pretrain_gpt.py is one sequence; leave "
            f"{option('packed_length')} out, or take the plan with {option('format')} plan to a framework that packs"
        )
    if numerics.weights_are_masters:
        raise UnsupportedError("weights_are_masters: Megatron-LM's optimizer always keeps weights of its own")
    if numerics.optimizer_in_backward or numerics.optimizer in ("adafactor", "muon"):
        odd = "optimizer_in_backward" if numerics.optimizer_in_backward else f"optimizer {numerics.optimizer}"
        raise UnsupportedError(f"{odd}: priced as torch's trainers have it, not written as arguments of Megatron-LM")
    if numerics.narrow_moments:
        raise UnsupportedError(
            f"optimizer {numerics.optimizer}: Megatron-LM's optimizer keeps no moments in bitsandbytes' 8 bits; "
            f"{option('format')} trl writes them for TRL"
        )
    for name, value in numerics.format.flags:
        out.add(name, True if value is None else value)
    if numerics.fp8_param_gather and not plan.fsdp:  # torch FSDP2 switches it off (specs/scenario.py)
        gather = "fp4-param-gather" if numerics.precision == "nvfp4" else "fp8-param-gather"
        out.add(gather, why=f"weights are kept and gathered in {gather[:3]}")
        through = numerics.fp8_recipe == "mxfp8" and plan.dist_opt
        out.add("reuse-grad-buf-for-mxfp8-param-ag", through, why="mxfp8 weights are gathered through the gradient buffer")
    out.add("grad-reduce-in-bf16", numerics.grad_reduce_dtype == "bf16")
    out.add("accumulate-allreduce-grads-in-fp32", numerics.grad_reduce_dtype != "bf16" and numerics.precision != "fp32")
    out.add("attention-dropout", numerics.attention_dropout)
    out.add("hidden-dropout", numerics.hidden_dropout)
    out.add("deterministic-mode", numerics.deterministic)
    _implementation(out, scenario)
    return out.arguments


def _implementation(out: Collector, scenario: Scenario) -> None:
    if scenario.software.name == "megatron-local":
        out.add("transformer-impl", "local", why="the stack megatron-local: no Transformer Engine")
        out.add("spec", "local" if scenario.model.is_encoder_only else None, why="pretrain_bert.py takes its layers by this")
        rotary = scenario.model.position_embedding_type in ("rope", "yarn")
        out.add("no-rope-fusion", rotary, why="the fused kernel is Transformer Engine's")
        return
    out.add("transformer-impl", "transformer_engine")
    unfused = scenario.software.memory.attention_kernel == "unfused"
    out.add("attention-backend", "unfused" if unfused else "auto", why="" if unfused else "cuDNN's fused or flash attention")


def optimizer_arguments(scenario: Scenario, plan: TrainPlan) -> list[Argument]:
    """Adam and its types; learning rate and schedule are the user's."""
    out, numerics = Collector("optimizer"), scenario.numerics
    out.add("optimizer", "adam")
    out.add("adam-beta1", "0.9")
    out.add("adam-beta2", "0.95")
    out.add("weight-decay", "0.1")
    out.add("clip-grad", "1.0")
    out.add("init-method-std", "0.01")
    types = (numerics.main_params_dtype, numerics.exp_avg_dtype, numerics.exp_avg_sq_dtype)
    if types != ("fp32",) * 3 or numerics.store_param_remainders or plan.offload:
        out.add("use-precision-aware-optimizer", why="moments and master weights in their own types")
        out.add("main-grads-dtype", numerics.grad_reduce_dtype)
        out.add("main-params-dtype", numerics.main_params_dtype)
        out.add("exp-avg-dtype", numerics.exp_avg_dtype)
        out.add("exp-avg-sq-dtype", numerics.exp_avg_sq_dtype)
    return out.arguments


def overlap_arguments(scenario: Scenario, plan: TrainPlan) -> list[Argument]:
    """What runs beside what: as the software stack is priced, where validate_args allows it."""
    out, time = Collector("overlap"), scenario.software.time
    if not plan.fsdp and time.overlap_grad_reduce:
        out.add("overlap-grad-reduce", why="gradients are reduced beside the last backward")
        gathers = bool(plan.dist_opt and time.overlap_param_gather)
        out.add("overlap-param-gather", gathers, why="weights are gathered beside the first forward")
    userbuffers = tp_comm_overlap(scenario, plan)
    out.add("tp-comm-overlap", userbuffers, why="tensor-parallel communication beside GEMMs (userbuffers)")
    return out.arguments


def tp_comm_overlap(scenario: Scenario, plan: TrainPlan) -> bool:
    """Userbuffers are on: where they are priced (specs/scenario.py)."""
    s = scenario
    return bool(userbuffers_run(s.model, s.numerics, s.software, s.cluster, tp=plan.tp, sp=plan.sp, fsdp=plan.fsdp))


def environment(scenario: Scenario, plan: TrainPlan) -> dict[str, str | None]:
    """Environment variables that the run needs; None: must be unset."""
    found: dict[str, str | None] = {}
    if plan.fsdp:
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = None
    elif (plan.tp > 1 or plan.cp > 1) and one_connection_needed(scenario.cluster):
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    if scenario.numerics.deterministic:
        found |= {"NCCL_ALGO": "Ring", "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    if scenario.settings(plan).fused_experts:
        found["NVTE_CUTEDSL_FUSED_GROUPED_MLP"] = "1"
    return found


MOCK_STEPS = 50


def train_arguments(scenario: Scenario, plan: TrainPlan) -> list[Argument]:
    """All arguments but data, schedule and checkpoints. Raises UnsupportedError for what Megatron-LM cannot run."""
    if scenario.model.is_encoder_decoder and plan.pp > 1:
        raise UnsupportedError(f"{plan}: {PIPELINE_OF_T5}")
    return [
        *model_arguments(scenario),
        *plan_arguments(scenario, plan),
        *batch_arguments(scenario, plan),
        *numerics_arguments(scenario, plan),
        *optimizer_arguments(scenario, plan),
        *overlap_arguments(scenario, plan),
        *switch_arguments(scenario, plan),
    ]


def mock_arguments(scenario: Scenario, plan: TrainPlan) -> list[Argument]:
    """A whole argument list on mock data: what the scripts run when no variable is set."""
    data, run = Collector("data"), Collector("run")
    data.add("mock-data", why="random tokens")
    data.add("tokenizer-type", "NullTokenizer")
    size, extra = vocabulary_words(scenario.model)
    data.add("vocab-size", size)
    data.add("vocab-extra-ids", extra or None)
    run.add("train-iters", MOCK_STEPS)
    run.add("lr", "1e-4")
    run.add("min-lr", "0")
    run.add("lr-decay-style", "cosine")
    run.add("eval-interval", 1000, why="Megatron divides by it even where nothing is evaluated")
    run.add("eval-iters", 0)
    run.add("log-interval", 1)
    run.add("log-throughput")
    return [*train_arguments(scenario, plan), *data.arguments, *run.arguments]
