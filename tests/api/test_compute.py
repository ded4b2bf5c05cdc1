"""The pool of processes that computes answers."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from autoconfig.api.answers import answer
from autoconfig.api.context import Compute

QUESTION = {"model": "1.7b", "gpus": 8, "gpu": "h100-sxm-80gb", "memory_margin": 0.0, "top": 1, "sort_by": "step"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # pebble's, which is the point
def test_a_pool_that_has_failed_is_started_again():
    """What cannot be handed to another process ends pebble's thread that hands out work, and with it the pool."""
    compute = Compute(1, 60.0, 1_000)
    compute.start()

    async def ask() -> None:
        assert (await compute.run("plans", QUESTION)).status == 200
        assert compute._pool is not None
        deep: dict[str, object] = {}
        for _ in range(2_000):
            deep = {"a": deep}
        compute._pool.schedule(answer, args=("plans", deep))
        while compute._pool.active:
            await asyncio.sleep(0.01)
        found = await compute.run("plans", QUESTION)
        assert (found.status, found.body) == answer("plans", QUESTION)

    with ThreadPoolExecutor(1) as thread:  # the browser of other tests leaves a loop running in this one
        thread.submit(lambda: asyncio.run(asyncio.wait_for(ask(), 120))).result()
    compute.stop()
