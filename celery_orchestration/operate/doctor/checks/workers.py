"""Checks of workers and the broker: does every run reach a worker that asks the gate?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from celery_orchestration.job.limits import sentences, soft_sentence
from celery_orchestration.job.text import show
from celery_orchestration.operate.doctor.checks.facts import MOST, About, Facts, claim, end, listed, many
from celery_orchestration.operate.doctor.models import Check
from celery_orchestration.operate.hints import command, without_release, worker_for

#: Seconds by which clocks may differ.
MOST_SKEW = 5.0


def queues(facts: Facts) -> Iterator[Check]:
    about = About("queues", "messages of a queue that no worker serves stay there")
    found = claim(facts, "no worker is alive", "no live worker serves queue ")
    for sentence in found:
        queue = sentence.removeprefix("no live worker serves queue ").partition(",")[0]
        start = worker_for(queue) if queue != sentence else command(program="worker")
        yield about.problem(sentence, start)
    if not found:
        served = [queue for queue in facts.status.queues if queue.slots]
        at_rest = len(facts.status.queues) - len(served)
        text = f"live workers serve {'' if at_rest else 'all '}{many(len(served), 'queue')}"
        if at_rest:
            text += f"; supervisors start workers for {many(at_rest, 'other')} when runs are ready"
        yield about.fine(text)


def jobs(facts: Facts) -> Iterator[Check]:
    about = About("jobs without a worker", "a run is handed only to workers whose release has its job")
    found = claim(facts, "no live worker has job ")
    for sentence in found[:MOST]:
        job = sentence.removeprefix("no live worker has job ").partition(";")[0]
        yield about.problem(sentence, without_release(job))
    yield from about.more(len(found), "jobs", command("status", "--state", "waiting"))
    if not found:
        yield about.fine("live workers have the jobs of all runs that wait")


def broker(facts: Facts) -> Iterator[Check]:
    about = About("broker", "messages reach workers through it")
    if facts.broker_problem:
        yield about.problem(facts.broker_problem, "start it, or set its address: app.conf.broker_url = '…'")
    else:
        yield about.fine("the broker answers")


def strangers(facts: Facts) -> Iterator[Check]:
    about = About("strangers", "messages that such a worker takes run without the gate, or not at all")
    for one in facts.strangers[:MOST]:
        found = f"worker {one.name} serves {listed(one.queues)} without orchestration: not installed there, or off"
        fix = f"{end(one.name)}; then start it with celery_orchestration installed"
        if one.namespace is not None:
            found = f"worker {one.name} of namespace {show(one.namespace)} serves {listed(one.queues)}, too"
            fix = "give each app a broker of its own: another database of Redis, another virtual host of RabbitMQ"
        yield about.problem(found, fix)
    yield from about.more(len(facts.strangers), "workers", command("active_queues", program="inspect"))
    if facts.broker_problem and not facts.strangers:
        yield about.unknown("the broker does not answer: workers cannot be asked")
    elif not facts.strangers:
        yield about.fine("every worker that answers on a job's queue is in the ledger")


def limits(facts: Facts) -> Iterator[Check]:
    about = About("time limits", "code that cannot be interrupted continues, and keeps its room")
    prefork = command("-P", "prefork", program="worker")
    kinds = sorted({*facts.limits, *facts.plain_limits})
    kept = True
    for kind in kinds:
        jobs, plain = facts.limits.get(kind, {}), facts.plain_limits.get(kind, {})
        for sentence in sentences(kind, jobs, plain):
            kept = False
            yield about.problem(sentence, prefork)
        soft = soft_sentence(kind, {**jobs, **plain})
        if soft:
            kept = False
            yield about.fine(soft, prefork)
    if kept:
        yield about.fine("the execution pools keep the limits of the tasks that they serve")


def clocks(facts: Facts) -> Iterator[Check]:
    about = About("clocks", "countdown, eta and expires use the caller's clock, the ledger uses Redis's")
    ntp = "timedatectl set-ntp true  # there"
    found = False
    ahead = {"this machine": facts.ahead}
    for name, reply in sorted(facts.replies.replies.items()):
        reported = reply.get("clock_ahead_seconds") if isinstance(reply, Mapping) else None
        if reported is not None:
            ahead[name] = reported
    for name, seconds in ahead.items():
        if abs(seconds) > MOST_SKEW:
            found = True
            side = "ahead of" if seconds > 0 else "behind"
            yield about.problem(f"the clock of {name} is {abs(seconds):.0f} s {side} Redis's", ntp)
    silent = [one.name for one in facts.status.workers if one.state != "dead" and one.name not in ahead]
    if silent:
        fix = command("orchestration", program="inspect")
        yield about.unknown(f"these workers do not report their time: {listed(sorted(silent))}", fix)
    elif not found:
        yield about.fine(f"no clock differs from Redis's by more than {MOST_SKEW:g} s")
