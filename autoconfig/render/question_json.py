"""The question as understood, which every answer about training begins with, as JSON records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autoconfig.specs.errors import GIB
from autoconfig.specs.json_record import AboveZero, Positive, record_of
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.remarks import AssumedJson, assumed_json
from autoconfig.specs.scenario import Numerics, Workload
from autoconfig.training.question import Question
from autoconfig.training.switches import RunSettingsJson, run_settings
from autoconfig.training.vary import varied_remarks


@dataclass(frozen=True, kw_only=True)
class AnswerJson:
    """An answer."""

    schema_version: Literal[2] = 2
    """Raised when a name or meaning changes."""


@dataclass(frozen=True, kw_only=True)
class ModelJson:
    """The model as understood, after every override."""

    name: str
    """Catalogue name, file stem or size; ends in * where numbers were changed."""
    num_layers: Positive
    """All layers, those of an encoder too."""
    hidden_size: Positive
    """Width of the residual stream."""
    ffn_hidden_size: Positive
    """Width of the dense MLP, channels."""
    num_attention_heads: Positive
    """Query heads."""
    num_query_groups: Positive
    """Key/value heads."""
    vocab_size: Positive
    """Vocabulary before padding, tokens."""
    num_moe_experts: Positive | None
    """Routed experts of a mixture-of-experts layer; null for dense models."""
    parameters: Positive
    """All parameters, embeddings and every expert included."""


@dataclass(frozen=True, kw_only=True)
class ClusterJson:
    """The hardware of the answer; link and network are of one GPU, one direction."""

    gpu: str
    """GPU id of `autoconfig gpus`, or of the cluster file."""
    num_gpus: Positive
    """GPUs of all nodes."""
    gpus_per_node: Positive
    link_domain_size: Positive
    """GPUs that reach each other at link_bytes_per_s."""
    link_bytes_per_s: AboveZero
    """Between GPUs of a link domain, one direction of one GPU."""
    nic_bytes_per_s: AboveZero
    """Between nodes, one direction of one GPU."""
    memory_gib: AboveZero
    """Memory of one GPU as the driver reports it."""
    hbm_bytes_per_s: AboveZero
    """Memory bandwidth of one GPU."""
    power_limit_watts: AboveZero | None
    """Of one GPU; null: its own."""


@dataclass(frozen=True, kw_only=True)
class QuestionJson(AssumedJson):
    """The question as understood."""

    model: ModelJson
    cluster: ClusterJson
    workload: Workload
    numerics: Numerics
    software: str
    """Software stack (`autoconfig software`)."""
    run_settings: RunSettingsJson
    calibration: str
    """Version of the calibration that scales the step times (`--calibration`)."""


def question_json(question: Question) -> QuestionJson:
    """The question as understood."""
    scenario = question.scenario
    model, cluster = scenario.model, scenario.cluster
    return QuestionJson(
        model=record_of(ModelJson, model, parameters=total_parameters(model)),
        cluster=record_of(ClusterJson, cluster, gpu=cluster.gpu.id, memory_gib=cluster.memory_bytes / GIB),
        workload=scenario.workload,
        numerics=scenario.numerics,
        software=scenario.software.name,
        run_settings=run_settings(scenario),
        calibration=question.scenario.calibration.version,
        **assumed_json((*varied_remarks(question), *question.assumed)),
    )
