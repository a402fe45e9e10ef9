"""`python -m muster.sandbox SETTINGS.json`: the server without the command line's dependencies."""

from __future__ import annotations

import asyncio
import json
import sys

from muster.sandbox.server import SandboxServer, serve
from muster.sandbox.settings import SandboxSettings, SettingsError


def main() -> int:
    """Serve with the settings of a JSON file, since they may contain a token; `-` is stdin."""
    try:
        with sys.stdin if sys.argv[1] == "-" else open(sys.argv[1]) as file:
            settings = SandboxSettings.from_json(json.load(file))
    except (SettingsError, ValueError, OSError) as error:
        for problem in getattr(error, "problems", [str(error)]):
            print(f"muster sandbox: {problem}", file=sys.stderr)
        return 2
    return asyncio.run(serve(settings, announce))


def announce(server: SandboxServer) -> None:
    facts = server.facts()
    print(f"muster sandbox: {facts['url']}, isolation {facts['isolation']['level']}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
