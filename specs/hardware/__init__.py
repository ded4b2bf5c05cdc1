"""Hardware: GPUs, clusters, measured operator tables, the local machine."""
