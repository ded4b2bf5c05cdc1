"""Public reports of QLoRA, each asked as its source states it, and how many peaks are within a tenth."""

from dataclasses import dataclass, field

import pytest
from autoconfig.memory_model.predict import estimate_memory
from autoconfig.specs.errors import GIB
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import NONE, Recompute, parse_plan
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import StackOptions, bucket_bytes, load_stack, with_options

ALL = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
FULL = Recompute("full", (), "uniform", 1)
QWEN = (256, 512, 1024, 2048, 4096, 8192)
CONTEXT = 0.5 * GIB


@dataclass(frozen=True, kw_only=True)
class Report:
    """A peak and what was run. `measures`: bytes of tensors, what the allocator holds, or what the device shows."""

    model: str
    measured: float
    measures: str
    tokens: int
    micro_batch: int = 1
    rank: int = 8
    targets: tuple[str, ...] = ALL
    recompute: Recompute = FULL
    software: str = "torch-eager"
    options: StackOptions = field(default_factory=StackOptions)
    plan: str = ""
    gpus: int = 1
    precision: str = "bf16"
    frozen: str = "nf4"

    def peak(self) -> float:
        """Ours, of what the report measures."""
        model = load_model("qwen1.5-7b").replace(**SMALL) if self.model == "qwen-1.8b" else load_model(self.model)
        scenario = Scenario(
            model=model.replace(make_vocab_size_divisible_by=1),
            cluster=cluster_of(load_gpu("a100-80gb" if self.gpus == 1 else "rtx-4090-24gb"), self.gpus),
            numerics=Numerics(
                precision=self.precision,
                peft="lora",
                frozen_dtype=self.frozen,
                lora_rank=self.rank,
                lora_target_modules=self.targets,
                hidden_dropout=0.0,
                attention_dropout=0.0,
            ),
            software=with_options(load_stack(self.software), self.options),
            workload=Workload(seq_length=self.tokens, global_batch_size=self.gpus * self.micro_batch),
        )
        layouts = scenario.layouts([parse_plan(f"mbs={self.micro_batch}{self.plan}", self.gpus, dist_opt=False)])
        held = float(estimate_memory(scenario, layouts, [self.recompute]).peak_bytes[0, 0])
        return {"allocated": held, "reserved": 1.03 * held, "device": 1.03 * held + CONTEXT}[self.measures]


def qwen(model: str, *measured: float) -> list[Report]:
    """QwenLM/Qwen, README, Profiling of Memory and Speed (GB, one A100 of 80 GB, micro-batch 1), and the script that it names,
    finetune_qlora_single_gpu.sh: fp16, rank 64 (finetune.py), checkpointing, DeepSpeed's ZeRO-2 with buckets of 2e8 and
    overlap_comm (ds_config_zero2.json). GPTQ's 4 bits with groups of 128 have 0.5195 bytes a weight, NF4 here 0.516."""
    zero = StackOptions(bucket_bytes=bucket_bytes(2e8, 2e8, overlaps=True))
    return [
        Report(
            model=model,
            measured=gb * 1e9,
            measures="device",
            tokens=tokens,
            rank=64,
            software="deepspeed",
            options=zero,
            plan=",fsdp=2",
            precision="fp16",
        )
        for tokens, gb in zip(QWEN, measured, strict=True)
    ]


def litgpt(model: str, single: float, double: float) -> list[Report]:
    """LitGPT, tutorials/resource-tables.md (20 October 2023): reserved GB of one A100, adapters of rank 8 on q, k, v, 1,304
    tokens, no checkpointing."""
    asked = {"model": model, "measures": "reserved", "tokens": 1304, "targets": ("linear_qkv",), "recompute": NONE}
    return [
        Report(**asked, software="litgpt", measured=gb * 1e9, frozen=frozen)
        for gb, frozen in ((single, "nf4_single"), (double, "nf4"))
    ]


def fsdp_qlora(measured: float, tokens: int, micro_batch: int, plan: str) -> Report:
    """AnswerDotAI/fsdp_qlora, benchmarks_03_2024.md: reserved GiB of two GPUs each, Llama-2 7B, checkpointing."""
    return Report(
        model="llama2-7b",
        measured=measured * GIB,
        measures="reserved",
        tokens=tokens,
        micro_batch=micro_batch,
        rank=64,
        gpus=2,
        plan=plan,
    )


SMALL = {"num_layers": 24, "hidden_size": 2048, "ffn_hidden_size": 5504, "num_attention_heads": 16, "num_query_groups": 16}
"""Qwen-1.8B, config.json: else as the 7B."""
REPORTS = {
    "Qwen-1.8B": qwen("qwen-1.8b", 5.8, 6.0, 6.6, 7.8, 10.2, 15.8),
    "Qwen-7B": qwen("qwen1.5-7b", 11.5, 11.5, 12.3, 13.9, 16.9, 23.5),
    "Qwen-14B": qwen("qwen1.5-14b", 18.7, 18.4, 18.9, 19.9, 23.0, 27.9),
    "Qwen-72B": qwen("qwen1.5-72b", 61.4, 61.4, 62.9, 64.1, 68.0, 75.6),
    "LitGPT": [*litgpt("llama2-7b", 14.14, 13.84), *litgpt("llama2-13b", 23.14, 22.55)],
    "fsdp_qlora": [
        fsdp_qlora(4.98, 512, 1, ",fsdp=3"),
        fsdp_qlora(5.21, 2048, 1, ",fsdp=3"),
        fsdp_qlora(11.22, 2048, 4, ",fsdp=3"),
        fsdp_qlora(20.97, 2048, 10, ",fsdp=3"),
        fsdp_qlora(20.94, 2048, 8, ""),
    ],
    "torchtune": [
        Report(
            model="llama3.1-8b",
            measured=7.4 * GIB,
            measures="allocated",
            tokens=2048,
            micro_batch=2,
            options=StackOptions(loss_fusion="chunked", compiled=True),
        )
    ],
}
"""Every report that was found with its settings but one of the weights alone, which test_frozen_weights.py holds."""
WITHIN = {"Qwen-1.8B": 3, "Qwen-7B": 6, "Qwen-14B": 3, "Qwen-72B": 6, "LitGPT": 0, "fsdp_qlora": 0, "torchtune": 0}
"""Peaks within a tenth: docs/memory_model.md says why the others are not."""


def errors(name: str) -> list[float]:
    return [report.peak() / report.measured - 1 for report in REPORTS[name]]


@pytest.mark.parametrize("name", REPORTS)
def test_peaks_of_public_reports(name: str) -> None:
    found = errors(name)
    print(name, [f"{error:+.1%}" for error in found])
    assert sum(abs(error) <= 0.1 for error in found) >= WITHIN[name]
    assert all(abs(error) <= 0.25 for error in found)


def test_what_deepspeed_holds_is_nearer_than_plain_torch() -> None:
    """The settings of the source, and not its figures, decide: asked without DeepSpeed two peaks fewer are within a tenth."""
    asked = [report for name in ("Qwen-7B", "Qwen-14B") for report in REPORTS[name]]
    plain = [Report(**{**vars(one), "software": "torch-eager", "options": StackOptions(), "plan": ""}) for one in asked]
    near = [sum(abs(one.peak() / one.measured - 1) <= 0.1 for one in some) for some in (asked, plain)]
    assert near[0] > near[1]
