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
@click.argument("run_id")
@click.option("--terminate", is_flag=True, help="Also if it is running: its process is killed.")
def cancel(client: Orchestration, as_json: bool, run_id: str, terminate: bool) -> None:
    """Call off the run RUN_ID; the beginning of its id will do."""
    found = client.cancel(client.find_run(run_id), terminate)
    left = f"is {found.state}, and left alone (--terminate ends a running one)"
    text = "is called off" if found.called_off else "is told to end" if found.terminated else left
    say(found, as_json, f"run {found.run_id} {text}")
    if not (found.called_off or found.terminated):
        sys.exit(1)


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

    For when the workers run without orchestration. Workers that still have it let the gate decide again.
    """
    found = client.release_all()
    say(found, as_json, f"{found.count} run{'s were' if found.count != 1 else ' was'} published")
