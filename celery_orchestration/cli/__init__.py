"""``celery -A app orchestration …``

This package is loaded with every celery command: what a command needs is imported when it runs.
"""

from celery_orchestration.cli import call, check, letters, look, schedule, steer  # noqa: F401  (their commands)
from celery_orchestration.cli.base import orchestration
from celery_orchestration.worker import remote  # noqa: F401  (celery inspect orchestration)

__all__ = ["orchestration"]
