"""`autoconfig worker`: a process that works on searches."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable
from typing import Any

from api.answers import answer
from api.store import engine_of
from api.workflow import Progress, WorkerProcess

EXIT_TAKEN_FOR_DEAD = 1


def run(database: str, concurrency: int) -> None:
    """Work until SIGTERM or Ctrl-C; what has not ended is left to the next worker. Raises InputError."""
    worker = WorkerProcess(engine=engine_of(database), database=database, answering=answer_search, concurrency=concurrency)
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: worker.stop.set())
    try:
        worker.run()
    finally:
        logging.shutdown()
        os._exit(0 if worker.stop.is_set() else EXIT_TAKEN_FOR_DEAD)


def answer_search(identity: str, body: dict[str, Any], progress: Progress, cancelled: Callable[[], bool]) -> tuple[int, bytes]:
    """The answer to one search; formula searches are one step."""
    progress("progress", {"text": "ranking plans by formula"})
    status, text = answer("plans", body)
    if status == 200:
        found = json.loads(text)
        best = found["plans"][0]["short"] if found["plans"] else None
        progress("progress", {"text": "plans are ranked", "plans": len(found["plans"]), "best": best})
    return status, text
