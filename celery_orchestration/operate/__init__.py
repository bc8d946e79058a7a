"""The ledger from outside: a client for operators, and the models of what it shows."""

from celery_orchestration.operate.client import Orchestration
from celery_orchestration.operate.models import (
    Cancelled,
    Change,
    DeadLetter,
    Death,
    Disabled,
    Ended,
    JobStatus,
    Letter,
    Purged,
    QueueStatus,
    Released,
    Requeued,
    RunStatus,
    Status,
    Triggered,
    WorkerStatus,
)

__all__ = [
    "Cancelled",
    "Change",
    "DeadLetter",
    "Death",
    "Disabled",
    "Ended",
    "JobStatus",
    "Letter",
    "Orchestration",
    "Purged",
    "QueueStatus",
    "Released",
    "Requeued",
    "RunStatus",
    "Status",
    "Triggered",
    "WorkerStatus",
]
