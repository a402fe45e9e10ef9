"""Redact secrets from texts, commands and JSON values that are printed or published.

Detection is a heuristic that errs towards hiding. Muster itself acts on the real values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

HIDDEN = "***"

_PARTS = "AUTH AUTHORIZATION BEARER CREDS CREDENTIALS JWT PASS PASSCODE PRIVATE SECRETS"
_ENDINGS = "TOKEN SECRET PASSWORD PASSWD PASSPHRASE CREDENTIAL APIKEY ACCESSKEY SECRETKEY"
_KEYS = re.compile(r"(API|ACCESS|ACCOUNT|AUTH|ENCRYPTION|HMAC|LICENSE|MASTER|SECRET|SHARED|SIGNING|SSH|STORAGE)_KEYS?")
# Names about a secret or about a language model's tokens, without a secret value: EOS_TOKEN, TOKEN_PATH.
_BEFORE = "BOS CLS DISABLE ENABLE EOS EOT IMAGE IS MASK MAX MIN NEW NO NUM PAD PER REQUIRE SEP SPECIAL STOP UNK USE"
_AFTER = """
COUNT DIR DIRECTORY ENABLED EXPIRY FILE FORMAT IDS INDEX LEN LENGTH LIMIT METHOD MODE NAME NETWORK NUM PATH PLUGIN
RATE SIZE SOCK SOCKET TIMEOUT TTL TYPE URL
"""
_SECRET_PARTS, _SECRET_ENDINGS = frozenset(_PARTS.split()), tuple(_ENDINGS.split())
_ABOUT_BEFORE, _ABOUT_AFTER = frozenset(_BEFORE.split()), frozenset(_AFTER.split())
_HARMLESS = frozenset(["", "true", "false", "none", "null", "yes", "no", "on", "off", "0", "1", HIDDEN])
# Words after a flag in help and error messages: placeholders for a value, and the next word of a sentence.
_PLACEHOLDERS = "DIR FILE KEY NAME PASSWORD PATH SECRET STR STRING TEXT TOKEN URL USER VALUE"
_NEXT = "a and are as by can cannot for from has if in is must names needs of on option or takes the to was with"
_PROSE = frozenset([*_PLACEHOLDERS.split(), *_NEXT.split()])
_SHORTEST_KNOWN = 6  # characters; a shorter value would match by accident all over a text

_WORD_BREAK = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_PREFIXES = re.compile(r"(?:[\w.+-]+=)+")  # NAME=, --env=NAME=
_NAMED = re.compile(
    r"(?<![\w.-])--?(?P<flag>[A-Za-z][\w-]*)\s+(?!-)|(?P<name>[A-Za-z_][\w.-]*)(?:=|[\"']\s*:\s*)"
)  # --password VALUE, NAME=VALUE, "name": VALUE
_VALUE = re.compile(r"\"[^\"]*\"?|'[^']*'?|[^\s\"']+")
_IN_URL = re.compile(r"(?P<scheme>\b[A-Za-z][\w+.-]*://)[^\s/@:\"']*:[^\s/\"']+@")
_SHAPES = re.compile(
    r"(?<![\w-])(?:hf_[A-Za-z0-9]{16,}|gh[opusr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
    r"|sk-(?=[\w-]*\d)[\w-]{16,}|nvapi-[\w-]{16,}|xox[abprs]-[\w-]{10,}|A(?:KIA|SIA)[0-9A-Z]{16}|AIza[\w-]{35}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*)"
    r"|(?i:(?<=bearer )[\w.~+/=-]{16,})"
    r"|(?<=PRIVATE KEY-----)[^-]+"
)


def looks_secret(name: str) -> bool:
    """Whether a variable, field or flag of this name holds a secret: WANDB_API_KEY does, MAX_TOKENS does not."""
    parts = [part.upper() for part in _WORD_BREAK.split(name) if part]
    if not parts or parts[0] in _ABOUT_BEFORE or parts[-1] in _ABOUT_AFTER:
        return False
    if any(part in _SECRET_PARTS for part in parts) or (len(parts) > 1 and parts[-1] == "PWD"):
        return True
    if _KEYS.search("_".join(parts)):
        return True
    return any(
        part.endswith(_SECRET_ENDINGS) and (at == 0 or parts[at - 1] not in _ABOUT_BEFORE)
        for at, part in enumerate(parts)
    )


def secret_values(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of variables that look secret, the longest first, for `known` of the functions below."""
    found = {value for name, value in env.items() if len(value) >= _SHORTEST_KNOWN and looks_secret(name)}
    return tuple(sorted(found - _HARMLESS, key=len, reverse=True))


def redacted(text: str, known: Iterable[str] = ()) -> str:
    """Hide the secrets in a text: known values, values assigned to secret names, passwords in URLs, tokens."""
    for value in known:
        text = text.replace(value, HIDDEN)
    text = _IN_URL.sub(rf"\g<scheme>{HIDDEN}@", _without_named(text))
    return _SHAPES.sub(HIDDEN, text)


def _without_named(text: str) -> str:
    kept, at = [], 0
    for match in _NAMED.finditer(text):
        if match.start() < at or not looks_secret(match["flag"] or match["name"]):
            continue
        value = _VALUE.match(text, match.end())
        if value is None or (match["flag"] and _is_prose(value[0])):
            continue
        if not _is_harmless(value[0]) and not _is_reference(value[0]):
            kept += [text[at : match.end()], HIDDEN]
            at = value.end()
    return "".join(kept) + text[at:]


def _is_harmless(value: str) -> bool:
    return value.strip("\"'").lower() in _HARMLESS


def _is_prose(value: str) -> bool:
    """Whether the word after a flag belongs to a text about the flag: `--token FILE`, `--token or`."""
    return value.strip("`()[]<>.,;:") in _PROSE


def _is_reference(value: str) -> bool:
    """Whether shell text refers to a secret instead of containing it: $HF_TOKEN, "$(cat key)"."""
    return value.lstrip('"').startswith(("$", "`"))


def redact_words(words: Sequence[str], known: Iterable[str] = ()) -> list[str]:
    """Hide the secrets in a command's arguments, where unlike in a text a value may contain any character."""
    known = tuple(known)
    shown: list[str] = []
    for at, word in enumerate(words):
        before = words[at - 1] if at else ""
        flag = before.lstrip("-") if before.startswith("-") and "=" not in before else ""
        if looks_secret(flag) and not word.startswith("-") and not _is_harmless(word):
            shown.append(HIDDEN)
        else:
            shown.append(_redacted_word(word, known))
    return shown


def _redacted_word(word: str, known: Iterable[str]) -> str:
    prefixes = _PREFIXES.match(word)
    end = 0
    for name in prefixes[0].split("=")[:-1] if prefixes else ():
        end += len(name) + 1
        if looks_secret(name) and not _is_harmless(word[end:]):
            return word[:end] + HIDDEN
    return redacted(word, known)


def scrubbed(value: Any, known: Iterable[str] = ()) -> Any:
    """Hide the secrets in all strings of a JSON value."""
    if isinstance(value, str):
        return redacted(value, known)
    if isinstance(value, dict):
        return {key: scrubbed(inner, known) for key, inner in value.items()}
    return [scrubbed(inner, known) for inner in value] if isinstance(value, (list, tuple)) else value
