"""Bytes that one GPU of each pipeline stage holds, in closed form: formulas take scalars or NumPy arrays alike.

    predict.py        adds the parts up, per stage and moment, for many plans at once
      |- state.py         weights, gradients, optimizer state
      |- activations.py   tensors that autograd saves per layer
      |- recomputation.py what remains of them under recomputation, and what comes back in backward
      |- in_flight.py     micro-batches that a pipeline stage holds
      |- moments.py       temporaries of the moments in which a step can peak
      `- overhead.py      CUDA context, NCCL, allocator; what may be allocated; probability to fit

Imports specs only.
"""
