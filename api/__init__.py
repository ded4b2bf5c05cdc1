"""HTTP over the same application layer as the command line: parse, call, render. Pydantic and FastAPI live here only.

settings   what the service was started with
bodies     request bodies: the command line's options with underscores, as pydantic models
answers    a question in, rendered JSON out; runs in worker processes
compute    the worker processes, their time limit, and the cache of rendered answers
problems   errors as RFC 9457 problem documents
schemas    the published JSON Schemas as OpenAPI components
access     API keys, scopes, rate limits
limits     body size, security headers
metrics    what /metrics shows
searches   searches as rows; `workflow` hands them to workers, `worker` answers them, `profile` those that measure
measurements  runs that jobs bring back, and the calibration that they make
routes_*   the endpoints
app        puts them together; `autoconfig serve` runs it
"""
