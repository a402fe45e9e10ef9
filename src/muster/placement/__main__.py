"""`python -m muster.placement list|reap [GRACE]`: the node side of `muster programs` and `muster reap`.

The last line of stdout is one JSON object with everything that is placed, or with everything that was reaped.
"""

from __future__ import annotations

import json
import logging
import os
import sys

import ray

from muster.placement.runtime.inventory import reap, take_inventory
from muster.placement.runtime.names import NAMESPACE


def main(args: list[str]) -> int:
    address = os.environ.get("RAY_ADDRESS", "auto")  # never start a new cluster
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    found = take_inventory()
    record = found.record()
    if args[0] == "reap":
        silent = reap(found, float(args[1]) if len(args) > 1 else None)
        record = {**found.without_owner().record(), "silent": silent}
    print(json.dumps(record), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
