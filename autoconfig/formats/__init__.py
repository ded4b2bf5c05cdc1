"""Files of other launchers than Megatron-LM's scripts: recognised by content, read to one record, written, translated."""
