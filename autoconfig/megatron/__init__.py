"""Megatron-LM launch scripts and plan.json, read and written."""
