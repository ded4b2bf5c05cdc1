"""`python -m tools.keywords`: writes the keywords of the Python API as types, from the fields of requests.

They are for editors and type checkers; nothing is loaded of them at run time.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from autoconfig.planning import request_fields as fields
from autoconfig.planning.resolve import Field

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "autoconfig" / "keywords.py"
DIFFERENT = ("gpus", "gpu", "precision", "gpu_table")
"""Fields of a question that not every question has alike."""
COMMON = tuple(field for field in fields.QUESTION if field.name not in DIFFERENT)
OF_FILES = tuple(field for field in fields.CHECK if field in fields.PREDICT and field in fields.CONVERT)
FUNCTIONS: dict[str, tuple[str, tuple[Field, ...]]] = {
    "QuestionKeywords": ("`explain` and `export`", fields.QUESTION),
    "DiagnoseKeywords": (
        "`diagnose`",
        (*fields.QUESTION, *(field for field in fields.DIAGNOSE if field.name != "calibrate")),
    ),
    "SearchKeywords": ("`search`", (*fields.QUESTION, *fields.SEARCH)),
    "ScalingKeywords": ("`scaling`", tuple(field for field in fields.SCALING if field.name != "plot")),
    "BudgetKeywords": ("`budget`", fields.BUDGET),
    "DeploymentsKeywords": ("`deployments`", fields.SERVING),
    "RlKeywords": ("`rl`", fields.POST_TRAINING),
    "PredictKeywords": ("`predict`", fields.PREDICT),
    "CheckKeywords": (
        "`check`",
        (*(field for field in fields.CHECK if field.name not in ("apply_to", "force")), *fields.CHECK_SERVING),
    ),
    "ConvertKeywords": (
        "`convert`, but for its format",
        tuple(field for field in fields.CONVERT if field.name not in ("format", "output", "force")),
    ),
}
BASES = (("_Common", "every question about training", COMMON), ("_File", "every file that is read", OF_FILES))
"""Classes of fields that several functions take: name, what has them, fields."""
COMPARED = "str | Sequence[str]"
REQUESTS = "str | Sequence[Mapping[str, Any]]"
OWN = {
    ("SearchKeywords", "gpu"): COMPARED,
    ("SearchKeywords", "precision"): COMPARED,
    ("ScalingKeywords", "gpu"): COMPARED,
    ("ScalingKeywords", "gpus"): "int | str | Sequence[int]",
    ("CheckKeywords", "trace"): REQUESTS,
    ("DeploymentsKeywords", "trace"): REQUESTS,
}
HEAD = '''"""Keywords of the functions of `import autoconfig`, as types for editors; written by `python -m tools.keywords`.

What each means: `autoconfig COMMAND --help-all`, under the option of its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

'''


def annotation(field: Field) -> str:
    """The type of a keyword."""
    if field.name in ("model", "cluster"):
        return "str | Mapping[str, Any]"
    if field.name == "price" and field.parse is not None:
        return "float | str | Mapping[str, Any]"
    if field.many:
        return "str | Sequence[str] | Mapping[str, Any]"
    if field.type is bool:
        return "bool"
    if field.type is int:
        return "int | str"
    return ("float | str" if field.parse else "float") if field.type is float else "str"


def text() -> str:
    """The module."""
    blocks = [_block(name, f"Of {said}.", "TypedDict", own) for name, said, own in BASES]
    for name, (said, own) in FUNCTIONS.items():
        base, shared = next(((base, shared) for base, _, shared in BASES if set(shared) <= set(own)), ("TypedDict", ()))
        blocks.append(_block(name, f"Of {said}.", base, [field for field in own if field not in shared]))
    return HEAD + "\n" + "\n\n\n".join(blocks) + "\n"


def _block(name: str, said: str, base: str, own: Iterable[Field]) -> str:
    lines = [f"    {field.name}: {OWN.get((name, field.name), annotation(field))}" for field in own]
    return "\n".join([f"class {name}({base}, total=False):", f'    """{said}"""', *([""] if lines else []), *lines])


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
