"""``celery -A app orchestration …``

Every celery command loads this package, so each command imports what it needs when it runs.
"""

from celery_orchestration.cli import (  # noqa: F401  (their commands)
    actions,
    call,
    check,
    dashboard,
    dead_letters,
    metrics,
    pools,
    queries,
    schedule,
    up,
)
from celery_orchestration.cli.base import orchestration
from celery_orchestration.worker import remote  # noqa: F401  (celery inspect orchestration)

__all__ = ["orchestration"]
