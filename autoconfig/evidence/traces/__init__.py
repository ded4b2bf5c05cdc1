"""Traces of a profiler, read into TraceParts (records.py): what a GPU did with its time, and why it did nothing.

`kineto.read` reads torch.profiler's JSON as it streams by, `nsys.read` an export of Nsight Systems; both fill an `Activity`,
which `timeline.parts` turns into parts that add up to the span. `arrivals.compare` sets the ranks beside each other.
"""
