"""HTTP over the same application layer as the command line.

Will own: routes, the error and success shapes, durable jobs and the web page. Pydantic lives here only.
"""
