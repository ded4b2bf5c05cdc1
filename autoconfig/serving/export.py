"""Start scripts of a deployment: the engine's own arguments, and the benchmark that repeats the predicted point.

Argument names are those of the engines' documentation (trtllm-serve and its extra LLM API options of TensorRT-LLM 1.2;
vllm serve of vLLM 0.11; sglang.launch_server of SGLang 0.5). Whose parsers have judged them: docs/inference.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from autoconfig.export.plan_json import KIND
from autoconfig.export.scripts import MARK
from autoconfig.export.write import write_export
from autoconfig.serving.answer_json import deployment_json
from autoconfig.serving.export_cluster import kubernetes_objects, slurm_script
from autoconfig.serving.question import ServeQuestion
from autoconfig.serving.service import DeploymentReport
from specs.errors import UnsupportedError
from specs.serve_plan import EnginePlan

QUANTISED = {"fp8": "fp8", "fp8_block": "fp8", "nvfp4": "modelopt_fp4", "mxfp4": "mxfp4", "int4": "awq"}
"""--quantization of vLLM and SGLang; checkpoints that name their own format need none."""
FIRST_PORT = 8000


def export_texts(question: ServeQuestion, one: DeploymentReport) -> dict[str, str]:
    """File name -> text: one script per kind of instance, the benchmark, the prediction. Raises UnsupportedError."""
    framework = question.engine.framework
    if framework not in _WRITERS:
        raise UnsupportedError(f"engine {question.engine.name}: server scripts are written for {', '.join(_WRITERS)}")
    kinds = {"serve": one.plan.decode} if one.plan.prefill is None else {"prefill": one.plan.prefill, "decode": one.plan.decode}
    texts: dict[str, str] = {}
    for kind, plan in kinds.items():
        files = _WRITERS[framework](question, kind, plan)
        texts.update(files)
        texts[f"{kind}.sbatch"] = slurm_script(question, kind, plan)
        objects = kubernetes_objects(question, kind, plan, files)
        if objects is not None:
            texts[f"{kind}.kubernetes.yaml"] = objects
    texts["benchmark.sh"] = _script(question, one, _benchmark(question, one))
    texts["deployment.json"] = (
        json.dumps({"made_by": KIND, "engine": question.engine.name, **deployment_json(one)}, indent=2) + "\n"
    )
    return texts


def export(question: ServeQuestion, one: DeploymentReport, folder: Path, *, force: bool = False) -> list[Path]:
    """Write them into `folder`. Raises FileError, UnsupportedError."""
    return write_export(folder, export_texts(question, one), force=force)


def _script(question: ServeQuestion, one: DeploymentReport | None, body: str) -> str:
    head = ["#!/usr/bin/env bash", MARK]
    if one is not None:
        head.append(
            f"# predicted: {one.tokens_per_s_per_gpu:.0f} tokens/s/GPU, TTFT {one.ttft_s * 1e3:.0f} ms, "
            f"TPOT {one.tpot_s * 1e3:.1f} ms, {one.concurrency} users"
        )
    head += ["set -euo pipefail", f': "${{MODEL:?set MODEL to the checkpoint of {question.model.name}}}"']
    return "\n".join([*head, body]) + "\n"


def _command(words: Sequence[str], options: Mapping[str, object]) -> str:
    """A command line, one option a line; flags are True, options that are None are left out."""
    lines = [" ".join(words)]
    for name, value in options.items():
        if value is True:
            lines.append(f"  {name}")
        elif value is not None and value is not False:
            lines.append(f"  {name} {value}")
    return " \\\n".join(lines)


def _length(question: ServeQuestion) -> int:
    """Tokens of the longest request that the server must take."""
    return int(question.workload.longest_tokens)


def _instances(plan: EnginePlan, command: str) -> str:
    """One instance in the foreground; several start in the background, each on its GPUs and port. With INSTANCE set (a job of a
    Slurm array, a pod) one instance on the GPUs that the process sees."""
    if plan.replicas == 1:
        return f"PORT=$((${{FIRST_PORT:-{FIRST_PORT}}} + ${{INSTANCE:-0}}))\n{command}"
    gpus = plan.tp * plan.pp * plan.adp
    return (
        f"# {plan.replicas} instances of {gpus} GPUs each; put a load balancer in front of the ports\n"
        f"serve() {{\nPORT=$((${{FIRST_PORT:-{FIRST_PORT}}} + $1))\n{command}\n}}\n"
        'if [ -n "${INSTANCE:-}" ]; then\n  serve "$INSTANCE"\n  exit\nfi\n'
        f"for i in $(seq 0 {plan.replicas - 1}); do\n"
        f"CUDA_VISIBLE_DEVICES=$(seq -s, $((i * {gpus})) $((i * {gpus} + {gpus - 1})))\n"
        "export CUDA_VISIBLE_DEVICES\n"
        'serve "$i" &\n'
        "done\nwait"
    )


def _trtllm(question: ServeQuestion, kind: str, plan: EnginePlan) -> dict[str, str]:
    ranks = plan.adp * plan.pp
    share = question.kv_memory_ratio or question.engine.kv_memory_ratio
    most = max(plan.batch // ranks, 1)
    yaml = [
        MARK,
        f"enable_attention_dp: {'true' if plan.adp > 1 else 'false'}",
        f"enable_chunked_prefill: {'true' if question.chunked else 'false'}",
        "kv_cache_config:",
        f"  dtype: {'fp8' if plan.kv == 'fp8' else 'auto'}",
        f"  free_gpu_memory_fraction: {share:g}",
        "cuda_graph_config:",
        "  enable_padding: true",
        f"  max_batch_size: {most}",
    ]
    options = {
        "--backend": "pytorch",
        "--host": "0.0.0.0",
        "--port": '"$PORT"',
        "--tp_size": plan.tp * plan.adp,
        "--pp_size": plan.pp,
        "--ep_size": plan.ep if question.model.is_moe else None,
        "--max_batch_size": most,
        "--max_num_tokens": plan.tokens,
        "--max_seq_len": _length(question),
        "--extra_llm_api_options": f'"$(dirname "$0")/{kind}.yaml"',
    }
    command = _command(["trtllm-serve", '"$MODEL"'], options)
    return {f"{kind}.sh": _script(question, None, _instances(plan, command)), f"{kind}.yaml": "\n".join(yaml) + "\n"}


def _vllm(question: ServeQuestion, kind: str, plan: EnginePlan) -> dict[str, str]:
    options = {
        "--host": "0.0.0.0",
        "--port": '"$PORT"',
        "--tensor-parallel-size": plan.tp,
        "--pipeline-parallel-size": plan.pp,
        "--data-parallel-size": plan.adp if plan.adp > 1 else None,
        "--enable-expert-parallel": plan.ep > 1,
        "--max-num-seqs": max(plan.batch // plan.adp, 1),
        "--max-num-batched-tokens": plan.tokens,
        "--max-model-len": _length(question),
        "--kv-cache-dtype": "fp8" if plan.kv == "fp8" else "auto",
        "--quantization": QUANTISED.get(plan.weights),
        "--gpu-memory-utilization": f"{question.kv_memory_ratio or question.engine.kv_memory_ratio:g}",
        "--enable-chunked-prefill": question.chunked,
        "--no-enable-chunked-prefill": not question.chunked,
    }
    return {f"{kind}.sh": _script(question, None, _instances(plan, _command(["vllm serve", '"$MODEL"'], options)))}


def _sglang(question: ServeQuestion, kind: str, plan: EnginePlan) -> dict[str, str]:
    options = {
        "--model-path": '"$MODEL"',
        "--host": "0.0.0.0",
        "--port": '"$PORT"',
        "--tp-size": plan.tp * plan.adp,
        "--pp-size": plan.pp,
        "--dp-size": plan.adp if plan.adp > 1 else None,
        "--enable-dp-attention": plan.adp > 1,
        "--ep-size": plan.ep if plan.ep > 1 else None,
        "--max-running-requests": plan.batch,
        "--chunked-prefill-size": plan.tokens if question.chunked else -1,
        "--context-length": _length(question),
        "--kv-cache-dtype": "fp8_e4m3" if plan.kv == "fp8" else "auto",
        "--quantization": QUANTISED.get(plan.weights),
        "--mem-fraction-static": f"{question.kv_memory_ratio or question.engine.kv_memory_ratio:g}",
    }
    return {f"{kind}.sh": _script(question, None, _instances(plan, _command(["python3 -m sglang.launch_server"], options)))}


def _megatron(question: ServeQuestion, kind: str, plan: EnginePlan) -> dict[str, str]:
    """Megatron-LM's text generation server with the dynamic engine; the model's own arguments come with the checkpoint."""
    if plan.weights not in ("bf16", "fp8") or plan.adp > 1:
        raise UnsupportedError(f"{plan}: megatron inference is exported with bf16 or fp8 weights and without adp; --fix them")
    gpus = plan.tp * plan.pp
    options = {
        "--load": '"$MODEL"',
        "--use-checkpoint-args": True,
        "--tensor-model-parallel-size": plan.tp,
        "--pipeline-model-parallel-size": plan.pp,
        "--expert-model-parallel-size": plan.ep if plan.ep > 1 else None,
        "--bf16": True,
        "--micro-batch-size": 1,
        "--fp8-format": "hybrid" if plan.weights == "fp8" else None,
        "--inference-dynamic-batching-max-requests": max(plan.batch // plan.pp, 1),
        "--inference-max-seq-length": _length(question),
        "--inference-dynamic-batching": True,
        "--inference-dynamic-batching-max-tokens": plan.tokens,
        "--enable-chunked-prefill": question.chunked,
        "--port": '"$PORT"',
    }
    launcher = f"torchrun --nproc-per-node {min(gpus, question.gpus_per_node)}"
    words = [launcher, '"$MEGATRON"/tools/run_text_generation_server.py']
    body = ': "${MEGATRON:?set MEGATRON to the folder of Megatron-LM}"\n' + _instances(plan, _command(words, options))
    return {f"{kind}.sh": _script(question, None, body)}


_WRITERS: dict[str, Callable[[ServeQuestion, str, EnginePlan], dict[str, str]]] = {
    "tensorrt-llm": _trtllm,
    "vllm": _vllm,
    "sglang": _sglang,
    "megatron": _megatron,
}


def _benchmark(question: ServeQuestion, one: DeploymentReport) -> str:
    """vLLM's serving benchmark against one instance (all servers speak OpenAI's protocol): its share of the load."""
    replicas = one.plan.decode.replicas
    users = one.plan.decode.batch
    options = {
        "--backend": "openai",
        "--model": '"$MODEL"',
        "--port": f'"${{PORT:-{FIRST_PORT}}}"',
        "--dataset-name": "random",
        "--random-input-len": int(question.lengths.isl),
        "--random-output-len": int(question.lengths.osl),
        "--ignore-eos": True,
        "--num-prompts": max(8 * users, 200),
        "--max-concurrency": None if question.rate else users,
        "--request-rate": f"{question.rate / replicas:g}" if question.rate else None,
    }
    differ = question.workload.isl_stddev or question.workload.osl_stddev
    said = "# all requests have the mean lengths here; those of the question differ\n" if differ else ""
    return said + _command(["vllm bench serve"], options)
