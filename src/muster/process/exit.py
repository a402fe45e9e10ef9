"""The end of a process as data.

ended_by   meaning
itself     it exited with a code, or by its own fault (SIGSEGV, SIGABRT, ...)
owner      a signal of its owner ended it, or it exited after the owner's request
another    a signal from elsewhere: a user, a scheduler, the kernel (or the process itself, by kill)
None       its end was not observed
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from dataclasses import dataclass, field

from muster.exit_codes import BY_SIGNAL, INFRASTRUCTURE_FAILED

ITSELF, OWNER, ANOTHER = "itself", "owner", "another"
REQUESTS = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
)  # a process may handle these and exit
FAULTS = frozenset(
    {
        signal.SIGABRT,
        signal.SIGALRM,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGPIPE,
        signal.SIGSEGV,
        signal.SIGSYS,
        signal.SIGTRAP,
        signal.SIGXCPU,
        signal.SIGXFSZ,
    }
)


@dataclass(frozen=True)
class Exit:
    """The end of a process: an exit code or a signal; neither if its supervisor was lost.

    `oom_kills` counts the processes that the kernel killed for lack of memory while this one ran, in its control group
    or, if that has no counter, on the machine. Two ends are equal if code and signal are.
    """

    code: int | None = None
    signal: int | None = None
    ended_by: str | None = field(default=None, compare=False)
    oom_kills: int = field(default=0, compare=False)
    unended: bool = field(default=False, compare=False)  # it hangs in the kernel with a pending KILL

    @classmethod
    def from_status(cls, status: int, sent: Collection[int] = (), oom_kills: int = 0) -> Exit:
        """Convert the status of waitpid, given the signals that the owner sent and the kernel's OOM kills meanwhile."""
        if os.WIFSIGNALED(status):
            signum = os.WTERMSIG(status)
            by = OWNER if signum in sent else ITSELF if signum in FAULTS else ANOTHER
            return cls(signal=signum, ended_by=by, oom_kills=oom_kills)
        by = ITSELF if REQUESTS.isdisjoint(sent) else OWNER
        return cls(code=os.WEXITSTATUS(status), ended_by=by, oom_kills=oom_kills)

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel most likely killed it for lack of memory: a foreign KILL, and the kernel did kill."""
        return self.signal == signal.SIGKILL and self.ended_by == ANOTHER and self.oom_kills > 0

    @property
    def shell_code(self) -> int:
        """The code that a shell would report: 128+n for signal n; 125 if the end was not observed."""
        if self.signal is not None:
            return BY_SIGNAL + self.signal
        return INFRASTRUCTURE_FAILED if self.code is None else self.code

    def __str__(self) -> str:
        if self.unended:
            return "could not be ended"
        if self.out_of_memory:
            return f"was ended by {signal_name(signal.SIGKILL)} (out of memory)"
        if self.signal is not None:
            return f"was ended by {signal_name(self.signal)}"
        if self.code and self.oom_kills:
            return f"exited with {self.code} (the kernel killed processes for lack of memory meanwhile)"
        return "was lost" if self.code is None else f"exited with {self.code}"


def signal_name(number: int) -> str:
    """Return SIGTERM for 15; `signal N` for a number without a name (real-time signals)."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
