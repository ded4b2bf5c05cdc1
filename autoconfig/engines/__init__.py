"""Start scripts of serving engines: one instance, the router, Slurm and Kubernetes."""
