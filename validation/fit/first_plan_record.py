"""`make accuracy`: writes autoconfig/data/first_plans.json, what published runs reached of what our first plans promise.

Deterministic: the same tables and the same models give the same file.
"""

from __future__ import annotations

import json
from pathlib import Path

from validation.sheets.first_plans import first_plans, record_of

TARGET = Path(__file__).resolve().parents[2] / "autoconfig" / "data" / "first_plans.json"
ABOUT = (
    "Measured over promised step time of the best published run of a question and of our first plan for it, questions of "
    "tuned runs only (validation/sheets/first_plans.py, record_of). Written by validation/fit/first_plan_record.py."
)


def main() -> None:
    """Search every published question and write the record."""
    TARGET.write_text(json.dumps({"about": ABOUT, "kinds": record_of(first_plans())}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
