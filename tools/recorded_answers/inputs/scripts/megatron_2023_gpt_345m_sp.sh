#!/bin/bash
# Facts of NVIDIA/Megatron-LM examples/pretrain_gpt_distributed_with_mp.sh (2023, e4adfbc4), re-typed; data, logging and schedule left out.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=1
LAUNCH="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES"
MODEL="
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 2
    --sequence-parallel
    --num-layers 24
    --hidden-size 1024
    --num-attention-heads 16
    --seq-length 1024
    --max-position-embeddings 1024
    --micro-batch-size 4
    --global-batch-size 16
    --fp16
"
torchrun $LAUNCH pretrain_gpt.py $MODEL --data-path $DATA --save $CHECKPOINTS
