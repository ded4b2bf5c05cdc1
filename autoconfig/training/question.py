"""From what a person or program asked to a Setting: names resolved, defaults filled in and said.

`Request` holds the command line's long options with underscores; the HTTP API takes the same names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Protocol

from autoconfig.planning.calibration_file import calibration_of
from autoconfig.planning.prices import price_for, price_of
from autoconfig.planning.request_fields import ARCHITECTURE, NUMERICS, QUESTION, SEARCH, SORTS, SWITCHES
from autoconfig.planning.resolve import (
    check_bounds,
    check_runs,
    field_names,
    field_values,
    read_cluster,
    read_model,
    read_stack,
)
from autoconfig.specs.errors import InputError, option
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.json_record import Keywords, Natural, record_of
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.overrides import apply_overrides
from autoconfig.specs.plan import SHORT_TO_LONG, TrainPlan, parse_keys, parse_plan
from autoconfig.specs.remarks import Effect, Remark, note
from autoconfig.specs.run_settings import (
    FULL,
    FULL_ITERATION,
    FUSED,
    GRAPH_SCOPES,
    GivenSettings,
    RunSettings,
    formula_only,
    given_way,
    read_graphs,
)
from autoconfig.specs.scenario import (
    BLACKWELL,
    LORA_MODULES,
    PRECISION_WORDS,
    PRECISIONS,
    Calibration,
    Numerics,
    Scenario,
    Workload,
)
from autoconfig.specs.software.software import DISPATCHERS, SoftwareStack
from autoconfig.training.recompute_rules import recompute_rule
from autoconfig.training.rules import RULE_TEXT
from autoconfig.training.space import Constraints

DEFAULT_FIT_CHANCE = next(field.default for field in SEARCH if field.name == "fit_chance")
SWITCH_NAMES = field_names(SWITCHES)
OF_EXPERTS = ("dispatcher", "ep_overlap", "fused_experts")


@dataclass(frozen=True, kw_only=True)
class Request:
    """One question, as asked. None means not given.

    Over the network `model` and `cluster` are names or the JSON that the files would hold, never paths: `local_files` is False.
    """

    model: str | Mapping[str, Any]
    like: str | None = None
    """Family of Hugging Face as which a config.json is read, whatever its type says."""
    download: bool = False
    """Whether the config.json of a hub's model may be fetched."""
    gpus: int | None = None
    gpu: str | None = None
    gpu_table: str | None = None
    """A file of `python -m autoconfig.kernels.benchmark`: the GPU that it is about, priced with it."""
    measured_here: bool = False
    """The device is this machine's own, and `gpu_table` no file that a caller named but one that a study has measured."""
    cluster: str | Mapping[str, Any] | None = None
    local_files: bool = True
    """Whether names may be files, or the GPU, of this machine."""
    gpus_per_node: int | None = None
    power_limit: float | None = None
    """Watts of one GPU, below its own."""
    memory_bandwidth: float | None = None
    """TB/s of one GPU, where its memory is another."""
    software: str | None = None
    calibration: str | None = None
    """A file of `autoconfig calibrate`; None: the shipped one; `none`: the documented defaults."""
    own_calibration: Calibration | None = None
    """In place of the shipped one, where the caller has measurements of his own."""
    seq_length: int | None = None
    decoder_seq_length: int | None = None
    packed_length: int | None = None
    global_batch_size: int | None = None
    schedule_calls: int | None = None
    """Times that the pipeline's schedule runs in a step; None: once."""
    architecture: Mapping[str, object] = field(default_factory=dict)
    """ModelSpec fields to change: {"num_layers": 12}."""
    numerics: Mapping[str, object] = field(default_factory=dict)
    """Numerics fields that were given; None counts as not given."""
    zero_stage: int | None = None
    """Sharding of plans that say none: 0 nothing, 1 optimizer state, 2 gradients, 3 weights."""
    switches: Mapping[str, object] = field(default_factory=dict)
    """Dispatcher, CUDA graphs, overlap and fusion of experts, the same way."""
    fix: tuple[str, ...] = ()
    max: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    memory_margin: float = 0.0
    fit_chance: float = DEFAULT_FIT_CHANCE
    """Least chance to fit of plans that are ranked."""
    vary: tuple[str, ...] = ()
    """Switches that a search tries all values of."""
    gpus_at_most: int | None = None
    sort_by: str = "step"
    top: int = 20
    tokens: float | None = None
    price: float | str | None = None
    """Money per GPU and hour, of each type as h100-sxm-80gb=2.2 with commas between (planning.prices)."""


