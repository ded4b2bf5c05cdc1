"""Bytes that one GPU of each pipeline stage holds, in closed form. Formulas take scalars or NumPy arrays alike.

    predict.py        adds the parts up, per stage and moment, for many plans at once; what the driver, NCCL and the allocator
                      take, and the probability to fit
      |- peaks.py         the worst stage's peak for whole tables of plans, for the search
      |- tables.py        layers priced once per unique shape, stages once per row
      |- state.py         weights, gradients, optimizer state; temporaries of the moments in which a step can peak
      |- experts.py, recurrent.py   what experts and recurrent layers (Mamba-2, Gated DeltaNet) save and need
      `- activations.py   tensors that autograd saves per layer, for how many micro-batches a stage holds them, what remains of
                          them under recomputation, and what comes back in backward

Imports specs only.
"""
