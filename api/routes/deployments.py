"""`POST /v1/deployments`: the body, its schema, its example. The endpoint is one of routes_answers."""

from __future__ import annotations

from typing import Any

from autoconfig.api.wire.bodies import _Body, _fields, _Text
from autoconfig.api.wire.schemas import answer_schemas, body_schema
from pydantic import BaseModel, ConfigDict, Field, create_model

from autoconfig.cli.serving import search_inference

_LEFT_OUT = ("inference", "export_folder", "ttft_s", "tpot_s", "trace", "gpus", "calibration")
MOST_TRACE_ROWS = 10_000
"""Of a trace in a body; the command line reads longer ones from files."""


class TraceRow(BaseModel):
    """One recorded request; other keys (Mooncake's hash_ids) are not read."""

    model_config = ConfigDict(strict=True)

    timestamp: float = Field(description="Arrival in milliseconds; not before that of the row above.")
    input_length: int = Field(description="Input tokens, from 1 to 2,000,000.")
    output_length: int = Field(description="Output tokens, from 1 to 2,000,000.")


_limit: Any = _Text | float | None
DeploymentsBody = create_model(
    "DeploymentsBody",
    __base__=_Body,
    gpus=(int, Field(description="Number of GPUs; with goal gpus the most there are.")),
    ttft=(_limit, Field(default=None, description="Limit of the mean time to first token: seconds, or text like `2s`.")),
    trace=(
        list[TraceRow] | None,
        Field(
            default=None,
            description="Requests as recorded, in place of lengths and rate: rows of Mooncake's traces, in order of arrival.",
            min_length=2,
            max_length=MOST_TRACE_ROWS,
            examples=[
                [
                    {"timestamp": 0, "input_length": 900, "output_length": 120},
                    {"timestamp": 350, "input_length": 4000, "output_length": 60},
                ]
            ],
        ),
    ),
    tpot=(_limit, Field(default=None, description="Limit of the mean time per output token, likewise.", examples=["50ms"])),
    **_fields(search_inference, _LEFT_OUT),
)
EXAMPLE: dict[str, object] = {
    **{"model": "llama3-70b", "gpus": 8, "gpu": "h200-sxm-141gb", "isl": 1000, "osl": 500},
    **{"ttft": "2s", "tpot": "50ms"},
}
QUESTION = (
    "deployments",
    DeploymentsBody,
    "Serve",
    "The best deployments of a served model, as `autoconfig search --inference --json`.",
    EXAMPLE,
)


def components() -> dict[str, Any]:
    """Component schemas of the body and the answer."""
    found = answer_schemas("serve")
    funnel = found["ServeFunnel"]  # without the seconds: the same question gives the same bytes
    del funnel["properties"]["seconds"]
    funnel["required"].remove("seconds")
    body = body_schema(DeploymentsBody)
    return {**found, **body.pop("$defs", {}), DeploymentsBody.__name__: body}
