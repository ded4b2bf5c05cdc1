"""JobSets: judged by the fields of the projects' own CRDs (kubernetes/ here names the releases), pods by Kubernetes' schema,
and the script in them started with the variables that a pod would have."""

import copy
import json
import os
import random
import re
import subprocess
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from autoconfig.formats.export import JOBSET, export_texts
from autoconfig.megatron.batch.jobset import JOBSET_FILE, jobset_name, kubernetes_place
from autoconfig.megatron.batch.scripts import torchrun_script
from autoconfig.training.price import Money, report_plan
from autoconfig.training.question import Request, understand
from autoconfig.training.rank import rank

FACTS = {path.stem: json.loads(path.read_text()) for path in Path(__file__).with_name("kubernetes").iterdir()}
KUBERNETES = "1.31"
PLACE = kubernetes_place("registry.example/train:1", "team-a")
NAMES = {"type": "object", "additionalProperties": {"type": "string"}}
META = {"name": {"type": "string"}, "namespace": {"type": "string"}, "labels": NAMES, "annotations": NAMES}
QUESTIONS = [
    ("llama3-8b", 8, "h100"), ("llama3-8b", 4, "a100-80gb"), ("llama3-70b", 64, "h200"), ("gpt3-175b", 1024, "h100"),
    ("mixtral-8x7b", 32, "mi300x"), ("qwen3-30b-a3b", 16, "b200"), ("deepseek-v2-lite", 16, "h100"),
    ("llama3-70b", 72, "gb200"), ("t5-3b", 8, "h100"), ("gpt3-1.7b", 1, "h100"),
]  # fmt: skip


def strict(facts):
    """A JSON schema of facts in which nothing stands that they do not name."""
    if facts.get("pod_template"):
        return {"type": "object"}
    limits = {name: facts[name] for name in facts if name not in ("fields", "each", "values", "format")}
    if "fields" in facts:
        inner = {name: strict(field) for name, field in facts["fields"].items()}
        limits |= {"properties": inner, "additionalProperties": False}
    if "each" in facts:
        limits["items"] = strict(facts["each"])
    if "values" in facts:
        limits["additionalProperties"] = strict(facts["values"])
    return limits


def schema():
    facts = FACTS["jobset"]
    found = strict({"type": "object", "fields": facts["fields"], "required": ["apiVersion", "kind", "metadata", "spec"]})
    found["properties"] |= {
        "apiVersion": {"const": facts["api_version"]},
        "kind": {"const": facts["kind"]},
        "metadata": {"type": "object", "properties": META, "required": ["name"], "additionalProperties": False},
    }
    return found


SCHEMA = schema()


def judge(config_map, jobset):
    """Raises ValidationError of either library, AssertionError."""
    jsonschema.validate(jobset, SCHEMA, cls=jsonschema.Draft202012Validator)
    kubernetes_validate.validate(config_map, KUBERNETES, strict=True)
    kueue = FACTS["kueue"]
    for name, value in jobset["metadata"].get("labels", {}).items():
        rule = kueue["labels"][name]
        assert re.fullmatch(kueue["label_value"]["pattern"], value) and len(value) <= kueue["label_value"]["maxLength"]
        assert re.fullmatch(rule.get("pattern", ".*"), value)
        assert not rule.get("integer") or rule["minimum"] <= int(value) <= rule["maximum"]
    name = jobset["metadata"]["name"]
    for job in jobset["spec"]["replicatedJobs"]:
        spec = job["template"]["spec"]
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}, "template": spec["template"]}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)
        label = kueue["dns_label"]  # of JobSet's webhook: names of jobs and pods
        longest = f"{name}-{job['name']}-{job.get('replicas', 1) - 1}-{spec['completions'] - 1}-{'x' * 5}"
        assert re.fullmatch(label["pattern"], longest) and len(longest) <= label["maxLength"]


def manifests(text):
    return tuple(yaml.safe_load_all(text))


def plans(seed, count):
    """(scenario, plan) drawn from what fits of ten questions."""
    generator = random.Random(seed)
    rankings = {}
    for _ in range(count):
        model, gpus, gpu = question = generator.choice(QUESTIONS)
        if question not in rankings:
            asked = understand(Request(model=model, gpus=gpus, gpu=gpu))
            rankings[question] = asked.scenario, rank(asked.scenario, asked.constraints, 0.0)
        scenario, ranking = rankings[question]
        yield scenario, ranking.plan(generator.randrange(len(ranking.row)))


@pytest.mark.parametrize("count", [10, pytest.param(50, marks=pytest.mark.soak)])
def test_random_plans(count):
    """Valid, of all the plan's GPUs, with the script that torchrun's export has."""
    seed = int(os.environ.get("AUTOCONFIG_SOAK_SEED", "20261129"))
    print(f"seed {seed}")
    for number, (scenario, plan) in enumerate(plans(seed, count)):
        tokens = [None, 1e9, 2e12, 5e15][number % 4]
        report = report_plan(scenario, plan, Money(tokens=tokens))
        text = export_texts(scenario, plan, report, JOBSET, place=PLACE)[JOBSET_FILE]
        config_map, jobset = manifests(text)
        judge(config_map, jobset)
        (job,) = jobset["spec"]["replicatedJobs"]
        spec, pod = job["template"]["spec"], job["template"]["spec"]["template"]["spec"]
        ((resource, per_pod),) = pod["containers"][0]["resources"]["limits"].items()
        assert spec["parallelism"] == spec["completions"] and spec["completionMode"] == "Indexed"
        assert spec["completions"] * per_pod == scenario.cluster.num_gpus == plan.world_size
        assert resource == ("amd.com/gpu" if "mi300x" in scenario.cluster.gpu.id else "nvidia.com/gpu")
        script = torchrun_script(scenario, plan, report)
        assert [line.rstrip() for line in script.splitlines()] == config_map["data"]["train.sh"].splitlines()
        seconds = jobset["metadata"]["labels"].get("kueue.x-k8s.io/max-exec-time-seconds")
        if tokens == 1e9:
            assert int(seconds) >= report.steps_to_train * report.step_seconds


