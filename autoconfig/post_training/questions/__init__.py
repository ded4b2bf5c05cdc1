"""Questions beside the ranking of a step: remedies, fewest GPUs, what is not known."""
