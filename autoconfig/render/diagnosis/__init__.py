"""The answer of `diagnose`: its record, and what fits a screen."""
