"""`python -m muster.endpoint -`: the proxy of an endpoint, with its settings as JSON on stdin or in a file."""

from __future__ import annotations

import asyncio
import json
import sys

from muster.endpoint.server import serve_endpoint
from muster.endpoint.settings import EndpointSettings


def main() -> int:
    """Serve with the settings, which contain a token, so they are never in the command line."""
    try:
        with sys.stdin if sys.argv[1] == "-" else open(sys.argv[1]) as file:
            settings = EndpointSettings.from_json(json.load(file))
    except (ValueError, OSError) as error:
        print(f"muster endpoint: {error}", file=sys.stderr)
        return 2
    return asyncio.run(serve_endpoint(settings))


if __name__ == "__main__":
    sys.exit(main())
