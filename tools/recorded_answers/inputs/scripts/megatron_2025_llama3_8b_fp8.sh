#!/bin/bash
# Facts of NVIDIA/Megatron-LM examples/llama/train_llama3_8b_h100_fp8.sh (2025), re-typed; data, logging and schedule left out.
export NVTE_FWD_LAYERNORM_SM_MARGIN=16
DATA=${3:-"MOCK"}
TP_SIZE=1
CP_SIZE=1
MICRO_BATCH_SIZE=1
GLOBAL_BATCH_SIZE=128
LAYERS=32
DTYPE="fp8"
DISTRIBUTED=(--nproc_per_node 8 --nnodes 1)
MODEL=(
    --use-mcore-models
    --num-layers $LAYERS
    --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --kv-channels 128
    --seq-length 8192 --max-position-embeddings 8192
    --position-embedding-type rope --rotary-base 1000000
    --attention-dropout 0.0 --hidden-dropout 0.0
    --swiglu --normalization RMSNorm --untie-embeddings-and-output-weights --disable-bias-linear
)
TRAINING=(
    --micro-batch-size $MICRO_BATCH_SIZE --global-batch-size $GLOBAL_BATCH_SIZE
    --bf16 --grad-reduce-in-bf16 --cross-entropy-loss-fusion
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
)
TYPES=()
if [[ "$DTYPE" == "fp8" ]]; then
    TYPES+=("--fp8-format hybrid" "--fp8-amax-history-len 1024" "--fp8-param-gather")
fi
PARALLEL=(--tensor-model-parallel-size $TP_SIZE --context-parallel-size $CP_SIZE --sequence-parallel)
TOKENS=()
if [[ "$DATA" == "MOCK" ]]; then
    TOKENS+=("--mock-data" "--tokenizer-type NullTokenizer" "--vocab-size 128256")
else
    TOKENS+=("--data-path $DATA" "--vocab-size 128256")
fi
if [ ! -f pretrain_gpt.py ]; then
    echo "there is no pretrain_gpt.py here"
    exit 1
fi
torchrun ${DISTRIBUTED[@]} pretrain_gpt.py ${MODEL[@]} ${TRAINING[@]} ${TYPES[@]} ${PARALLEL[@]} ${TOKENS[@]}
