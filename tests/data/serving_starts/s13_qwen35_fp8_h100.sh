#!/usr/bin/env bash
MAX_SEQ_LEN=$((ISL + OSL + 20))
PARALLEL_ARGS=(--tp "$TP")
if [ "${EP_SIZE}" -gt 1 ]; then
    PARALLEL_ARGS+=(--expert-parallel-size "$EP_SIZE")
fi

SCHEDULER_RECV_INTERVAL=
case "$CONC" in
  1|2|4)
    SCHEDULER_RECV_INTERVAL=2
    ;;
  64)
    SCHEDULER_RECV_INTERVAL=600
    ;;
  *)
    echo "Unsupported CONC=$CONC" >&2
    exit 1
    ;;
esac
SCHEDULER_ARGS=()
if [ -n "$SCHEDULER_RECV_INTERVAL" ]; then
    SCHEDULER_ARGS=(--scheduler-recv-interval "$SCHEDULER_RECV_INTERVAL")
fi
echo "SCHEDULER_ARGS: ${SCHEDULER_ARGS[*]}"
python3 -m sglang.launch_server \
  --model "$MODEL" \
  --host 0.0.0.0 \
  --port "$PORT" \
  "${PARALLEL_ARGS[@]}" \
  --reasoning-parser qwen3 \
  --tool-call-parser qwen3_coder \
  --enable-flashinfer-allreduce-fusion \
  --max-running-requests 256 \
  --chunked-prefill-size 16384 \
  --decode-log-interval 1 \
  --mem-fraction-static 0.8 \
  --cuda-graph-max-bs "$CONC" \
  --context-length "$MAX_SEQ_LEN" \
  --kv-cache-dtype fp8_e4m3 \
  --quantization fp8 \
  --attention-backend flashinfer \
  --stream-interval 50 \
  --tokenizer-worker-num 6 \
  --mamba-ssm-dtype bfloat16 \
  --disable-radix-cache \
  --enable-symm-mem \
  --trust-remote-code \
  "${SCHEDULER_ARGS[@]}" \
  > server.log 2>&1 &
