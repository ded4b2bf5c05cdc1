"""A small stand-in for Megatron-LM's pretrain_gpt.py, which is not in the wheel: megatron-core's own parser, model builder,
mock dataset, optimizer and `megatron.training.pretrain`, on the CPU.

    MEGATRON_PATH=tools/cpu_run TRAIN_STEPS=3 bash train.sh --distributed-backend gloo ...
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
warnings.simplefilter("ignore")
os.environ["TORCHDYNAMO_DISABLE"] = "1"  # its guards ask the CUDA driver

from autoconfig.trainer.host.limits import leave_out_compiler  # noqa: E402

leave_out_compiler()
import megatron.core.datasets.utils as dataset_utils  # noqa: E402
import megatron.training.training as training  # noqa: E402
import torch  # noqa: E402
from autoconfig.trainer.host.cpu import cpu_for_cuda  # noqa: E402
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder  # noqa: E402
from megatron.core.datasets.gpt_dataset import GPTDatasetConfig, MockGPTDataset  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.training import get_args, get_tokenizer  # noqa: E402
from megatron.training.argument_utils import gpt_config_from_args, pretrain_cfg_container_from_args  # noqa: E402
from megatron.training.arguments import parse_and_validate_args  # noqa: E402


def datasets(sizes: list[int], vp_stage: int | None = None) -> Any:
    """Megatron's mock dataset, the same for every model chunk."""
    args = get_args()
    config = GPTDatasetConfig(
        random_seed=args.seed,
        sequence_length=args.seq_length,
        blend=None,
        split="1,1,1",
        tokenizer=get_tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=True,
    )
    return BlendedMegatronDatasetBuilder(MockGPTDataset, sizes, lambda: True, config).build()


datasets.is_distributed = True  # type: ignore[attr-defined]


def loss(mask: torch.Tensor, output: torch.Tensor) -> Any:
    """Mean over the tokens, as Megatron-LM's script has it."""
    total = torch.sum(output.float().view(-1) * mask.view(-1))
    count = mask.sum().to(torch.int)
    return total, count, {"lm loss": torch.stack([total.detach(), count.float()])}


def forward(batches: Any, model: Any) -> Any:
    """One micro-batch."""
    batch = next(batches)
    output = model(batch["tokens"], batch["position_ids"], batch["attention_mask"], labels=batch["labels"])
    return output, functools.partial(loss, batch["loss_mask"])


def main() -> None:
    """Parse, build, train."""
    dataset_utils.compile_helpers = lambda: None  # the wheel brings them built, and no makefile
    with cpu_for_cuda():
        args = parse_and_validate_args(args_defaults={"tokenizer_type": "GPT2BPETokenizer"})
        container = pretrain_cfg_container_from_args(args, gpt_config_from_args(args))
        training.pretrain(container, datasets, ModelType.encoder_or_decoder, forward)


if __name__ == "__main__":
    main()
