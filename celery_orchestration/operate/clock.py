"""Times and durations for people: every command writes them the same way."""

from datetime import datetime, timezone
from typing import Any


def when(ms: float) -> datetime:
    return datetime.fromtimestamp(ms / 1000, timezone.utc)


def optional_time(ms: float | None) -> Any:
    """As :func:`when`; a record may have no time, and a model that requires one refuses None."""
    return None if ms is None else when(ms)


def clock(at: datetime) -> str:
    """In the viewer's local time."""
    return at.astimezone().strftime("%m-%d %H:%M:%S")


def lasting(seconds: float) -> str:
    """A duration with two or three digits."""
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    if seconds < 119.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 86400 else f"{seconds / 86400:.1f} d"


def took(seconds: float) -> str:
    """How long a run took: with tenths of a second if it was short."""
    return f"{seconds:.1f} s" if seconds < 9.95 else lasting(seconds)
