#!/bin/bash
# Facts of NVIDIA/Megatron-LM examples/mixtral/train_mixtral_8x7b_distributed.sh (2025), re-typed; data, logging and schedule left out.
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"1"}
DISTRIBUTED=(--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank ${RANK:-"0"})
MODEL=(
    --use-mcore-models
    --disable-bias-linear
    --seq-length 4096
    --max-position-embeddings 32768
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --normalization RMSNorm
    --position-embedding-type rope
    --swiglu
    --untie-embeddings-and-output-weights
    --group-query-attention
    --num-query-groups 8
    --no-position-embedding
)
EXPERTS=(
    --num-experts 8
    --moe-router-topk 2
    --moe-grouped-gemm
    --overlap-param-gather
    --overlap-grad-reduce
)
TRAINING=(
    --tokenizer-type Llama2Tokenizer
    --micro-batch-size 1
    --global-batch-size 256
    --bf16
)
PARALLEL=(
    --tensor-model-parallel-size 1
    --pipeline-model-parallel-size 4
    --expert-model-parallel-size 8
    --use-distributed-optimizer
    --sequence-parallel
)
torchrun ${DISTRIBUTED[@]} pretrain_gpt.py "${MODEL[@]}" "${EXPERTS[@]}" "${TRAINING[@]}" "${PARALLEL[@]}"
