"""Recorded sweeps replayed as an oracle for the profiling study."""
