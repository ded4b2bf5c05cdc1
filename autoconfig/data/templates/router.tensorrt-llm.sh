{
  sed -n 2p "$0"
  printf 'hostname: 0.0.0.0\nport: %s\nbackend: pytorch\n' "$PORT"
  printf 'context_servers:\n  num_instances: %s\n  urls:\n' "${#prefill[@]}"
  printf '    - "%s"\n' "${prefill[@]}"
  printf 'generation_servers:\n  num_instances: %s\n  urls:\n' "${#decode[@]}"
  printf '    - "%s"\n' "${decode[@]}"
} > "$(dirname "$0")/router.yaml"
trtllm-serve disaggregated --config_file "$(dirname "$0")/router.yaml"
