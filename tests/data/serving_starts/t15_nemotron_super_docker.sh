docker run --rm -it --gpus all \
  -e HF_TOKEN=$HF_TOKEN \
  -e TLLM_ALLOW_LONG_MAX_MODEL_LEN=1 \
  -v "$(pwd)":/workspace \
  -w /workspace \
  -p 8123:8123 \
  nvidia/tensorrt-llm/release:1.3.0rc9 \
  trtllm-serve nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4 \
    --host 0.0.0.0 \
    --port 8123 \
    --max_batch_size 8 \
    --tp_size 1 --ep_size 1 \
    --max_num_tokens 8192 \
    --trust_remote_code \
    --reasoning_parser nano-v3 \
    --tool_parser qwen3_coder \
    --extra_llm_api_options t15_extra_llm_api_config.yml \
    --max_seq_len 1048576
