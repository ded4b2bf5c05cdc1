#!/bin/bash
# Facts of swiss-ai/Megatron-LM submit-llama3-70b.sh (81d44dbe), re-typed; data, logging and schedule left out.
#SBATCH --nodes=32
#SBATCH --gpus-per-node=4
SEQ_LEN=8192
ENGINE=(--transformer-impl transformer_engine --use-precision-aware-optimizer --main-grads-dtype bf16)
MODEL=(--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --group-query-attention --num-query-groups 8
    --max-position-embeddings $SEQ_LEN --position-embedding-type rope --normalization RMSNorm --swiglu
    --untie-embeddings-and-output-weights --disable-bias-linear --attention-dropout 0.0 --hidden-dropout 0.0)
TRAINING=(--micro-batch-size 1 --global-batch-size 1024 --bf16 --cross-entropy-loss-fusion --seq-length $SEQ_LEN)
PARALLEL=(--tensor-model-parallel-size 4 --sequence-parallel --pipeline-model-parallel-size 8
    --num-layers-per-virtual-pipeline-stage 5 --context-parallel-size 1 --use-distributed-optimizer)
srun torchrun --nproc-per-node $SLURM_GPUS_PER_NODE --nnodes $SLURM_NNODES pretrain_gpt.py ${ENGINE[@]} ${MODEL[@]} ${TRAINING[@]} ${PARALLEL[@]}
