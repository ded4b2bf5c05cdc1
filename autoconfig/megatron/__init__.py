"""Megatron-LM launch scripts, both directions: arguments read into a question and a plan, and a plan written as arguments."""
