#!/bin/bash
# Facts of bigscience-workshop/bigscience experiments/gpt2-meg/meg_gpt2_perf_n16.slurm (9e64ede), re-typed; data, logging and schedule left out.
#SBATCH --nodes=16
#SBATCH --gres=gpu:4
GPUS_PER_NODE=4
NNODES=16
NLAYERS=64
NHIDDEN=8192
BATCHSIZE=4
GPT=" --num-layers $NLAYERS --hidden-size $NHIDDEN --num-attention-heads 32 --seq-length 1024 --max-position-embeddings 1024 \
    --micro-batch-size $BATCHSIZE --global-batch-size 1024 --fp16 --checkpoint-activations "
export LAUNCHER="python -u -m torch.distributed.launch --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES "
export CMD=" pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 16 $GPT --distributed-backend nccl "
srun bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD'
