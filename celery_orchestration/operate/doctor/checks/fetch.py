"""Checks of fetching: are fetched messages safe, and do they reach workers that have a free slot?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from celery_orchestration.operate.doctor.checks.facts import About, Facts, listed, many
from celery_orchestration.operate.doctor.models import Check
from celery_orchestration.operate.hints import command

#: Seconds: a time limit of this length means long runs.
LONG = 600.0
#: The oldest Redis that is supported.
OLDEST_REDIS = (6, 2)


def fetch(facts: Facts) -> Iterator[Check]:
    about = About("fetch", "a killed worker must neither lose nor keep the messages that it has fetched")
    if not facts.broker_is_redis:
        yield about.fine("the broker is not Redis: it redelivers the messages of a lost worker by itself")
        return
    version = _version(facts.kept.version)
    is_old = bool(version) and version < OLDEST_REDIS
    if is_old:
        oldest = ".".join(map(str, OLDEST_REDIS))
        yield about.problem(f"the broker is Redis {facts.kept.version}, older than {oldest}", "use a newer Redis")
    stock = sorted(name for name, how in _ways(facts).items() if how == "celery")
    polls = sorted(name for name, reply in _replies(facts).items() if reply.get("fetch_polls_because"))
    if stock:
        yield about.problem(
            f"these workers fetch as Celery does: {listed(stock)}. What they have fetched when they are killed comes "
            f"back after visibility_timeout ({facts.visibility:g} s), or never",
            "app.conf.orchestration_fetch = 'reliable'  # and unset CELERY_ORCHESTRATION_FETCH there",
        )
    if polls:
        why = _replies(facts)[polls[0]]["fetch_polls_because"]
        yield about.problem(
            f"Redis does not notify these workers of messages ({why}), so they poll ten times a second: "
            f"{listed(polls)}",
            "ACL SETUSER … +hello +client|tracking +client|caching  # in redis-cli; a proxy must pass these commands",
        )
    if not stock and not polls and not is_old:
        yield about.fine("fetched messages stay in Redis until they are acknowledged")


def stores(facts: Facts) -> Iterator[Check]:
    about = About("stores", "messages of a lost worker go back to their queues with the next sweep")
    if not facts.broker_is_redis:
        return
    if facts.kept.problem:
        yield about.unknown("the broker does not answer: it is unknown what workers have fetched")
        return
    alive = {one.name for one in facts.status.workers if one.state != "dead"}
    left: Counter[str] = Counter()
    for store, count in facts.kept.stores:
        if store.name not in alive:
            left[store.name] += count
    if not +left:
        yield about.fine(f"{many(sum(count for _, count in facts.kept.stores), 'message')} fetched, by live workers")
    elif alive:
        found = f"{many(left.total(), 'message')} that {listed(sorted(+left))} had fetched go back within seconds"
        yield about.fine(found)
    else:
        yield about.problem(
            f"{many(left.total(), 'message')} that {listed(sorted(+left))} had fetched wait for a worker or scheduler "
            "to give them back",
            f"{command(program='worker')}  # or, without orchestration: {command('release')}",
        )


def reliable(facts: Facts) -> bool:
    """Whether all workers that answer fetch reliably."""
    ways = _ways(facts)
    mine = facts.settings.fetch == "reliable"
    return facts.broker_is_redis and "celery" not in ways.values() and (mine or "reliable" in ways.values())


def _replies(facts: Facts) -> dict[str, Mapping[str, object]]:
    return {name: reply for name, reply in facts.replies.replies.items() if isinstance(reply, Mapping)}


def _ways(facts: Facts) -> dict[str, object]:
    """The way in which each worker that answers fetches."""
    return {name: reply["fetch"] for name, reply in _replies(facts).items() if "fetch" in reply}


def _prefetching(facts: Facts) -> dict[str, object]:
    """Workers on RabbitMQ that prefetch as Celery does, and why."""
    reasons = {name: reply.get("prefetches_because") for name, reply in _replies(facts).items()}
    refused = {name: why for name, why in reasons.items() if why}
    chosen = facts.settings.fetch == "celery" and not facts.settings.strict_priority
    if facts.broker_is_amqp and chosen and not refused:
        return {"its workers": "orchestration_fetch is 'celery'"}
    return refused


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def prefetch(facts: Facts) -> Iterator[Check]:
    about = About("prefetch", "fetched messages stay with their worker, in the order in which they came")
    multiplier, refused = facts.prefetch, _prefetching(facts)
    bounded = reliable(facts) or (facts.broker_is_amqp and not refused)
    if multiplier == 0 and not bounded:
        yield about.problem(
            "worker_prefetch_multiplier is 0: the first worker fetches everything, and keeps it in memory",
            "app.conf.worker_prefetch_multiplier = 1",
        )
        return
    if facts.settings.strict_priority and not refused:
        yield about.fine("under orchestration_strict_priority a worker fetches only for free slots")
        return
    if facts.settings.strict_priority:
        yield about.fine(
            "under orchestration_strict_priority a worker starts the highest of its fetched messages first. These "
            "workers fetch from each queue up to one message more than they have slots. While a worker is busy, that "
            "message waits there, even if another worker is idle: "
            f"{listed(sorted(refused))} ({next(iter(refused.values()))})"
        )
        return
    if bounded:
        seconds = facts.settings.read_ahead_seconds
        yield about.fine(f"a worker fetches only what its slots are expected to take within {seconds:g} s")
        return
    ranks: dict[str, set[int]] = defaultdict(set)
    for job in facts.jobs.values():
        ranks[job.pool].add(int(job.priority))
    long = sorted(name for name, job in facts.jobs.items() if (job.timeout_seconds or 0) >= LONG)
    ahead = f"a worker fetches up to {multiplier} messages for each slot"
    if multiplier > 1 and any(len(found) > 1 for found in ranks.values()):
        fix = "app.conf.orchestration_strict_priority = True"
        yield about.fine(f"{ahead}: a run of higher priority comes after those that were fetched before", fix)
    elif multiplier > 1 and long:
        fix = "app.conf.worker_prefetch_multiplier = 1"
        yield about.fine(f"{ahead}: they wait behind a long run ({listed(long)}) while others may be idle", fix)
    else:
        yield about.fine(ahead if multiplier > 1 else "a worker fetches one message for each slot")


def visibility(facts: Facts) -> Iterator[Check]:
    about = About(
        "visibility_timeout",
        "a message that is not acknowledged by then is redelivered; it is dropped while the ledger knows its run",
    )
    if not facts.broker_is_redis:
        yield about.fine("the broker is not Redis: it redelivers when a connection is lost, not after a time")
        return
    if reliable(facts):
        yield about.fine("it applies only to messages of workers without reliable fetch")
        return
    has, lease = facts.visibility, facts.settings.lease_seconds
    late = {job: limit for job, limit in facts.late.items() if limit is not None and limit > has}
    kept = facts.nodes.done_ms / 1000
    longest = max(late.values(), default=0.0)

    def to(seconds: float) -> str:
        return f"app.conf.broker_transport_options = {{'visibility_timeout': {seconds:.0f}}}  # the same everywhere"

    if has < lease:
        yield about.problem(
            f"it is {has:g} s, shorter than a lease ({lease:g} s): while the gate is closed, all that was fetched is "
            "delivered again and again",
            to(3600),
        )
    if late:
        yield about.problem(
            f"it is {has:g} s, shorter than the hard time limit of {listed(sorted(late))} ({longest:g} s), which "
            "acknowledge when they end: their messages are delivered again while they run",
            to(2 * longest),
        )
    if facts.nodes.nodes and kept < has:
        yield about.problem(
            f"it is {has:g} s here, but a worker or scheduler has a shorter one: runs that ended are forgotten after "
            f"{kept:g} s, and a message that is delivered again after that runs again",
            to(has),
        )
    if has >= lease and not late and not (facts.nodes.nodes and kept < has):
        yield about.fine(f"it is {has:g} s, and runs that ended are known for longer")
