"""Both sides of every limit of the records: the least and the most that is taken, and what lies just beyond them."""

import json
import math
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from autoconfig.specs.errors import (
    GIB,
    InputError,
    UnknownNameError,
)
from autoconfig.specs.hardware.cluster import ClusterSpec, _read_nvidia_smi, cluster_of, gpu_from_mapping, load_gpu
from autoconfig.specs.hardware.cluster_file import _inline_gpu, _with_link, cluster_from_mapping
from autoconfig.specs.hardware.operator_table import CONSTANTS, _check_constants
from autoconfig.specs.job import MAX_TOKENS, Generation, Job, TraceRequest, read_stages
from autoconfig.specs.measurement import Served
from autoconfig.specs.models.config_reader import ConfigReader, rotary_fields
from autoconfig.specs.models.families.encoders import BERT_HEADS, T5_HEAD, _architecture
from autoconfig.specs.models.families.table import FAMILIES
from autoconfig.specs.models.model import MAX_DIMENSION, ModelSpec
from autoconfig.specs.models.model_catalogue import gpt3_style
from autoconfig.specs.models.model_numbers import RopeScaling, RouterNumbers
from autoconfig.specs.models.module_names import _bare
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.models.pattern import parse_pattern, scaled_pattern
from autoconfig.specs.plan import Recompute, TrainPlan
from autoconfig.specs.scenario import Numerics, Workload
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.software import StackMemory
from small_models import H100, MODELS
from tables import tabled

MODEL = ModelSpec(**MODELS["gpt"])
INT32 = 2147483648
"""2^31: no index of a tensor's dimension reaches it."""
PLAN = {"tp": 1, "pp": 1, "dp": 1, "mbs": 1}
JOB = {"model": MODEL, "plan": TrainPlan(**PLAN), "workload": Workload(seq_length=64, global_batch_size=4)}
RAW_GPU = json.loads((Path(__file__).parents[2] / "specs/catalogue/gpus/h100-sxm-80gb.json").read_text(encoding="utf-8"))
INLINE = {key: value for key, value in RAW_GPU.items() if key not in ("aliases", "operator_tables")}
SERVED = {"ttft_seconds": 1.0, "tpot_seconds": 1.0, "output_tokens_per_second": 1.0, "requests": 1}


def config(**values: object) -> ConfigReader:
    return ConfigReader(values, "here")


