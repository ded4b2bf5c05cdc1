"""A plan as files that a training job takes: Megatron-LM launch scripts and `plan.json`."""
