"""NeMo 1: `trainer` and `model` of a Megatron GPT training (data/maps/nemo.toml), as Megatron-LM's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autoconfig.formats.argument_names import argument_name
from autoconfig.formats.readers.megatron_words import field_words, require_values, with_unread, words_of
from autoconfig.formats.record import Document, from_words, other_optimizer
from autoconfig.formats.words import Settings, flat
from autoconfig.maps.read import read_fields
from autoconfig.maps.table import load_map
from autoconfig.maps.tree import Section
from autoconfig.megatron.argument_list import known_arguments
from autoconfig.megatron.check import plan_flags
from autoconfig.megatron.check_input import CheckInput
from autoconfig.specs.plan import NONE, Recompute, TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.software import DEFAULT_STACK
from autoconfig.training.space import Constraints

NEMO = load_map("nemo")


def read(document: Document) -> CheckInput:
    """The record. GPUs: trainer.devices x trainer.num_nodes. Raises InputError, UnsupportedError."""
    section = document.section()
    section.rename({f"model.{name}": name for name in document.request.settings if not name.startswith(("model.", "trainer."))})
    reading = read_fields(NEMO, section)
    if _is_selective_everywhere(reading.fields):
        reading.fields |= {"--recompute-method": None, "--recompute-num-layers": None}
    if other := other_optimizer(section, "model.optim.name"):
        reading.fields["--optimizer"] = other
    names = _names(section)
    require_values(section, names)
    words = [*words_of(section, names), *field_words(reading.fields)]
    devices, nodes = section.whole("trainer.devices"), section.count("trainer.num_nodes")
    gpus = devices * nodes if devices and nodes and devices > 0 else None
    reason = "trainer.devices x trainer.num_nodes is not in the file"
    node = devices if gpus else None
    answer = from_words(document, words, gpus, gpus_reason=reason, node=node, spell=settings, software=DEFAULT_STACK)
    answer = with_unread(answer, section, NEMO, (path for path in section.unused() if section.flat[path] is not None))
    remarks = (*answer.not_modelled, *reading.not_modelled)
    return replace(answer, not_modelled=remarks, wish=_wish(answer.question.scenario, answer.plan))


def _names(section: Section) -> dict[str, str]:
    """Path -> the argument of Megatron-LM that it is."""
    experts = (path for path in section.flat if path.startswith("model.moe_"))
    names = {
        path: argument_name(path.rpartition(".")[2]) for path in (*(f"model.{key}" for key in NEMO.more["same"]), *experts)
    }
    names = {path: name for path, name in names.items() if name in known_arguments()} | NEMO.more["names"]
    if section.word("model.tokenizer.library") == "megatron":  # else its type is the name of a Hugging Face tokenizer
        names["model.tokenizer.type"] = "--tokenizer-type"
    return names


def _is_selective_everywhere(fields: Mapping[str, Any]) -> bool:
    """Whether recomputation is selective and `uniform`: NeMo 1's own layers then all have it, whatever the number beside it
    (ParallelTransformer.__init__ of nemo/collections/nlp/modules/common/megatron/transformer.py), and Megatron-Core's
    TransformerConfig takes the method, too."""
    return fields.get("--recompute-granularity") == "selective" and fields.get("--recompute-method", "uniform") == "uniform"


def settings(scenario: Scenario, plan: TrainPlan) -> Settings:
    """What a plan is in NeMo's words, by path."""
    flags, recompute = plan_flags(scenario, plan), plan.recompute
    optimizer = {
        "name": "mcore_distributed_optim" if plan.dist_opt else "fused_adam",
        "overlap_grad_sync": "--overlap-grad-reduce" in flags,
        "overlap_param_sync": "--overlap-param-gather" in flags,
    }
    model = {
        "micro_batch_size": plan.mbs,
        "tensor_model_parallel_size": plan.tp,
        "pipeline_model_parallel_size": plan.pp,
        "context_parallel_size": plan.cp,
        "expert_model_parallel_size": plan.ep,
        "virtual_pipeline_model_parallel_size": plan.vpp if plan.vpp > 1 else "null",
        "activations_checkpoint_granularity": "null" if recompute == NONE else recompute.granularity,
        "activations_checkpoint_method": recompute.method or "null",
        "activations_checkpoint_num_layers": recompute.num_layers or "null",
        "sequence_parallel": "--sequence-parallel" in flags,
        "ub_tp_comm_overlap": "--tp-comm-overlap" in flags,
        "optim": optimizer,
    }
    return flat({"model": model})


def _wish(scenario: Scenario, plan: TrainPlan) -> Constraints:
    """Plans that NeMo 1 has words for: no modules to recompute but attention's core; experts are divided as the layers are."""
    layers = range(1, scenario.model.num_layers + 1)
    whole = {Recompute("full", (), method, count) for method in ("block", "uniform") for count in layers}
    recompute = {NONE, Recompute("selective", ("core_attn",)), *whole, plan.recompute}
    fixed: dict[str, frozenset[Any]] = {"recompute": frozenset(recompute)}
    fixed |= {"fsdp": frozenset({plan.fsdp}), "offload": frozenset({plan.offload})}
    if scenario.model.is_moe:
        fixed |= {"tp": frozenset({plan.tp}), "etp": frozenset({plan.etp})}
    return Constraints(fixed=fixed)