LIMITS: list[tuple[str, Callable[[float], object], float | None, float, float]] = [
    *((f"plan {key}", lambda n, key=key: TrainPlan(**{**PLAN, key: n}), 1, 1_000_000, 1)
      for key in ("tp", "pp", "dp", "mbs", "vpp", "cp", "ep", "etp", "first", "last")),
    ("plan offload", lambda x: TrainPlan(**PLAN, offload=x), 0, 1, 1e-9),
    ("full recomputation", lambda n: Recompute.parse(f"full:block:{n}"), 1, 999_999, 1),
    *((f"engine {key}", lambda n, key=key: EnginePlan(**{key: n}), 1, 10_000_000, 1)
      for key in ("tp", "pp", "adp", "batch", "tokens", "replicas")),
    *((f"workload {key}", lambda n, key=key: Workload(**{"seq_length": 2**24, "global_batch_size": 1, key: n}),
       1, 16_777_216, 1)
      for key in ("seq_length", "global_batch_size", "decoder_seq_length", "packed_length")),
    ("packed", lambda n: Workload(seq_length=100, global_batch_size=1, packed_length=n), 1, 100, 1),
    *((name, lambda x, name=name: Numerics(**{name: x}), 0, 1 - 1e-9, 1e-9)
      for name in ("attention_dropout", "hidden_dropout")),
    ("job steps", lambda n: Job(**JOB, steps=n), 1, 1_000_000, 1),
    ("job warm-up", lambda n: Job(**JOB, warmup_steps=n), 0, 1_000_000, 1),
    ("job seed", lambda n: Job(**JOB, seed=n), 0, INT32 - 1, 1),
    ("job rank", lambda n: Job(**{**JOB, "plan": TrainPlan(tp=2, pp=1, dp=2, mbs=2)}, mode="emulate", rank=n), 0, 3, 1),
    ("job memory", lambda n: Job(**JOB, device_memory_bytes=n), 1, math.inf, 1),
    ("traced rank", lambda n: TraceRequest(job=Job(**JOB), ranks=(n,), memory=StackMemory()), 0, 0, 1),
    ("traced stage", lambda n: read_stages(str(n), TrainPlan(**{**PLAN, "pp": 4})), 0, 3, 1),
    ("layers of a chunk", lambda n: Job(**JOB).shortened(layers_per_chunk=n), 1, MODEL.num_layers, 1),
    ("micro-batches", lambda n: Job(**JOB).shortened(num_microbatches=n), 1, 4, 1),
    *((f"served {key}", lambda x, key=key: Served(**{**SERVED, key: x}), 1e-9, 1.7976931348623157e308, 1e-9)
      for key in ("ttft_seconds", "tpot_seconds", "output_tokens_per_second")),
    *((f"model {key}", lambda n, key=key: MODEL.replace(**{key: n}), least, INT32 - 1, 1) for key, least in {
        "hidden_size": 1, "ffn_hidden_size": 1, "vocab_size": 1, "kv_channels": 1, "max_position_embeddings": 1,
        "make_vocab_size_divisible_by": 1, "num_tokentypes": 0, "relative_attention_num_buckets": 0, "mtp_num_layers": 0,
        "num_layernorms_per_layer": 0, "default_seq_length": 1, "default_decoder_seq_length": 1,
        "default_global_batch_size": 1, "rotary_base": 1, "window_size": 1, "linear_conv_kernel_dim": 1,
        "mamba_num_heads": 0, "linear_key_head_dim": 0, "moe_ffn_hidden_size": 0, "moe_shared_expert_intermediate_size": 0,
        "moe_latent_size": 1, "moe_router_topk": 0, "kv_lora_rank": 0, "q_lora_rank": 1, "v_head_dim": 0,
    }.items()),
    ("layers", lambda n: MODEL.replace(num_layers=n), 1, 10_000, 1),
    ("published parameters", lambda n: MODEL.replace(published_parameters=n), 1, 10**18, 1),
    ("rotary share", lambda x: MODEL.replace(rotary_percent=x), 1e-9, 1, 1e-9),
    ("epsilon of a norm", lambda x: MODEL.replace(norm_epsilon=float(x)), 1e-9, 1 - 1e-9, 1e-9),
    ("layers of an encoder, of 4", lambda n: ModelSpec(**{**MODELS["t5"], "encoder_num_layers": n}), 0, 4, 1),
    ("GPUs", lambda n: cluster_of(H100, n, gpus_per_node=1), 1, 1_000_000, 1),
    ("GPUs of a node", lambda n: cluster_of(H100, 8, gpus_per_node=8 if n == 8 else n, link_domain_size=1), 1, math.inf, 1),
    ("link domain", lambda n: cluster_of(H100, 8, link_domain_size=n), 1, math.inf, 1),
    *((f"cluster {key}", lambda x, key=key: cluster_of(H100, 8, **{key: x}), 1, 1e20, 1e-9)
      for key in ("link_bytes_per_s", "nic_bytes_per_s", "memory_bytes", "hbm_bytes_per_s")),
    ("power of an H100, 700 W", lambda x: cluster_of(H100, 8, power_limit_watts=x), 245, 700, 1e-6),
    *((f"GPU {key}", lambda n, key=key: gpu_from_mapping({**RAW_GPU, key: n}), 1, 10**20 - 1, 1)
      for key in ("memory_bytes", "num_sms", "link_domain_size", "gpus_per_node")),
    ("compute capability", lambda x: _inline_gpu({**INLINE, "compute_capability": x}), 1e-9, 1000 - 1e-6, 1e-6),
    ("memory_gib", lambda x: cluster_from_mapping({"gpu": "h100", "num_gpus": 8, "memory_gib": x}), 1 / GIB,
     H100.memory_bytes / GIB, 1 / GIB),
    *((f"{key} in a file", lambda n, key=key: cluster_from_mapping({"gpu": "h100", "num_gpus": 1, key: n}), least, most, 1)
      for key, least, most in (("num_gpus", 1, 8), ("gpus_per_node", 1, 1024), ("link_domain_size", 1, 1_000_000))),
    *((f"{key} in a file", lambda x, key=key: cluster_from_mapping({"gpu": "h100", "num_gpus": 1, key: x}), 1e-6, most, 1e-6)
      for key, most in (("link_gb_per_s", 1e5), ("nic_gbit_per_s_per_gpu", 1e5), ("memory_bandwidth", 1000))),
    ("whole number of a config", lambda n: config(x=n).integer("x"), 1, INT32 - 1, 1),
    ("number of a config", lambda x: config(x=x).number("x"), 0, 10**18 - 1, 1),
    ("rotary base", lambda x: rotary_fields(config(rope_theta=x)), 1, INT32 - 1, 1),
    ("rotary share of a config", lambda x: rotary_fields(config(partial_rotary_factor=x)), 1e-9, 1, 1e-9),
    *((f"scaling {key}", lambda x, key=key: RopeScaling(type="yarn", **{key: x}), 0, math.inf, 1e-9)
      for key in ("factor", "mscale", "mscale_all_dim")),
    ("positions before scaling", lambda n: RopeScaling(type="yarn", original_max_position_embeddings=n), 1, math.inf, 1),
    *((f"router {key}", lambda x, key=key: RouterNumbers(score_function="sigmoid", **{key: x}), 0, math.inf, 1e-9)
      for key in ("topk_scaling_factor", "aux_loss_coeff", "bias_update_rate")),
    ("groups of experts", lambda n: RouterNumbers(score_function="sigmoid", num_groups=8, group_topk=n), 1, 8, 1),
    ("size of a GPT-3", gpt3_style, 10**7, 10**14, 1),
    ("layers of a pattern", lambda n: parse_pattern("M" * n), 1, 20_000, 1),
    ("layers of a mix", lambda n: scaled_pattern("M-*", n), 3, 10_000, 1),
    ("length of a GPU's name", lambda n: _named(lambda: load_gpu("x" * n)), None, 100, 1),
    ("text of a cluster file", lambda n: cluster_from_mapping({"gpu": "h100", "num_gpus": 8, "name": "x" * n}), None, 200, 1),
]  # fmt: skip


