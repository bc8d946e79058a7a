"""The ledger from outside: a client for operators, and the models of what it shows."""

from celery_orchestration.operate.client import Orchestration
from celery_orchestration.operate.models import (
    Change,
    Disabled,
    JobStatus,
    Progress,
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
    "Progress",
    "QueueStatus",
    "RunStatus",
    "Status",
    "WorkerStatus",
]
