FROM vllm/vllm-openai:latest

WORKDIR /app
RUN pip install uv && \
    uv pip install --system huggingface_hub[cli]

ENV MODEL="/app/model"
ENV SERVED_MODEL_NAME="qwen3"

ENTRYPOINT ["python3", "-m", "vllm.entrypoints.openai.api_server"]

# --enforce-eager: skips slow startup checks
CMD ["--model", "/app/model", \
     "--served-model-name", "qwen3", \
     "--trust-remote-code", \
     "--dtype", "half", \
     "--max-model-len", "16384", \
     "--gpu-memory-utilization", "0.95", \
     "--enforce-eager"]
