"""Traces that are made: a day of requests with one busy part, drawn with a seed."""

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

DAY_S = 86_400.0
Rows = npt.NDArray[np.float64]


def a_day(
    *, requests: int, seed: int, isl: float, osl: float, busy: tuple[float, float], times: float, seconds: float = DAY_S
) -> Rows:
    """(request, (seconds, tokens in, tokens out)) in order of arrival: exponential lengths, arrivals at random, `times` as
    often in the busy part as else."""
    rng = np.random.default_rng(seed)
    begin, end = busy
    share = times * (end - begin) / (times * (end - begin) + seconds - (end - begin))
    inside = rng.binomial(requests, share)
    outside = rng.uniform(0.0, seconds - (end - begin), requests - inside)
    outside = np.where(outside < begin, outside, outside + end - begin)
    arrival = np.sort(np.concatenate([outside, rng.uniform(begin, end, inside)]))
    lengths = [np.clip(rng.exponential(mean, requests), 1, 20 * mean).astype(int) for mean in (isl, osl)]
    return np.stack([np.floor(arrival * 1e6) / 1e6, *lengths], axis=1)


def written(path: Path, rows: Rows, *, lines: bool = False) -> Path:
    """Write a CSV of Azure's columns on one date, or JSON lines in milliseconds."""
    with path.open("w") as file:
        if not lines:
            file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for time, isl, osl in rows:
            if lines:
                file.write(f'{{"timestamp": {time * 1e3:.3f}, "input_length": {isl:.0f}, "output_length": {osl:.0f}}}\n')
            else:
                clock = f"{int(time) // 3600:02}:{int(time) // 60 % 60:02}:{time % 60:09.6f}"
                file.write(f"2026-11-28 {clock},{isl:.0f},{osl:.0f}\n")
    return path


def main(path: str, requests: str = "20000", hours: str = "6") -> None:
    """`python -m benchmarks.made_traces day.csv`: the six hours of docs/inference.md, 20,000 requests, the middle hour busy;
    further arguments: requests and hours."""
    hour, middle = DAY_S / 24.0, int(hours) // 2
    busy = (middle * hour, (middle + 1) * hour)
    written(
        Path(path), a_day(requests=int(requests), seed=1, isl=1500, osl=300, busy=busy, times=4.0, seconds=int(hours) * hour)
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
