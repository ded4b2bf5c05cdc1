"""A machine without CUDA as host of the training core: stand-ins of torch.cuda, timers, limits."""
