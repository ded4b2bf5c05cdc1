"""Start scripts of a deployment: its instances, alone, under Slurm and Kubernetes; the router in front of a disaggregated one;
the benchmark that repeats the predicted point. Every file names the release that it is written for."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from autoconfig.engines.start import (
    FIRST_PORT,
    SGLANG_BOOTSTRAP_PORT,
    STARTS,
    WRITTEN_FOR,
    Start,
    benchmark,
    length,
    written_for,
)
from autoconfig.planning.export_files import MADE_BY, WrittenExport, filled_template, remark, slug, write_export
from autoconfig.serving.deployment import DeploymentReport
from autoconfig.serving.deployment_json import deployment_json
from autoconfig.serving.question import ServeQuestion
from autoconfig.serving.space import require_runs
from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.json_record import json_text
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import stored_as

ROUTER_PORT = 9000
ROUTERS = {
    "sglang": "sglang-router 0.3.2",
    "vllm": "vllm-router 0.1.17",
    "tensorrt-llm": f"trtllm-serve disaggregated, {WRITTEN_FOR['tensorrt-llm']}",
}
"""What runs in front of disaggregated instances, and its release."""


def router_script(question: ServeQuestion, prefill: EnginePlan, decode: EnginePlan) -> str:
    """`router.sh`: on port 9000, in front of the instances of this machine or of those that PREFILL and DECODE name."""
    here = prefill.gpus + decode.gpus <= question.gpus_per_node
    first = {"PREFILL": FIRST_PORT, "DECODE": FIRST_PORT + prefill.replicas}
    mark = written_for(question.engine.framework, ROUTERS[question.engine.framework])
    lines = ["#!/usr/bin/env bash", mark, "set -euo pipefail", f"PORT=${{PORT:-{ROUTER_PORT}}}"]
    for name, plan in (("PREFILL", prefill), ("DECODE", decode)):
        ours = " ".join(f"localhost:{first[name] + number}" for number in range(plan.replicas))
        given = f"${{{name}:-{ours}}}" if here else f"${{{name}:?set {name} to host:port of its {plan.replicas} instances}}"
        lines += [f'{name}="{given}"', f'read -ra {name.lower()} <<< "${{{name}//,/ }}"']  # commas and blanks part them
    ports = {"FIRST_PORT": FIRST_PORT, "BOOTSTRAP": SGLANG_BOOTSTRAP_PORT}
    return "\n".join(lines) + "\n" + filled_template(f"router.{question.engine.framework}.sh", **ports)


IMAGES = {"vllm": "vllm/vllm-openai", "sglang": "lmsysorg/sglang", "tensorrt-llm": "tensorrt-llm/release"}
"""Names under which the engines publish their images; the registry and the tag are the reader's to choose."""


def _first_port(plan: EnginePlan, beside: EnginePlan | None) -> int:
    """Of the instances of a plan: those of `beside`, of the same machine, come first."""
    return FIRST_PORT + (beside.replicas if beside else 0)


def _unpacked(kind: str, files: Mapping[str, str]) -> list[str]:
    """Shell that puts the files and the command that runs the script of this kind into START, for a job that finds no other
    file of ours: sbatch takes along the batch script alone, and may be called from any folder."""
    lines = [f"# What each task runs: the text of {' and '.join(files)}, to be changed here, not there"]
    lines += ["IFS= read -r -d '' START << 'END_OF_START' || true", "FOLDER=$(mktemp -d)", "trap 'rm -rf \"$FOLDER\"' EXIT"]
    for file, text in files.items():
        lines += [f"cat > \"$FOLDER/{file}\" << 'END_OF_FILE'", text.rstrip("\n"), "END_OF_FILE"]
    return [*lines, f'bash "$FOLDER/{kind}.sh"', "END_OF_START"]


