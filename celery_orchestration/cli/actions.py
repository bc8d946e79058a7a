"""Steering: jobs and runs. Whatever is changed is written into the audit."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from celery_orchestration.cli.base import command, orchestration, read_json, say

if TYPE_CHECKING:
    from celery_orchestration.operate import Orchestration


@command(orchestration)
@click.argument("job")
def enable(client: Orchestration, as_json: bool, job: str) -> None:
    """Let JOB run again.

    Its failures are forgotten, and what was held goes.
    """
    say(client.enable(job), as_json, f"{job} is enabled")


@command(orchestration)
@click.argument("job")
@click.option("--reason", default="", help="Shown to whoever asks why it does not run.")
def disable(client: Orchestration, as_json: bool, job: str, reason: str) -> None:
    """Start no more runs of JOB until it is enabled."""
    say(client.disable(job, reason), as_json, f"{job} is disabled; what runs goes on")


@command(orchestration)
@click.option("--reason", default="", help="Shown to whoever asks why nothing runs.")
def pause(client: Orchestration, as_json: bool, reason: str) -> None:
    """Start no more runs of any job."""
    say(client.pause(reason), as_json, "everything is paused; what runs goes on")


@command(orchestration)
@click.option("--reason", default="", help="Written into the audit.")
def resume(client: Orchestration, as_json: bool, reason: str) -> None:
    """Start runs again after a pause."""
    say(client.resume(reason), as_json, "nothing is paused any more")


@command(orchestration)
@click.argument("run_id", required=False)
@click.option("--terminate", is_flag=True, help="Also if it is running: its process is killed.")
@click.option("--job", help="All runs of this job that have not started.")
@click.option("--state", type=click.Choice(["waiting", "queued"]), help="With --job: only those in this state.")
@click.option("--yes", is_flag=True, help="With --job: do not ask.")
def cancel(
    client: Orchestration,
    as_json: bool,
    run_id: str | None,
    terminate: bool,
    job: str | None,
    state: str | None,
    yes: bool,
) -> None:
    """Call off the run RUN_ID, or those of a job.

    The beginning of a run's id will do. With --job it says how many there are, and asks.
    """
    if (run_id is None) == (job is None):
        raise click.UsageError("name a run, or give --job JOB")
    if job is not None:
        if terminate:
            raise click.UsageError("--job calls off runs that have not started: --terminate needs a RUN_ID")
        return _cancel_all(client, as_json, job, state, yes)
    if state is not None:
        raise click.UsageError("--state needs --job")
    assert run_id is not None
    found = client.cancel(client.find_run(run_id), terminate)
    left = f"is {found.state}, and left alone (--terminate ends a running one)"
    text = "is called off" if found.called_off else "is told to end" if found.terminated else left
    say(found, as_json, f"run {found.run_id} {text}")
    if not (found.called_off or found.terminated):
        sys.exit(1)
    return None


def _cancel_all(client: Orchestration, as_json: bool, job: str, state: str | None, yes: bool) -> None:
    from celery_orchestration.job.text import printable  # noqa: PLC0415

    ids = client.unstarted(job, state)
    which = f"runs of {job} that have not started: {len(ids)}"
    if not ids:
        return say(client.cancel_runs(job, ids), as_json, f"there is no run of {job} to call off")
    click.echo(printable(which), err=True)
    if not yes:
        click.confirm("Call off?", abort=True, err=True)
    found = client.cancel_runs(job, ids)
    return say(found, as_json, f"{found.count} {'runs are' if found.count != 1 else 'run is'} called off")


@command(orchestration)
@click.argument("job")
@click.option("--args", default="[]", help="Arguments, as a JSON list.")
@click.option("--kwargs", default="{}", help="Named arguments, as a JSON object.")
@click.option("--force", is_flag=True, help="Even if the job is disabled or everything paused.")
def trigger(client: Orchestration, as_json: bool, job: str, args: str, kwargs: str, force: bool) -> None:
    """Ask for a run of JOB."""
    found = client.trigger(job, read_json("--args", args, list), read_json("--kwargs", kwargs, dict), force)
    say(found, as_json, f"run {found.run_id} of {found.job} was sent")


@command(orchestration)
@click.confirmation_option("--yes", prompt="Publish everything that waits, past the gate?")
def release(client: Orchestration, as_json: bool) -> None:
    """Publish everything that waits, past the gate: the way out.

    For when the workers run without orchestration. Workers that still have it let the gate decide again. What workers
    have fetched from a Redis broker and not acknowledged goes back to its queue.
    """
    found = client.release_all()
    back = f"; {found.given_back} that workers had fetched went back to their queues" if found.given_back else ""
    say(found, as_json, f"{found.count} run{'s were' if found.count != 1 else ' was'} published{back}")
