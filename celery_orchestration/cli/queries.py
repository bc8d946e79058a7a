"""The commands that read and change nothing."""

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
    """The options of commands that show a status."""
    for option in (
        click.option("--all", "everything", is_flag=True, help="Show all rows; a live window shows as many as fit."),
        click.option("--pool", "pools", multiple=True, help="Only jobs of this pool; may be repeated."),
        click.option(
            "--state",
            "states",
            multiple=True,
            type=click.Choice(STATES),
            help="Only jobs in this state; may be repeated.",
        ),
        click.option(
            "--job",
            "jobs",
            multiple=True,
            help="Only jobs whose names match: a glob, or a part of the name; may be repeated.",
        ),
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
    """Show jobs, running runs, waiting runs and their reasons, queues and workers.

    Problems come first. Exits with 1 if there is a problem, a job was disabled by failures, or a job is overdue.
    """
    from celery_orchestration.operate.status.urgency import problems_of  # noqa: PLC0415

    found = client.status(jobs=jobs, states=states, pools=pools)
    if as_json:
        print_json(found)
    else:
        from celery_orchestration.cli.show.status import print_status  # noqa: PLC0415

        print_status(found, sys.stdout, everything)
    sys.exit(1 if problems_of(found) else 0)


@command(orchestration)
@filters
@click.option(
    "--interval", default=1.0, show_default=True, type=click.FloatRange(min=0.2), help="Seconds between two updates."
)
@click.option("--count", type=click.IntRange(min=1), help="End after this number of updates.")
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

    Without a terminal, or with --json, prints the status repeatedly: as JSON, one document per line.
    """
    from celery_orchestration.cli.show.watch import follow, is_window, watch_live  # noqa: PLC0415

    def read() -> Any:
        return client.status(jobs=jobs, states=states, pools=pools)

    if is_window(sys.stdout) and not as_json:
        watch_live(read, interval, count)
    else:
        follow(read, interval, count, as_json, everything, sys.stdout)


@command(orchestration)
@click.argument("job_or_run", metavar="JOB|RUN_ID|pool:NAME")
def explain(client: Orchestration, as_json: bool, job_or_run: str) -> None:
    """Explain why a job or a run does not run, and how to fix it.

    Shows the root cause; or what the job or run does now, did last and when it runs next; and each option's value and
    where it comes from. The beginning of a run's id is enough. With pool:NAME, explains the number of workers of that
    pool. Exits with 1 if somebody should do something.
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
    """Explains the number of workers of a pool."""
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
    """`about`: a job, a run, or the beginning of a run's id."""
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
@click.option("--count", default=20, show_default=True, type=click.IntRange(min=1), help="Show at most this many.")
@click.option(
    "--outcome",
    "outcomes",
    multiple=True,
    type=click.Choice(OUTCOMES),
    help="Only runs with this outcome; may be repeated.",
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
    help="Text for a terminal, or input for other programs.",
)
def graph(client: Orchestration, as_json: bool, job: str | None, form: str) -> None:
    """Show which jobs wait for which, and which never run together.

    With JOB, shows only the jobs related to it: its dependencies, its dependents, and jobs that it never runs with.
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
@click.option("--count", default=20, show_default=True, type=click.IntRange(min=1), help="Show at most this many.")
def audit(client: Orchestration, as_json: bool, count: int) -> None:
    """Show who changed what and when."""
    found = client.audit(count)
    if as_json:
        return print_json(found)
    from celery_orchestration.cli.show.history import print_audit  # noqa: PLC0415

    return print_audit(found, sys.stdout)


@command(orchestration)
@click.option(
    "--hours",
    default=24.0,
    show_default=True,
    type=click.FloatRange(0, 168, min_open=True),
    help="Length of the forecast.",
)
def forecast(client: Orchestration, as_json: bool, hours: float) -> None:
    """Show when each job will run, what will wait for what, and what cannot end in time.

    Simulates the coming due times with the gate's rules. Each run takes as long as usual, and succeeds. Exits with 1 if
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
