"""Print the Ray cluster: one task on every node returns its host."""

import os
import socket

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ray.init(log_to_driver=False)


@ray.remote(num_cpus=0)
def where() -> str:
    return f"{socket.gethostname()} pid {os.getpid()}"


alive = [node for node in ray.nodes() if node["Alive"]]
for node in alive:
    here = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
    answer = ray.get(where.options(scheduling_strategy=here).remote())
    print(f"  rank {node['Labels']['muster.io/rank']}: {node['NodeManagerAddress']} answered from {answer}")
print(f"{len(alive)} alive nodes in run {os.environ['MUSTER_RUN_ID']}")
