"""The profiling study: which plan to measure next, what a measurement says about all others, when to stop
(docs/profiling.md).
"""
