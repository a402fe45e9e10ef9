"""A service: says whether an answer is right. Ready when /health answers; that is all Muster wants of it."""

from __future__ import annotations

import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Judge(BaseHTTPRequestHandler):
    """GET /6*7=42"""

    def do_GET(self) -> None:
        sum_, _, answer = self.path.lstrip("/").partition("=")
        left, _, right = sum_.partition("*")
        well = self.path == "/health"
        right_answer = left.isdigit() and right.isdigit() and str(int(left) * int(right)) == answer
        self.send_response(200 if well or right_answer else 422)
        self.end_headers()
        self.wfile.write(f"{'healthy' if well else right_answer} says {os.uname().nodename}\n".encode())


if __name__ == "__main__":
    ThreadingHTTPServer(("", int(sys.argv[1])), Judge).serve_forever()
