#!/bin/bash
# Facts of deepspeedai/Megatron-DeepSpeed examples_deepspeed/sequence_parallel/ds_pretrain_gpt_30B_seq_parallel_32k.sh (4efb479d), re-typed; data, logging and schedule left out.
num_gpus=$(($(ds_ssh nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)-2))
sp_size=4
seq_len=32768
options=" --tensor-model-parallel-size 1 --ds-sequence-parallel-size ${sp_size} --micro-batch-size 1 --global-batch-size 2 \
    --num-layers 64 --hidden-size 6144 --num-attention-heads 64 --seq-length ${seq_len} --max-position-embeddings ${seq_len} \
    --fp16 --use-flash-attn-triton --checkpoint-activations --deepspeed --deepspeed_config z3.json --zero-stage 3 \
    --pipeline-model-parallel-size 1 --no-pipeline-parallel"
if [[ $iteration -gt 0 ]]; then
    ds_ssh "echo $iteration > latest.txt"
fi
deepspeed ../../pretrain_gpt.py ${options} 2>&1 | tee log
