"""The driver of every launcher: records when it started, the number of live nodes, and when it was done.

python driver.py FILE: writes {"start", "end", "alive"} to FILE. Ray is imported after the start was recorded, and shut
down before the end is recorded, so that the driver's own time is excluded.
"""

import time

started = time.time()

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402

import ray  # noqa: E402

ray.init(address="auto", log_to_driver=False)
alive = sum(node["Alive"] for node in ray.nodes())
ray.shutdown()
with open(sys.argv[1] + ".new", "w", encoding="utf-8") as file:
    json.dump({"start": started, "end": time.time(), "alive": alive}, file)
os.rename(sys.argv[1] + ".new", sys.argv[1])
