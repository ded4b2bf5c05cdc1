FROM nvidia/tensorrt-llm/release:1.1.0

# Copy any custom configs
COPY config.yaml /app/config.yaml

EXPOSE 8000 9090

# Start server
CMD ["trtllm-serve", "meta-llama/Meta-Llama-3-8B", \
     "--tp_size", "4", \
     "--dtype", "fp8", \
     "--max_batch_size", "256", \
     "--enable_metrics", \
     "--metrics_port", "9090"]
