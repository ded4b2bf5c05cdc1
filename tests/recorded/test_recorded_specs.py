"""Catalogue, limits of fields, stages and words as the table beside this file has them (see helpers/recorded.py)."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from autoconfig.specs.errors import (
    chance_text,
    nearest,
    parse_count,
    parse_seconds,
    whole_number,
)
from autoconfig.specs.hardware.cluster import GpuSpec, cluster_of, load_gpu, match_reported_gpu
from autoconfig.specs.job import Generation, Job, pipeline_stage, ranks_of_stages, read_stages
from autoconfig.specs.layouts import (
    chunk_layers,
    layout_text,
    needs_layout,
    on_front,
    pareto_front,
    priced_together,
    spread,
    stage_layers,
    stage_table,
    staged_pattern,
)
from autoconfig.specs.measurement import step_statistics
from autoconfig.specs.models.huggingface import huggingface_config, model_from_mapping
from autoconfig.specs.models.hybrid import state_layer_bytes
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import hub_id, load_model, model_names
from autoconfig.specs.models.model_numbers import rope_scaling_of, router_of
from autoconfig.specs.models.module_names import linear_modules
from autoconfig.specs.models.parameters import (
    active_matmul_parameters,
    layer_parameters,
    model_flops_per_token,
    mtp_layer_parameters,
    norms_apart,
    total_parameters,
)
from autoconfig.specs.models.pattern import parse_pattern, published_layers, scaled_pattern
from autoconfig.specs.plan import Recompute, TrainPlan, parse_plan
from autoconfig.specs.run_settings import (
    GivenSettings,
    nearest_recipe,
    release_neighbours,
    resolve_settings,
    usual_graphs,
)
from autoconfig.specs.scenario import FORMATS, Numerics, Workload, not_buildable
from autoconfig.specs.serve_plan import EnginePlan, parse_serve_plan
from autoconfig.specs.software.engine import (
    engine_names,
    kernel_age,
    load_engine,
    loads_checkpoint,
    module_formats,
    nearest_release,
)
from autoconfig.specs.software.software import load_stack, software_names
from recorded import SCENARIOS, Table, outcome, result, scenario_of, taken
from small_models import MODELS

TABLE = Table(__file__, "specs.txt")


@pytest.mark.parametrize("name", model_names())
def test_models_of_the_catalogue(name):
    model = load_model(name)
    found: dict[str, Any] = {"hub": hub_id(name), "unbuildable": len(not_buildable(model))}
    found["totals"] = [total_parameters(model), total_parameters(model, mtp=True), active_matmul_parameters(model)]
    found["flops"] = [
        model_flops_per_token(model, 3000, kind, frozen=frozen, decoder_seq_length=500 if model.is_encoder_decoder else None)
        for kind in ("causal", "full") for frozen in (False, True)
    ]  # fmt: skip
    for kind in model.kinds:
        found[kind] = [layer_parameters(model, kind, tp, etp, ep) for tp, etp, ep in ((1, 1, 1), (4, 2, 2), (16, 1, 4))]
        found[f"norms {kind}"] = [list(map(float, norms_apart(model, kind, fused))) for fused in (True, False)]
        if kind in ("mamba", "gdn"):
            found[f"state {kind}"] = state_layer_bytes(model, kind, 2)
    if model.mtp_num_layers:
        found["mtp"] = mtp_layer_parameters(model, 2, 1, 2)
    found["stacks"] = [
        model.attention_layers,
        sum(model.moe_pattern),
        sum(map(bool, model.sliding_pattern)),
        model.expert_width,
    ]
    config = outcome(huggingface_config, model)
    found["again"] = config.get("refused") or total_parameters(model_from_mapping(config, "x", "x"))
    found["modules"] = result(lambda: len(list(linear_modules(model))))
    if name in ("llama3-8b", "mixtral-8x7b", "gpt-oss-20b", "deepseek-v2-lite"):
        found["each"] = len(list(linear_modules(model, by_expert=True)))
    found["graphs"] = usual_graphs(model)
    TABLE.check(f"model {name}", found)


def reported(gpu: GpuSpec) -> str:
    return match_reported_gpu(gpu.name, 0.97 * gpu.memory_bytes).id


def test_gpus_stacks_and_engines():
    names = sorted(
        path.stem for path in (Path(cluster_of.__code__.co_filename).parents[1] / "catalogue" / "gpus").glob("*.json")
    )
    found: dict[str, Any] = {f"reported {name}": result(reported, load_gpu(name)) for name in names}
    found |= {name: load_stack(name).usually_sequence_parallel for name in software_names()}
    found |= {name: kernel_age(load_engine(name)) for name in engine_names()}
    versions = (
        "0.9",
        "0.12",
        "0.13.0",
        "0.15",
        "0.16",
        "0.17",
        "0.18",
        "0.19",
        "0.21.1",
        "1.0",
        "1.1rc",
        "1.3",
        "2.0",
        "",
        "x",
    )
    for version in versions:
        spec = nearest_release("trtllm", version)
        found[f"trtllm {version}"] = (spec.name, spec.between) if spec else None
    found["formats"] = {
        f"{gpu}.{form}": outcome(module_formats, load_model(model), form, load_gpu(gpu))
        for gpu in ("h100", "b200", "a100-80gb", "l40s") for form in ("bf16", "fp8", "nvfp4", "int4", "mxfp4", "fp8_block",
        "int8")
        for model in ("gpt-oss-20b",)
    }  # fmt: skip
    found["bytes"] = {
        "".join(key): [one.weight_copy_bytes(c) for c in (None, 8.0, 8.9, 9.0, 10.0)] for key, one in FORMATS.items()
    }
    found["loads"] = {f"{frame}.{kind}": bool(outcome(loads_checkpoint, frame, kind, load_gpu(gpu)))
                      for frame in ("vllm", "sglang", "tensorrt-llm", "megatron") for gpu in ("h100", "b200", "a100-80gb")
                      for kind in ("awq", "gptq", "fp8", "nvfp4", "mxfp4", "bitsandbytes", "compressed-tensors",
                      "int8")}  # fmt: skip
    TABLE.check("gpus stacks engines", found)


LADDER: tuple[Any, ...] = (-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 1000, 1001, 65_536, 65_537, 10**6,
10**6 + 1, 2**24, 2**24 + 1,
          10**9, 0.5, 0.999, 1.0, 1.001, 4.0, 4.001, 1000.0, 1000.1, True, None, "", "x", (1, 0, 1, 0), (4, 3, 2,
          1))  # fmt: skip

SHORT = (-1, 0, 1, 2, 3, 5, 16, 25, 10**9, 0.5, "x", (1, 0, 1, 0))
SHORTER = (0, 1, 3, 16)


PLAN = TrainPlan(tp=2, pp=2, dp=2, mbs=1)
RECORDS = {
    **{f"model {name}": ModelSpec(**sizes) for name, sizes in MODELS.items()},
    "model windows": ModelSpec(**MODELS["gpt"], window_size=16),
    "model sparse": load_model("deepseek-v3.2"), "model mtp": ModelSpec(**MODELS["moe"], mtp_num_layers=1),
    "numerics": Numerics(precision="fp8", fp8_param_gather=True), "adapters": Numerics(peft="lora"),
    "workload": Workload(seq_length=1000, global_batch_size=8, packed_length=500),
    "plan": PLAN, "engine plan": EnginePlan(tp=2, adp=2, ep=4), "generation": Generation(prompt=8, new=8),
    "job": Job(model=ModelSpec(**MODELS["gpt"]), plan=PLAN, workload=Workload(seq_length=64, global_batch_size=8)),
    "cluster": cluster_of(load_gpu("h100"), 16),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_what_fields_may_be(name):
    record = RECORDS[name]
    ladder = LADDER if not isinstance(record, ModelSpec) else SHORT if name in ("model gpt", "model moe") else SHORTER
    names = [field.name for field in fields(record) if field.init and field.name not in ("sources", "name")]
    TABLE.check(
        f"fields of {name}", {one: taken(lambda value, one=one: replace(record, **{one: value}), ladder) for one in names}
    )


@pytest.mark.parametrize("name", SCENARIOS)
def test_stages_and_switches(name):
    scenario, plans, _ = scenario_of(name)
    model, layouts = scenario.model, scenario.layouts(plans)
    every, few = stage_table(model, layouts, every=True), stage_table(model, layouts)
    found: dict[str, Any] = {
        "switches": scenario.settings(),
        "stages": [int(np.asarray(one).sum()) for one in (every.layers_of(k) for k in model.kinds)],
    }
    found["few"] = [list(map(int, few.layers_of(kind)[0].ravel())) for kind in model.kinds]
    found["together"] = [len(block) for block in priced_together(model, layouts, 2)]
    found["dense"] = {field.name: int(np.nan_to_num(np.asarray(getattr(every, field.name), float)).sum())
                      for field in fields(every) if isinstance(getattr(every, field.name), np.ndarray)}  # fmt: skip
    for row, plan in enumerate(plans):
        found[f"{row}"] = {"layers": list(stage_layers(model, plan)), "chunks": outcome(lambda p: [sum(c)
        for c in chunk_layers(model, p)], plan),
                           "needs": needs_layout(model, plan), "switches": scenario.settings(plan) if row == 0 else None,
                           "text": outcome(layout_text, model, plan), "pattern": staged_pattern(model, plan)
                           if model.is_hybrid else ""}  # fmt: skip
    TABLE.check(name, found)


def test_recipes_and_releases():
    found: dict[str, Any] = {release: release_neighbours(release) for release in software_names()}
    found |= {
        f"nemo-{text}": release_neighbours(f"nemo-{text}")
        for text in ("25.04", "25.07", "25.10", "26.01", "26.03", "26.05", "26.09", "25.07.01")
    }
    for model in (
        "deepseek-v3",
        "qwen3-30b-a3b",
        "qwen3-235b-a22b",
        "gpt-oss-120b",
        "kimi-k2",
        "llama3-70b",
        "nemotron-3-nano",
        "mixtral-8x7b",
    ):
        for gpu in ("h100", "b200", "gb200", "gb300", "mi300x", "h200"):
            cluster, spec = cluster_of(load_gpu(gpu), 64), load_model(model)
            for stack in ("nemo-25.09", "nemo-26.02", "nemo-26.06", "megatron", "megatron-moe-modelzoo"):
                settings = [resolve_settings(GivenSettings(), spec, cluster, load_stack(stack), precision=precision,
                dropless=dropless, plan=plan)
                            for precision, dropless, plan in (("bf16", True, None), ("mxfp8", True, PLAN), ("blockwise",
                            False, None))]  # fmt: skip
                found[f"{model}.{gpu}.{stack}"] = "/".join(
                    f"{one.dispatcher}:{'+'.join(sorted(one.cuda_graphs))}:{one.ep_overlap:d}{one.fused_experts:d}"
                    f"{one.fp8_attention:d}{one.fp8_output:d}"
                    for one in settings)  # fmt: skip
            for gpus in (None, 8, 64, 300):
                recipe = nearest_recipe(model, gpu, "mxfp8", "nemo-26.04", (64, 2, 4, 1, 2, 8, 1) if gpus == 8 else None, gpus)
                found[f"{model}.{gpu}.{gpus}"] = recipe and list(recipe.plan)
    TABLE.check("recipes", found)


def test_words_and_numbers():
    counts = (
        "1",
        "1k",
        "4K",
        "1.5t",
        "2e9",
        "1_000",
        "1,000",
        "1,00",
        "-1",
        "0",
        "x",
        "1e400",
        "7b",
        "3.5m",
        "nan",
        "12.5",
        "1e3k",
        "1,000,000",
        "1,0000",
    )
    found: dict[str, Any] = {f"count {text}".replace("=", ""): result(parse_count, text) for text in counts}
    found |= {f"whole {text}": result(whole_number, text, "gpus") for text in (*counts, 5, 5.0, 5.5, True, None, 2**40, -3)}
    found |= {
        f"seconds {text}": result(parse_seconds, text, 10.0)
        for text in ("1", "5s", "20ms", "3us", "1m", "-1s", "99", "100", "0.01", 7.0, 200.0)
    }
    found["chance"] = [chance_text(n / 997.0) for n in range(0, 998, 83)] + [
        chance_text(n) for n in (0.98999, 0.99, 0.999, 0.9995)
    ]
    found["nearest"] = {
        word: nearest(word, model_names()) for word in ("lama3-8b", "gpt", "mixtrl", "qwen", "xxxxx", "deepseekv3")
    }
    found["statistics"] = [step_statistics(tuple(float(n) for n in range(1, count))) for count in (2, 3, 7, 40)]
    found["fronts"] = [list(map(int, pareto_front([3, 1, 2, 2, 5], [1, 5, 3, 3, 0], slack))) for slack in (0.0, 0.5, 1.0)]
    found["front"] = on_front([3, 1, 2, 2, 5], [1, 5, 3, 4, 0])
    found["spread"] = [spread(range(count), most) for count in (1, 5, 10) for most in (1, 2, 3, 7)]
    plan = TrainPlan(tp=2, pp=4, dp=3, mbs=1)
    found["ranks"] = [pipeline_stage(plan, rank) for rank in range(24)]
    found |= {f"stages {text}": outcome(read_stages, text, plan) for text in (None, "all", "0,3", "0,4", "x", "1,1", "-1")}
    found["places"] = [list(ranks_of_stages(plan, (0, 2), both_ends=both)) for both in (True, False)]
    for text in ("M*M*", "M-M-*", "M*GE", "M*ME/*E/*E", "MM|*-", "M*x", "", "MEMEM*EMEMEM*", "[M*]", "M*/M-"):
        found[f"pattern {text}"] = outcome(lambda text: "".join(parse_pattern(text).layers), text)
        found[f"published {text}"] = result(published_layers, text)
        found |= {f"scaled {text} {n}": result(scaled_pattern, text, n) for n in (1, 2, 3, 6, 8, 20)}
    for text in ("tp=2,pp=4", "tp=2,pp=4,dp=3,mbs=1,sp=0", "fsdp=3", "fsdp=1", "offload=1.1", "offload=0.5", "tp=0",
    "tp=1000000", "tp=1000001", "sp=2",
                 "recompute=full:block", "recompute=full:block:0", "recompute=selective", "recompute=full:uniform:1000000",
                 "recompute=selective:x",
                 "tp=1e3", "tp=", "tp=1 pp=2", "tp=1,tp=2", "x=1", "", "dist_opt=0,fsdp=2", "first=3,last=4,pp=2",
                 "vpp=3,pp=2,cp=2,ep=2,etp=2"):  # fmt: skip
        found[f"plan {text}".replace("=", ":")] = outcome(parse_plan, text, 48, sp=True)
        found[f"serve {text}".replace("=", ":")] = outcome(parse_serve_plan, text.replace("dp", "adp"))
    for kind in ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192},
                 {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}, {"type": "linear",
                 "factor": 2.0}, {}, None, 3):  # fmt: skip
        found[f"rope {len(str(kind))}"] = result(rope_scaling_of, kind)
        found[f"router {len(str(kind))}"] = result(router_of, kind)
    found["again"] = [Recompute.parse(text).num_layers for text in ("full", "full:block:7", "none")]
    TABLE.check("words", found)
