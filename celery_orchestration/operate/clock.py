"""Times of the ledger, for people: the same words in every command."""

from datetime import datetime, timezone
from typing import Any


def when(ms: float) -> datetime:
    return datetime.fromtimestamp(ms / 1000, timezone.utc)


def optional_time(ms: float | None) -> Any:
    """As :func:`when`; a record may have no time, and a model that requires one refuses None."""
    return None if ms is None else when(ms)


def clock(at: datetime) -> str:
    """On the clock of who looks."""
    return at.astimezone().strftime("%m-%d %H:%M:%S")


def lasting(seconds: float) -> str:
    """Roughly: two digits or three."""
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    if seconds < 119.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 86400 else f"{seconds / 86400:.1f} d"


def took(seconds: float) -> str:
    """Of a run that has ended: short ones differ by less than a second."""
    return f"{seconds:.1f} s" if seconds < 9.95 else lasting(seconds)
