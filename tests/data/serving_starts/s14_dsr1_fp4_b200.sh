#!/usr/bin/env bash
if [[ $CONC -ge 16 ]]; then
  SCHEDULER_RECV_INTERVAL=30
else
  SCHEDULER_RECV_INTERVAL=10
fi
CHUNKED_PREFILL_SIZE=16384
SGLANG_PARALLEL_ARGS=(
    --tensor-parallel-size="$TP"
    --data-parallel-size=1
)
SGLANG_DPA_ARGS=()
if [[ "$DP_ATTENTION" == "true" ]]; then
    SCHEDULER_RECV_INTERVAL=1
    CHUNKED_PREFILL_SIZE=32768
    SGLANG_PARALLEL_ARGS=(
        --tensor-parallel-size="$TP"
        --data-parallel-size="$TP"
        --enable-dp-attention
        --enable-dp-attention-local-control-broadcast
        --enable-dp-lm-head
    )
    SGLANG_DPA_ARGS=(
        --schedule-conservativeness 3.33
        --enable-prefill-delayer
    )
fi
SGLANG_RADIX_FORCE_MISS=1 PYTHONNOUSERSITE=1 python3 -m sglang.launch_server --model-path $MODEL --host 0.0.0.0 --port $PORT --trust-remote-code \
"${SGLANG_PARALLEL_ARGS[@]}" \
--cuda-graph-max-bs 256 --max-running-requests 256 --mem-fraction-static 0.85 --kv-cache-dtype fp8_e4m3 \
--chunked-prefill-size "$CHUNKED_PREFILL_SIZE" \
--ep-size $EP_SIZE --quantization modelopt_fp4 --enable-flashinfer-allreduce-fusion --scheduler-recv-interval $SCHEDULER_RECV_INTERVAL \
--enable-symm-mem --disable-piecewise-cuda-graph --attention-backend trtllm_mla --moe-runner-backend flashinfer_trtllm --stream-interval 10 "${SGLANG_DPA_ARGS[@]}" > server.log 2>&1 &
