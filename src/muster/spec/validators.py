"""Check single values of the job spec: each function takes the written value and returns the checked one.

The job file keeps scalars as text (see `yaml_file`), so numbers arrive here as text, too. The message of a ValueError
continues a sentence that begins with the value: "'a/b' contains a slash".
"""

from __future__ import annotations

import ipaddress
import math
import re
import shlex
import signal
import unicodedata

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

_DURATION = re.compile(r"(?:(?P<d>[\d.]+)d)?(?:(?P<h>[\d.]+)h)?(?:(?P<m>[\d.]+)m)?(?:(?P<s>[\d.]+)s)?", re.ASCII)
_UNIT_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}

# minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS (sbatch(1), --time)
_SLURM_TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|unlimited|infinite", re.ASCII | re.IGNORECASE)
_MEMORY = re.compile(r"\d+([KMGTP]B?)?", re.ASCII | re.IGNORECASE)

# Cc: control characters, including newline and NUL. Zl, Zp: line and paragraph separators. Cs: lone surrogates, from
# bytes on the command line that are not UTF-8.
MIN_LOG_BYTES = 1024**2
_UNPRINTABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})


def whole_number(value: object) -> object:
    """Refuse booleans, which Python treats as 0 and 1."""
    if isinstance(value, bool):
        raise ValueError("is not a number")
    return value


def one_line(value: str) -> str:
    """Check text for one line of the batch script: not empty, no newline, no control character."""
    if not value.strip():
        raise ValueError("is empty")
    return no_control(value)


def no_control(value: str) -> str:
    """Check text without newline and control characters, so that it cannot start a new line in a script."""
    if any(unicodedata.category(char) in _UNPRINTABLE for char in value):
        raise ValueError("contains a newline or a control character")
    return value


def no_nul(value: str) -> str:
    """Check text for an argument or an environment variable of a process."""
    if "\0" in value:
        raise ValueError("contains a NUL byte")
    return value


def script(value: str) -> str:
    """Check shell code: any number of lines, not all of them blank."""
    if not value.strip():
        raise ValueError("is empty")
    return no_nul(value)


def job_name(value: str) -> str:
    """Check the name of a job, which is part of a path."""
    if len(value) > 64:
        raise ValueError(f"is {len(value)} characters long")
    if "/" in value:
        raise ValueError("contains a slash")
    return one_line(value)


def env_name(value: str) -> str:
    """Check the name of an environment variable that every shell accepts."""
    if not ENV_NAME.fullmatch(value):
        raise ValueError("is not the name of an environment variable")
    return value


def command_words(value: object) -> object:
    """Return a command as a list; a command given as text runs as `bash -c TEXT`."""
    if isinstance(value, str):
        return ["bash", "-c", value] if value.strip() else []
    return list(value) if isinstance(value, tuple) else value


def runnable(value: list[str]) -> list[str]:
    """Check that the first word of a command is not blank."""
    if not value:
        raise ValueError("is empty")
    if not value[0].strip():
        raise ValueError("has an empty first word")
    return value


def seconds(value: object) -> float:
    """Return a duration in seconds, from a number of seconds or text with units: 90, "90s", "10m", "1h30m"."""
    number = _number(value)
    if number is None and isinstance(value, str):
        number = _with_units(value.strip().lower())
    if number is None or not math.isfinite(number) or number < 0:
        raise ValueError("is not a duration")
    return number


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _with_units(text: str) -> float | None:
    match = _DURATION.fullmatch(text)
    if not match or not text:
        return None
    try:
        return sum(float(count) * _UNIT_SECONDS[unit] for unit, count in match.groupdict().items() if count)
    except ValueError:  # "1.2.3s"
        return None


def empty_for_none(value: object) -> object:
    """Return no entries for None: `env:` with every entry commented out is read as None."""
    return {} if value is None else value


def more_than_zero(value: float) -> float:
    """Refuse 0: a deadline of 0 would fail every run."""
    if value <= 0:
        raise ValueError("is not more than zero")
    return value


def slurm_time(value: object) -> object:
    """Check a time limit in Slurm's notation, kept as written; a number without unit is minutes."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str) and not _SLURM_TIME.fullmatch(text):
        raise ValueError("is not a time limit")
    return text


def memory(value: object) -> object:
    """Check an amount of memory in Slurm's notation, kept as written; a number without unit is megabytes."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str) and not _MEMORY.fullmatch(text):
        raise ValueError("is not an amount of memory")
    return text


