"""What a run leaves behind, read into records: logs, timers, traces, samples of NCCL and NVML.

`read.read_files(paths)` and `read.read_texts({name: text})` give an `Evidence` (records.py), files in any order;
`steps.statistics(lines)` says of StepLines how long a step takes; `dump.read_plan(text)` gives the arguments that a Megatron
log prints.
"""
