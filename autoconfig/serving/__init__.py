"""Serving: from a question to the space of deployments, their prices, the ranking and the answer."""