def exclusive(value: object) -> object:
    """Check sbatch's --exclusive: on, off, or exclusive to the user, the MCS label or the topology."""
    if isinstance(value, str):
        word = value.lower()
        if word in ("true", "false"):
            return word == "true"
        if word in ("user", "mcs", "topo"):
            return word
        raise ValueError("is not a mode of --exclusive")
    if value is None or isinstance(value, bool):
        return value
    raise ValueError("is not a mode of --exclusive")


def size(value: object) -> object:
    """Return a size in bytes, from a number or text with a unit: 1024, "512M", "64G"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)i?B?", str(value), re.ASCII | re.IGNORECASE)
    if isinstance(value, bool) or match is None:
        raise ValueError("is not a number of bytes")
    return int(float(match[1]) * 1024 ** " KMGTP".index(match[2].upper() or " "))


def log_size(value: int) -> int:
    """Refuse limits of logs below MIN_LOG_BYTES: 1 is more likely a mistake than a wish."""
    if 0 < value < MIN_LOG_BYTES:
        raise ValueError("is too small for a log")
    return value


FORWARDED_SIGNALS = ("HUP", "QUIT", "USR1", "USR2", "ALRM", "URG")
_NOT_FORWARDED = {
    "TERM": "ends the run; Slurm sends it at the time limit, and the driver has --stop-grace to exit",
    "INT": "ends the run",
    "KILL": "kills all processes at once",
    "STOP": "stops the agents, not the driver",
    "CONT": "is sent by Slurm before every SIGTERM",
}


def slurm_signal(value: str) -> str:
    """Check sbatch's --signal with its time: the agents forward the signal to the driver."""
    if value.upper().startswith(("B:", "RB:", "BR:")):
        raise ValueError("would signal only the batch script, not the driver; remove B:")
    match = re.fullmatch(r"(?:R:)?(?:SIG)?([A-Z0-9]+)@\d+", value, re.ASCII | re.IGNORECASE)
    if match is None:
        raise ValueError("is not a signal with a time")
    name = _signal_name(match[1].upper())
    if name in _NOT_FORWARDED:
        raise ValueError(f"cannot be forwarded to the driver: SIG{name} {_NOT_FORWARDED[name]}")
    if name not in FORWARDED_SIGNALS:
        raise ValueError(f"is not forwarded to the driver; signals that are: {', '.join(FORWARDED_SIGNALS)}")
    return value


def _signal_name(word: str) -> str:
    """Return the name of a signal given by name or number."""
    try:
        return signal.Signals(int(word)).name.removeprefix("SIG")
    except ValueError:
        return word


def comma_list(value: object) -> object:
    """Return a list of words, from a list or from text with commas."""
    if isinstance(value, str):
        return [word.strip() for word in value.split(",") if word.strip()]
    return [] if value is None else value


def words(value: object) -> object:
    """Return a list of words, from a list or from text quoted as in a shell."""
    if isinstance(value, str):
        return shlex.split(value)
    return [] if value is None else value


def requeue_cause(value: str) -> str:
    """Check a reason to requeue a job."""
    code = re.fullmatch(r"exit=(\d{1,3})", value, re.ASCII)
    if code and not 1 <= int(code[1]) <= 255:
        raise ValueError("is not the exit code of a failure, 1 to 255")
    if not code and value not in ("timeout", "preempt", "node-fail", "stall"):
        raise ValueError("is not a reason to requeue")
    return value


def interfaces(value: str) -> str:
    """Check a comma-separated list of interface names (`ib*` is a pattern), addresses and networks."""
    for item in value.split(","):
        word = item.strip()
        try:
            if "/" in word or re.fullmatch(r"[\d.]+|[\da-f:]*:[\da-f:.]*", word, re.ASCII | re.IGNORECASE):
                ipaddress.ip_interface(word)
        except ValueError:
            raise ValueError(f"has {word!r}, which is not an address or a network") from None
        if not word or len(word.split()) > 1:
            raise ValueError("has an empty item or a blank in an item")
    return value


def label(value: str) -> str:
    """Check a name that is valid as the value of a Ray label and as a shell word."""
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", value, re.ASCII):
        raise ValueError("is not a name of letters, digits, _, . and -")
    return value
