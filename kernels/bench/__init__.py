"""Microbenchmarks of a machine's operators."""
