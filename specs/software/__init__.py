"""Software: training stacks, serving engines, number formats of checkpoints."""
