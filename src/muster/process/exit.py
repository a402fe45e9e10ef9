"""How a process ended, as data.

ended_by   means
itself     it left with a code, or by a fault of its own (SIGSEGV, SIGABRT, ...)
owner      we did: it got a signal of ours that ended it, or was asked to leave and left
another    a signal that nobody of ours sent: a person, a scheduler, the kernel (or itself, by kill)
None       nobody saw it end
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from dataclasses import dataclass, field

from muster.exit_codes import BY_SIGNAL, INFRASTRUCTURE_FAILED

ITSELF, OWNER, ANOTHER = "itself", "owner", "another"
REQUESTS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})  # to leave in one's own way
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
    """A process's end: an exit code or a signal; neither when its supervisor was lost and nobody saw it end.

    `oom_kills`: how many processes the kernel killed for want of memory while this one ran, in its control group, or
    on the machine where groups do not tell. Two ends are equal when code and signal are.
    """

    code: int | None = None
    signal: int | None = None
    ended_by: str | None = field(default=None, compare=False)
    oom_kills: int = field(default=0, compare=False)
    unended: bool = field(default=False, compare=False)  # it hangs in the kernel: the KILL it got waits for it there

    @classmethod
    def from_status(cls, status: int, sent: Collection[int] = (), oom_kills: int = 0) -> Exit:
        """From what waitpid returned, the signals that we had sent it, and the kernel's kills meanwhile."""
        if os.WIFSIGNALED(status):
            signum = os.WTERMSIG(status)
            by = OWNER if signum in sent else ITSELF if signum in FAULTS else ANOTHER
            return cls(signal=signum, ended_by=by, oom_kills=oom_kills)
        by = ITSELF if REQUESTS.isdisjoint(sent) else OWNER
        return cls(code=os.WEXITSTATUS(status), ended_by=by, oom_kills=oom_kills)

    @property
    def out_of_memory(self) -> bool:
        """Most likely ended by the kernel for want of memory: a KILL that nobody of ours sent, and it did kill."""
        return self.signal == signal.SIGKILL and self.ended_by == ANOTHER and self.oom_kills > 0

    @property
    def shell_code(self) -> int:
        """The code a shell would report: 128+n for signal n; 125 when the end was not seen."""
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
            return f"exited with {self.code} (the kernel has killed for want of memory meanwhile)"
        return "was lost" if self.code is None else f"exited with {self.code}"


def signal_name(number: int) -> str:
    """SIGTERM for 15; the bare number where it has no name (real-time signals)."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
