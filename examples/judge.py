"""A service that checks answers. It is ready when /health responds; Muster requires nothing else."""

from __future__ import annotations

import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Judge(BaseHTTPRequestHandler):
    """GET /6*7=42"""

    def do_GET(self) -> None:
        sum_, _, answer = self.path.lstrip("/").partition("=")
        left, _, right = sum_.partition("*")
        health = self.path == "/health"
        correct = left.isdigit() and right.isdigit() and str(int(left) * int(right)) == answer
        self.send_response(200 if health or correct else 422)
        self.end_headers()
        self.wfile.write(f"{'healthy' if health else correct} says {os.uname().nodename}\n".encode())


if __name__ == "__main__":
    ThreadingHTTPServer(("", int(sys.argv[1])), Judge).serve_forever()
