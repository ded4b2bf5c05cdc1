"""PyTorch's own memory trackers as judge of the memory of training with torch, without a GPU."""
