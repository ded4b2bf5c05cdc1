words=()
# The bootstrap port of a prefill instance has its server port's number.
for at in "${prefill[@]}"; do
  words+=(--prefill "http://$at" $((${at##*:} - ${FIRST_PORT:-@FIRST_PORT@} + @BOOTSTRAP@)))
done
for at in "${decode[@]}"; do words+=(--decode "http://$at"); done
python3 -m sglang_router.launch_router --pd-disaggregation --host 0.0.0.0 --port "$PORT" "${words[@]}"