def _named(ask: Callable[[], object]) -> None:
    """A name that is short enough is looked up, and not found."""
    try:
        ask()
    except UnknownNameError:
        return


@pytest.mark.parametrize(("build", "least", "most", "step"), [pytest.param(*row, id=name) for name, *row in LIMITS])
def test_a_limit_is_taken_and_what_is_beyond_it_is_refused(build, least, most, step):
    """A step that is lost in the digits of a float is the next float."""
    build(least or 0)
    beyond = [] if least is None else [least - step]
    if most < math.inf:
        build(most)
        beyond.append(most + step if most + step > most else math.nextafter(most, math.inf))
    for value in beyond:
        with pytest.raises(InputError):
            build(value)


@pytest.mark.parametrize(("gpus", "node", "whole"), [(8, 8, True), (4, 8, True), (16, 8, True), (12, 8, False), (9, 8, False)])
def test_nodes_are_used_whole_but_for_a_single_one(gpus: int, node: int, whole: bool) -> None:
    if whole:
        assert replace(cluster_of(H100, 8), num_gpus=gpus, gpus_per_node=node).num_gpus == gpus
        return
    with pytest.raises(InputError, match="leave a node partly used"):
        replace(cluster_of(H100, 8), num_gpus=gpus, gpus_per_node=node)
    assert isinstance(cluster_of(H100, 8), ClusterSpec)


@pytest.mark.parametrize(("line", "found"), [
    ("NVIDIA H100 80GB HBM3, 81559", [("NVIDIA H100 80GB HBM3", 81559 * 1024 * 1024)]), ("X, 1.5", [("X", 1.5 * 1024 * 1024)]),
    ("X, 1.5.2", []), ("X, .", []), ("X, many", []), (", 5", []),
])  # fmt: skip
def test_a_line_of_nvidia_smi_is_a_name_and_mebibytes(monkeypatch: pytest.MonkeyPatch, line: str, found: list[Any]) -> None:
    done = subprocess.CompletedProcess((), 0, line + "\n", "")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: done)
    tried: list[str] = []
    assert _read_nvidia_smi(tried) == found and bool(tried) == (not found)


def test_another_link_needs_its_speed() -> None:
    assert H100.link == "nvlink" and _with_link(H100, {}) is H100 and _with_link(H100, {"link": "NVLink"}) is H100
    assert _with_link(H100, {"link": "pcie", "link_gb_per_s": 50}).link == "pcie"
    with pytest.raises(InputError, match="link_gb_per_s"):
        _with_link(H100, {"link": "pcie"})
    with pytest.raises(InputError, match="is not one of"):
        _with_link(H100, {"link": "string"})


@pytest.mark.parametrize(("group", "key"), [(group, key) for group, keys in CONSTANTS.items() for key in keys])
def test_constants_that_may_be_zero(group: str, key: str) -> None:
    """Start-up and its growth, and the loss of a narrow head; every other constant divides or is a rate."""
    _check_constants({group: {key: 0.5}})
    if key in ("alpha_s", "sqrt_s", "unfused_head_dim_half"):
        _check_constants({group: {key: 0.0}})
        return
    with pytest.raises(InputError):
        _check_constants({group: {key: 0.0}})


@pytest.mark.parametrize(("named", "known", "end"), [
    (None, BERT_HEADS, "ForMaskedLM"), ([], BERT_HEADS, "ForMaskedLM"), (["BertForPreTraining"], BERT_HEADS, "ForPreTraining"),
    (["BertLMHeadModel"], BERT_HEADS, "LMHeadModel"), (["T5ForConditionalGeneration"], (T5_HEAD,), T5_HEAD),
])  # fmt: skip
def test_the_head_is_that_of_the_named_class(named: list[str] | None, known: tuple[str, ...], end: str) -> None:
    assert _architecture(ConfigReader({} if named is None else {"architectures": named}, "x"), known) == end


