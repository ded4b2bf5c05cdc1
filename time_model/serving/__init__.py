"""Seconds of a serving engine: iterations, steady state, simulation."""