def slurm_script(
    question: ServeQuestion,
    kind: str,
    plan: EnginePlan,
    files: Mapping[str, str],
    slurm: Sequence[str] = (),
    beside: EnginePlan | None = None,
) -> str:
    """`sbatch serve.sbatch`: an array of one job per instance, each on its own node share, with the text of its `files`;
    `slurm`: its further options; `beside`: the instances whose ports come first."""
    gpus, per_node = plan.size, question.gpus_per_node
    nodes = -(-gpus // per_node)
    launched = nodes > 1 and question.engine.framework == "tensorrt-llm"  # trtllm-llmapi-launch: a task for each GPU
    lines = [
        "#!/usr/bin/env bash",
        written_for(question.engine.framework),
        f"#SBATCH --job-name={slug(question.model.name)}-{kind}",
        f"#SBATCH --array=0-{plan.replicas - 1}",
        f"#SBATCH --nodes={nodes}",
        f"#SBATCH --ntasks-per-node={per_node if launched else 1}",
        f"#SBATCH --gpus-per-node={min(gpus, per_node)}",
        *(f"#SBATCH {remark(one)}" for one in slurm),
        "set -euo pipefail",
        f"# Port of an instance: FIRST_PORT ({_first_port(plan, beside)}) + its number in the array; the node: its output.",
        "export INSTANCE=$SLURM_ARRAY_TASK_ID",
        *_unpacked(kind, files),
        f'srun {"--mpi=pmix " if launched else ""}bash -c "$START"',
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
    gpus = plan.size
    if gpus > question.gpus_per_node:
        return None
    name = f"{slug(question.model.name)}-{kind}".replace("_", "-").replace(".", "-").lower()
    data = "".join(f"  {file}: |\n" + "".join(f"    {line}\n" for line in text.splitlines()) for file, text in files.items())
    image = IMAGES.get(question.engine.framework, "an image with the engine")
    values = {"IMAGE": image, "KIND": kind, "NAME": name, "DATA": data, "REPLICAS": plan.replicas, "GPUS": gpus}
    return filled_template("kubernetes.yaml", PORT=FIRST_PORT, MARK=written_for(question.engine.framework), **values)


def export_texts(question: ServeQuestion, one: DeploymentReport, slurm: Sequence[str] = ()) -> dict[str, str]:
    """File name -> text: one script per kind of instance, with further options of sbatch, the benchmark, the prediction. Raises
    UnsupportedError."""
    framework = question.engine.framework
    if framework not in STARTS:
        raise UnsupportedError(f"engine {question.engine.name}: server scripts are written for {', '.join(STARTS)}")
    kinds = {"serve": one.plan.decode} if one.plan.prefill is None else {"prefill": one.plan.prefill, "decode": one.plan.decode}
    texts: dict[str, str] = {}
    for kind, plan in kinds.items():
        require_runs(question.engine, plan, disaggregated=kind != "serve")
        start = STARTS[framework](question, kind, plan)
        beside = one.plan.prefill if kind == "decode" else None
        body = _instances(question, plan, start, beside)
        files = {f"{kind}.sh": _script(question, plan.weights, body), **start.files}
        texts.update(files)
        texts[f"{kind}.sbatch"] = slurm_script(question, kind, plan, files, slurm, beside)
        objects = kubernetes_objects(question, kind, plan, files)
        if objects is not None:
            texts[f"{kind}.kubernetes.yaml"] = objects
    if one.plan.prefill is not None:
        texts["router.sh"] = router_script(question, one.plan.prefill, one.plan.decode)
    texts["benchmark.sh"] = _script(question, one.plan.decode.weights, _benchmark(question, one), one)
    said = {"made_by": MADE_BY, "engine": question.engine.name, "written_for": WRITTEN_FOR[framework]}
    texts["deployment.json"] = json_text({**said, **vars(deployment_json(one))}) + "\n"
    return texts


def export(
    question: ServeQuestion, one: DeploymentReport, folder: Path, *, force: bool = False, slurm: Sequence[str] = ()
) -> WrittenExport:
    """Write them into `folder`. Raises FileError, UnsupportedError."""
    return write_export(folder, export_texts(question, one, slurm), force=force)


def run_command(question: ServeQuestion, one: DeploymentReport, folder: Path) -> str:
    """What starts the deployment whose scripts `folder` holds: all of it where it is on one node, else by Slurm."""
    kinds = ("serve",) if one.plan.prefill is None else ("prefill", "decode")
    here = one.gpus <= question.gpus_per_node
    files = [shlex.quote(str(folder / f"{kind}.{'sh' if here else 'sbatch'}")) for kind in kinds]
    needs = "MODEL=/path/to/checkpoint" + " MEGATRON=/path/to/Megatron-LM" * (question.engine.framework == "megatron")
    if one.plan.prefill is None:
        return f"{needs} {'bash' if here else 'sbatch'} {files[0]}"
    router = f"bash {shlex.quote(str(folder / 'router.sh'))}"
    if here:
        return f"export {needs}; {' & '.join(f'bash {file}' for file in files)} & {router}"
    jobs = "; ".join(f"sbatch {file}" for file in files)
    return f"export {needs}; {jobs}; then PREFILL=HOST:PORT,... DECODE=HOST:PORT,... {router}"


def longest_text(question: ServeQuestion, one: DeploymentReport) -> str:
    """Which requests the servers refuse, as the scripts start them."""
    kinds = [plan for plan in (one.plan.prefill, one.plan.decode) if plan is not None]
    most = min(length(question, plan) for plan in kinds)
    return f"the engine refuses requests of more than {most:,} tokens, prompt and answer together"


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
    head = ["#!/usr/bin/env bash", written_for(question.engine.framework)]
    if not_written(question):
        head.append(f"# {not_written(question)}")
    if one is not None:
        head.append(
            f"# predicted: {one.tokens_per_s_per_gpu:.0f} tokens/s/GPU, TTFT {one.ttft_s * 1e3:.0f} ms, "
            f"TPOT {one.tpot_s * 1e3:.1f} ms, {one.concurrency} users"
        )
    form = stored_as(question.model, weights, question.gpu)
    head += ["set -euo pipefail", f': "${{MODEL:?set MODEL to the checkpoint of {question.model.name}, {form} weights}}"']
    return "\n".join([*head, body]) + "\n"


def _instances(question: ServeQuestion, plan: EnginePlan, start: Start, beside: EnginePlan | None) -> str:
    """Shell that starts the instances of one machine, or with INSTANCE set (a job of a Slurm array, a pod) that one.

    Instances in the background get their own GPUs and ports, after those of `beside` (decode instances after prefill ones).
    """
    gpus = plan.size
    most = question.gpus_per_node // gpus
    first_gpu = beside.gpus if beside and beside.gpus + plan.gpus <= question.gpus_per_node else 0
    port = f"${{FIRST_PORT:-{_first_port(plan, beside)}}}"
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


def _asked_limits(question: ServeQuestion) -> dict[str, object]:
    """The percentiles whose limits were asked for, and the milliseconds within which a request counts as good, those of our own
    `within limits`. Without any: the tool's percentile (99), no goodput."""
    if not question.tails:
        return {}
    limits = question.in_means()
    good = [f"{kind}:{limit * 1e3:g}" for kind, limit in (("ttft", limits.ttft_s), ("tpot", limits.tpot_s)) if limit]
    figures = sorted({name.rpartition("_p")[2] for name in question.tails}, key=int)
    return {"--metric-percentiles": ",".join(figures), "--goodput": " ".join(good)}


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
            **_asked_limits(question),
        },
    )