def request_of(given: Mapping[str, Any]) -> Request:
    """A Request from what any edge was given, by the names of the fields; what is no field of it is not read. Raises
    InputError."""
    if given.get("model") is None:
        raise InputError(
            f"Missing option '{option('model')}': say {option('model')} 175b (autoconfig models lists them), or a config.json"
        )
    architecture, switches = (
        {name: value for name, value in field_values(group, given).items() if value is not None}
        for group in (ARCHITECTURE, SWITCHES)
    )
    numerics = field_values(NUMERICS, given)
    grouped = field_names(ARCHITECTURE, NUMERICS, SWITCHES)
    rest = [field for field in (*QUESTION, *SEARCH) if field.name not in grouped]
    return Request(architecture=architecture, numerics=numerics, switches=switches, **field_values(rest, given))


def values_of(request: Request) -> dict[str, Any]:
    """What `request_of` makes this request of: values by the names of the fields."""
    grouped = {**request.architecture, **request.numerics, **request.switches}
    rest = {field.name: getattr(request, field.attribute or field.name, None) for field in (*QUESTION, *SEARCH)}
    return {**rest, **grouped}


@dataclass(frozen=True)
class Variant:
    """One setting of the switches that a search tried."""

    words: str
    """Like "dispatcher deepep, ep-overlap on"."""
    step_seconds: float
    """Of its first plan; infinite where it has none."""
    reason: str = ""
    """Why it has none."""

    def __str__(self) -> str:
        return f"{self.words}: {self.reason or f'{self.step_seconds:.4g} s'}"


@dataclass(frozen=True, kw_only=True)
class Question:
    """A Request that could be understood."""

    scenario: Scenario
    constraints: Constraints
    assumed: tuple[Remark, ...]
    request: Request
    varied: tuple[Variant, ...] = ()
    """What a search with `vary` tried, fastest first: the first is the setting of this question."""

    @property
    def price(self) -> float | None:
        """Money for one GPU and hour; None where none was given for its type."""
        return price_of(self.request.price, self.scenario.cluster.gpu.id)

    @property
    def own_price(self) -> float | None:
        """The same of a question that is about this type alone. Raises InputError where only others have a price."""
        return price_for(self.request.price, self.scenario.cluster.gpu.id)


def understand(request: Request) -> Question:
    """Resolve every name and default. Raises InputError (and its kinds) with what to change."""
    assumed: list[Remark] = []
    software = software_for(request.software, with_masters(request.numerics), assumed)
    _check(request)
    model, notes = read_model(request.model, local_files=request.local_files, like=request.like, download=request.download)
    assumed += notes
    if request.architecture:
        model = apply_overrides(model, request.architecture)
    cluster = read_cluster(request, assumed)
    calibration = calibration_of(request.calibration, request.own_calibration, local_files=request.local_files)
    stack = read_stack(software, cluster.gpu, assumed, calibration)
    counted = cluster.num_gpus if request.gpus_at_most is None else None
    workload = read_workload(request, model, assumed, adapters=trains_adapters(request.numerics), gpus=counted)
    longest = max(workload.seq_length, workload.decoder_seq_length or 0)
    if longest > model.max_position_embeddings:
        assumed.append(raised_positions(model, longest))
        model = model.replace(max_position_embeddings=longest)
    assumed[:0] = unaligned_heads(model)
    numerics = read_numerics(request.numerics, model, cluster.gpu, stack, assumed)
    if request.architecture.get("mtp_num_layers") is None:
        model = without_depths(model, numerics, assumed)
    check_runs(cluster.gpu, numerics, stack, model)
    scenario = Scenario(
        model=model,
        cluster=cluster,
        numerics=numerics,
        software=stack,
        workload=workload,
        calibration=calibration,
        given=read_switches(request.switches, model, numerics),
    )
    _check_static_sizes(scenario)
    assumed += assumed_switches(scenario)
    constraints = Constraints(
        fixed=_sets(request.fix, "fix"), at_most=_caps(request.max), excluded=_sets(request.exclude, "exclude")
    )
    constraints = with_zero_stage(constraints, request.zero_stage)
    _check_constraints(scenario, constraints)
    for text in request.include:
        with _named("include", text):
            parse_plan(text, cluster.num_gpus)
    return Question(scenario=scenario, constraints=constraints, assumed=tuple(assumed), request=request)


