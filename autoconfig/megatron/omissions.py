"""What a launch script leaves out that its job will miss, beside overlaps (check.py): named by `check`, each with its cost."""

from __future__ import annotations

from autoconfig.megatron.check_input import CheckInput
from autoconfig.specs.errors import GIB

MASK, FUSION = "--no-create-attention-mask-in-dataloader", "--moe-permute-fusion"
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
MASK_BYTES, LARGE_MASK = 4, 1.0
"""Bytes of an element while GPTDataset makes it (torch.ones in megatron/core/datasets/gpt_dataset.py), and GiB of a sample from
which on it is named."""
APEX = (
    "Apex: without its norms local layers refuse sequence parallelism (assertion of megatron-core 0.19.2, "
    "transformer/torch_norm.py); the answer takes it to be installed"
)
SINCE = {FUSION: 2025, MASK: 2024}
"""Years of the software that first knows the arguments (data/megatron_arguments.csv)."""


def omissions(source: CheckInput) -> tuple[str, ...]:
    """Sentences; none for files of other launchers, for encoders and for software of other years. What the file mentions at
    all, be it under a condition or with underscores (other trainers' files), counts as given."""
    script, scenario = source.script, source.question.scenario
    stack = scenario.software
    if script is None or scenario.model.encoder_num_layers:
        return ()
    found = [APEX] if source.plan.sp and not stack.memory.norms_fused and stack.sharding == "megatron" else []
    if stack.memory.attention_kernel != "flash":
        return tuple(found)
    said = source.text.replace("_", "-")
    gib = MASK_BYTES * scenario.workload.seq_length**2 / GIB
    if MASK.removeprefix("--") not in said and gib >= LARGE_MASK and stack.year >= SINCE[MASK]:
        found.append(f"{MASK}: without it the data loader builds a mask of {gib:,.3g} GiB a sample, which no kernel reads")
    permutes = scenario.model.is_moe and scenario.settings().dispatcher != "allgather"
    if permutes and FUSION.removeprefix("--") not in said and stack.year >= SINCE[FUSION]:
        found.append(f"{FUSION}: the prediction takes tokens to be permuted by fused kernels (Transformer Engine 2.1 or later)")
    if source.kind == "script" and ALLOCATOR not in source.text and not scenario.settings().cuda_graphs:
        found.append(f"{ALLOCATOR}=expandable_segments:True in the environment: less memory is lost to fragments")
    return tuple(found)
