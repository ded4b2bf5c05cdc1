# Facts of modelscope/ms-swift examples/megatron/moe/qwen3_moe.sh (7b55a0c1), re-typed; data and schedule left out.
NNODES=$WORLD_SIZE \
NODE_RANK=$RANK \
megatron sft \
    --load Qwen3-30B-A3B-Base-mcore \
    --pipeline_model_parallel_size 2 \
    --expert_model_parallel_size 8 \
    --moe_permute_fusion true \
    --moe_shared_expert_overlap true \
    --micro_batch_size 1 \
    --global_batch_size 16 \
    --packing true \
    --recompute_granularity full \
    --recompute_method uniform \
    --recompute_num_layers 1 \
    --max_length 8192 \
    --sequence_parallel true \
    --attention_backend flash