def with_zero_stage(constraints: Constraints, stage: int | None) -> Constraints:
    """The wishes with this sharding, where they name none themselves. Raises InputError for a stage that there is not."""
    if stage is None:
        return constraints
    if stage not in ZERO:
        raise InputError(f"{option('zero_stage')} {stage}: use 0 (nothing is sharded) to 3 (weights, too)", field="zero_stage")
    fixed = {key: frozenset({value}) for key, value in ZERO[stage].items()}
    return replace(constraints, fixed={**fixed, **constraints.fixed})


ZERO: dict[int, dict[str, object]] = {
    0: {"dist_opt": False, "fsdp": 0},
    1: {"dist_opt": True, "fsdp": 0},
    2: {"dist_opt": False, "fsdp": 2},
    3: {"dist_opt": False, "fsdp": 3},
}
"""DeepSpeed's stages in the keys of plans."""


def plan_of(question: Question, text: str) -> TrainPlan:
    """A plan in short form; what it leaves out is the question's sharding, and what people mean with the software. Raises
    PlanError."""
    stage = ZERO.get(-1 if question.request.zero_stage is None else question.request.zero_stage, {})
    said = {part.partition("=")[0].strip() for part in text.split(",")}
    more = "" if said & {"dist_opt", "fsdp"} else "".join(f",{key}={int(value)}" for key, value in stage.items())  # type: ignore[call-overload]
    return question.scenario.read_plan(f"{text}{more}")


def without_depths(model: ModelSpec, numerics: Numerics, assumed: list[Remark]) -> ModelSpec:
    """The model without multi-token prediction where adapters are trained: PEFT puts none on its layers, and transformers does
    not load them (modeling_deepseek_v3.py, modeling_qwen3_next.py: _keys_to_ignore_on_load_unexpected)."""
    if numerics.peft == "none" or not model.mtp_num_layers:
        return model
    assumed.append(Remark("mtp_num_layers", 0, "fine-tuning does not train multi-token prediction"))
    return model.replace(mtp_num_layers=0)


def raised_positions(model: ModelSpec, longest: int) -> Remark:
    """That a model takes more positions than it says."""
    why = f"raised from {model.max_position_embeddings} to the sequence length"
    return Remark("max_position_embeddings", longest, why)


def _check_static_sizes(scenario: Scenario) -> None:
    """Raises InputError for given graphs of the full iteration where the host has to wait for the experts' rows."""
    found, given = scenario.settings(), scenario.given.cuda_graphs or frozenset()
    dropless = scenario.model.is_moe and scenario.numerics.moe_capacity_factor is None
    if FULL_ITERATION in given and dropless and not found.static_sizes:
        raise InputError(
            f"{option('cuda_graphs')} {FULL_ITERATION}: with dispatcher {found.dispatcher} and no dropped tokens the host "
            f"waits for the rows of each expert, whose sizes are not static; use {option('dispatcher')} hybridep or "
            f"{option('moe_capacity_factor')}, or graphs of parts (attn,moe_router)",
            field="cuda_graphs",
        )


def _check_constraints(scenario: Scenario, constraints: Constraints) -> None:
    """Wishes that no layout can meet: a value both fixed and excluded, a recomputation that model or precision rules out."""
    for key, values in constraints.fixed.items():
        if values <= constraints.excluded.get(key, frozenset()):
            raise InputError(f"{option('fix')} and {option('exclude')} together leave no value of {key}; drop one of them")
    fixed = constraints.fixed.get("recompute", frozenset())
    broken = [recompute_rule(scenario, option) for option in fixed]
    if fixed and all(broken):
        rule, names = broken[0] or "", " or ".join(sorted(map(str, fixed)))
        raise InputError(f"{option('fix')} recompute={names}: not legal for {scenario.model.name}: {rule}, {RULE_TEXT[rule]}")


