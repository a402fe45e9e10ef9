"""Find the Debian mirror that this machine's apt uses."""

from __future__ import annotations

import os
import subprocess

from muster.lab.errors import LabUnavailable

MIRROR_VARIABLE = "MUSTER_DEBIAN_MIRROR"
_APT_GET = ("apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)", "Created-By: Packages")


def debian_mirror() -> str:
    """Return $MUSTER_DEBIAN_MIRROR, else the first mirror of Debian's main archive in apt's configuration.

    apt knows the origin of a source from its last update; other vendors' sources have suites of the same names.
    """
    chosen = os.environ.get(MIRROR_VARIABLE)
    if chosen:
        return chosen
    remedy = f"set {MIRROR_VARIABLE} to the address of a mirror"
    try:
        targets = subprocess.run(_APT_GET, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        raise LabUnavailable(f"no apt-get here, whose configuration names a Debian mirror: {remedy}") from None
    for line in targets.splitlines():
        origin, label, uri = line.split("|", 2)
        if (origin, label) == ("Debian", "Debian"):
            return uri
    raise LabUnavailable(f"apt knows no Debian mirror: run `apt-get update` if its configuration has one, or {remedy}")
