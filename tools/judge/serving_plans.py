"""`python -m tools.judge.serving_plans ENGINE DIR`: start scripts of many kinds of deployments, for the engines' parsers.

Writes DIR/NAME for each deployment of PLANS that the engine can start: the exported files, and beside them `config.json`, the
model's own configuration as published (the engines' checks read it). Those that the exporter refuses are named with its words.
Then `ENGINE_PYTHON tools/judge/engine_arguments.py DIR/*/*.sh` judges them (docs/inference.md, start scripts).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoconfig.specs.errors import AutoconfigError

from autoconfig.engines.export import export
from autoconfig.serving.deployment import DeploymentReport, report
from autoconfig.serving.question import ServeQuestion, understand
from autoconfig.serving.rank import search
from autoconfig.serving.request import ServeRequest

CONFIGS = Path(__file__).parents[2] / "tests/specs/huggingface_configs.json"
"""config.json of published models, as on Hugging Face."""
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
}
LLAMA3_70B = {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80}
"""Beside Llama-3-8B's config.json (meta-llama/Meta-Llama-3-70B, config.json)."""
BLOCK_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
"""deepseek-ai/DeepSeek-V3, config.json, quantization_config."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A question whose best aggregated (or disaggregated) deployment is exported."""

    model: str
    gpus: int
    gpu: str = "h100"
    fix: tuple[str, ...] = ()
    disaggregated: bool = False
    whole_prompts: bool = False


PLANS: dict[str, Case] = {
    "llama3-8b-4": Case(model="llama3-8b", gpus=4),
    "llama3-8b-4-pp": Case(model="llama3-8b", gpus=4, fix=("tp=2", "pp=2", "weights=bf16", "kv=bf16")),
    "llama3-8b-whole": Case(model="llama3-8b", gpus=2, fix=("tp=2",), whole_prompts=True),
    "llama3-8b-few": Case(model="llama3-8b", gpus=4, fix=("pp=4", "tokens=512", "batch=1024")),
    "mixtral-8x7b-8": Case(model="mixtral-8x7b", gpus=8, fix=("tp=8", "ep=8")),
    "mixtral-8x7b-8-ep": Case(model="mixtral-8x7b", gpus=8, fix=("tp=8", "ep=2")),
    "mixtral-8x7b-8-pp": Case(model="mixtral-8x7b", gpus=8, fix=("tp=4", "pp=2", "ep=1")),
    "mixtral-8x7b-8-adp": Case(model="mixtral-8x7b", gpus=8, fix=("adp=8", "ep=8")),
    "llama3-70b-8-fp8": Case(model="llama3-70b", gpus=8, fix=("tp=8", "weights=fp8", "kv=fp8")),
    "llama3-70b-8-nvfp4": Case(model="llama3-70b", gpus=8, gpu="b200", fix=("tp=4", "weights=nvfp4", "kv=fp8")),
    "llama3-70b-8-int4": Case(model="llama3-70b", gpus=8, fix=("tp=2", "weights=int4", "kv=bf16")),
    "llama3-70b-8-disaggregated": Case(model="llama3-70b", gpus=8, fix=("weights=fp8",), disaggregated=True),
    "deepseek-v3-64": Case(model="deepseek-v3", gpus=64, gpu="h200", fix=("adp=64", "ep=64", "weights=fp8")),
    "deepseek-v3-64-adp8": Case(model="deepseek-v3", gpus=64, gpu="h200", fix=("adp=8", "ep=8", "weights=fp8")),
    "deepseek-v3-64-tp2": Case(model="deepseek-v3", gpus=64, gpu="h200", fix=("tp=2", "adp=4", "ep=8", "weights=fp8")),
    "deepseek-v3-64-tp16": Case(model="deepseek-v3", gpus=64, gpu="h200", fix=("tp=8", "pp=2", "ep=8", "weights=fp8")),
    "deepseek-v3-64-disaggregated": Case(
        model="deepseek-v3", gpus=64, gpu="h200", fix=("tp=1", "weights=fp8"), disaggregated=True
    ),
    "gpt-oss-20b-4": Case(model="gpt-oss-20b", gpus=4, gpu="b200", fix=("tp=2", "weights=mxfp4")),
    "gpt-oss-20b-4-ep": Case(model="gpt-oss-20b", gpus=4, gpu="h100", fix=("tp=4", "ep=4", "weights=mxfp4", "kv=fp8")),
}


def configured(name: str) -> dict[str, Any]:
    """config.json of a model of PLANS, with the number formats that its checkpoint names.

    Without GPT-OSS's mxfp4: SGLang knows that format only where it finds a CUDA GPU.
    """
    published = json.loads(CONFIGS.read_text(encoding="utf-8"))
    config: dict[str, Any] = dict(published["llama3-8b" if name == "llama3-70b" else name]["config"])
    config["architectures"] = [ARCHITECTURES[config["model_type"]]]
    if name == "llama3-70b":
        config.update(LLAMA3_70B)
    elif name == "deepseek-v3":
        config["quantization_config"] = BLOCK_FP8
    return config


def deployments(engine: str) -> Iterator[tuple[str, ServeQuestion, DeploymentReport | None]]:
    """Name, question and best deployment of each case; None where the engine runs no such layout."""
    for name, case in PLANS.items():
        asked = understand(
            ServeRequest(
                model=case.model, gpus=case.gpus, gpu=case.gpu, engine=engine, fix=case.fix, isl=1000, osl=500,
                disaggregated=case.disaggregated, chunked=not case.whole_prompts,
            )
        )  # fmt: skip
        found = search(asked)
        wanted = [row for row in found.order if (found.plan(int(row)).prefill is not None) == case.disaggregated]
        yield name, asked, report(asked, found, int(wanted[0])) if wanted else None


def main() -> None:
    """Write them all."""
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    engine, folder = sys.argv[1], Path(sys.argv[2])
    for name, question, one in deployments(engine):
        if one is None:
            print(f"{name}: the engine runs no such layout")
            continue
        try:
            export(question, one, folder / name, force=True)
        except AutoconfigError as error:
            print(f"{name}: {one.plan}: refused: {error}")
            continue
        (folder / name / "config.json").write_text(json.dumps(configured(PLANS[name].model)), encoding="utf-8")
        print(f"{name}: {one.plan}")


if __name__ == "__main__":
    main()
