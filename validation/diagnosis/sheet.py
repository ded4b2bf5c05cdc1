"""`python -m validation.diagnosis.sheet` writes docs/accuracy/diagnosis.md: cases, made faults, false alarms, gains,
calibration."""

from __future__ import annotations

from pathlib import Path

from validation.diagnosis.alarms import alarm_lines, by_class, publishers_alike
from validation.diagnosis.cases import case_lines, reported
from validation.diagnosis.faults import fault_lines
from validation.diagnosis.groups import by_group, group_lines
from validation.diagnosis.switches import by_switch, pair_lines
from validation.sheets.figures import Line, share, table

PAGE = Path(__file__).parents[2] / "docs" / "accuracy" / "diagnosis.md"
HEAD = """# How often `diagnose` is right

Written by `python -m validation.diagnosis.sheet`. No rule knows a case, a source or a row.
"""


def page() -> str:
    """Return the figures as Markdown."""
    rows = [
        (
            one.row["id"],
            one.row["source"],
            one.row["rule"] or "-",
            one.row["cause_status"],
            one.row["evidence_enough"],
            one.found.verdict,
            " ".join(one.rules) or "-",
            "right" if one.right else "wrong" if one.wrong else "none",
        )
        for one in reported()
    ]
    every = (*case_lines(), *fault_lines(), *alarm_lines(), *pair_lines(), *group_lines())
    lines = [(line.name, str(line.rows), _reached(line), _asked(line)) for line in every]
    return "\n".join(
        [
            HEAD,
            table("figure | rows | reached | asked", lines),
            "## Public cases\n",
            "Of `validation/tables/diagnosed_runs.csv`: the question, what was posted, and the cause as it was found.\n",
            table("case | source | rule | status | enough | verdict | named | is", rows),
            "## Published runs that their publishers were content with\n",
            "By their step alone, with constants that have not seen the publisher, and called slow beyond what 97 % of the\n"
            "other publishers' runs of the class reach, at least the band's end (alone where those are fewer than 30). The\n"
            "bands are of all publishers. `diagnose` has the edges of all (`autoconfig/data/diagnosis_rules.toml`). Between\n"
            "band and edge, and where too little was published of a class, the verdict is `no_promise`.\n",
            by_class(),
            publishers_alike(),
            "## Gains of switches\n",
            "Of pairs of published rows that differ in one switch (`validation/tables/switch_pairs.csv`): the planner's gain\n"
            "beside the measured one, with the shipped constants. Signs count where the measured gain is beyond 3 %.\n",
            by_switch(),
            "## Calibration from one run\n",
            "Groups of published runs (`validation/tables/calibration_groups.csv`), constants without their\n"
            "publisher: mean error before, and where one healthy run of the group calibrates and the others are predicted.\n",
            by_group(),
        ]
    )


def _reached(line: Line) -> str:
    return f"{line.reached:.0f}" if line.name.startswith("wrong") else share(line.reached)


def _asked(line: Line) -> str:
    bound = line.most if line.most is not None else line.least
    assert bound is not None
    text = f"{bound:.0f}" if line.name.startswith("wrong") else share(bound)
    words = f"at {'most' if line.most is not None else 'least'} {text}"
    return words if line.holds else f"{words}: missed"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
