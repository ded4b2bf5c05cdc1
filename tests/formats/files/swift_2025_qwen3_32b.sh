# Facts of modelscope/ms-swift examples/megatron/dense/qwen3_32b.sh (26aee6f1), re-typed; data and schedule left out.
PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' \
NPROC_PER_NODE=8 \
megatron sft \
    --model Qwen/Qwen3-32B \
    --dataset 'a data set' \
    --tensor_model_parallel_size 8 \
    --micro_batch_size 1 \
    --global_batch_size 16 \
    --packing true \
    --recompute_granularity full \
    --recompute_method uniform \
    --recompute_num_layers 1 \
    --cross_entropy_loss_fusion true \
    --max_length 8192 \
    --sequence_parallel true \
    --attention_backend flash
