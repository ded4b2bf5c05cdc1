"""What a profiling study of serving measures, and in which order."""
