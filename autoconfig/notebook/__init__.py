"""Answers as Python objects: JSON's fields as attributes, pandas frames, HTML in a notebook."""
