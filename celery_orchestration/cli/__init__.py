"""``celery -A app orchestration …``

This package is loaded with every celery command: what a command needs is imported when it runs.
"""

from celery_orchestration.cli import letters, look, schedule, steer  # noqa: F401  (their commands)
from celery_orchestration.cli.base import orchestration

__all__ = ["orchestration"]
