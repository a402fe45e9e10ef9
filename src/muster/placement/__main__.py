"""`python -m muster.placement list|reap [GRACE]`: what `muster ps` and `muster reap` run on a node of the cluster.

The answer is the last line of stdout, one JSON object: what there is, or what was without an owner and has been ended.
"""

from __future__ import annotations

import json
import logging
import os
import sys

import ray

from muster.placement.runtime.inventory import reap, take
from muster.placement.runtime.names import NAMESPACE


def main(words: list[str]) -> int:
    address = os.environ.get("RAY_ADDRESS", "auto")  # never a cluster of its own
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    found = take()
    record = found.record()
    if words[0] == "reap":
        silent = reap(found, float(words[1]) if len(words) > 1 else None)
        record = {**found.without_owner().record(), "silent": silent}
    print(json.dumps(record), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
