"""nanotron's YAML (data/maps/nanotron.toml): the model, a Llama or Qwen2 of Hugging Face, and stages of unlike cost."""

from __future__ import annotations

from typing import Any

from autoconfig.formats.mapped import Hooks, MappedFormat
from autoconfig.formats.record import Document, TrainerRun, model_named
from autoconfig.maps.read import Reading
from autoconfig.maps.table import matches
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.models.huggingface import huggingface_config, model_from_mapping
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.remarks import Remark
from autoconfig.specs.scenario import Scenario
from autoconfig.training.plan_rules import PipelineSplit


def _model(document: Document, assumed: list[Remark]) -> ModelSpec:
    """Return the model of the file's sizes. Raises InputError, UnsupportedError."""
    if document.request.model is not None:
        return model_named(document, None, assumed)
    section = document.values.get("model") or {}
    values = section.get("model_config")
    if not isinstance(values, dict):
        raise InputError("model.model_config is not in the file: add it, or say --model NAME")
    if values.get("moe_num_experts") not in (None, 1) or isinstance(values.get("moe_config"), dict):
        raise UnsupportedError("model.model_config: mixtures of experts of nanotron are not read")
    _require_known(values)
    family = "qwen2" if values.get("is_qwen2_config") else "llama"
    shared = {"attention_bias": False} if family == "llama" else {}
    model = model_from_mapping({**shared, **values, "model_type": family}, "model.model_config", "model of the file")
    divisor = section.get("make_vocab_size_divisible_by")
    return model.replace(make_vocab_size_divisible_by=divisor) if type(divisor) is int and divisor > 0 else model


def _require_known(values: dict[str, Any]) -> None:
    """Raises UnsupportedError for a model of another class than nanotron's Llama and Qwen2."""
    named = [str(key) for key, value in values.items() if value]
    classes = [key for key in named if matches(("is_*_config",), key) and not matches(("is_llama*", "is_qwen2*"), key)]
    if odd := [key for key in named if key in NANOTRON.table.more["other_layers"] or key in classes]:
        raise UnsupportedError(
            f"model.model_config.{odd[0]}: this is no Llama or Qwen2 of nanotron, and no other of its models is read: say "
            "--model NAME or --model config.json"
        )


def _complete(reading: Reading, document: Document) -> None:
    """Add the GPUs."""
    fields, section = reading.fields, reading.section
    fields["gpus"] = fields["dp"] * fields["tp"] * fields["pp"] * fields["cp"] if "dp" in fields else None
    section.used |= {path for path in section.flat if path.startswith("model.m")}  # read by Hugging Face's families


def _finish(reading: Reading, run: TrainerRun) -> None:
    """Add the layers of each stage where pp does not divide them; where it does, the search counts them.

    A stage takes blocks until its cumulative cost exceeds its share of the whole: 4 a d_head h + 3 f h of a layer, V h of the
    output layer. Source: nanotron models/base.py (build_model) and models/llama.py, qwen.py (get_block_compute_costs).
    """
    model, pp = run.model, run.pp
    if model.num_layers % pp == 0:
        return
    h = model.hidden_size
    layer = 4 * model.num_attention_heads * (h // model.num_attention_heads) * h + 3 * model.ffn_hidden_size * h
    total = model.num_layers * layer + model.vocab_size * h
    stages, stage = [0] * pp, 0
    for number in range(1, model.num_layers + 1):
        stages[stage] += 1
        stage += number * layer * pp > total * (stage + 1)
    run.split = PipelineSplit(vpp=1, layers=tuple(stages))


def _config_of(model: ModelSpec) -> dict[str, Any]:
    """Return the model's config.json; empty for one that transformers has not, which settings leave out."""
    try:
        return huggingface_config(model)
    except UnsupportedError:
        return {}


def _written(scenario: Scenario, plan: TrainPlan, fields: dict[str, Any]) -> None:
    """Add the model."""
    model = _config_of(scenario.model)
    config = {key: model[key] for key in NANOTRON.table.more["model_keys"] if key in model}
    if model:
        config[f"is_{model['model_type']}_config"] = True
    fields |= {"async": plan.sp, "divisor": scenario.model.make_vocab_size_divisible_by, "model_config": config}


def _refused(scenario: Scenario, plan: TrainPlan) -> list[str]:
    is_read = _config_of(scenario.model).get("model_type") in ("llama", "qwen2")
    odd = {
        f"recompute={plan.recompute}": plan.recompute not in NANOTRON.wish.fixed["recompute"],
        f"model {scenario.model.name}: no Llama or Qwen2": not is_read,
    }
    return [text for text, holds in odd.items() if holds]


NANOTRON = MappedFormat(
    name="nanotron",
    hooks=Hooks(
        model_of=_model,
        complete=_complete,
        finish=_finish,
        written=_written,
        refused=_refused,
        unsaid=lambda scenario, plan: ["data, checkpoints, learning rate: add nanotron's sections for them"],
    ),
)
