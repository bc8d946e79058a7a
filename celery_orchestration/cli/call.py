"""``celery call`` of a job: it has to know the job to send it to the queue of its pool and priority."""

from __future__ import annotations

from functools import wraps
from typing import Any

import click
from celery.bin.call import call


def load_before(command: click.Command) -> None:
    """The app's tasks are loaded before `command` runs: Celery's own does without, and so without their options. What
    cannot be loaded is told, and the command goes on as it would without us."""
    run = command.callback
    if run is None:
        return

    @wraps(run)
    def loaded(*args: Any, **kwargs: Any) -> Any:
        from celery_orchestration.operate import app_jobs  # noqa: PLC0415

        if problem := app_jobs.load(click.get_current_context().obj.app):
            from celery_orchestration.job.policy import printable  # noqa: PLC0415

            click.echo(f"Warning: {printable(problem)}; a job goes to the default queue", err=True)
        return run(*args, **kwargs)

    command.callback = loaded


load_before(call)
