"""From layers to the step: stages, pipeline schedule, data parallelism, optimizer."""
