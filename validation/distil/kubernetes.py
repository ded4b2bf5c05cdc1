"""What a JobSet may hold, as facts of the project's own CRD: `python -m validation.distil.kubernetes CRD.yaml RELEASE`.

CRD.yaml is config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml of kubernetes-sigs/jobset at that release. Kept are the
paths of its fields, their types, what is required, and the limits of values; the pod template is left to Kubernetes' schema.
Writes tests/megatron/batch/kubernetes/jobset.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

TARGET = Path(__file__).parents[2] / "tests" / "megatron" / "batch" / "kubernetes" / "jobset.json"
KEPT = ("type", "required", "enum", "minimum", "maximum", "maxItems", "maxLength", "minLength", "pattern", "format")


def facts(node: dict[str, Any]) -> dict[str, Any]:
    """A field's facts, and those of the fields in it."""
    kept: dict[str, Any] = {name: node[name] for name in KEPT if name in node}
    fields = node.get("properties", {})
    if "containers" in fields.get("spec", {}).get("properties", {}):
        return {"type": "object", "pod_template": True}
    if fields:
        kept["fields"] = {name: facts(field) for name, field in fields.items()}
    for name, key in (("items", "each"), ("additionalProperties", "values")):
        if name in node:
            kept[key] = facts(node[name])
    return kept


def main(crd: str, release: str) -> None:
    """Read the CRD, write the facts."""
    body = yaml.safe_load(Path(crd).read_text(encoding="utf-8"))
    (version,) = [one for one in body["spec"]["versions"] if one["served"]]
    found = {
        "source": f"kubernetes-sigs/jobset {release}, config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",
        "api_version": f"{body['spec']['group']}/{version['name']}",
        "kind": body["spec"]["names"]["kind"],
        "fields": facts(version["schema"]["openAPIV3Schema"])["fields"],
    }
    TARGET.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
