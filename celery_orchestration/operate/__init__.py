"""The ledger from outside: a client for operators, and the models of what it shows."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery_orchestration.operate.client import Orchestration
from celery_orchestration.operate.diagnosis import Check, Diagnosis, Health
from celery_orchestration.operate.models import (
    Cancelled,
    CancelledRuns,
    Change,
    DeadLetter,
    Death,
    Disabled,
    Ended,
    EntryStatus,
    JobStatus,
    Letter,
    Paused,
    Progress,
    Purged,
    QueueStatus,
    Released,
    Requeued,
    RunStatus,
    SchedulerStatus,
    ServiceLeader,
    Status,
    Triggered,
    WorkerStatus,
)

if TYPE_CHECKING:
    from celery_orchestration.operate.explanation import Cause, Explanation, Link, OptionValue
    from celery_orchestration.operate.picture import Conflict, Drawn, Exclusive, Needs, Picture
    from celery_orchestration.operate.schedule import Schedule

__all__ = [
    "Cancelled",
    "CancelledRuns",
    "Cause",
    "Change",
    "Check",
    "Conflict",
    "DeadLetter",
    "Death",
    "Diagnosis",
    "Disabled",
    "Drawn",
    "Ended",
    "EntryStatus",
    "Exclusive",
    "Explanation",
    "Health",
    "JobStatus",
    "Letter",
    "Link",
    "Needs",
    "OptionValue",
    "Orchestration",
    "Paused",
    "Picture",
    "Progress",
    "Purged",
    "QueueStatus",
    "Released",
    "Requeued",
    "RunStatus",
    "Schedule",
    "SchedulerStatus",
    "ServiceLeader",
    "Status",
    "Triggered",
    "WorkerStatus",
]

#: Loaded when they are asked for: most commands need none of them.
_LATER = {
    **dict.fromkeys(("Cause", "Explanation", "Link", "OptionValue"), "explanation"),
    **dict.fromkeys(("Conflict", "Drawn", "Exclusive", "Needs", "Picture"), "picture"),
    "Schedule": "schedule",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
