"""``celery call`` for jobs: it loads the app's tasks, and so knows the queue of a job's pool and priority."""

from __future__ import annotations

from functools import wraps
from typing import Any

import click
from celery.bin.call import call


def load_before(command: click.Command) -> None:
    """Makes `command` load the app's tasks first: Celery's own command does not, and so does not know their options. An
    error of loading is a warning, and the command continues as without this extension."""
    run = command.callback
    if run is None:
        return

    @wraps(run)
    def loaded(*args: Any, **kwargs: Any) -> Any:
        from celery_orchestration.operate import app_jobs  # noqa: PLC0415

        if problem := app_jobs.load(click.get_current_context().obj.app):
            from celery_orchestration.job.text import printable  # noqa: PLC0415

            click.echo(f"Warning: {printable(problem)}; a job goes to the default queue", err=True)
        return run(*args, **kwargs)

    command.callback = loaded


load_before(call)
