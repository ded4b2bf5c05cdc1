"""Reads questions as JSON lines, answers each with one JSON line. One process, one import of megatron.

.venv-judge/bin/python -m tools.judge.judge < questions.jsonl

{"arguments": ["--num-layers", "2"], "world_size": 8, "environment": {"NAME": "value"}, "capability": 9.0}
{"degrees": {"gpus": 16, "tp": 2, "pp": 1, "cp": 1, "vpp": 1, "ep": 4, "etp": 1, "mbs": 1, "gbs": 64},
 "sequence_parallel": false}   (on one line)
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
    from tools.judge.verdict import judge, judge_degrees

    for line in sys.stdin:
        question = json.loads(line)
        if "degrees" in question:
            verdict = judge_degrees(question["degrees"], question["sequence_parallel"])
        else:
            world, variables = question["world_size"], question.get("environment", {})
            verdict = judge(question["arguments"], world, variables, question.get("capability") or 9.0)
        answers.write(json.dumps(verdict.as_json(), default=str) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
