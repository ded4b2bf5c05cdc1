"""The OpenAPI document, and schemathesis over the whole of it: no 5xx, no answer outside its schema."""

import os
import subprocess
import sys

import httpx
import pytest
from jsonschema import Draft202012Validator

from tests.api.conftest import ROOT, Running, environment

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("api")]
FEW, MANY = 3, 500
"""Examples per operation: some 40 requests in `make test`, above 5,000 in `make soak`."""


@pytest.fixture(scope="module")
def service(services) -> Running:
    """One of its own: the examples leave measured runs, which change the answers."""
    return services("--workers", "1", "--search-workers", "0", "--queued-searches", "10000")


def schemathesis(service: Running, examples: int, seed: int, phases: str) -> subprocess.CompletedProcess[str]:
    """All checks (tests/api/schemathesis.toml: 422 is how a question that follows the schema is refused)."""
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(ROOT / "tests/api/schemathesis.toml")),
        *("run", f"{service.url}/openapi.json", "--checks", "all"),
        *("--max-examples", str(examples), "--seed", str(seed), "--generation-database", "none", "--no-color"),
        *("--phases", phases, "--request-timeout", "60", "--max-response-time", "60"),
    ]
    return subprocess.run(command, cwd=ROOT, env=environment(), text=True, capture_output=True, timeout=3000, check=False)


def test_the_document_is_openapi_with_resolvable_references(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    names = set(document["components"]["schemas"])
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    found = set()

    def walk(value: object) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                found.add(value["$ref"].removeprefix("#/components/schemas/"))
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)

    walk(document)
    assert found <= names
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["operationId"] and {"200", "202", "204"} & set(operation["responses"]), path
            if "requestBody" in operation:
                content = operation["requestBody"]["content"]["application/json"]
                assert http.post(path, json=content["example"]).status_code in (200, 202), path


def test_schemathesis_finds_nothing(service: Running) -> None:
    done = schemathesis(service, FEW, 1, "examples,fuzzing")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.soak
def test_schemathesis_finds_nothing_in_thousands_of_requests(services) -> None:
    seed = int(os.environ.get("AUTOCONFIG_SOAK_SEED", "1"))
    done = schemathesis(services("--workers", "2", "--queued-searches", "10000"), MANY, seed, "examples,coverage,fuzzing")
    print(done.stdout[-3000:])
    assert done.returncode == 0, done.stdout[-6000:]
