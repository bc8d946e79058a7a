"""The language of the filter boxes: ``job:fetch state:waiting since:2h timeout``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase

_TERM = re.compile(r'(?:(?P<name>[a-z_]+):)?(?:"(?P<quoted>[^"]*)"?|(?P<plain>\S+))')
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w)")
#: How far from now a time may be.
MOST_DAYS = 10 * 365
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True)
class Filter:
    """Several values of one name are alternatives; all names must match."""

    terms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    #: Sentences about the parts that were not understood.
    mistakes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.terms or self.words)

    def holds(self, name: str, *values: str | None) -> bool:
        """Whether one of the values matches the terms of this name; true if there are none."""
        wanted = self.terms.get(name)
        return wanted is None or any(is_like(value, one) for one in wanted for value in values if value is not None)

    def mentions(self, *values: str | None) -> bool:
        """Whether each word is in one of the values."""
        return all(any(is_like(value, word) for value in values if value is not None) for word in self.words)

    def since(self, now: datetime) -> datetime | None:
        found = [at for one in self.terms.get("since", ()) if (at := moment(one, now)) is not None]
        return max(found, default=None)


def parse(text: str, names: Iterable[str]) -> Filter:
    """`names`: the fields of this page. Other terms are words to search for, and mistakes if they look like fields."""
    known, words, mistakes = set(names), [], []
    terms: dict[str, tuple[str, ...]] = {}
    for found in _TERM.finditer(text):
        name, value = found["name"], found["quoted"] if found["quoted"] is not None else found["plain"]
        if name in known:
            terms[name] = (*terms.get(name, ()), value)
        elif name is not None:
            mistakes.append(f"{name}: is no field here; use {', '.join(f'{one}:' for one in sorted(known))}")
            words.append(found[0])
        elif value:
            words.append(value)
    mistakes += [
        f"since:{one} is no time; write 15m, 2h, 3d or 2030-01-31T12:00"
        for one in terms.get("since", ())
        if moment(one, datetime.now(timezone.utc)) is None
    ]
    return Filter(terms, tuple(words), tuple(mistakes))


def is_like(value: str, pattern: str) -> bool:
    """Matches a part of the value in any case, or a glob."""
    return pattern.casefold() in value.casefold() or fnmatchcase(value, pattern)


def span(text: str) -> float | None:
    """Seconds: 90s, 15m, 2h, 3d, 1w."""
    found = _SPAN.fullmatch(text.strip())
    return float(found[1]) * _SECONDS[found[2]] if found else None


def moment(text: str, now: datetime) -> datetime | None:
    seconds = span(text)
    if seconds is not None:
        return now - timedelta(seconds=min(seconds, MOST_DAYS * 86400))
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
        at = at if at.tzinfo else at.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None
    return at if abs((at - now).days) < MOST_DAYS else None  # there is no data further away


def quoted(name: str, value: str) -> str:
    """The term that matches this value."""
    return f'{name}:"{value}"' if re.search(r"\s", value) else f"{name}:{value}"
