"""Seconds of the operators of a layer and of what stands outside of the layers."""
