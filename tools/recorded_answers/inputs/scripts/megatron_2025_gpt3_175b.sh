#!/bin/bash
# Facts of NVIDIA/Megatron-LM examples/gpt3/train_gpt3_175b_distributed.sh (2025), re-typed; data, logging and schedule left out.
GPUS_PER_NODE=8
NUM_NODES=1
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
SAVE_TO=$1 # <path>
LAUNCH=(--nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES --master_port 6000)
MODEL=(--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048 --attention-backend auto)
TRAINING=(
    --micro-batch-size 1
    --global-batch-size 1536
    --train-iters 500000
    --fp16 # half precision
)
PARALLEL=(
	--tensor-model-parallel-size 8
	--pipeline-model-parallel-size 16
)
torchrun ${LAUNCH[@]} pretrain_gpt.py ${MODEL[@]} ${TRAINING[@]} ${PARALLEL[@]} --save $SAVE_TO
