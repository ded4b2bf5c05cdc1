#!/bin/bash
# Facts of NVIDIA/Megatron-LM examples/gptoss/02_train.sh (2025), re-typed; data, logging and schedule left out.
while [[ $# -gt 0 ]]; do
    case $1 in
        --layers) LAYERS="$2"; shift 2 ;;
        *) shift ;;
    esac
done
GPUS=8
MODEL=(
    --transformer-impl transformer_engine --disable-bias-linear --untie-embeddings-and-output-weights
    --normalization RMSNorm --num-layers 12 --hidden-size 512 --ffn-hidden-size 2048 --num-attention-heads 64
    --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192
    --position-embedding-type rope --quick-geglu --softmax-type learnable
    --window-attn-skip-freq 2 --window-size 127,0 --enable-gpt-oss
)
EXPERTS=(--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 2048)
RUN=(
    --micro-batch-size 1 --global-batch-size 128 --bf16 --recompute-activations --vocab-size 128256
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 --expert-model-parallel-size 1
    --context-parallel-size 1 --use-distributed-optimizer
)
torchrun --nproc_per_node $GPUS --nnodes 1 pretrain_gpt.py ${MODEL[@]} ${EXPERTS[@]} ${RUN[@]}
