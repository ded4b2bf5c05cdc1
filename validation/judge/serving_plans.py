"""`python -m validation.judge.serving_plans ENGINE DIR`: start scripts of many kinds of deployments, for the engines' parsers.

Writes DIR/NAME for each deployment of PLANS that the engine can start: the exported files, and beside them `config.json`, the
model's own configuration as published (the engines' checks read it). Those that the exporter refuses are named with its words.
Then `ENGINE_PYTHON validation/judge/engine_arguments.py DIR/*/*.sh` judges them (docs/inference.md, start scripts).
"""

from __future__ import annotations

import json
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from autoconfig.specs.errors import AutoconfigError

from autoconfig.engines.export import export
from autoconfig.serving.deployment import DeploymentReport, report
from autoconfig.serving.question import ServeQuestion, understand
from autoconfig.serving.rank import rank
from autoconfig.serving.request import ServeRequest

CONFIGS = Path(__file__).parents[2] / "tests/specs/huggingface_configs.json"
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
}
LLAMA3_70B = {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80}
BLOCK_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}


QUESTIONS = Path(__file__).with_name("questions.toml")
PLANS: dict[str, dict[str, Any]] = tomllib.loads(QUESTIONS.read_text(encoding="utf-8"))["deployment"]


def configured(name: str) -> dict[str, Any]:
    """config.json of a model of PLANS, with the number formats that its checkpoint names. Without GPT-OSS's mxfp4: SGLang knows
    that format only where it finds a CUDA GPU."""
    published = json.loads(CONFIGS.read_text(encoding="utf-8"))
    config: dict[str, Any] = dict(published["llama3-8b" if name == "llama3-70b" else name]["config"])
    config["architectures"] = [ARCHITECTURES[config["model_type"]]]
    if name == "llama3-70b":
        config.update(LLAMA3_70B)
    elif name == "deepseek-v3":
        config["quantization_config"] = BLOCK_FP8
    return config


@cache
def deployments(engine: str) -> tuple[tuple[str, ServeQuestion, DeploymentReport | None], ...]:
    """Name, question and best deployment of each case; None where the engine runs no such layout."""
    answers = list[tuple[str, ServeQuestion, DeploymentReport | None]]()
    for name, case in PLANS.items():
        fixed = {"gpu": "h100", "disaggregated": False, "chunked": True, **case, "fix": tuple(case.get("fix", ()))}
        question = understand(ServeRequest(engine=engine, isl=1000, osl=500, **fixed))
        ranking = rank(question)
        wanted = [row for row in ranking.order if (ranking.plan(int(row)).prefill is not None) == fixed["disaggregated"]]
        answers.append((name, question, report(question, ranking, int(wanted[0])) if wanted else None))
    return tuple(answers)


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
        (folder / name / "config.json").write_text(json.dumps(configured(PLANS[name]["model"])), encoding="utf-8")
        print(f"{name}: {one.plan}")


if __name__ == "__main__":
    main()
