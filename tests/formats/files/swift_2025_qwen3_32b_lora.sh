# Facts of modelscope/ms-swift examples/ascend/train/qwen3/qwen3_lora_deepspeed.sh (c35f74af), re-typed; data and schedule left out.
nproc_per_node=8
NPROC_PER_NODE=$nproc_per_node \
swift sft \
    --model 'Qwen/Qwen3-32B' \
    --tuner_type lora \
    --torch_dtype bfloat16 \
    --per_device_train_batch_size 1 \
    --lora_rank 8 \
    --lora_alpha 32 \
    --target_modules all-linear \
    --gradient_accumulation_steps $(expr 16 / $nproc_per_node) \
    --max_length 2048 \
    --system 'You are a helpful assistant.' \
    --deepspeed zero3
