"""One rank of a job of any size on fake tensors."""
