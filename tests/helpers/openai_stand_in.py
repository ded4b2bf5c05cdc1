"""A stand-in for the HTTP side of vLLM's server: /health and streamed /v1/completions. How it behaves is in STAND_IN_SERVER.

Only the HTTP side is not vLLM's: the driver, its processes and signals are the real ones.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BEHAVIOUR = os.environ.get("STAND_IN_SERVER", "")
TTFT_S, STEP_S = 0.05, 0.01


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(200 if self.path == "/health" and BEHAVIOUR != "never up" else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if BEHAVIOUR == "refuses":
            body = b'{"error": {"message": "too long for this model"}}'
            self.send_response(400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        left = asked["max_tokens"] - (BEHAVIOUR == "answers short")
        time.sleep(TTFT_S)
        while left:
            many = min(2, left) if BEHAVIOUR == "two at once" else 1
            self.event({"choices": [{"text": "", "token_ids": [7] * many}]})
            left -= many
            if left:
                time.sleep(many * STEP_S)
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, body):
        self.chunk(b"data: " + json.dumps(body).encode() + b"\n\n")

    def chunk(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    port = parser.parse_known_args()[0].port
    if BEHAVIOUR == "out of memory":
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    if BEHAVIOUR == "dies":
        sys.exit("ValueError: no such device here")
    # an engine process of its own, as vLLM has one; it may be deaf to SIGTERM
    deaf = "signal.signal(15, signal.SIG_IGN);" if BEHAVIOUR == "two at once" else ""
    subprocess.Popen([sys.executable, "-c", f"import signal, time; {deaf} time.sleep(600)"])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
