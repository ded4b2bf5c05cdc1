"""Step time and goodput against the number and type of GPUs."""
