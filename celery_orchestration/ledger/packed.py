"""Unpacks statistics that Lua has packed. Pure.

A sum is a table from numbers to numbers (``lua/lib/statistics.lua`` says what they mean), packed by Redis's
``cmsgpack``. Unpacking a day of them in Redis would take many times as long as returning them, and keep all other
callers waiting.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

Sum = dict[int, float]

_NUMBERS = {
    0xCA: struct.Struct(">f"),
    0xCB: struct.Struct(">d"),
    0xCC: struct.Struct(">B"),
    0xCD: struct.Struct(">H"),
    0xCE: struct.Struct(">I"),
    0xCF: struct.Struct(">Q"),
    0xD0: struct.Struct(">b"),
    0xD1: struct.Struct(">h"),
    0xD2: struct.Struct(">i"),
    0xD3: struct.Struct(">q"),
}


def unpack_sum(data: bytes) -> Sum:
    """Empty if this is not a sum."""
    try:
        found, _ = _table(data, 0)
    except (IndexError, ValueError, struct.error):
        return {}
    return found


def unpack_open(data: bytes) -> tuple[int, Sum] | None:
    """The current minute and its sum; None if this is neither."""
    try:
        minute, at = _number(data, 0)
        found, _ = _table(data, at)
    except (IndexError, ValueError, struct.error):
        return None
    return int(minute), found


def _number(data: bytes, at: int) -> tuple[float, int]:
    kind = data[at]
    if kind <= 0x7F:
        return kind, at + 1
    if kind >= 0xE0:
        return kind - 0x100, at + 1
    form = _NUMBERS.get(kind)
    if form is None:
        raise ValueError(f"not a number: {kind:#x}")
    return form.unpack_from(data, at + 1)[0], at + 1 + form.size


def _table(data: bytes, at: int) -> tuple[Sum, int]:
    """A table with the keys 1, 2, 3 … is packed as an array."""
    kind = data[at]
    if 0x80 <= kind <= 0x8F or kind == 0xDE:
        size, at = (kind & 0x0F, at + 1) if kind != 0xDE else (int.from_bytes(data[at + 1 : at + 3], "big"), at + 3)
        found: Sum = {}
        for _ in range(size):
            key, at = _number(data, at)
            found[int(key)], at = _number(data, at)
        return found, at
    if 0x90 <= kind <= 0x9F or kind == 0xDC:
        size, at = (kind & 0x0F, at + 1) if kind != 0xDC else (int.from_bytes(data[at + 1 : at + 3], "big"), at + 3)
        found = {}
        for key in range(1, size + 1):
            found[key], at = _number(data, at)
        return found, at
    raise ValueError(f"not a table: {kind:#x}")


class Names:
    """Names the numbers of a sum."""

    def __init__(self, declared: Mapping[str, Sequence[str]]) -> None:
        self._counters = declared["counters"]
        self._durations = declared["durations"]
        self._reasons = declared["reasons"]

    def named(self, at: int, found: Sum) -> dict[str, Any]:
        """Counters, durations (``{"sum": ms, "<number of a bucket, from 1>": how many}``) and, as ``gate``, durations
        by reason. Values of 0 are left out."""
        by_name: dict[str, Any] = {"at": at}
        for number, count in found.items():
            place, part = divmod(number, 32)
            if place == 0:
                if 0 < part <= len(self._counters):
                    by_name[self._counters[part - 1]] = count
                continue
            durations = self._of(by_name, place - 1)
            if durations is not None:
                durations["sum" if part == 0 else str(part)] = count
        return by_name

    def _of(self, by_name: dict[str, Any], place: int) -> dict[str, float] | None:
        if place < len(self._durations):
            found: dict[str, float] = by_name.setdefault(self._durations[place], {})
            return found
        reason = place - len(self._durations)
        if reason >= len(self._reasons):
            return None  # from a later version
        gate: dict[str, dict[str, float]] = by_name.setdefault("gate", {})
        return gate.setdefault(self._reasons[reason], {})


def add(sums: dict[int, Sum], at: int, more: Sum) -> None:
    found = sums.setdefault(at, {})
    for number, count in more.items():
        found[number] = found.get(number, 0) + count
