"""Who owns a server's name: one live process at a time, in numbered terms kept by Ray's head.

A term is claimed by writing its record where none is, which Ray's key-value store does for one writer only. The next
term may be claimed when the last one's owner has released it or is dead, or by an explicit takeover. Whoever sees a
later term than its own has lost the name and keeps its hands off.

    the last term's owner              another driver
    released it, or is dead            claims the next term, and sweeps what the last one left
    alive                              is refused (OwnedElsewhere), or takes over
    cannot be seen from here           the same: it may be alive
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from ray.experimental import internal_kv

from muster.placement.errors import OwnedElsewhere
from muster.placement.runtime.names import NAMESPACE, checked_server
from muster.placement.runtime.owner import Owner, is_alive, this_process


class NameLease:
    """A term with a server's name."""

    def __init__(self, server: str, term: int) -> None:
        self.server = server
        self.term = term

    @classmethod
    def acquire(cls, server: str, *, takeover: bool = False) -> NameLease:
        """The next term; OwnedElsewhere while the last one's owner may be alive, unless it is taken over."""
        checked_server(server)
        while True:
            last = last_term(server)
            owner = None if last == 0 else owner_of(server, last)
            if owner is not None and not takeover and is_alive(owner) is not False:
                raise OwnedElsewhere(
                    f"server {server!r} belongs to {owner}; takeover=True ends what it runs and takes the name"
                )
            record = json.dumps(asdict(this_process())).encode()
            # True when there is one already: somebody was quicker, and is asked about like any other owner.
            if not internal_kv._internal_kv_put(_key(server, last + 1), record, overwrite=False, namespace=NAMESPACE):
                return cls(server, last + 1)

    def is_ours(self) -> bool:
        """False from the moment somebody else has taken the name."""
        return last_term(self.server) == self.term

    def release(self) -> None:
        internal_kv._internal_kv_put(f"{_key(self.server, self.term)}/released", b"1", namespace=NAMESPACE)


def last_term(server: str) -> int:
    """0 when the name was never anybody's."""
    keys = internal_kv._internal_kv_list(f"{_key(server, None)}/", namespace=NAMESPACE)
    return max((int(key.decode().split("/")[2]) for key in keys), default=0)


def owner_of(server: str, term: int) -> Owner | None:
    """Who claimed a term; None when it was released."""
    if internal_kv._internal_kv_exists(f"{_key(server, term)}/released", namespace=NAMESPACE):
        return None
    record: Any = internal_kv._internal_kv_get(_key(server, term), namespace=NAMESPACE)
    return None if record is None else Owner(**json.loads(record))


def _key(server: str, term: int | None) -> str:
    return f"lease/{server}" if term is None else f"lease/{server}/{term}"