def test_a_class_that_is_not_counted_is_refused() -> None:
    with pytest.raises(InputError, match="T5EncoderModel"):
        _architecture(ConfigReader({"architectures": ["T5EncoderModel"]}, "x"), (T5_HEAD,))


@pytest.mark.parametrize(("heads", "rotary", "share"), [(16, None, 64 / 256), (16, 32, 32 / 256), (64, None, 1), (128, 64, 1)])
def test_gptj_rotates_at_most_a_whole_head(heads: int, rotary: int | None, share: float) -> None:
    """Heads of 4096 / heads channels; 64 rotate where the file does not say how many (GPTJConfig)."""
    config: dict[str, Any] = {"n_embd": 4096, "n_head": heads, "n_layer": 2, "vocab_size": 1000}
    fields = FAMILIES["gptj"](ConfigReader(config if rotary is None else config | {"rotary_dim": rotary}, "x"))
    assert fields["rotary_percent"] == share and fields["ffn_hidden_size"] == 4 * 4096


@pytest.mark.parametrize("size", [round(1e9 * 1.13**n) for n in range(0, 60, 3)])
def test_a_model_of_a_size_is_within_three_percent_of_it(size: int) -> None:
    assert total_parameters(gpt3_style(size)) == pytest.approx(size, rel=0.03)


@tabled
def test_wrappers_in_front_of_a_module_are_taken_off(name: str, bare: str) -> None:
    assert _bare(name) == bare


@pytest.mark.parametrize(("change", "legal"), [
    ({"num_moe_experts": 1, "moe_router_topk": 1}, True), ({"num_moe_experts": 0}, False), ({"moe_router_topk": 17}, False),
    ({"moe_router_topk": 16}, True), ({"moe_ffn_hidden_size": 0}, False), ({"moe_ffn_hidden_size": 1}, True),
    ({"moe_layer_freq": 0}, False), ({"moe_layer_freq": 1}, True), ({"moe_layer_freq": (0, 1, 1)}, False),
    ({"moe_layer_freq": (0, 1, 1, 0)}, True), ({"rotary_percent": 1}, True), ({"rotary_percent": 1.1}, False),
    ({"rotary_percent": 0}, False), ({"norm_epsilon": 1.0}, False), ({"norm_epsilon": 0.5}, True),
    ({"num_layers": 10_001}, False), ({"num_query_groups": 7}, False),
    ({"hidden_size": 1}, True), ({"hidden_size": 0}, False), ({"window_size": 1}, True),
    ({"window_attn_skip_freq": 1}, True), ({"window_attn_skip_freq": 0}, False), ({"window_attn_skip_freq": True}, False),
    ({"window_attn_skip_freq": MAX_DIMENSION - 1}, True), ({"window_attn_skip_freq": MAX_DIMENSION}, False),
    ({"window_attn_skip_freq": (0, 1, 1, 0)}, True), ({"window_attn_skip_freq": (0, 1, 1)}, False),
    ({"window_attn_skip_freq": (0, 1, 1, 2)}, False),
])  # fmt: skip
def test_limits_of_a_models_numbers(change, legal):
    spec = {**MODELS["moe"], **change}
    if legal:
        ModelSpec(**spec)
    else:
        with pytest.raises(InputError):
            ModelSpec(**spec)


@pytest.mark.parametrize(("change", "legal"), [
    ({"prompt": 1, "new": 2}, True), ({"prompt": 0}, False), ({"new": 1}, False), ({"prompt": MAX_TOKENS}, True),
    ({"new": MAX_TOKENS}, True), ({"new": MAX_TOKENS + 1}, False), ({"prompt": MAX_TOKENS + 1}, False), ({"tokens": 1}, True),
    ({"tokens": 0}, False), ({"tokens": MAX_TOKENS}, True), ({"tokens": MAX_TOKENS + 1}, False), ({"engine": "none"}, False),
])  # fmt: skip
def test_limits_of_a_generation(change, legal):
    given = {"prompt": 8, "new": 8} | change
    if legal:
        Generation(**given)
    else:
        with pytest.raises(InputError):
            Generation(**given)


@pytest.mark.parametrize("key", ["kv_lora_rank", "qk_head_dim", "v_head_dim"])
def test_latent_attention_needs_all_of_its_widths(key):
    with pytest.raises(InputError, match="needs kv_lora_rank, qk_head_dim and v_head_dim"):
        ModelSpec(**{**MODELS["mla"], key: 0})


@tabled
def test_limits_of_numerics(change, legal):
    if legal:
        Numerics(**change)
    else:
        with pytest.raises(InputError):
            Numerics(**change)
