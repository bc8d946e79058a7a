"""``dlq …``: dead letters."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from celery_orchestration.cli.base import command, orchestration, print_json, print_result
from celery_orchestration.errors import UnknownRun

if TYPE_CHECKING:
    from celery_orchestration.operate import Orchestration


@orchestration.group()
def dlq() -> None:
    """Dead letters: runs that failed for good."""


def _full_id(client: Orchestration, run_id: str | None, job: str | None, everything: bool) -> str | None:
    """The full id of the run, if one is given."""
    if sum((run_id is not None, job is not None, everything)) != 1:
        raise click.UsageError("give a run, --job JOB or --all")
    return None if run_id is None else client.find_run(run_id, dead=True)


@command(dlq, "list")
@click.option("--job", help="Only dead letters of this job.")
@click.option("--count", default=20, show_default=True, type=click.IntRange(min=1), help="Show at most this many.")
def list_letters(client: Orchestration, as_json: bool, job: str | None, count: int) -> None:
    """List dead letters, the latest first."""
    found = client.dead_letters(job, count)
    if as_json:
        return print_json(found)
    from celery_orchestration.cli.show.dead_letters import print_letters  # noqa: PLC0415

    return print_letters(found, client.status(depths=False).dead_letters if job is None else len(found), sys.stdout)


@command(dlq)
@click.argument("run_id")
def show(client: Orchestration, as_json: bool, run_id: str) -> None:
    """Show a dead letter.

    Shows its error, its traceback and the facts of its message.
    """
    found = client.dead_letter(client.find_run(run_id, dead=True))
    if as_json:
        return print_json(found)
    from celery_orchestration.cli.show.dead_letters import print_letter  # noqa: PLC0415

    return print_letter(found, sys.stdout)


@command(dlq)
@click.argument("run_id", required=False)
@click.option("--job", help="All dead letters of this job.")
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@click.option("--as", "as_job", metavar="JOB", help="Make them runs of this job; with --job, also its waiting runs.")
def requeue(
    client: Orchestration, as_json: bool, run_id: str | None, job: str | None, everything: bool, as_job: str | None
) -> None:
    """Run a dead letter again, those of a job, or all.

    With --as they become runs of another job, and so do waiting runs: for a job that was renamed or removed.
    """
    try:
        run_id = _full_id(client, run_id, job, everything)
    except UnknownRun:
        if as_job is None or run_id is None:
            raise
        run_id = client.find_run(run_id)
    found = client.requeue(run_id, job=job, everything=everything, as_job=as_job)
    what = "dead letter" if as_job is None else "run"
    print_result(found, as_json, f"{len(found.runs)} {what}{'s were' if len(found.runs) != 1 else ' was'} requeued")
    for id, why in found.left.items():
        click.echo(f"{id!a} was not requeued: {why}", err=True)
    if found.left:
        sys.exit(1)


@command(dlq)
@click.argument("run_id", required=False)
@click.option("--job", help="All dead letters of this job.")
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@click.confirmation_option("--yes", prompt="Remove them for good?")
def purge(client: Orchestration, as_json: bool, run_id: str | None, job: str | None, everything: bool) -> None:
    """Remove a dead letter, those of a job, or all."""
    run_id = _full_id(client, run_id, job, everything)
    found = client.purge(run_id, job=job, everything=everything)
    print_result(found, as_json, f"{found.count} dead letter{'s were' if found.count != 1 else ' was'} removed")


#: Also a command of its own: with --as it takes waiting runs, too.
orchestration.add_command(requeue)
