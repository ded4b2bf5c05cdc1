"""What an intake writes into a published row beside its renamed columns: each kind with its reason and a count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

KINDS: Mapping[str, str] = {
    "switches": "dispatcher, CUDA graphs, EP overlap and kernels are not printed: as the recipe of the release with this very "
    "plan sets them (Megatron-Bridge, scripts/performance/configs and perf_recipes at the release's tag: releases.csv)",
    "recompute": "what is recomputed is not printed: as the same recipe sets it",
    "offload": "offloaded activations are not printed: as the same recipe sets them",
    "layout": "stages are not printed: the pipeline layout of the same recipe",
    "fp8-recipe": "a table that prints FP8 alone: scaled by tensor in 25.09 and 25.11 (their recipes' fp8_cs), delayed before "
    "(NeMo's performance scripts; Megatron-LM's default)",
    "sequence-parallel": "not printed: NVIDIA's performance scripts set sequence_parallel where tp is above 1",
    "gradients": "not printed: Megatron-FSDP's guide reduces in bf16 (Megatron-LM, docs/user-guide/features/megatron_fsdp.md)",
    "fine-tuning": "not printed: SQuAD packed to the sample (NeMo, performance_summary.md; Megatron-Bridge, "
    "default_squad_config), 200 tokens a sequence; adapters on linear_qkv (perf recipes: peft.target_modules), of rank 32 in "
    "NeMo (NeMo-Framework-Launcher, conf/peft/llama/squad.yaml) and 16 in Megatron-Bridge (llama3_70b_peft_config)",
    "routing": "not printed: NVIDIA's scripts drop tokens to a balanced load (NeMo 25.02 to 25.09) or force the balance (the "
    "MoE model zoo; Megatron-Bridge, scripts/performance: moe_router_force_load_balancing)",
    "software": "the release names the software better than the column does: Megatron-LM's of 2021, core_v0.4.0 of 2022, the "
    "MoE model zoo's own",
    "default-plan": "a run of T5 or BERT without a plan: that of its size's default configuration "
    "(NeMo-Framework-Launcher@26e42fa91d, launcher_scripts/conf/training, which the table lists as size_default)",
    "functional-test": "Megatron-LM's functional tests (tests/functional_tests/test_cases/{t5,bert}/*/model_config.yaml): "
    "local layers but in names with te, release or 11b and of BERT; unfused attention, deterministic, memory of the last rank",
}
"""Kind -> why the source itself wants it."""


@dataclass
class Repairs:
    """The kinds that an intake leaves out, and the rows that each of the others changed."""

    without: frozenset[str] = frozenset()
    rows: Counter[str] = field(default_factory=Counter)

    def write(self, kind: str, row: dict[str, str], cells: Mapping[str, str]) -> None:
        """Write the cells of one kind of repair into a row, unless the kind is left out."""
        assert kind in KINDS, kind
        changed = {column: text for column, text in cells.items() if row.get(column, "") != text}
        if changed and kind not in self.without:
            row.update(changed)
            self.rows[kind] += 1
