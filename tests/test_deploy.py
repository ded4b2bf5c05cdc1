"""Files of deploy/: accepted by systemd's and Kubernetes' own validators, and by the command line that they start."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import kubernetes_validate
import pytest
import yaml
from packaging.specifiers import SpecifierSet
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from autoconfig.cli.service import serve_command, worker_command
from tests.api.conftest import start
from tests.api.test_access import make_key
from tools.lower_bounds import project, requirements

DEPLOY = Path(__file__).parents[1] / "deploy"
UNITS = sorted((DEPLOY / "systemd").iterdir())
PROGRAM = "/opt/autoconfig/bin/autoconfig"
COMMANDS = {"serve": serve_command, "worker": worker_command}
KUBERNETES = "1.31"


def parse(words: list[str]) -> dict[str, object]:
    """The options as the command line reads them. Raises click's errors."""
    name, *rest = words
    return COMMANDS[name].make_context(name, rest).params


def test_the_image_installs_what_the_lock_file_says():
    """Each of our requirements, at a version that it allows, and every package by its hashes."""
    assert "pip install --no-cache-dir --require-hashes -r /src/deploy/requirements.txt" in (DEPLOY / "Dockerfile").read_text()
    text = (DEPLOY / "requirements.txt").read_text()
    locked = dict(re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==(\S+) \\$", text, re.MULTILINE))
    for name, _, bounds in requirements(project(), ("study", "serve")):
        assert SpecifierSet(bounds).contains(locked[name]), f"{name} {locked.get(name)}: run make lock"
    packages = re.split(r"\n(?=\w)", text.strip())
    assert len(packages) == len(locked) and "setuptools" in locked
    assert all(re.fullmatch(r"\S+ \\(\n    --hash=sha256:[0-9a-f]{64}( \\)?)+", one) for one in packages)


def manifests() -> list[dict]:
    return [one for path in sorted((DEPLOY / "kubernetes").iterdir()) for one in yaml.safe_load_all(path.read_text())]


def manifest(kind: str) -> dict:
    """The only one of its kind."""
    [found] = [one for one in manifests() if one["kind"] == kind]
    return found


def containers() -> dict[str, dict]:
    pods = [one["spec"]["template"]["spec"] for one in manifests() if one["kind"] == "Deployment"]
    return {container["name"]: container for pod in pods for container in pod["containers"]}


@pytest.mark.service
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_are_accepted(unit, tmp_path):
    assert shutil.which("systemd-analyze"), "run tools/install_services.sh"
    program = tmp_path / "autoconfig"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / unit.name.replace("@.", "@1.")
    text = unit.read_text().replace(PROGRAM, str(program))
    assert not complaints(copy, text)
    assert "sometimes" in complaints(copy, text.replace("Restart=always", "Restart=sometimes"))


def complaints(path: Path, text: str) -> str:
    """Of systemd's own validator, about a unit."""
    path.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=300, check=False)
    return done.stderr.strip() or ("" if done.returncode == 0 else f"exit code {done.returncode}")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_command_line_reads_what_units_start(unit, monkeypatch):
    settings = {
        "AUTOCONFIG_DATABASE": "postgresql://u@h/n",
        "LISTEN": "127.0.0.1",
        "PORT": "8000",
        "WORKER_OPTIONS": "--concurrency 4",
    }
    line = next(line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")).removeprefix("ExecStart=")
    program, *words = shlex.split(re.sub(r"\$\{?(\w+)\}?", lambda name: settings[name[1]], line))
    assert program == PROGRAM and not {"--database", "${AUTOCONFIG_DATABASE}"} & set(words)
    monkeypatch.setenv("AUTOCONFIG_DATABASE", settings["AUTOCONFIG_DATABASE"])
    assert parse(words)["database"] == settings["AUTOCONFIG_DATABASE"]
    assert "\nEnvironment=AUTOCONFIG_DATABASE=sqlite:///" in unit.read_text()


def test_manifests_are_accepted():
    found = manifests()
    kinds = ["Deployment", "Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler", "Ingress"]
    assert [one["kind"] for one in found] == [*kinds, "ServiceMonitor"]
    for one in found[:-1]:  # the last one is not Kubernetes' own
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
    wrong = {**found[2], "spec": {**found[2]["spec"], "port": 80}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


def test_manifests_belong_together():
    labels = {}
    for one in manifests():
        if one["kind"] == "Deployment":
            labels[one["metadata"]["name"]] = one["spec"]["template"]["metadata"]["labels"]
            assert one["spec"]["selector"]["matchLabels"] == labels[one["metadata"]["name"]]
        if one["kind"] == "Service":
            assert one["spec"]["selector"] == labels["autoconfig"]
    scaled, ports = manifest("HorizontalPodAutoscaler")["spec"], manifest("Service")["spec"]["ports"]
    assert scaled["scaleTargetRef"]["name"] == "autoconfig" and scaled["minReplicas"] == 2
    fixed = {one["metadata"]["name"]: one["spec"].get("replicas") for one in manifests() if one["kind"] == "Deployment"}
    assert fixed == {"autoconfig": None, "autoconfig-worker": 2}  # a number there would undo the autoscaler's at each apply
    ingress = manifest("Ingress")["spec"]
    [rule], [way] = ingress["rules"], ingress["rules"][0]["http"]["paths"]
    assert way["backend"]["service"] == {"name": manifest("Service")["metadata"]["name"], "port": {"name": ports[0]["name"]}}
    assert ingress["tls"][0]["hosts"] == [rule["host"]] and way["path"] == "/"
    service, _ = (parse(containers()[name]["args"]) for name in ("service", "worker"))
    assert service["keys"] and service["search_workers"] == 0 and service["host"] == "0.0.0.0"
    for container in containers().values():
        (secret,) = [one for one in container["env"] if one["name"] == "AUTOCONFIG_DATABASE"]
        assert secret["valueFrom"]["secretKeyRef"] == {"name": "autoconfig", "key": "database"}
        assert not [word for word in container["args"] if "DATABASE" in word]
    with pytest.raises(click.NoSuchOption):
        parse(["serve", "--prot", "8000"])


def test_the_forwarded_networks_are_what_uvicorn_reads():
    """A proxy's word counts where the proxy is inside the cluster."""
    env = {one["name"]: one.get("value") for one in containers()["service"]["env"]}
    trusted = ProxyHeadersMiddleware(None, env["FORWARDED_ALLOW_IPS"]).trusted_hosts
    assert [address in trusted for address in ("10.42.0.7", "192.168.1.1", "203.0.113.5")] == [True, True, False]


@pytest.mark.service
def test_the_monitor_and_the_probes_ask_a_real_service(tmp_path):
    """The monitor with a key, the probes without one."""
    monitor, [port] = manifest("ServiceMonitor"), manifest("Service")["spec"]["ports"]
    [endpoint] = monitor["spec"]["endpoints"]
    probes = containers()["service"]
    paths = [probes[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")]
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1" and endpoint["port"] == port["name"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= manifest("Service")["metadata"]["labels"].items()
    service = start(f"sqlite:///{tmp_path}/s.db", "--workers", "1", "--search-workers", "0", "--keys")
    try:
        kind = endpoint["authorization"]["type"]
        headers = {"Authorization": f"{kind} {make_key(service, 'read')}"}
        with service.client() as client:
            monitored = [client.get(endpoint["path"], headers=sent).status_code for sent in (headers, {})]
            codes = [client.request(method, path).status_code for path in paths for method in ("GET", "HEAD")]
            refused = client.get("/v1/gpus").status_code
    finally:
        service.stop()
    assert monitored == [200, 401]
    assert paths == ["/healthz", "/readyz"] and codes == [200] * 4 and refused == 401
