"""Times of the ledger, for people."""

from datetime import datetime, timezone


def when(ms: float) -> datetime:
    return datetime.fromtimestamp(ms / 1000, timezone.utc)
