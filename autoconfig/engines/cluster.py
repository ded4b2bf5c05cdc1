"""The same instances under Slurm and Kubernetes: each starts the exported script with INSTANCE set, on its GPUs."""

from __future__ import annotations

from autoconfig.planning.export_files import MARK
from autoconfig.planning.script_text import slug
from autoconfig.serving.question import ServeQuestion
from autoconfig.specs.serve_plan import EnginePlan

PORT = 8000
IMAGES = {"vllm": "vllm/vllm-openai", "sglang": "lmsysorg/sglang", "tensorrt-llm": "tensorrt-llm/release"}
"""Names under which the engines publish their images; the registry and the tag are the reader's to choose."""


def slurm_script(question: ServeQuestion, kind: str, plan: EnginePlan) -> str:
    """`sbatch serve.sbatch`: an array of one job per instance, each on its own node share."""
    gpus, per_node = plan.tp * plan.pp * plan.adp, question.gpus_per_node
    nodes = -(-gpus // per_node)
    launched = nodes > 1 and question.engine.framework == "tensorrt-llm"  # trtllm-llmapi-launch: a task for each GPU
    lines = [
        "#!/usr/bin/env bash",
        MARK,
        f"#SBATCH --job-name={slug(question.model.name)}-{kind}",
        f"#SBATCH --array=0-{plan.replicas - 1}",
        f"#SBATCH --nodes={nodes}",
        f"#SBATCH --ntasks-per-node={per_node if launched else 1}",
        f"#SBATCH --gpus-per-node={min(gpus, per_node)}",
        "set -euo pipefail",
        "# Port of an instance: FIRST_PORT (8000) + its number in the array; the node is in the job's output.",
        "export INSTANCE=$SLURM_ARRAY_TASK_ID",
        f'srun {"--mpi=pmix " if launched else ""}bash "${{SLURM_SUBMIT_DIR:-$PWD}}/{kind}.sh"',
    ]
    if nodes > 1:
        lines[-1:-1] = [
            "# One instance over all nodes of the job; the script runs once on each.",
            'HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            "export HEAD_NODE",
        ]
    return "\n".join(lines) + "\n"


def kubernetes_objects(question: ServeQuestion, kind: str, plan: EnginePlan, files: dict[str, str]) -> str | None:
    """ConfigMap with the scripts, Deployment of one pod per instance, Service; None where an instance needs several nodes.

    IMAGE and MODEL are filled in by `envsubst '$IMAGE $MODEL' < serve.kubernetes.yaml | kubectl apply -f -`.
    """
    gpus = plan.tp * plan.pp * plan.adp
    if gpus > question.gpus_per_node:
        return None
    name = f"{slug(question.model.name)}-{kind}".replace("_", "-").replace(".", "-").lower()
    data = "".join(f"  {file}: |\n" + "".join(f"    {line}\n" for line in text.splitlines()) for file, text in files.items())
    image = IMAGES.get(question.engine.framework, "an image with the engine")
    return f"""{MARK}
# IMAGE (for example {image} of your registry) and MODEL:
#   envsubst '$IMAGE $MODEL' < {kind}.kubernetes.yaml | kubectl apply -f -
apiVersion: v1
kind: ConfigMap
metadata:
  name: {name}
data:
{data}---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
spec:
  replicas: {plan.replicas}
  selector:
    matchLabels: {{app: {name}}}
  template:
    metadata:
      labels: {{app: {name}}}
    spec:
      containers:
        - name: server
          image: "$IMAGE"
          command: ["bash", "/scripts/{kind}.sh"]
          env:
            - {{name: MODEL, value: "$MODEL"}}
            - {{name: INSTANCE, value: "0"}}
            - {{name: FIRST_PORT, value: "{PORT}"}}
          ports:
            - containerPort: {PORT}
          readinessProbe:
            httpGet: {{path: /health, port: {PORT}}}
            initialDelaySeconds: 60
            periodSeconds: 10
          resources:
            limits: {{nvidia.com/gpu: {gpus}}}
          volumeMounts:
            - {{name: scripts, mountPath: /scripts}}
            - {{name: shared-memory, mountPath: /dev/shm}}
      volumes:
        - name: scripts
          configMap: {{name: {name}}}
        - name: shared-memory
          emptyDir: {{medium: Memory}}
---
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  selector: {{app: {name}}}
  ports:
    - {{port: {PORT}, targetPort: {PORT}}}
"""
