"""Derives from an exception how a run ended. Pure functions."""

from __future__ import annotations

from billiard.einfo import ExceptionInfo
from celery.exceptions import Ignore, Reject, Retry, Terminated

from celery_orchestration.ledger import keys

#: Characters of an error that are kept.
LONGEST_NOTE = 300


def raised(exc: Exception) -> ExceptionInfo:
    """Celery's description of an exception that a task raised."""
    try:
        raise exc  # noqa: TRY301  (for its traceback)
    except Exception:
        return ExceptionInfo()


def note_of(exc: BaseException) -> str:
    """An error in one line, for people. The ``__str__`` of a user's exception may fail."""
    try:
        text = f"{type(exc).__name__}: {exc}"
    except Exception:
        text = type(exc).__name__
    return keys.text(text[:LONGEST_NOTE])


def outcome_of(exc: BaseException) -> str:
    if isinstance(exc, Retry):
        return "retry"
    if isinstance(exc, Reject):
        return "rejected"
    if isinstance(exc, Ignore):
        return "ignored"
    return "revoked" if isinstance(exc, Terminated) else "failed"
