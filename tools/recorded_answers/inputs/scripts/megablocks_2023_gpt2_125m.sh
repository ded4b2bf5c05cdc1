#!/bin/bash
# Facts of databricks/megablocks exp/gpt2/gpt2_125m_8gpu.sh (78eea65), re-typed; data, logging and schedule left out.
MODEL="\
--num-layers 12 \
--hidden-size 768 \
--num-attention-heads 12 \
--seq-length 1024 \
--max-position-embeddings 1024"
torchrun --nproc_per_node=8 --nnodes=1 pretrain_gpt.py $MODEL --micro-batch-size 64 --global-batch-size 512 --fp16 --use-flash-attn
