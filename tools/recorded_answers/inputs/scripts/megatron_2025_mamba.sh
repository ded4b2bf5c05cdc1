#!/bin/bash
# Facts of NVIDIA/Megatron-LM examples/mamba/train.sh (2025), re-typed; data, logging and schedule left out.
options="--num-layers 48 --hidden-size 1024 --num-attention-heads 16 --hybrid-attention-ratio 0.08 --seq-length 4096 \
    --micro-batch-size 4 --global-batch-size 32 --bf16"
torchrun --nproc_per_node 8 ../../pretrain_mamba.py ${options}
