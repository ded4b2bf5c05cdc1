#!/bin/bash
# Facts of deepspeedai/Megatron-DeepSpeed examples_deepspeed/MoE/ds_pretrain_gpt_1.3B_MoE128.sh (4efb479d), re-typed; data, logging and schedule left out.
MODEL_SIZE=1.3
NUM_LAYERS=24
HIDDEN_SIZE=2048
NUM_ATTN_HEADS=16
BATCH_SIZE=8
MP_SIZE=1
NUM_GPUS=64
EP_SIZE=128
if [[ $EP_SIZE -gt $NUM_GPUS ]]; then
    EP_PARALLEL_SIZE=$NUM_GPUS
else
    EP_PARALLEL_SIZE=$EP_SIZE
fi
options=" --tensor-model-parallel-size ${MP_SIZE} --moe-expert-parallel-size ${EP_PARALLEL_SIZE} --num-experts ${EP_SIZE} \
    --moe-loss-coeff 0.01 --moe-train-capacity-factor 1.0 --moe-min-capacity 4 --micro-batch-size ${BATCH_SIZE} --global-batch-size 512 \
    --num-layers ${NUM_LAYERS} --hidden-size ${HIDDEN_SIZE} --num-attention-heads ${NUM_ATTN_HEADS} \
    --seq-length 2048 --max-position-embeddings 2048 --fp16 --checkpoint-activations"
options="${options} --deepspeed --deepspeed_config ds.json --pipeline-model-parallel-size 1 --no-pipeline-parallel"
run_cmd="deepspeed ${DIR}/../../pretrain_gpt.py ${options}"
eval ${run_cmd}
set +x