def _check(request: Request) -> None:
    check_bounds((*QUESTION, *SEARCH), request)
    if isinstance(request.price, int | float) and not 0 < request.price < 1e6:
        raise InputError(f"{option('price')} {request.price}: give money per GPU and hour, above 0 and below 1,000,000")
    if request.sort_by not in SORTS:
        raise InputError(f"{option('sort_by')} {request.sort_by!r}: use {', '.join(SORTS)}")
    if request.vary and request.gpus_at_most is not None:
        raise InputError(f"give either {option('vary')} or {option('gpus_at_most')}, not both", field="vary")
    if request.gpus is not None and request.gpus_at_most is not None:
        raise InputError(f"give either {option('gpus')} N (exactly N) or {option('gpus_at_most')} N (N or fewer), not both")


def read_numerics(
    numerics: Mapping[str, object], model: ModelSpec, gpu: GpuSpec, stack: SoftwareStack, assumed: list[Remark]
) -> Numerics:
    """Return the types, dropout and adapters that are given (None: not), else those that the stack and such models have. Raises
    InputError."""
    given: dict[str, Any] = {key: value for key, value in with_masters(numerics).items() if value is not None}
    if "precision" not in given:
        given["precision"] = "bf16" if "bf16" in gpu.flops_per_s else "fp16"
        assumed.append(Remark("precision", given["precision"], ""))
    precision, recipe = given["precision"], given.get("fp8_recipe")
    if precision in PRECISION_WORDS and precision not in PRECISIONS:
        if recipe not in (None, precision):
            raise InputError(f"{option('precision')} {precision} is fp8 with this recipe; drop {option('fp8_recipe')} {recipe}")
        given |= {"precision": "fp8", "fp8_recipe": precision}
    elif precision == "fp8" and recipe is None and (stack.release or scales_by_tensor(stack)):
        given["fp8_recipe"] = usual_fp8_recipe(stack, gpu)
        assumed.append(Remark("fp8_recipe", given["fp8_recipe"], f"as {stack.name} runs fp8 on {gpu.id}"))
    if trains_adapters(given):
        given |= read_adapters(given, model, assumed)
    if (name := not_megatrons(given)) and stack.sharding == "megatron":
        raise InputError(
            f"{option(name)} {str(given[name])[:20]} is not Megatron's, as which {stack.name} is priced, but runs "
            f"under transformers: {option('software')} {QUANTISED_STACK}",
            field=name,
        )
    if given.get("optimizer") == "muon":
        assumed.append(Remark("optimizer", "muon", "its Newton-Schulz iterations are left out of the time", Effect.TIME))
    if given.get("weights_are_masters"):
        if trains_adapters(given) or given["precision"] != "bf16" or given.get("grad_reduce_dtype", "bf16") != "bf16":
            raise InputError(
                f"{option('weights_are_masters')} is of training all weights in bf16, whose gradients are bf16, too: leave out "
                f"{option('peft')}, other values of {option('precision')} and {option('grad_reduce_dtype')}",
                field="weights_are_masters",
            )
        given["grad_reduce_dtype"] = "bf16"
    if "grad_reduce_dtype" not in given:
        given["grad_reduce_dtype"] = stack.memory.default_grad_dtype
        assumed.append(Remark("grad_reduce_dtype", given["grad_reduce_dtype"], ""))
    if given["precision"] == "fp8" and "fp8_param_gather" not in given and stack.memory.default_fp8_param_gather:
        given["fp8_param_gather"] = True
        assumed.append(Remark("fp8_param_gather", True, f"as {stack.name} runs fp8"))
    default = usual_dropout(model)
    if given.get("optimizer") == "paged_adam8bit":
        assumed.append(note(PAGED))
    missing = [key for key in ("attention_dropout", "hidden_dropout") if key not in given]
    given |= dict.fromkeys(missing, default)
    why = "Megatron's default" if default else "as models of this kind are trained"
    assumed += [Remark(key, default, why * (key == missing[-1])) for key in missing]
    return Numerics(**given)


def with_masters(numerics: Mapping[str, object]) -> dict[str, object]:
    """The fields of numerics, master_weights in the word of Numerics. Raises InputError where both are said and differ."""
    found = dict(numerics)
    word = found.pop("master_weights", None)
    if word is None:
        return found
    if word not in ("fp32", "none"):
        raise InputError(f"{option('master_weights')} {str(word)[:20]!r}: use fp32 or none", field="master_weights")
    if found.get("weights_are_masters") not in (None, word == "none"):
        raise InputError(f"{option('master_weights')} {word} contradicts {option('weights_are_masters')}: drop one of them")
    return {**found, "weights_are_masters": True} if word == "none" else found


