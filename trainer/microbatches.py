"""How many micro-batches show what a schedule holds and costs."""

from __future__ import annotations

from autoconfig.specs.job import Job


def enough_microbatches(job: Job) -> Job:
    """The job with as many micro-batches as bring the schedule into its steady state: what is in flight is the same.

    1F1B holds at most p of them, interleaving at most 2 (p - 1) + (v - 1) p + 1 chunks, which 2 p micro-batches cover.
    """
    plan = job.plan
    wanted = 2 if plan.pp == 1 else plan.pp + 1 if plan.vpp == 1 else 2 * plan.pp
    return job.shortened(num_microbatches=min(wanted, job.num_microbatches))
