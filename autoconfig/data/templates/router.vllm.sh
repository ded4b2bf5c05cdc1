words=()
for at in "${prefill[@]}"; do words+=(--prefill "http://$at"); done
for at in "${decode[@]}"; do words+=(--decode "http://$at"); done
python3 -m vllm_router.launch_router --vllm-pd-disaggregation --host 0.0.0.0 --port "$PORT" "${words[@]}"
