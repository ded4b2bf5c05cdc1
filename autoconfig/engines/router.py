"""The router in front of a disaggregated deployment: sglang-router 0.3.2, vllm-router 0.1.17, `trtllm-serve disaggregated`."""

from __future__ import annotations

from autoconfig.engines.start import FIRST_PORT, SGLANG_BOOTSTRAP_PORT
from autoconfig.planning.export_files import MARK
from autoconfig.serving.question import ServeQuestion
from autoconfig.specs.serve_plan import EnginePlan

ROUTER_PORT = 9000
TRTLLM = """\
{
  printf 'hostname: 0.0.0.0\\nport: %s\\nbackend: pytorch\\n' "$PORT"
  printf 'context_servers:\\n  num_instances: %s\\n  urls:\\n' "${#prefill[@]}"
  printf '    - "%s"\\n' "${prefill[@]}"
  printf 'generation_servers:\\n  num_instances: %s\\n  urls:\\n' "${#decode[@]}"
  printf '    - "%s"\\n' "${decode[@]}"
} > "$(dirname "$0")/router.yaml"
trtllm-serve disaggregated --config_file "$(dirname "$0")/router.yaml"
"""
SGLANG = f"""\
words=()
# The bootstrap port of a prefill instance has its server port's number.
for at in "${{prefill[@]}}"; do
  words+=(--prefill "http://$at" $((${{at##*:}} - ${{FIRST_PORT:-{FIRST_PORT}}} + {SGLANG_BOOTSTRAP_PORT})))
done
for at in "${{decode[@]}}"; do words+=(--decode "http://$at"); done
python3 -m sglang_router.launch_router --pd-disaggregation --host 0.0.0.0 --port "$PORT" "${{words[@]}}"
"""
VLLM = """\
words=()
for at in "${prefill[@]}"; do words+=(--prefill "http://$at"); done
for at in "${decode[@]}"; do words+=(--decode "http://$at"); done
python3 -m vllm_router.launch_router --vllm-pd-disaggregation --host 0.0.0.0 --port "$PORT" "${words[@]}"
"""
ROUTERS = {"tensorrt-llm": TRTLLM, "sglang": SGLANG, "vllm": VLLM}


def router_script(question: ServeQuestion, prefill: EnginePlan, decode: EnginePlan) -> str:
    """`router.sh`: on port 9000, in front of the instances of this machine or of those that PREFILL and DECODE name."""
    here = prefill.gpus + decode.gpus <= question.gpus_per_node
    first = {"PREFILL": FIRST_PORT, "DECODE": FIRST_PORT + prefill.replicas}
    lines = ["#!/usr/bin/env bash", MARK, "set -euo pipefail", f"PORT=${{PORT:-{ROUTER_PORT}}}"]
    for name, plan in (("PREFILL", prefill), ("DECODE", decode)):
        ours = " ".join(f"localhost:{first[name] + number}" for number in range(plan.replicas))
        given = f"${{{name}:-{ours}}}" if here else f"${{{name}:?set {name} to host:port of its {plan.replicas} instances}}"
        lines.append(f'read -ra {name.lower()} <<< "{given}"')
    return "\n".join(lines) + "\n" + ROUTERS[question.engine.framework]