@pytest.fixture(scope="module")
def written():
    scenario, plan = next(one for one in plans(1, 99) if one[0].cluster.num_gpus == 64)
    return manifests(export_texts(scenario, plan, report_plan(scenario, plan), JOBSET, place=PLACE)[JOBSET_FILE])


def wrong_field(jobset):
    jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["paralelism"] = 8


def wrong_type(jobset):
    jobset["spec"]["failurePolicy"]["maxRestarts"] = "3"


def no_name(jobset):
    del jobset["spec"]["replicatedJobs"][0]["name"]


def wrong_word(jobset):
    jobset["spec"]["failurePolicy"]["restartStrategy"] = "Again"


def wrong_pod(jobset):
    jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["resource"] = {}


def wrong_volume(jobset):
    jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["volumes"][0]["emptyDir"] = {"medium": 1}


def wrong_queue(jobset):
    jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "Team A"


def unknown_label(jobset):
    jobset["metadata"]["labels"]["kueue.x-k8s.io/queue"] = "a"


@pytest.mark.parametrize("spoil", [
    wrong_field, wrong_type, no_name, wrong_word, wrong_pod, wrong_volume, wrong_queue, unknown_label,
])  # fmt: skip
def test_the_judge_sees_what_is_wrong(written, spoil):
    config_map, jobset = copy.deepcopy(written)
    judge(config_map, jobset)
    spoil(jobset)
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError, AssertionError, KeyError)):
        judge(config_map, jobset)


@pytest.mark.service
def test_the_pods_of_a_job_meet(written, tmp_path):
    """Each pod's script, with the variables that it has there, starts torchrun for its node at the first pod's host name."""
    config_map, jobset = written
    name, network = jobset["metadata"]["name"], jobset["spec"]["network"]
    (job,) = jobset["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in spec["template"]["spec"]["volumes"]}
    assert volumes["shared-memory"]["emptyDir"] == {"medium": "Memory"} and mounts["shared-memory"] == "/dev/shm"
    assert volumes["script"]["configMap"]["name"] == config_map["metadata"]["name"]
    assert container["command"] == ["bash", f"{mounts['script']}/train.sh"]
    for file, text in (("train.sh", config_map["data"]["train.sh"]), ("torchrun", '#!/bin/sh\necho "$@"\n')):
        (tmp_path / file).write_text(text)
        (tmp_path / file).chmod(0o755)
    for index in range(spec["completions"]):
        variables = {one["name"]: one.get("value", str(index)) for one in container["env"]}
        (asked,) = [one["valueFrom"]["fieldRef"]["fieldPath"] for one in container["env"] if "valueFrom" in one]
        assert asked == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", **variables}
        done = subprocess.run(
            ["bash", tmp_path / "train.sh"],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        host = f"{name}-{job['name']}-0-0.{network['subdomain']}"
        nodes = (
            f"--nproc-per-node 8 --nnodes {spec['completions']} --node-rank {index} --master-addr {host} --master-port 29500"
        )
        assert done.stdout.startswith(nodes) and network["publishNotReadyAddresses"] and "--mock-data" in done.stdout


@pytest.mark.parametrize("model", ["llama3-70b", "1T", "Qwen/Qwen3-30B-A3B", "--x", "a" * 200, "模型"])
def test_a_name_is_a_dns_label(model):
    assert re.fullmatch(FACTS["kueue"]["dns_label"]["pattern"], jobset_name(model)) and len(jobset_name(model)) <= 40


ASK = ("export", "--model", "gpt3-1.7b", "--gpus", "8", "tp=1,mbs=1")


def test_the_command_line_writes_one(autoconfig, tmp_path):
    folder = tmp_path / "x"
    done = autoconfig.run(*ASK, "--output", str(folder), "--format", "jobset", "--image", "registry.example/a:1")
    assert done.exit_code == 0 and f"kubectl create -f {folder}/train.jobset.yaml" in done.stderr + done.stdout
    config_map, jobset = manifests((folder / JOBSET_FILE).read_text())
    judge(config_map, jobset)
    assert jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == FACTS["kueue"]["default_local_queue"]


@pytest.mark.parametrize(("more", "said"), [
    (("--format", "jobset"), "give --image"),
    (("--format", "jobset", "--image", "a b"), "give a container image like"),
    (("--format", "jobset", "--image", "a", "--queue", "Team A"), "--queue 'Team A': a local queue of Kueue has a name"),
    (("--image", "a"), "--image is for --format jobset"),
    (("--queue", "a"), "--queue is for --format jobset"),
    (("--format", "jobset", "--image", "a", "--partition", "p"), "--partition=p is for a batch script"),
    (("--format", "jobset", "--image", "a", "--peft", "lora"), "has no adapters"),
])  # fmt: skip
def test_what_is_refused(autoconfig, tmp_path, more, said):
    done = autoconfig.run(*ASK[:-1], *more, "--output", str(tmp_path / "x"), ASK[-1])
    assert done.exit_code == 2 and said in done.stderr and not (tmp_path / "x").exists(), done.stderr
