"""Reads questions as JSON lines, answers each with one JSON line. One process, one import of megatron.

.venv-judge/bin/python -m tools.judge.judge < questions.jsonl

{"arguments": ["--num-layers", "2"], "world_size": 8, "environment": {"NAME": "value"}, "capability": 9.0}
{"accepted": false, "stage": "config", "message": "", "kind": "ValueError", "where": "megatron/x.py:1324", "changed": {}}
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Answer until the input ends. Everything but answers goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    from tools.judge.verdict import judge

    for line in sys.stdin:
        question = json.loads(line)
        verdict = judge(
            question["arguments"], question["world_size"], question.get("environment", {}), question.get("capability") or 9.0
        )
        answers.write(json.dumps(verdict.as_json(), default=str) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
