"""An exported script on a CPU, with megatron-core's own trainer."""
