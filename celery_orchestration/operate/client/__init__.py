"""Orchestration: the ledger from Python, for operators and their scripts."""

from celery_orchestration.operate.client.actions import Actions
from celery_orchestration.operate.client.dead_letters import DeadLetters

__all__ = ["Orchestration"]


class Orchestration(Actions, DeadLetters):
    """The jobs of an app, seen and controlled from outside. Needs no worker to answer."""
