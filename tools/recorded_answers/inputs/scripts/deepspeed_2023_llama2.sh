#!/bin/bash
# Facts of deepspeedai/Megatron-DeepSpeed examples_deepspeed/pretrain_llama2_distributed.sh (4efb479d), re-typed; data, logging and schedule left out.
TP=2
PP=2
ZERO_STAGE=0
GPUS_PER_NODE=8
NNODES=1
HIDDEN_SIZE=2048 # small
FFN_HIDDEN_SIZE=5504
cat <<JSON > ./tmp.json
{ "zero_optimization": { "stage": $ZERO_STAGE }, "bf16": { "enabled": true } }
JSON
ds_args=""
ds_args=" --deepspeed ${ds_args}"
ds_args=" --deepspeed_config=./tmp.json ${ds_args}"
ds_args=" --zero-stage=$ZERO_STAGE ${ds_args}"
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py \
       --tensor-model-parallel-size $TP \
       --pipeline-model-parallel-size $PP \
       --num-layers 24 --hidden-size $HIDDEN_SIZE --ffn-hidden-size $FFN_HIDDEN_SIZE \
       --num-attention-heads 16 --num-key-value-heads 4 \
       --micro-batch-size 4 --global-batch-size 32 --seq-length 2048 --max-position-embeddings 2048 \
       --tokenizer-type GPTSentencePieceTokenizer --bf16 --no-query-key-layer-scaling \
       --attention-dropout 0 --hidden-dropout 0 --use-rotary-position-embeddings \
       --untie-embeddings-and-output-weights --swiglu --normalization rmsnorm --disable-bias-linear \
       $ds_args
