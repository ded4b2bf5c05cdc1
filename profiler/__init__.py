"""Turns a plan into measurements.

Will own: job folders, the runners (local torchrun, Slurm), outcomes, the budget and NVML sampling. Imports `specs`,
never torch.
"""
