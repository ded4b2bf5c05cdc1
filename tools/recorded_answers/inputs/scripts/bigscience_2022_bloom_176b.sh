#!/bin/bash
# Facts of bigscience-workshop/bigscience train/tr11-176B-ml/tr11-176B-ml.slurm (9e64ede), re-typed; data, logging and schedule left out.
#SBATCH --nodes=24
#SBATCH --ntasks-per-node=1          # one launcher a node
#SBATCH --gres=gpu:8
set -x -e
source $six_ALL_CCFRWORK/start-env
GPUS_PER_NODE=8
NNODES=$SLURM_NNODES
PP_SIZE=12
TP_SIZE=4
MICRO_BATCH_SIZE=2
GLOBAL_BATCH_SIZE=2048
NLAYERS=70
NHIDDEN=14336
NHEADS=112
SEQ_LEN=2048
ZERO_STAGE=0
config_json="./ds_config.$SLURM_JOB_ID.json"
cat <<EOT > $config_json
{"train_micro_batch_size_per_gpu": $MICRO_BATCH_SIZE, "zero_optimization": {"stage": $ZERO_STAGE}}
EOT
GPT=" \
    --pp-partition-method 'type:transformer|embedding' \
    --num-layers $NLAYERS \
    --hidden-size $NHIDDEN \
    --num-attention-heads $NHEADS \
    --seq-length $SEQ_LEN \
    --max-position-embeddings $SEQ_LEN \
    --micro-batch-size $MICRO_BATCH_SIZE \
    --rampup-batch-size 192 16 9_765_625 \
    --global-batch-size $GLOBAL_BATCH_SIZE \
    --tokenizer-type PretrainedFromHF \
    --embed-layernorm --sync-tp-duplicated-parameters --bf16 \
    --position-embedding-type alibi \
    --checkpoint-activations \
    --abort-on-unmet-fused-kernel-constraints \
    --pad-vocab-size-to 250880 \
    "
DEEPSPEED=" --deepspeed --deepspeed_config ${config_json} --zero-stage ${ZERO_STAGE} --deepspeed-activation-checkpointing "
export LAUNCHER="python -u -m torch.distributed.run --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --max_restarts 0"
export CMD=" `pwd`/pretrain_gpt.py --tensor-model-parallel-size $TP_SIZE --pipeline-model-parallel-size $PP_SIZE $GPT --data-impl mmap $DEEPSPEED "
echo $CMD
clear; srun --jobid $SLURM_JOBID bash -c "$LAUNCHER --node_rank \$SLURM_PROCID $CMD" 2>&1 | tee -a main_log.txt
