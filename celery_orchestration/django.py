"""A job for Django projects: it keeps ``delay_on_commit`` and ``apply_async_on_commit``.

In a Django project, Celery adds these methods to every task through the base class, and a task has only one base class.
Use this class as ``base=`` instead of the plain one, or as ``task_cls`` of the app for all tasks::

    app = Celery("shop", task_cls="celery_orchestration.django:OrchestratedTask")
"""

from __future__ import annotations

from celery_orchestration.job import task

try:
    from celery.contrib.django.task import DjangoTask
except ModuleNotFoundError as exc:
    if (exc.name or "").partition(".")[0] != "django":
        raise
    raise ImportError(
        "celery_orchestration.django needs Django, which is not installed: pip install django, "
        "or use celery_orchestration.OrchestratedTask",
        name="django",
    ) from exc

__all__ = ["OrchestratedTask"]


class OrchestratedTask(task.OrchestratedTask, DjangoTask):  # type: ignore[misc]
    """A job that can be sent when the database transaction is committed."""

    abstract = True
