"""What the real megatron-core says of a plan: one rank traced or emulated, and the step as a timeline."""
