#!/bin/bash
# Facts of ROCm/Megatron-LM train_llama2.sh, branch hanl/disable_te_llama2 (7f59287a), re-typed; data, logging and schedule left out.
export GPU_MAX_HW_QUEUES=2
GPUS_PER_NODE=`python -c "import torch; print(torch.cuda.device_count())"`
NNODES=1
TP="${TP:-1}"
PP="${PP:-1}"
MBS="${MBS:-4}"
BS="${BS:-288}"
SEQ_LENGTH="${SEQ_LENGTH:-2048}"
GPT="
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP}
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32
    --seq-length $SEQ_LENGTH --max-position-embeddings 4096 --untie-embeddings-and-output-weights
    --position-embedding-type rope --no-position-embedding --disable-bias-linear --swiglu
    --attention-dropout 0.0 --hidden-dropout 0.0 --normalization RMSNorm
    --micro-batch-size $MBS --global-batch-size $BS --bf16 --tokenizer-type Llama2Tokenizer
    --group-query-attention --num-query-groups 32 --use-distributed-optimizer
"
EXTRA=""
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py $GPT $EXTRA
