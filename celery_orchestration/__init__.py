"""Coordination for the background jobs of a Celery project, on stock Celery workers."""

from celery_orchestration.policy import Dependency, Priority
from celery_orchestration.task import OrchestratedTask

__version__ = "0.1.0.dev0"
__all__ = ["Dependency", "OrchestratedTask", "Priority"]
