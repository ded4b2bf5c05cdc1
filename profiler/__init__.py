"""Turns a plan into measurements: job folders, runners, outcomes. Imports `specs`, never torch.

A job is a folder named by the hash of its content: job.json in, result.json out, logs beside them (docs/profiling.md).
"""
