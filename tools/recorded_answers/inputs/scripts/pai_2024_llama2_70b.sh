#!/bin/bash
# Facts of alibaba/Pai-Megatron-Patch examples/llama2/run_mcore_llama2_70b.sh (a098ca5), re-typed; data, logging and schedule left out.
ENV=$1
if [ $ENV = dsw ]; then
    NNODES=1
    GPUS_PER_NODE=8
elif [ $ENV = dlc ]; then
    NNODES=${WORLD_SIZE}
    GPUS_PER_NODE=${KUBERNETES_CONTAINER_RESOURCE_GPU}
fi
if [ -z ${MP_VP} ]; then
    vp_options=""
else
    vp_options=" --num-layers-per-virtual-pipeline-stage ${MP_VP}"
fi
MODEL_SIZE=$2
BATCH_SIZE=$3
GLOBAL_BATCH_SIZE=$4
SEQ_LEN=$7
TP=${10}
PP=${11}
SP=${13}
DO=${14}
if [ $MODEL_SIZE = 70B ]; then
NUM_LAYERS=80
HIDDEN_SIZE=8192
NUM_ATTN_HEADS=64
INTERMEDIATE_SIZE=28672
gqa_options=" --group-query-attention --num-query-groups 8"
fi
if [ $SP = true ] && [ $TP -gt 1 ]; then
    sp_options=" --sequence-parallel"
elif [ $SP = false ]; then
    sp_options=""
fi
if [ $DO = true ]; then
    do_options=" --use-distributed-optimizer"
fi
options=" --micro-batch-size ${BATCH_SIZE} --global-batch-size ${GLOBAL_BATCH_SIZE} --num-layers ${NUM_LAYERS} --hidden-size ${HIDDEN_SIZE} \
    --num-attention-heads ${NUM_ATTN_HEADS} --ffn-hidden-size ${INTERMEDIATE_SIZE} --seq-length ${SEQ_LEN} --max-position-embeddings 4096 \
    --swiglu --normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights --disable-bias-linear \
    --attention-dropout 0.0 --hidden-dropout 0.0 --bf16 --patch-tokenizer-type LLamaTokenizer \
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} --use-mcore-models"
run_cmd="torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES ../qwen2/pretrain_qwen.py
 ${options} ${gqa_options} ${sp_options} ${do_options} ${vp_options}"
echo ${run_cmd}
eval ${run_cmd}
