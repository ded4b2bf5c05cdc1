"""Serving: rows of published runs, predictions, calibration, the search for a deployment and its answer."""
