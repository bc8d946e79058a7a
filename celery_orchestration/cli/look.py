"""Looking: nothing here changes anything."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from celery_orchestration.cli.base import command, orchestration, print_json
from celery_orchestration.errors import AmbiguousRun, UnknownJob, UnknownRun

if TYPE_CHECKING:
    from celery_orchestration.operate import Orchestration
    from celery_orchestration.operate.explanation import Explanation


@command(orchestration)
def status(client: Orchestration, as_json: bool) -> None:
    """Show jobs, what runs, what waits and why, and the workers."""
    found = client.status()
    if as_json:
        return print_json(found)
    from celery_orchestration.cli.show.status import print_status  # noqa: PLC0415

    return print_status(found, sys.stdout)


@command(orchestration)
@click.argument("job_or_run", metavar="JOB|RUN_ID")
def explain(client: Orchestration, as_json: bool, job_or_run: str) -> None:
    """Say why a job or a run does not run, down to the root cause, and what mends it.

    Or what it is doing, what it did last and when it runs next; each option's value and where it comes from. Exits with
    1 if somebody should see to it.
    """
    found = _explained(client, job_or_run)
    if as_json:
        print_json(found)
    else:
        from celery_orchestration.cli.show.explain import print_explanation  # noqa: PLC0415

        print_explanation(found, sys.stdout)
    if found.root.wrong:
        sys.exit(1)


def _explained(client: Orchestration, about: str) -> Explanation:
    """The beginning of a run's id will do."""
    try:
        return client.explain(about)
    except UnknownJob as unknown:
        try:
            run = client.find_run(about)
        except AmbiguousRun:
            raise
        except UnknownRun:
            raise unknown from None
        return client.explain(run)


@command(orchestration)
@click.argument("job")
@click.option("--count", default=20, show_default=True, type=click.IntRange(min=1), help="How many at most.")
def history(client: Orchestration, as_json: bool, job: str, count: int) -> None:
    """Show how the last runs of JOB ended."""
    found = client.history(job, count)
    if as_json:
        return print_json(found)
    from celery_orchestration.cli.show.history import print_history  # noqa: PLC0415

    return print_history(found, sys.stdout)


@command(orchestration)
@click.option("--count", default=20, show_default=True, type=click.IntRange(min=1), help="How many at most.")
def audit(client: Orchestration, as_json: bool, count: int) -> None:
    """Show who changed what."""
    found = client.audit(count)
    if as_json:
        return print_json(found)
    from celery_orchestration.cli.show.history import print_audit  # noqa: PLC0415

    return print_audit(found, sys.stdout)
