#!/usr/bin/env bash
export SAFETENSORS_FAST_GPU=1
COMPILATION_CONFIG=${COMPILATION_CONFIG:-'{"mode":3,"cudagraph_mode":"PIECEWISE","pass_config":{"fuse_minimax_qk_norm":true}}'}
MAX_NUM_SEQS=${MAX_NUM_SEQS:-512}
MAX_NUM_BATCHED_TOKENS=${MAX_NUM_BATCHED_TOKENS:-32768}

if [ "$EP_SIZE" -gt 1 ]; then
  EP=(--enable-expert-parallel)
else
  EP=()
fi
if [ "$ISL" = "8192" ]; then
  ATTN_BACKEND="FLASH_ATTN"
else
  ATTN_BACKEND="FLASHINFER"
fi

vllm serve "$MODEL" --port "$PORT" \
--tensor-parallel-size="$TP" \
"${EP[@]}" \
--gpu-memory-utilization 0.95 \
--max-model-len "$MAX_MODEL_LEN" \
--max-num-seqs "$MAX_NUM_SEQS" \
--max-num-batched-tokens "$MAX_NUM_BATCHED_TOKENS" \
--kv-cache-dtype fp8 \
--attention-backend "$ATTN_BACKEND" \
--compilation-config "$COMPILATION_CONFIG" \
--no-enable-prefix-caching \
--trust-remote-code > server.log 2>&1 &
