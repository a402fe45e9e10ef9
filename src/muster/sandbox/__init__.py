"""The sandbox runs model-written code in isolation. Standard library only, Python >= 3.9.

>>> from muster.sandbox import Client
>>> with Client("http://127.0.0.1:6000") as box:  # doctest: +SKIP
...     print(box.execute("print(6 * 7)").stdout)
42
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["AsyncClient", "Client", "Result", "SandboxLost", "SandboxRefused", "SandboxUnavailable"]

if TYPE_CHECKING:
    from muster.sandbox.client.async_client import AsyncClient
    from muster.sandbox.client.retry_rules import Result, SandboxLost, SandboxRefused, SandboxUnavailable
    from muster.sandbox.client.sync_client import Client

_MODULES = {"AsyncClient": "client.async_client", "Client": "client.sync_client"}


def __getattr__(name: str) -> Any:
    """Import the clients on first use: the server does not need them."""
    if name not in __all__:
        raise AttributeError(f"module 'muster.sandbox' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"muster.sandbox.{_MODULES.get(name, 'client.retry_rules')}"), name)
