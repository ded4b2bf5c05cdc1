#!/bin/bash
# Facts of NVIDIA/Megatron-LM examples/pretrain_gpt3_175B.sh (2021, fda81a21), re-typed; data, logging and schedule left out.
#SBATCH <YOUR OPTIONS> --nodes=128 --exclusive --ntasks-per-node=8 --job-name=gpt3
HERE=`pwd`
WHEN=`date +'%y-%m-%d_%H-%M-%S'`
ARGUMENTS=" \
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 \
    --num-layers 96 --hidden-size 12288 --num-attention-heads 96 \
    --seq-length 2048 --max-position-embeddings 2048 \
    --micro-batch-size 1 --global-batch-size 1536 --rampup-batch-size 16 16 5859375 \
    --lr 6.0e-5 --split 98,2,0 --fp16 --checkpoint-activations \
    --data-path <the data> --save <the checkpoints> \
"
COMMAND="python -u ${HERE}/pretrain_gpt.py $@ ${ARGUMENTS}"
srun -l --container-image "some+image" --output=$HERE/log_$WHEN.txt sh -c "${COMMAND}"
