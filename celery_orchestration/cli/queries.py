"""Looking: nothing here changes anything."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from celery_orchestration.cli.base import command, orchestration, print_json
from celery_orchestration.errors import AmbiguousRun, UnknownJob, UnknownRun

if TYPE_CHECKING:
    from celery_orchestration.operate import Orchestration
    from celery_orchestration.operate.explain.models import Explanation

#: The same as in operate/status/filter.py and operate/models.py, which take long to import.
STATES = ("idle", "running", "waiting", "disabled", "overdue")
OUTCOMES = (
    *("succeeded", "failed", "crashed", "revoked", "expired", "rejected", "ignored", "requeued", "released"),
    *("skipped", "missed"),
)


def filters(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options of what shows a status."""
    for option in (
        click.option("--all", "everything", is_flag=True, help="Show every row; a live window shows what fits."),
        click.option("--pool", "pools", multiple=True, help="Only jobs of this pool; may be repeated."),
        click.option(
            "--state", "states", multiple=True, type=click.Choice(STATES), help="Only jobs like this; may be repeated."
        ),
        click.option("--job", "jobs", multiple=True, help="Only jobs like this: a glob or a part; may be repeated."),
    ):
        function = option(function)
    return function


@command(orchestration)
@filters
def status(
    client: Orchestration,
    as_json: bool,
    jobs: tuple[str, ...],
    states: tuple[str, ...],
    pools: tuple[str, ...],
    everything: bool,
) -> None:
    """Show jobs, what runs, what waits and why, queues and workers.

    What needs attention comes first. Exits with 1 if there is a problem, a job was disabled by failures, or one is
    overdue.
    """
    from celery_orchestration.operate.status.urgency import wrong  # noqa: PLC0415

    found = client.status(jobs=jobs, states=states, pools=pools)
    if as_json:
        print_json(found)
    else:
        from celery_orchestration.cli.show.status import print_status  # noqa: PLC0415

        print_status(found, sys.stdout, everything)
    sys.exit(1 if wrong(found) else 0)


@command(orchestration)
@filters
@click.option(
    "--interval", default=1.0, show_default=True, type=click.FloatRange(min=0.2), help="Seconds between two looks."
)
@click.option("--count", type=click.IntRange(min=1), help="End after so many looks.")
def watch(
    client: Orchestration,
    as_json: bool,
    jobs: tuple[str, ...],
    states: tuple[str, ...],
    pools: tuple[str, ...],
    everything: bool,
    interval: float,
    count: int | None,
) -> None:
    """Show the status as it changes; q or Ctrl-C ends it.

    Without a terminal, or with --json, it is printed again and again: as JSON, one document a line.
    """
    from celery_orchestration.cli.show.watch import follow, is_window, watch_live  # noqa: PLC0415

    def look() -> Any:
        return client.status(jobs=jobs, states=states, pools=pools)

    if is_window(sys.stdout) and not as_json:
        watch_live(look, interval, count)
    else:
        follow(look, interval, count, as_json, everything, sys.stdout)


@command(orchestration)
@click.argument("job_or_run", metavar="JOB|RUN_ID|pool:NAME")
def explain(client: Orchestration, as_json: bool, job_or_run: str) -> None:
    """Say why a job or a run does not run, and what fixes it.

    pool:NAME says why a pool has as many workers as it has. Of a job or a run:
    down to the root cause; or what it is doing, what it did last and when it runs next; each option's value and where
    it comes from. The beginning of a run's id will do. Exits with 1 if somebody should see to it.
    """
    if job_or_run.startswith("pool:"):
        _explain_pool(client, job_or_run.removeprefix("pool:"), as_json)
        return
    found = _explained(client, job_or_run)
    if as_json:
        print_json(found)
    else:
        from celery_orchestration.cli.show.explain import print_explanation  # noqa: PLC0415

        print_explanation(found, sys.stdout)
    if found.root.wrong:
        sys.exit(1)


def _explain_pool(client: Orchestration, name: str, as_json: bool) -> None:
    """Why a pool has as many workers as it has."""
    found = client.pools(name)
    (pool,) = found.pools
    if as_json:
        print_json(pool)
    else:
        from celery_orchestration.cli.show.pools import print_pool  # noqa: PLC0415

        print_pool(pool, found.at, sys.stdout)
    if pool.problems:
        sys.exit(1)


def _explained(client: Orchestration, about: str) -> Explanation:
    """The beginning of a run's id will do."""
    try:
        return client.explain(about)
    except UnknownJob as unknown:
        try:
            run = client.find_run(about, ended=True)
        except AmbiguousRun:
            raise
        except UnknownRun:
            raise unknown from None
        return client.explain(run)


@command(orchestration)
@click.argument("job")
@click.option("--count", default=20, show_default=True, type=click.IntRange(min=1), help="How many at most.")
@click.option(
    "--outcome",
    "outcomes",
    multiple=True,
    type=click.Choice(OUTCOMES),
    help="Only what ended like this; may be repeated.",
)
def history(client: Orchestration, as_json: bool, job: str, count: int, outcomes: tuple[str, ...]) -> None:
    """Show how the last runs of JOB ended, the latest first."""
    found = client.history(job, count, outcomes)
    if as_json:
        return print_json(found)
    from celery_orchestration.cli.show.history import print_history  # noqa: PLC0415

    return print_history(found, sys.stdout)


@command(orchestration)
@click.argument("job", required=False)
@click.option(
    "--format",
    "form",
    default="text",
    show_default=True,
    type=click.Choice(["text", "mermaid", "dot"]),
    help="For a terminal, or for other programs.",
)
def graph(client: Orchestration, as_json: bool, job: str | None, form: str) -> None:
    """Show which jobs wait for which, and which never run together.

    With JOB: what that one waits for, what waits for it, and what it never runs together with.
    """
    found = client.graph(job)
    if as_json:
        return print_json(found)
    if form == "text":
        from celery_orchestration.cli.show.graph import print_graph  # noqa: PLC0415

        return print_graph(found, sys.stdout)
    from celery_orchestration.operate.graph import formats  # noqa: PLC0415

    text = formats.mermaid(found) if form == "mermaid" else formats.dot(found)
    return click.echo(text, nl=False)


@command(orchestration)
@click.option("--count", default=20, show_default=True, type=click.IntRange(min=1), help="How many at most.")
def audit(client: Orchestration, as_json: bool, count: int) -> None:
    """Show who changed what."""
    found = client.audit(count)
    if as_json:
        return print_json(found)
    from celery_orchestration.cli.show.history import print_audit  # noqa: PLC0415

    return print_audit(found, sys.stdout)


@command(orchestration)
@click.option(
    "--hours", default=24.0, show_default=True, type=click.FloatRange(0, 168, min_open=True), help="How far ahead."
)
def forecast(client: Orchestration, as_json: bool, hours: float) -> None:
    """Show when each job will run, what will wait for what, and what cannot end in time.

    The coming due times go through the gate's rules, with runs that take as long as usual and succeed. Exits with 1 if
    a job cannot end before it is due again, or cannot start at all.
    """
    found = client.forecast(hours)
    if as_json:
        print_json(found)
    else:
        from celery_orchestration.cli.show.forecast import print_forecast  # noqa: PLC0415

        print_forecast(found, sys.stdout)
    if found.overruns or any(job.never and not job.runs for job in found.jobs):
        sys.exit(1)
