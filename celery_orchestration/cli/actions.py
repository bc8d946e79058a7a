"""The commands that change jobs and runs. Each change is written into the audit."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from celery_orchestration.cli.base import command, orchestration, print_result, read_json

if TYPE_CHECKING:
    from celery_orchestration.operate import Orchestration


@command(orchestration)
@click.argument("job")
def enable(client: Orchestration, as_json: bool, job: str) -> None:
    """Let JOB run again.

    Forgets its failures, and starts the runs that were held.
    """
    print_result(client.enable(job), as_json, f"{job} is enabled")


@command(orchestration)
@click.argument("job")
@click.option("--reason", default="", help="Shown wherever the job is shown.")
def disable(client: Orchestration, as_json: bool, job: str, reason: str) -> None:
    """Start no more runs of JOB until it is enabled."""
    print_result(client.disable(job, reason), as_json, f"{job} is disabled; running runs continue")


@command(orchestration)
@click.option("--reason", default="", help="Shown wherever the pause is shown.")
def pause(client: Orchestration, as_json: bool, reason: str) -> None:
    """Start no more runs of any job."""
    print_result(client.pause(reason), as_json, "everything is paused; running runs continue")


@command(orchestration)
@click.option("--reason", default="", help="Written into the audit.")
def resume(client: Orchestration, as_json: bool, reason: str) -> None:
    """Start runs again after a pause."""
    print_result(client.resume(reason), as_json, "runs start again")


@command(orchestration)
@click.argument("run_id", required=False)
@click.option("--terminate", is_flag=True, help="Also end a running run: kill its process.")
@click.option("--job", help="Cancel all runs of this job that have not started.")
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
    """Cancel the run RUN_ID, or the runs of a job.

    The beginning of a run's id is enough. With --job, shows how many runs there are, and asks for confirmation.
    """
    if (run_id is None) == (job is None):
        raise click.UsageError("name a run, or give --job JOB")
    if job is not None:
        if terminate:
            raise click.UsageError("--job cancels runs that have not started: --terminate needs a RUN_ID")
        return _cancel_all(client, as_json, job, state, yes)
    if state is not None:
        raise click.UsageError("--state needs --job")
    assert run_id is not None
    found = client.cancel(client.find_run(run_id), terminate)
    left = f"is {found.state} and was not cancelled (--terminate ends a running one)"
    text = "is cancelled" if found.cancelled else "is being ended" if found.terminated else left
    print_result(found, as_json, f"run {found.run_id} {text}")
    if not (found.cancelled or found.terminated):
        sys.exit(1)
    return None


def _cancel_all(client: Orchestration, as_json: bool, job: str, state: str | None, yes: bool) -> None:
    from celery_orchestration.job.text import printable  # noqa: PLC0415

    ids = client.unstarted(job, state)
    which = f"runs of {job} that have not started: {len(ids)}"
    if not ids:
        return print_result(client.cancel_runs(job, ids), as_json, f"there is no run of {job} to cancel")
    click.echo(printable(which), err=True)
    if not yes:
        click.confirm("Cancel them?", abort=True, err=True)
    found = client.cancel_runs(job, ids)
    return print_result(found, as_json, f"{found.count} {'runs are' if found.count != 1 else 'run is'} cancelled")


@command(orchestration)
@click.argument("job")
@click.option("--args", default="[]", help="Arguments, as a JSON list.")
@click.option("--kwargs", default="{}", help="Named arguments, as a JSON object.")
@click.option("--force", is_flag=True, help="Start it even if the job is disabled or everything is paused.")
def trigger(client: Orchestration, as_json: bool, job: str, args: str, kwargs: str, force: bool) -> None:
    """Send a run of JOB."""
    found = client.trigger(job, read_json("--args", args, list), read_json("--kwargs", kwargs, dict), force)
    print_result(found, as_json, f"run {found.run_id} of {found.job} was sent")


@command(orchestration)
@click.confirmation_option("--yes", prompt="Publish all waiting runs without asking the gate?")
def release(client: Orchestration, as_json: bool) -> None:
    """Publish all waiting runs without asking the gate: to remove orchestration.

    Use it when the workers run without orchestration: a worker that still has it asks the gate again. Messages that
    workers have fetched from a Redis broker and not acknowledged go back to their queues.
    """
    found = client.release_all()
    back = f"; {found.given_back} that workers had fetched went back to their queues" if found.given_back else ""
    print_result(found, as_json, f"{found.count} run{'s were' if found.count != 1 else ' was'} published{back}")
