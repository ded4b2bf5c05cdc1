#!/bin/bash
# Facts of NVIDIA/Megatron-LM examples/post_training/modelopt/conf/Qwen/Qwen3-235B-A22B.sh (2025), re-typed; data, logging and schedule left out.
if [ -z ${HF_MODEL} ]; then
    HF_MODEL=Qwen/Qwen3-235B-A22B
    TOKENIZER=Qwen/Qwen3-235B-A22B
else
    TOKENIZER=${HF_MODEL}
fi
MODEL_ARGS="
    --save-interval 100000 --micro-batch-size 1 --bf16 --disable-bias-linear --untie-embeddings-and-output-weights
    --position-embedding-type rope --normalization RMSNorm --swiglu
    --num-layers 94 --hidden-size 4096 --ffn-hidden-size 12288 --num-attention-heads 64
    --group-query-attention --num-query-groups 4 --kv-channels 128 --qk-layernorm
    --num-experts 128 --moe-ffn-hidden-size 1536 --moe-router-topk 8
    --seq-length 4096 --max-position-embeddings 40960 --tokenizer-type HuggingFaceTokenizer
    --make-vocab-size-divisible-by 1187 --sequence-parallel
"
