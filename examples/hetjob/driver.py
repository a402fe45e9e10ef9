"""Run a task on every node of the group "actors"; each task reads from a service on the head.

Run it with `muster run -f job.yaml`.
"""

from __future__ import annotations

import os
from urllib.request import urlopen

import ray


@ray.remote(num_cpus=0, resources={"group_actors": 1})
def act() -> str:
    import muster

    with urlopen(muster.service("store"), timeout=30) as answer:
        return f"{os.environ['MUSTER_GROUP']} got status {answer.status} from the service"


ray.init(log_to_driver=False)
actors = [node for node in ray.nodes() if "group_actors" in node["Resources"]]
print(f"the driver is in the group {os.environ['MUSTER_GROUP']}; {len(actors)} nodes are actors")
for line in ray.get([act.remote() for _ in actors]):
    print(line)
