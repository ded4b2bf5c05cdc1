#!/usr/bin/env bash
EXTRA_CONFIG_FILE="qwen3.5-fp4-trt.yml"
if [[ "$DP_ATTENTION" == "true" ]]; then
    case "$TP" in
        4) MAX_BATCH_SIZE=256 ;;
        8) MAX_BATCH_SIZE=128 ;;
        *) MAX_BATCH_SIZE=$(( CONC > 16 ? CONC : 16 )) ;;
    esac
elif [[ "$TP" -ge 4 ]]; then
    MAX_BATCH_SIZE=512
else
    MAX_BATCH_SIZE=$(( CONC > 16 ? CONC : 16 ))
fi
if [[ "$DP_ATTENTION" == "true" ]]; then
    MOE_BACKEND="CUTEDSL"
    MODE_CONFIG="attention_dp_config:
    enable_balance: true
    batching_wait_iters: 10
    timeout_iters: 500"
else
    MOE_BACKEND="TRTLLM"
    MODE_CONFIG="batch_wait_timeout_iters: 50
batch_wait_max_tokens_ratio: 0.45"
fi

cat > "$EXTRA_CONFIG_FILE" << EOF
backend: pytorch
print_iter_log: true
disable_overlap_scheduler: false
enable_iter_perf_stats: true
enable_chunked_prefill: false
stream_interval: 20
num_postprocess_workers: 4
enable_attention_dp: $DP_ATTENTION
scheduler_config:
    capacity_scheduler_policy: MAX_UTILIZATION
    context_chunking_policy: FIRST_COME_FIRST_SERVED
kv_cache_config:
    free_gpu_memory_fraction: 0.9
    enable_block_reuse: false
    dtype: fp8
cuda_graph_config:
    enable_padding: true
    max_batch_size: $MAX_BATCH_SIZE
moe_config:
    backend: $MOE_BACKEND
    use_low_precision_moe_combine: true
$MODE_CONFIG
EOF
case "${ISL}_${OSL}" in
    8192_1024) MAX_NUM_TOKENS=32768 ;;
    1024_1024) MAX_NUM_TOKENS=16384 ;;
    *)
        MAX_NUM_TOKENS=$(( ISL + OSL + 256 ))
        ;;
esac
mpirun -n 1 --oversubscribe --allow-run-as-root \
    trtllm-serve "$MODEL" --port="$PORT" \
    --trust_remote_code \
    --backend=pytorch \
    --max_batch_size="$MAX_BATCH_SIZE" \
    --max_seq_len="$MAX_MODEL_LEN" \
    --max_num_tokens="$MAX_NUM_TOKENS" \
    --tp_size="$TP" \
    --ep_size="$EP_SIZE" \
    --extra_llm_api_options="$EXTRA_CONFIG_FILE" \
    > server.log 2>&1 &
