"""The GPU training core, a process of its own. It reads job.json, writes result.json, and the planner never imports it.

Owns the megatron-core model, optimizer and schedule of a job, and the full run (`python -P -m autoconfig.trainer`,
docs/trainer.md). May import torch, megatron-core, `kernels` and `specs`.
"""
