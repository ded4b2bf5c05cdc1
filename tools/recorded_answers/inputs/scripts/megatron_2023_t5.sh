#!/bin/bash
# Facts of NVIDIA/Megatron-LM examples/pretrain_t5_distributed.sh (2023, e4adfbc4), re-typed; data, logging and schedule left out.
torchrun --nproc_per_node 8 pretrain_t5.py --num-layers 12 --hidden-size 768 --num-attention-heads 12 \
    --encoder-seq-length 512 --decoder-seq-length 128 --micro-batch-size 16 --global-batch-size 128 --fp16
