EXTRA_LLM_API_FILE=/app/tensorrt_llm/examples/configs/gpt-oss-120b-latency.yaml
trtllm-serve openai/gpt-oss-120b --host 0.0.0.0 --port 8000 --extra_llm_api_options ${EXTRA_LLM_API_FILE}
