# Pull the vllm image
FROM vllm/vllm-openai

ARG HF_TOKEN
ENV HF_TOKEN=${HF_TOKEN}

RUN apt-get update && apt-get install -y git-lfs && git lfs install

# Start the vllm server with lora adapters
ENTRYPOINT ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "meta-llama/Llama-Guard-3-8B" ,"--enable-lora", "--lora-modules", "llama-guard-3-lora=/adapters"]
