#!/bin/bash
# Facts of bigscience-workshop/bigscience train/tr1-13B-base/tr1-13B-round1.slurm (9e64ede), re-typed; data, logging and schedule left out.
#SBATCH --constraint=v100-32g
#SBATCH --nodes=128
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
GPUS_PER_NODE=4
NNODES=128
TP_SIZE=2 PP_SIZE=4
NLAYERS=40; NHIDDEN=5120; NHEADS=32; FFN=20480; SEQ=2048
GPT="--num-layers $NLAYERS --hidden-size $NHIDDEN --num-attention-heads $NHEADS --ffn-hidden-size $FFN \
    --seq-length $SEQ --max-position-embeddings $SEQ --micro-batch-size 1 --rampup-batch-size 16 16 5_000_000 \
    --global-batch-size 1024 --fp16 --checkpoint-activations --loss-scale 12 --clip-grad 1.0"
DS="--deepspeed --deepspeed_config ./ds.$SLURM_JOBID.json --zero-stage 1 --deepspeed-activation-checkpointing"
export LAUNCHER="python -u -m torch.distributed.launch --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES"
export CMD=" pretrain_gpt.py --tensor-model-parallel-size $TP_SIZE --pipeline-model-parallel-size $PP_SIZE $GPT $DS"
srun --jobid $SLURM_JOBID bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD' 2>&1 | tee -a log.txt
