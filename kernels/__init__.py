"""Operators that the training core needs (norm, attention core) and their microbenchmarks. Imports nothing here."""

# `python -m` in a checkout finds this folder where `transformers` looks for Hugging Face's package of this name: with this
# version it is too old, and transformers goes on without it.
__version__ = "0.0.0"
