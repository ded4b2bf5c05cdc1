"""The vocabulary: what a model, a GPU, a cluster, a software stack and a plan are, with their units, errors and catalogues.

Nothing here predicts anything. `memory_model` and `time_model` both need layer shapes and parameter counts, so these live
here too (`specs.models.parameters`). Imports numpy only; never torch.
"""