PAGED = "paged moments are counted in host memory and priced as fast as on the GPU, where they stay while there is room"
QUANTISED_STACK = "torch-eager"
"""As which layers of transformers are priced, whose linear layers bitsandbytes quantises."""


def not_megatrons(numerics: Mapping[str, object]) -> str:
    """The given field of numerics that says something that no Megatron stack has; empty: none."""
    names = ("frozen_dtype", "optimizer", "weights_are_masters", "optimizer_in_backward")
    return next((name for name in names if numerics.get(name) not in (None, getattr(Numerics, name))), "")


def software_for(software: str | None, numerics: Mapping[str, object], assumed: list[Remark]) -> str | None:
    """The software that is asked for, or the one that runs what no Megatron stack does."""
    name = not_megatrons(numerics)
    if software is not None or not name:
        return software
    why = f"transformers, with {option(name)} {numerics[name]}"
    assumed.append(Remark("software", QUANTISED_STACK, why, Effect.EVERYTHING))
    return QUANTISED_STACK


def scales_by_tensor(stack: SoftwareStack) -> bool:
    """Whether its fp8 is torchao's, which has no delayed scaling any more (float8/README.md from 0.6 of September 2024 on)."""
    return stack.sharding == "torch" and stack.year >= 2024


def usual_fp8_recipe(stack: SoftwareStack, gpu: GpuSpec) -> str:
    """Scaling where nothing is said: of dated releases MXFP8 on Blackwell, by tensor before it and with torchao; of others
    delayed."""
    if not stack.release:
        return "tensorwise" if scales_by_tensor(stack) else "delayed"
    return "mxfp8" if (gpu.compute_capability or 0.0) >= BLACKWELL else "tensorwise"


def usual_dropout(model: ModelSpec) -> float:
    """Megatron's default for models of the time of GPT-3; later ones train without."""
    return 0.1 if model.position_embedding_type == "learned_absolute" else 0.0


def read_switches(given: Mapping[str, Any], model: ModelSpec, numerics: Numerics) -> GivenSettings:
    """The switches of a question. Raises InputError for what megatron-core 0.19.2 has not for this model
    (transformer_config.py)."""
    said = {name: value for name, value in given.items() if value is not None}
    if (offloads := said.pop("activation_offload", None)) is not None:
        if said.get("offload_layers") not in (None, 0) and not offloads:
            raise InputError(
                f"{option('activation_offload')} is off, and {option('offload_layers')} is given: drop one of them"
            )
        said.setdefault("offload_layers", model.num_layers - 1 if offloads else 0)
    if not model.is_moe and (odd := [name for name in OF_EXPERTS if name in said]):
        raise InputError(f"{option(odd[0])} is for mixtures of experts, and {model.name} is dense: leave it out")
    if "cuda_graphs" in said:
        said["cuda_graphs"] = read_graphs(str(said["cuda_graphs"]))
    found = GivenSettings(**said)
    if found.fused_experts and numerics.format.recipe != FUSED:
        raise InputError(f"{option('fused_experts')} needs {option('precision')} {FUSED}")
    if found.fp8_attention and not numerics.format.quantised:
        raise InputError(f"{option('fp8_attention')} needs {option('precision')} fp8, mxfp8 or nvfp4")
    if found.fp8_output and numerics.format.recipe != FUSED:
        raise InputError(f"{option('fp8_output')} needs {option('precision')} {FUSED} (NV135)")
    if not 0 <= (found.offload_layers or 0) < model.num_layers:
        raise InputError(
            f"{option('offload_layers')} {found.offload_layers}: give 0 to {model.num_layers - 1} of {model.name}'s "
            f"{model.num_layers} layers (NV123)"
        )
    if found.offload_layers and (found.cuda_graphs or frozenset()) - {FULL_ITERATION}:
        raise InputError(f"{option('offload_layers')} excludes {option('cuda_graphs')} of parts of a layer (NV145)")
    if found.ep_overlap and model.mtp_num_layers > 1:
        raise InputError(f"{option('ep_overlap')} takes at most one layer of multi-token prediction (NV082)")
    if found.cuda_graphs and (broken := odd_graphs(found.cuda_graphs, model, numerics)):
        raise InputError(f"{option('cuda_graphs')} {given['cuda_graphs']}: {broken}")
    return found


