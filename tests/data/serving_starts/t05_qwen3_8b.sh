trtllm-serve Qwen/Qwen3-8B --host localhost --port 8000 --backend pytorch
