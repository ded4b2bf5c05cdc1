"""What a launch is to a batch system: its time limit, what its container sees, and the whole job as a Kubernetes JobSet."""
