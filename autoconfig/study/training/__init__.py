"""What a profiling study of training measures, and in which order."""
