"""The real megatron-core as judge of argument lists, without a GPU."""
