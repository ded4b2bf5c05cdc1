"""Launch scripts of a small model, and what `check` says of them."""

from autoconfig.megatron.check import check
from autoconfig.megatron.check_input import CheckRequest, read_check

MODEL = """MODEL=(
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16   # 1.3B
    --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50257 --bf16
)
"""


def script(plan, before=""):
    launch = f"torchrun --nproc_per_node 8 pretrain_gpt.py ${{MODEL[@]}} \\\n    {plan} \\\n    --lr 1e-4\n"
    return f"#!/bin/bash\n{before}{MODEL}{launch}"


LEGAL = "--tensor-model-parallel-size 8 --micro-batch-size 1 --global-batch-size 64"


def checked(text, **request):
    asked = CheckRequest(**{"gpu": "a100-80gb", **request})
    return check(read_check(text, asked)), asked
