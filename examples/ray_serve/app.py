"""Deploy an application of Ray Serve, query it from every node, and stop it.

    muster run -f job.yaml

To keep it running: `muster up`, then `muster run --in RUN -- serve run app:app`.
"""

from __future__ import annotations

import urllib.request

import ray
from ray import serve
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from starlette.requests import Request

PORT = 8123


@serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 0.25})
class WordCounter:
    async def __call__(self, request: Request) -> dict[str, int]:
        return {"words": len((await request.body()).split())}


app = WordCounter.bind()


@ray.remote(num_cpus=0)
def query(address: str) -> str:
    with urllib.request.urlopen(address, b"to be or not to be", timeout=60) as answer:
        return str(answer.read().decode())


def main() -> None:
    ray.init(log_to_driver=False)
    host = ray.util.get_node_ip_address()
    serve.start(proxy_location="HeadOnly", http_options={"host": host, "port": PORT})
    serve.run(app)
    places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in ray.nodes()]
    tasks = [query.options(scheduling_strategy=place).remote(f"http://{host}:{PORT}/") for place in places]
    for answer in ray.get(tasks):
        print(answer)
    serve.shutdown()


if __name__ == "__main__":
    main()
