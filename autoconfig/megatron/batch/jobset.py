"""A launch script as a Kubernetes JobSet (kubernetes-sigs/jobset 0.12) with the labels of Kueue (kubernetes-sigs/kueue 0.19).

One replicated job of one pod a node. The script goes along in a ConfigMap; the pods meet at the first one's name, which the
headless service gives it that JobSet makes: NAME-JOB-0-INDEX.NAME. Text in, text out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from autoconfig.megatron.batch.time_limit import STARTING_MINUTES, job_minutes
from autoconfig.planning.export_files import MARK, filled_template, remark
from autoconfig.specs.errors import InputError, option
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.training.price import PlanReport

JOBSET_FILE = "train.jobset.yaml"
JOB, PORT = "node", 29500
SCRIPT_FOLDER = "/autoconfig"
NAME_CHARACTERS = 40
"""Of a JobSet's name: of 63 the pods' names take the job's, two numbers and a random end."""
MOST_SECONDS = 2**31 - 1
"""Of Kueue's limit, an int32."""
RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
"""A GPU by vendor, as the vendors' device plugins name it."""
RESTARTS = 3
"""An assumption: of the whole job, after a node was lost; it goes on from its last checkpoint."""
QUEUE = "default"
"""The local queue where none is named: Kueue's own default."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUEUE_CHARACTERS = 63
"""Of the value of a label."""


@dataclass(frozen=True, kw_only=True)
class KubernetesPlace:
    """What a cluster must be told, and no plan says."""

    image: str
    """Container image with PyTorch, Transformer Engine and Megatron-LM."""
    queue: str = QUEUE
    """Kueue's local queue."""


def kubernetes_place(image: str | None, queue: str | None) -> KubernetesPlace:
    """Return what the cluster was told. Raises InputError."""
    if not image:
        raise InputError(
            f"a JobSet names its container image, and pods without one end after the queue: give {option('image')}, one with "
            "PyTorch, Transformer Engine and Megatron-LM"
        )
    if not image.isprintable() or " " in image:
        raise InputError(f"{option('image')} {image[:80]!r}: give a container image like REGISTRY/NAME:TAG")
    chosen = QUEUE if queue is None else queue
    if not _NAME.fullmatch(chosen) or len(chosen) > _QUEUE_CHARACTERS:
        raise InputError(
            f"{option('queue')} {chosen[:80]!r}: a local queue of Kueue has a name of at most {_QUEUE_CHARACTERS} small "
            "letters, digits, dashes and dots; `kubectl get localqueues` lists them"
        )
    return KubernetesPlace(image=image, queue=chosen)


def jobset_name(model: str) -> str:
    """Return a name for the JobSet and its service: a DNS label."""
    return f"train-{re.sub(r'[^a-z0-9]+', '-', model.lower()).strip('-')}"[:NAME_CHARACTERS].strip("-")


def jobset_text(
    scenario: Scenario, plan: TrainPlan, report: PlanReport | None, script: str, story: Sequence[str], place: KubernetesPlace
) -> str:
    """Return ConfigMap and JobSet of a torchrun `script`; `story`: what is said of the plan, for the head."""
    cluster, name, encoder = scenario.cluster, jobset_name(scenario.model.name), scenario.model.encoder_num_layers
    seconds, limit = _limit(report)
    now = "This" if encoder else "As it stands this is a smoke test on mock data. A real job"
    head = [
        f"{MARK}: {remark(scenario.model.name)}, {plan}",
        "#",
        *(f"# {remark(line)}".rstrip() for line in story),
        "#",
        f"# Start: kubectl create -f {JOBSET_FILE}; log: kubectl logs job/{name}-{JOB}-0 -f",
        f"# {now} sets env and volumes below.",
    ]
    return filled_template(
        "train.jobset.yaml",
        HEAD=head,
        NAME=name,
        SCRIPT=[f"    {line}".rstrip() for line in script.splitlines()],
        QUEUE=json.dumps(place.queue),
        LIMITED=limit if seconds <= MOST_SECONDS else "",
        SECONDS=seconds,
        RESTARTS=RESTARTS,
        JOB=JOB,
        PODS=cluster.num_nodes,
        IMAGE=json.dumps(place.image),
        FOLDER=SCRIPT_FOLDER,
        PORT=PORT,
        ENCODER=encoder,
        RESOURCE=RESOURCES[cluster.gpu.vendor],
        PER_POD=min(cluster.gpus_per_node, cluster.num_gpus),
    )


def _limit(report: PlanReport | None) -> tuple[int, str]:
    """Return (seconds that the job may take, what they are)."""
    if report is None or report.steps_to_train is None:
        return job_minutes(report) * 60, "of the smoke test: a real job needs its own"
    days = f"{report.steps_to_train:,} steps, {report.days_to_train:,.3g} days"
    return job_minutes(report) * 60, f"{days}, at the slow end of the band, and {STARTING_MINUTES} minutes to start"
