"""Which fields NeMo-RL's MasterConfig requires, and their types: into autoconfig/data/post_training_keys.json.

NEMO_RL_PATH=SOURCE_OF_THE_RELEASE .venv-judge-rl/bin/python -m validation.distil.nemo_rl_required. Names and types.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from validation.judge.post_training import nemo_rl_master_config

TARGET = Path(__file__).resolve().parents[2] / "autoconfig" / "data" / "post_training_keys.json"
KINDS = {"integer": "int", "number": "float", "boolean": "bool", "string": "str"}


class Described(GenerateJsonSchema):
    """What has no JSON Schema (callables) is any value."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        """Of a part that JSON cannot hold."""
        return {}


def required(node: Mapping[str, Any], known: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """(dotted path, type; empty where several are allowed) of required fields that hold no required fields themselves."""
    while "$ref" in node:
        node = known[node["$ref"].rsplit("/", 1)[1]]
    for name in node.get("required", []):
        field = node["properties"][name]
        inner = list(required(field, known, f"{before}{name}."))
        yield from inner or [(f"{before}{name}", KINDS.get(field.get("type", ""), ""))]


def main() -> None:
    """Write the fields into the file."""
    schema = nemo_rl_master_config(Path(os.environ["NEMO_RL_PATH"])).model_json_schema(schema_generator=Described)
    data = json.loads(TARGET.read_text(encoding="utf-8"))
    data["nemo-rl"]["required"] = dict(sorted(required(schema, schema["$defs"])))
    data["nemo-rl"]["required_source"] = "MasterConfig of nemo_rl/algorithms/grpo.py of NVIDIA-NeMo/RL at v0.7.0"
    TARGET.write_text(json.dumps(data, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
