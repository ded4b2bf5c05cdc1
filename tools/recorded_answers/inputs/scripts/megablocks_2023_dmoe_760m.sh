#!/bin/bash
# Facts of databricks/megablocks exp/dmoe/dmoe_760m_8gpu.sh (78eea65), re-typed; data, logging and schedule left out.
EXP_DIR=$1
TRAINING_STEPS=20000
BATCH_SIZE=8
MOE="--moe-num-experts=64 --moe-loss-weight=0.1 --moe-top-k=1"
DISTRIBUTED="--nproc_per_node 8 --nnodes 1"
MODEL="--num-layers 24 --hidden-size 1536 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024"
TRAIN="--micro-batch-size $BATCH_SIZE --global-batch-size 512 --train-iters $TRAINING_STEPS"
COMPUTE="--fp16 --DDP-impl local --moe-expert-model-parallelism --no-async-tensor-model-parallel-allreduce --use-flash-attn"
python -m torch.distributed.launch $DISTRIBUTED third_party/Megatron-LM/pretrain_gpt.py $MOE $MODEL $TRAIN $COMPUTE --save $EXP_DIR
