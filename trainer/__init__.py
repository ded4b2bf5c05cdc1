"""The GPU training core, run as a process (job.json in, result.json out) and never imported by the planner.

Will own: the megatron-core model and schedule, the trace on fake tensors, the emulated rank, the full run and the inference
engine. May import torch, megatron-core, `kernels` and `specs`.
"""
