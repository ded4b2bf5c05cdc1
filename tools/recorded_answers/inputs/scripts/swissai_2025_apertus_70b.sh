#!/bin/bash
# Facts of swiss-ai/pretrain-code pretraining/submit_apertus_70b.sh (531cc8b), re-typed; data, logging and schedule left out.
#SBATCH --time=12:00:00
#SBATCH --nodes=1024
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
MBS=1
GBS=4096
SEQ_LEN=4096
MODEL=(
	--num-layers 80
	--hidden-size 8192
	--ffn-hidden-size 43008
	--num-attention-heads 64
	--group-query-attention
	--num-query-groups 8
	--max-position-embeddings $SEQ_LEN
	--position-embedding-type rope
	--make-vocab-size-divisible-by 128
	--normalization RMSNorm
	--xielu
	--qk-layernorm
	--untie-embeddings-and-output-weights
	--disable-bias-linear
	--attention-dropout 0.0
	--hidden-dropout 0.0
)
TRAINING=(--micro-batch-size $MBS --global-batch-size $GBS --bf16 --seq-length $SEQ_LEN --optimizer ademamix)
PARALLEL=(
	--tensor-model-parallel-size 4
	--sequence-parallel
	--pipeline-model-parallel-size 8
	--num-layers-per-virtual-pipeline-stage 2
	--context-parallel-size 1
	--use-distributed-optimizer
	--overlap-grad-reduce
	--overlap-param-gather
)
TORCHRUN="torchrun --nproc-per-node $SLURM_GPUS_PER_NODE --nnodes $SLURM_NNODES --rdzv_backend c10d"
CMD_PREFIX="numactl --membind=0-3"
TRAINING_CMD="$TORCHRUN $MEGATRON_LM_DIR/pretrain_gpt.py ${MODEL[@]} ${TRAINING[@]} ${PARALLEL[@]}"
srun -lu --cpus-per-task $SLURM_CPUS_PER_TASK --wait 60 bash -c "RANK=\$SLURM_PROCID $CMD_PREFIX $TRAINING_CMD"
