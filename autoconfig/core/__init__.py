"""What the real megatron-core says of a plan: traces, emulated ranks, the step as a timeline."""
