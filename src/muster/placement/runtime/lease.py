"""The lease of a server's name: one live process holds it at a time, in numbered terms that Ray's head stores.

A term is claimed by creating its record, which Ray's key-value store does for only one writer. The next term may be
claimed when the owner of the last has released it or is dead, or by an explicit takeover. An owner that sees a later
term has lost the name and changes nothing any more.

    the last term's owner              another driver
    released it, or is dead            claims the next term, and stops everything that the last one left
    alive                              is refused (OwnedElsewhere), or takes over
    not visible from here              the same: it may be alive
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from ray.experimental import internal_kv

from muster.placement.errors import OwnedElsewhere
from muster.placement.runtime.names import NAMESPACE, validate_server
from muster.placement.runtime.owner import Owner, is_alive, this_process


class NameLease:
    """One term of a server's name."""

    def __init__(self, server: str, term: int) -> None:
        self.server = server
        self.term = term

    @classmethod
    def acquire(cls, server: str, *, takeover: bool = False) -> NameLease:
        """Claim the next term; raises OwnedElsewhere if the last owner may be alive, unless `takeover` is set."""
        validate_server(server)
        while True:
            last = last_term(server)
            owner = None if last == 0 else owner_of(server, last)
            if owner is not None and not takeover and is_alive(owner) is not False:
                raise OwnedElsewhere(
                    f"server {server!r} belongs to {owner}; takeover=True stops its programs and claims the name"
                )
            record = json.dumps(asdict(this_process())).encode()
            # True if the record exists: another process was faster, and is checked like any other owner.
            if not internal_kv._internal_kv_put(_key(server, last + 1), record, overwrite=False, namespace=NAMESPACE):
                return cls(server, last + 1)

    def is_ours(self) -> bool:
        """Return whether no other process has claimed the name since."""
        return last_term(self.server) == self.term

    def release(self) -> None:
        internal_kv._internal_kv_put(f"{_key(self.server, self.term)}/released", b"1", namespace=NAMESPACE)


def last_term(server: str) -> int:
    """Return the last claimed term; 0 if the name was never claimed."""
    keys = internal_kv._internal_kv_list(f"{_key(server, None)}/", namespace=NAMESPACE)
    return max((int(key.decode().split("/")[2]) for key in keys), default=0)


def owner_of(server: str, term: int) -> Owner | None:
    """Return the owner of a term; None if it was released."""
    if internal_kv._internal_kv_exists(f"{_key(server, term)}/released", namespace=NAMESPACE):
        return None
    record: Any = internal_kv._internal_kv_get(_key(server, term), namespace=NAMESPACE)
    return None if record is None else Owner(**json.loads(record))


def _key(server: str, term: int | None) -> str:
    return f"lease/{server}" if term is None else f"lease/{server}/{term}"
