"""Causes of a slow run, one function a rule, each with evidence of its own."""
