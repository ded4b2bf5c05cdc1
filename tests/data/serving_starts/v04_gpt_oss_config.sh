#!/usr/bin/env bash
cat > config.yaml << EOF
no-enable-prefix-caching: true
max-cudagraph-capture-size: 2048
max-num-batched-tokens: 8192
max-model-len: $MAX_MODEL_LEN
EOF

export VLLM_MXFP4_USE_MARLIN=1
SERVER_LOG=/tmp/server.log

set -x
vllm serve $MODEL --host=0.0.0.0 --port=$PORT \
--config config.yaml \
--gpu-memory-utilization=0.9 \
--tensor-parallel-size=$TP \
--max-num-seqs=$CONC > $SERVER_LOG 2>&1 &

SERVER_PID=$!
