"""The ledger from outside: a client for operators, and the models of what it shows."""

from celery_orchestration.operate.client import Orchestration
from celery_orchestration.operate.models import (
    Change,
    Disabled,
    JobStatus,
    QueueStatus,
    RunStatus,
    Status,
    WorkerStatus,
)

__all__ = [
    "Change",
    "Disabled",
    "JobStatus",
    "Orchestration",
    "QueueStatus",
    "RunStatus",
    "Status",
    "WorkerStatus",
]
