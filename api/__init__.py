"""HTTP over the same application as the command line: parse, call, render. Pydantic and FastAPI live here only.

settings      what the service was started with
answers       a question in, rendered JSON out; runs in worker processes
compute       the worker processes, their time limit, and the cache of rendered answers
problems      errors as RFC 9457 problem documents
access        API keys, scopes, rate limits
context       what every endpoint needs: the running service, the caller's key, ready responses
searches      searches as rows
measurements  runs that jobs bring back, and the calibration that they make
store         the tables of both
wire          bodies, made from the declared fields, and schemas of the OpenAPI document
routes        the endpoints
work          workers: searches taken from a queue, those that measure among them
http          limits, pages of lists, metrics
app           puts them together; `autoconfig serve` runs it (`cli/service.py`)
"""
