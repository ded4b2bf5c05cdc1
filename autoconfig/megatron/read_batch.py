"""Micro-batch and global batch in Megatron-LM's arguments."""

from __future__ import annotations

import re

from autoconfig.megatron.argument_list import Arguments
from autoconfig.specs.errors import InputError

SCHEDULE = "--step-batch-size-schedule"
_SUFFIXES = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_ENTRY = re.compile(r"([0-9.]+)([KMBT]?):([0-9.]+)([KMBT]?)", re.IGNORECASE)


def read_batch(a: Arguments, dp: int, assumed: list[str]) -> tuple[int, int]:
    """(micro-batch, global batch) in samples. Raises InputError where there is no micro-batch, or two global batches.

    The size of a schedule is its last one, as `_parse_schedule` of megatron-core 0.19.2 (num_microbatches_calculator.py)
    reads it; its arguments.py refuses a schedule beside --global-batch-size.
    """
    mbs = a.count("--micro-batch-size", "--batch-size")
    if mbs is None:
        raise InputError("--micro-batch-size is not in the file; add it")
    batch = a.count("--global-batch-size")
    if a.has(SCHEDULE):
        if batch is not None:
            raise InputError(f"{SCHEDULE} and --global-batch-size are given together, which Megatron-LM refuses; drop one")
        batch = _last_of_schedule(a.texts(SCHEDULE))
        assumed.append(f"global batch {batch}, the last of {SCHEDULE}: checked at this size only")
    elif batch is None:
        batch = mbs * dp
        assumed.append(f"global batch {batch} = micro-batch x data parallelism, Megatron's default (--global-batch-size)")
    if a.has("--rampup-batch-size"):
        assumed.append(
            f"--rampup-batch-size: megatron-core 0.19 ignores it ({SCHEDULE} took its place), older Megatron-LM ramps the "
            f"batch up; checked at global batch {batch}"
        )
    return mbs, batch


def _last_of_schedule(texts: tuple[str, ...]) -> int:
    entries = []
    for word in " ".join(texts).replace("'", " ").replace('"', " ").replace(",", " ").split():
        match = _ENTRY.fullmatch(word)
        try:
            sizes = [float(match[n]) * _SUFFIXES[match[n + 1].upper()] for n in (1, 3)] if match else []
        except ValueError:
            sizes = []
        if not sizes or not 1 <= sizes[1] < 1e12:
            raise InputError(f'{SCHEDULE} {word[:40]!r}: write THRESHOLD:SIZE pairs, "0:768 250B:1536"')
        entries.append((sizes[0], int(sizes[1])))
    thresholds = [threshold for threshold, _ in entries]
    if not entries or sorted(thresholds)[0] != 0 or len(set(thresholds)) != len(thresholds):
        raise InputError(f'{SCHEDULE}: the thresholds start at 0 and differ, "0:768 250B:1536"')
    return max(entries)[1]
