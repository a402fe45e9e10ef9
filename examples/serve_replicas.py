"""Serve a small HTTP model on three replicas over two nodes, query each of them, and stop them.

    muster run --backend local --nodes 2 -- python examples/serve_replicas.py

The model counts words. As with a real model, every replica has reserved resources and a leased port, its health is
checked, it is restarted when it fails, and it ends with this driver.
"""

import http.server
import json
import sys
import urllib.request
from collections import Counter

REPLICAS = 3


class WordCounter(http.server.BaseHTTPRequestHandler):
    """POST a text to count its words; GET /health responds as soon as the model is loaded."""

    def do_GET(self) -> None:
        self.answer({"ready": True})

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.answer(dict(Counter(text.lower().split())))

    def answer(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve(port: int) -> None:
    http.server.ThreadingHTTPServer(("", port), WordCounter).serve_forever()


def drive() -> None:
    import ray

    from muster.placement import Model, Replicas, discover_nodes

    ray.init(log_to_driver=False)
    cpus = min(node.total["CPU"] for node in discover_nodes().nodes)
    model = Model("word-counter", replicas=REPLICAS, gpus_per_rank=0, cpus=cpus / 2)  # two on a node
    with Replicas("words", model, python_args=[__file__, "{port}"], on_event=print, on_progress=print) as words:
        nodes = {node for status in words.status() for node in status.nodes}
        print(f"{len(words.endpoints())} replicas on {len(nodes)} nodes")
        for endpoint in words.endpoints():
            with urllib.request.urlopen(endpoint.url, b"to be or not to be", timeout=30) as answer:
                print(f"  replica {endpoint.replica} at {endpoint.url}: {answer.read().decode()}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(int(sys.argv[1]))
    else:
        drive()
