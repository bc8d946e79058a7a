"""Checks of the schedule, of pauses and disabled jobs, and of recent events."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from celery_orchestration.job.app import SCHEDULER
from celery_orchestration.job.text import show
from celery_orchestration.operate.doctor.checks.facts import MOST, About, Facts, claim, listed, many, redis_url
from celery_orchestration.operate.doctor.models import Check
from celery_orchestration.operate.hints import command
from celery_orchestration.operate.status.urgency import is_disabled_by_failures

#: How long the death of a worker is reported.
LATELY = timedelta(hours=1)


def scheduler(facts: Facts) -> Iterator[Check]:
    about = About("scheduler", "nothing is fired unless a scheduler leads")
    found = claim(facts, "no scheduler leads")
    leader = facts.status.scheduler.leader
    for sentence in found:
        yield about.problem(sentence, command(program="beat"))
    recurring = sorted(name for name, job in facts.jobs.items() if job.recurring)
    continuous = [name for name in recurring if facts.jobs[name].mode == "continuous"]
    if leader:
        others = "".join(f"; {one.leader} leads {one.service}" for one in facts.status.scheduler.others)
        yield about.fine(f"{leader} leads{others}")
    elif continuous and not facts.beat_is_ours:
        only = f"no scheduler leads, and another beat does not fire continuous jobs: {listed(continuous)}"
        yield about.problem(only, command("-S", SCHEDULER, program="beat"))
    elif not found and recurring and not facts.beat_is_ours:
        yield about.fine("another beat fires the schedule: the ledger does not know when")
    elif not found:
        yield about.fine("nothing is scheduled")


def entries(facts: Facts) -> Iterator[Check]:
    about = About("schedule", "an entry with a problem is not fired")
    own = [entry for entry in facts.entries if entry.service is None]
    bad = [entry for entry in own if entry.problem]
    for entry in bad[:MOST]:
        fix = command("schedule", "remove", entry.name)
        yield about.problem(f"entry {show(entry.name)}: {entry.problem}", fix)
    yield from about.more(len(bad), "entries have problems", command("schedule", "list"))
    if not bad:
        yield about.fine(f"{many(len(own), 'entry', 'entries')}, all good")


def records(facts: Facts) -> Iterator[Check]:
    about = About("records", "an unreadable record was replaced by a new one: another program writes there")
    found = claim(facts, "the record ")
    for sentence in found:
        yield about.problem(sentence, redis_url("of the ledger's own, or app.conf.orchestration_namespace = '…'"))
    if not found:
        yield about.fine("every record could be read")


def epoch(facts: Facts) -> Iterator[Check]:
    about = About("epoch", "the last writes are lost: runs may be lost, or run twice")
    found = claim(facts, "the ledger ")
    for sentence in found:
        yield about.problem(sentence, f"{command('audit')}  # shows since when; see also the check of persistence")
    if not found:
        yield about.fine("Redis has lost no data lately")


def deaths(facts: Facts) -> Iterator[Check]:
    about = About("deaths", "its runs are recovered: they run a second time, or become dead letters")
    lately = [one for one in facts.status.died if facts.status.at - one.at < LATELY]
    for one in lately[:MOST]:
        found = f"worker {one.name} died at {one.at:%Y-%m-%d %H:%M:%S} UTC, with {many(one.runs, 'run')}"
        yield about.problem(found, "see its log, and the kernel's: dmesg | grep -i oom")
    yield from about.more(len(lately), "died", command("status"))
    if not lately:
        yield about.fine("no worker died in the last hour")


def disabled(facts: Facts) -> Iterator[Check]:
    about = About("disabled", "no run of a disabled job starts, and runs of jobs that depend on it may wait")
    off = [job for job in facts.status.jobs if job.disabled is not None]
    failed = [job for job in off if is_disabled_by_failures(job)]
    for job in failed[:MOST]:
        why = (job.disabled.failures or job.disabled.why) if job.disabled else ""
        fix = command("enable", job.name)
        yield about.problem(f"job {show(job.name)} is disabled by failures: {why}", fix)
    yield from about.more(len(failed), "are disabled by failures", command("status"))
    if not failed:
        by_hand = listed(sorted(job.name for job in off))
        yield about.fine(f"people have disabled {by_hand}" if off else "no job is disabled")


def pause(facts: Facts) -> Iterator[Check]:
    about = About("pause", "no run of any job starts")
    found = claim(facts, "everything is paused")
    for sentence in found:
        yield about.problem(sentence, command("resume"))
    if not found:
        yield about.fine("nothing is paused")
