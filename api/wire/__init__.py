"""Bodies of requests, and the schemas that are published."""
