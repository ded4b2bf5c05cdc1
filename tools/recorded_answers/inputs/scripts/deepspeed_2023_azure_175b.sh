#!/bin/bash
# Facts of deepspeedai/Megatron-DeepSpeed examples_deepspeed/azure/run-175b.sh (4efb479d), re-typed; data, logging and schedule left out.
TP=1
PP=1
HIDDEN=12288
LAYERS=96
SEQ=1024
GLOBAL_BATCH=32
WORKER_STR="-i worker-0"
options=" \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP \
    --num-layers $LAYERS --hidden-size $HIDDEN --num-attention-heads 96 --seq-length $SEQ --max-position-embeddings $SEQ \
    --micro-batch-size 4 --global-batch-size ${GLOBAL_BATCH} --fp16 --checkpoint-activations"
options="${options} --deepspeed --deepspeed_config=ds_config.json --zero-stage=3 --no-pipeline-parallel"
run_cmd="deepspeed -i worker-0:0,1,2,3 ../../pretrain_gpt.py $@ ${options}"
echo ${run_cmd}
eval ${run_cmd}
