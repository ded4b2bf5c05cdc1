"""Start scripts of a deployment: how its instances start, and the benchmark that repeats the predicted point."""

from __future__ import annotations

from pathlib import Path

from autoconfig.engines.cluster import kubernetes_objects, slurm_script
from autoconfig.engines.router import ROUTER_PORT, router_script
from autoconfig.engines.start import FIRST_PORT, STARTS, Start, benchmark
from autoconfig.planning.export_files import MADE_BY, MARK, write_export
from autoconfig.serving.deployment import DeploymentReport
from autoconfig.serving.deployment_json import deployment_json
from autoconfig.serving.engine_limits import require_runs
from autoconfig.serving.question import ServeQuestion
from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.json_record import json_text
from autoconfig.specs.serve_plan import EnginePlan


def export_texts(question: ServeQuestion, one: DeploymentReport) -> dict[str, str]:
    """File name -> text: one script per kind of instance, the benchmark, the prediction. Raises UnsupportedError."""
    framework = question.engine.framework
    if framework not in STARTS:
        raise UnsupportedError(f"engine {question.engine.name}: server scripts are written for {', '.join(STARTS)}")
    kinds = {"serve": one.plan.decode} if one.plan.prefill is None else {"prefill": one.plan.prefill, "decode": one.plan.decode}
    texts: dict[str, str] = {}
    for kind, plan in kinds.items():
        require_runs(question.engine, plan, disaggregated=kind != "serve")
        start = STARTS[framework](question, kind, plan)
        body = _instances(question, plan, start, one.plan.prefill if kind == "decode" else None)
        files = {f"{kind}.sh": _script(question, plan.weights, body), **start.files}
        texts.update(files)
        texts[f"{kind}.sbatch"] = slurm_script(question, kind, plan)
        objects = kubernetes_objects(question, kind, plan, files)
        if objects is not None:
            texts[f"{kind}.kubernetes.yaml"] = objects
    if one.plan.prefill is not None:
        texts["router.sh"] = router_script(question, one.plan.prefill, one.plan.decode)
    texts["benchmark.sh"] = _script(question, one.plan.decode.weights, _benchmark(question, one), one)
    texts["deployment.json"] = (
        json_text({"made_by": MADE_BY, "engine": question.engine.name, **vars(deployment_json(one))}) + "\n"
    )
    return texts


def export(question: ServeQuestion, one: DeploymentReport, folder: Path, *, force: bool = False) -> list[Path]:
    """Write them into `folder`. Raises FileError, UnsupportedError."""
    return write_export(folder, export_texts(question, one), force=force)


DRAFTS = {
    "tensorrt-llm": "speculative_config: in the YAML file",
    "vllm": "--speculative-config",
    "sglang": "--speculative-algorithm, --speculative-num-steps, --speculative-num-draft-tokens",
}
"""Where an engine is told how it speculates."""


def not_written(question: ServeQuestion) -> str:
    """What the prediction counts with and the scripts cannot say: how draft tokens are made; empty where they say all of it."""
    lengths = question.lengths
    if not lengths.drafted:
        return ""
    way = DRAFTS.get(question.engine.framework, "none known of this engine")
    return (
        f"not written: speculation with {lengths.drafted:g} draft tokens a step, {lengths.tokens_per_step:.3g} tokens out of "
        f"it; name the draft model or method yourself ({way})"
    )


def _script(question: ServeQuestion, weights: str, body: str, one: DeploymentReport | None = None) -> str:
    head = ["#!/usr/bin/env bash", MARK]
    if not_written(question):
        head.append(f"# {not_written(question)}")
    if one is not None:
        head.append(
            f"# predicted: {one.tokens_per_s_per_gpu:.0f} tokens/s/GPU, TTFT {one.ttft_s * 1e3:.0f} ms, "
            f"TPOT {one.tpot_s * 1e3:.1f} ms, {one.concurrency} users"
        )
    head += ["set -euo pipefail", f': "${{MODEL:?set MODEL to the checkpoint of {question.model.name}, {weights} weights}}"']
    return "\n".join([*head, body]) + "\n"


def _instances(question: ServeQuestion, plan: EnginePlan, start: Start, beside: EnginePlan | None) -> str:
    """Shell that starts the instances of one machine, or with INSTANCE set (a job of a Slurm array, a pod) that one.

    Instances in the background get their own GPUs and ports, after those of `beside` (decode instances after prefill ones).
    """
    gpus = plan.tp * plan.pp * plan.adp
    most = question.gpus_per_node // gpus
    first_gpu = beside.gpus if beside and beside.gpus + plan.gpus <= question.gpus_per_node else 0
    port = f"${{FIRST_PORT:-{FIRST_PORT + (beside.replicas if beside else 0)}}}"
    lines = list(start.before)
    if plan.replicas == 1 and not first_gpu:
        return "\n".join([*lines, f"PORT=$(({port} + ${{INSTANCE:-0}}))", start.command])
    lines += ["serve() {", f"PORT=$(({port} + INSTANCE))", start.command, "}"]
    if not most:
        return "\n".join([*lines, ': "${INSTANCE:?several nodes an instance: set INSTANCE to its number}"', "serve"])
    here = min(plan.replicas, most)
    others = f", {plan.replicas - here} more on other nodes" if here < plan.replicas else ""
    lines[:0] = [f"# {here} instances of {gpus} GPUs{others}; put a load balancer or router in front of the ports"]
    return "\n".join(
        [
            *lines,
            'if [ -n "${INSTANCE:-}" ]; then',
            "  serve",
            "  exit",
            "fi",
            f"for INSTANCE in $(seq 0 {here - 1}); do",
            f"FIRST=$(({first_gpu} + INSTANCE * {gpus}))",
            f"CUDA_VISIBLE_DEVICES=$(seq -s, $FIRST $((FIRST + {gpus - 1})))",
            "export CUDA_VISIBLE_DEVICES",
            "serve &",
            "done",
            "wait",
        ]
    )


def _benchmark(question: ServeQuestion, one: DeploymentReport) -> str:
    """Against one instance: its share of the load. Disaggregated: the whole load against the router."""
    replicas = 1 if one.plan.prefill else one.plan.decode.replicas
    users = one.plan.decode.batch * one.plan.decode.replicas // replicas
    differ = question.workload.isl_stddev or question.workload.osl_stddev
    said = "# all requests have the mean lengths here; those of the question differ\n" if differ else ""
    isl = int(question.lengths.isl)
    prefix = min(round(isl * question.lengths.cached), isl - 1)  # fixed tokens in front; a prompt is both lengths together
    return said + benchmark(
        ROUTER_PORT if one.plan.prefill else FIRST_PORT,
        {
            "--dataset-name": "random",
            "--random-prefix-len": prefix or None,
            "--random-input-len": isl - prefix,
            "--random-output-len": int(question.lengths.osl),
            "--ignore-eos": True,
            "--num-prompts": max(8 * users, 200),
            "--max-concurrency": None if question.rate else users,
            "--request-rate": f"{question.rate / replicas:g}" if question.rate else None,
        },
    )
