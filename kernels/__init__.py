"""Operators that the training core needs (norm, attention core) and their microbenchmarks. Imports nothing here."""

# `kernels` is also the import name of a Hugging Face package that `transformers` looks for and whose version it compares:
# with this number it finds ours too old and goes on without it.
__version__ = "0.0.0"