def odd_graphs(scope: frozenset[str], model: ModelSpec, numerics: Numerics) -> str:
    """Why Megatron has no such CUDA graphs for the model; empty where it has (rules of megatron_constraints.csv)."""
    whole = model.is_moe and scope & {"moe", FULL} and numerics.moe_capacity_factor is None
    reasons = {
        f"{FULL} and {FULL_ITERATION} stand alone": len(scope) > 1 and scope & {FULL, FULL_ITERATION},
        f"{model.name} has no experts (NV150)": not model.is_moe and any(part.startswith("moe") for part in scope),
        "mlp needs a layer with a dense MLP (NV150)": "mlp" in scope and 0 not in model.moe_pattern,
        "moe holds moe_router already (NV147)": {"moe", "moe_router"} <= scope,
        "moe_preprocess needs moe_router (NV148)": "moe_preprocess" in scope and "moe_router" not in scope,
        f"graphs of whole expert layers need {option('moe_capacity_factor')} (NV149)": whole,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def assumed_switches(scenario: Scenario) -> list[Remark]:
    """The switches of a mixture of experts that were not given, with the options that change them."""
    given, found = scenario.given, scenario.settings()
    if not scenario.model.is_moe:
        return []
    values = {
        "dispatcher": found.dispatcher,
        "cuda_graphs": graphs_text(found),
        "ep_overlap": found.ep_overlap,
        "fused_experts": found.fused_experts,
    }
    if scenario.numerics.format.quantised:
        values |= {"fp8_attention": found.fp8_attention, "fp8_output": found.fp8_output}
    usual = [Remark(name, value, "") for name, value in values.items() if getattr(given, name) is None]
    why = f"as {scenario.software.name} runs mixtures of experts"
    usual[-1:] = [replace(last, why=why) for last in usual[-1:]]
    routing = real_routing(scenario)
    return formula_only(scenario.model, scenario.cluster) + routing + given_way(given.dispatcher, found) + usual


def unaligned_heads(model: ModelSpec) -> list[Remark]:
    """That a head's width is no multiple of 8, which tensor cores want of 16-bit operands; no formula prices it (NVIDIA, Matrix
    Multiplication Background, section 4; flash-attention pads such heads, and cuDNN has no kernel for them)."""
    width = model.query_head_dim
    if not width % 8:
        return []
    why = "no multiple of 8: attention and its GEMMs run slower than priced, tens of per cent on an A100"
    return [Remark("kv_channels", width, why)]


def real_routing(scenario: Scenario) -> list[Remark]:
    """That the busiest rank of experts has more than its share, where nothing is said and no token is dropped."""
    numerics = scenario.numerics
    if not scenario.model.is_moe or numerics.moe_capacity_factor is not None or numerics.moe_imbalance is not None:
        return []
    return [Remark("moe_imbalance", scenario.software.time.moe_imbalance, "real routing; 1 as recipes force it", Effect.TIME)]


@dataclass(frozen=True, kw_only=True)
class RunSettingsJson:
    """What the run switches on beside its plan."""

    dispatcher: Annotated[str, Keywords(enum=DISPATCHERS)] | None
    """How tokens reach their experts; null for dense models."""
    cuda_graphs: tuple[Annotated[str, Keywords(enum=GRAPH_SCOPES)], ...]
    """What is replayed as CUDA graphs."""
    ep_overlap: bool
    """Dispatch and combine run beside the compute of another micro-batch."""
    fused_experts: bool
    """One kernel for the experts' GEMM, activation and quantisation."""
    fp8_attention: bool
    """Attention's core is quantised."""
    fp8_output: bool
    """The output layer's GEMM is quantised like those of the layers."""
    offload_layers: Natural
    """Layers whose saved activations wait in host memory."""
    given: tuple[str, ...]
    """Those that were given; the others are defaults of release, GPU and model."""
    priced_as: str
    """The release whose constants are taken, where the asked one has none of its own; else empty."""


def run_settings(scenario: Scenario) -> RunSettingsJson:
    """The switches that a scenario is priced with."""
    found, given = scenario.settings(), scenario.given
    return record_of(
        RunSettingsJson,
        found,
        dispatcher=found.dispatcher if scenario.model.is_moe else None,
        cuda_graphs=tuple(sorted(found.cuda_graphs)),
        given=tuple(name for name in SWITCH_NAMES if getattr(given, name, None) is not None),
        priced_as=scenario.software.priced_as,
    )


def graphs_text(settings: RunSettings) -> str:
    """The scope of CUDA graphs in words."""
    return "+".join(sorted(settings.cuda_graphs)) or "none"


def _sets(texts: Iterable[str], field: str) -> dict[str, frozenset[Any]]:
    """`tp=8` twice with other values means either."""
    values: dict[str, set[Any]] = {}
    for text in texts:
        for key, value in _read(text, field).items():
            values.setdefault(key, set()).add(value)
    return {key: frozenset(found) for key, found in values.items()}


def _caps(texts: Iterable[str]) -> dict[str, int]:
    caps: dict[str, int] = {}
    for text in texts:
        for key, value in _read(text, "max").items():
            if isinstance(value, bool) or not isinstance(value, int):
                sized = ", ".join(key for key in SHORT_TO_LONG if key not in _UNSIZED)
                raise InputError(f"{option('max')} {text}: {key} has no size; cap one of {sized}")
            caps[key] = min(value, caps.get(key, value))
    return caps


_UNSIZED = ("sp", "recompute", "dist_opt", "fsdp", "offload", "first", "last")


def _read(text: str, field: str) -> dict[str, object]:
    with _named(field, text):
        values = parse_keys(text)
        TrainPlan(**{"tp": 1, "pp": 1, "dp": 1, "mbs": 1, **values})  # type: ignore[arg-type]  # checks every value
        return values


@contextmanager
def _named(field: str, text: str) -> Iterator[None]:
    """Errors inside say which text of which field they are about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{option(field)} {text}: {error.message}") from error


DEFAULT_SEQ_LENGTH = 8192
DEFAULT_TOKENS_PER_STEP = 4_194_304
"""About 4 million tokens a step, the usual size of large pre-training runs (Llama 2 paper, section 2.2)."""
ADAPTER_SEQ_LENGTH, ADAPTER_BATCH = 2048, 128
"""Of fine-tuning with adapters (Megatron-Bridge, recipes/common.py: _peft_common)."""
OF_ATTENTION = LORA_MODULES[:2]


class Asked(Protocol):
    """What a request says of its workload; None where it says nothing."""

    @property
    def seq_length(self) -> int | None: ...
    @property
    def decoder_seq_length(self) -> int | None: ...
    @property
    def packed_length(self) -> int | None: ...
    @property
    def global_batch_size(self) -> int | None: ...
    @property
    def schedule_calls(self) -> int | None: ...


def trains_adapters(numerics: Mapping[str, object]) -> bool:
    """Whether adapters are trained. Raises InputError for fields of adapters where they are refused."""
    fields = [name for name in ("lora_rank", "lora_target_modules", "frozen_dtype") if numerics.get(name) is not None]
    if fields and numerics.get("peft") == "none":
        raise InputError(f"{option(fields[0])} is for adapters, and {option('peft')} none trains all weights: drop one of them")
    return bool(fields) or numerics.get("peft") not in (None, "none")


def read_adapters(given: Mapping[str, Any], model: ModelSpec, assumed: list[Remark]) -> dict[str, Any]:
    """Kind, rank and layers of the adapters; what is not given is said in `assumed`. Raises InputError for adapters on experts,
    which no formula prices."""
    if "peft" not in given:
        assumed.append(Remark("peft", "lora", "as its adapters are given"))
    if "lora_rank" not in given:
        assumed.append(Remark("lora_rank", Numerics.lora_rank, ""))
    modules = given.get("lora_target_modules")
    if modules is None:
        named = OF_ATTENTION if model.is_moe else LORA_MODULES
        if model.is_moe:
            assumed.append(Remark("lora_target_modules", "attention", "none on experts"))
    else:
        named = tuple(modules.replace(",", " ").split() if isinstance(modules, str) else modules)
    if model.is_moe and (odd := [name for name in named if name in LORA_MODULES and name not in OF_ATTENTION]):
        raise InputError(
            f"{option('lora_target_modules')} {odd[0]}: {model.name} has experts, and adapters on experts are not priced here; "
            f"give {' or '.join(OF_ATTENTION)}"
        )
    return {"peft": given.get("peft", "lora"), "lora_target_modules": named}


def read_workload(
    asked: Asked, model: ModelSpec, assumed: list[Remark], *, adapters: bool, gpus: int | None = None
) -> Workload:
    """Sequence lengths and batch; what is not given is that of the model's training, or of training adapters, and said in
    `assumed`. A batch that is not given suits the number of `gpus`, where that is said. Raises InputError."""
    seq = asked.seq_length
    if seq is None and adapters:
        seq = min(model.max_position_embeddings, ADAPTER_SEQ_LENGTH)
        assumed.append(Remark("seq_length", seq, "as adapters are trained"))
    elif seq is None:
        seq = model.default_seq_length or min(model.max_position_embeddings, DEFAULT_SEQ_LENGTH)
        source = (
            _provenance(model, "default_seq_length") if model.default_seq_length else "what the model allows, at most 8,192"
        )
        assumed.append(Remark("seq_length", seq, source))
    batch = asked.global_batch_size
    if batch is None and adapters:
        batch, source = suited_batch(ADAPTER_BATCH, "as adapters are trained", model, seq, gpus)
        assumed.append(Remark("global_batch_size", batch, source))
    elif batch is None:
        same = model.default_global_batch_size and seq == (model.default_seq_length or seq)
        batch = model.default_global_batch_size if same else None
        source = _provenance(model, "default_global_batch_size")
        if batch is None:
            batch = max(1, DEFAULT_TOKENS_PER_STEP // max(seq, 1))
            source = f"about {DEFAULT_TOKENS_PER_STEP / 1e6:.0f} million tokens a step"
        batch, source = suited_batch(batch, source, model, seq, gpus)
        assumed.append(Remark("global_batch_size", batch, source))
    return Workload(
        seq_length=seq,
        global_batch_size=batch,
        decoder_seq_length=_decoder_seq_length(asked, model, seq, assumed),
        packed_length=asked.packed_length,
        schedule_calls=1 if asked.schedule_calls is None else asked.schedule_calls,
    )


SUITED = 0.1
"""How far a batch may be from the usual one for more of the GPUs' factors; for odd ones it may be as far as it must."""


def suited_batch(usual: int, source: str, model: ModelSpec, seq: int, gpus: int | None) -> tuple[int, str]:
    """(the usual batch, its source); where the GPUs' number has an odd factor that neither this batch nor heads nor sequence
    divide over them, the nearest multiple of the most of their number (it, its half, ...) that is within SUITED, else of the
    odd part."""
    odd = gpus or 1
    while odd % 2 == 0:
        odd //= 2
    left = odd
    for shared in (usual, model.num_attention_heads, seq):
        left //= math.gcd(left, shared)
    if gpus is None or left == 1:
        return usual, source
    parts = [gpus >> power for power in range(gpus.bit_length()) if gpus % (1 << power) == 0]
    nearest = [max(1, round(usual / part)) * part for part in parts]
    batch = next((one for one in nearest if abs(one / usual - 1) <= SUITED), nearest[-1])
    return batch, f"which suits {gpus:,} GPUs, near {usual:,}, {source}"


def _decoder_seq_length(asked: Asked, model: ModelSpec, seq: int, assumed: list[Remark]) -> int | None:
    """Tokens of one sample in the decoder; None without an encoder before it. Raises InputError where one is given there."""
    given = asked.decoder_seq_length
    if not model.is_encoder_decoder:
        if given is not None:
            said = f"{model.name} has no decoder behind an encoder; leave it out"
            raise InputError(f"{option('decoder_seq_length')} {given}: {said}")
        return None
    if given is None:
        given = model.default_decoder_seq_length or seq
        source = _provenance(model, "default_decoder_seq_length") if model.default_decoder_seq_length else "as the encoder's"
        assumed.append(Remark("decoder_seq_length", given, source))
    return given


def _provenance(model: ModelSpec, key: str) -> str:
    """Where a default of the model comes from."""
    return (
        "the model's published training"
        if model.published_parameters
        else model.sources.get(key, "as similar models are trained")
    )
