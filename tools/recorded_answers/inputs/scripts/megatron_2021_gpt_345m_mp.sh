#!/bin/bash
# Facts of NVIDIA/Megatron-LM examples/pretrain_gpt_distributed_with_mp.sh (2021, fda81a21), re-typed; data, logging and schedule left out.
GPUS_PER_NODE=8
NNODES=1
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
DISTRIBUTED="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank 0"
python -m torch.distributed.launch $DISTRIBUTED \
    pretrain_gpt.py \
    --tensor-model-parallel-size 2 \
    --pipeline-model-parallel-size 2 \
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \
    --micro-batch-size 4 --global-batch-size 16 \
    --seq-length 1024 --max-position-embeddings 1024 \
    --data-path $DATA_PATH --vocab-file gpt2-vocab.json \
    --checkpoint-activations \
    --fp16
