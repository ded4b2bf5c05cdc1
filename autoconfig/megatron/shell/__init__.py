"""Launch scripts in bash, read to the argument list that they hand over; nothing is run. It knows nothing of Megatron."""
