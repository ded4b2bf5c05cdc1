"""HTTP over the same application as the command line: parse, call, render. Pydantic and FastAPI live here only.

answers       a question in, rendered JSON out; runs in worker processes
problems      errors and refusals as RFC 9457 problem documents
context       what every endpoint needs: the running service, its worker processes, the caller's key, ready responses
store         settings, tables, API keys with their scopes and rate limits
searches, measurements   searches as rows; runs that jobs bring back, and the calibration that they make
agents        tools of agents over the Model Context Protocol
wire          bodies, made from the declared fields, and schemas of the OpenAPI document
routes        the endpoints
work          workers: searches taken from a queue, those that measure among them
http          limits, pages of lists, metrics
app           puts them together; `autoconfig serve` runs it (`cli/service.py`)
"""
