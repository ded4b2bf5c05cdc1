"""The GPU training core, run as a process (job.json in, result.json out) and never imported by the planner.

Owns the megatron-core model, optimizer and schedule of a job, and the full run (`python -P -m autoconfig.trainer`,
docs/trainer.md). May
import torch, megatron-core, `kernels` and `specs`.
"""
