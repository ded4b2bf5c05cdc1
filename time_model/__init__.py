"""Seconds of one training step: operators, collectives, pipeline schedule, overlap. NumPy only; never torch.

`predict.estimate_step_time` prices many plans at once, `operators.listing.explain_operators` shows one layer operator by
operator. Every formula is a small pure function over scalars or arrays; docs/time_model.md lists them with their sources.
"""
