"""(e) The scheduler, compared with Celery's own (PersistentScheduler) and celery-redbeat.

Fires: entries with an interval of ten seconds, as many as make 1,000 fires a second, or 0.8 of the rate of a plain
``apply_async`` loop here. Entries that were added together are due together, so each period of ten seconds begins with
all of them at once; the fires that were sent by its end are counted. This is measured twice: without a worker, where a
fire goes into the ledger and waits; and with a worker that has slots for everything and executes nothing, where each
run is also handed over to the broker. The other schedulers get one-second entries, and the fires of each second are
counted.

Processor time: the kernel's account of the scheduler's process, while ten entries fire every second, with few or many
other entries that are not due. Lateness: the time from the due time until the message can be taken from the broker, and
until the run is in the ledger. Takeover: a leader is terminated or killed just before an entry is due, while another
one stands by; the ledger then says what became of every due time.

This file is long because three schedulers are measured side by side, in the same way.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import redis
from celery import Celery

from bench.apps import FIRED, add_fired, entry_name
from bench.stage import PATIENCE, Others, Stage, cpu_seconds
from celery_orchestration import OrchestratedTask
from celery_orchestration.ledger import Presence, keys
from celery_orchestration.ledger.records import key_of
from celery_orchestration.node.presence import Node
from celery_orchestration.scheduler.entries import Entry
from celery_orchestration.scheduler.message import Call
from support.servers import RedisServer
from support.workers import CeleryProcess, environment

OURS = "celery_orchestration:OrchestratedScheduler"
STOCK = "celery.beat:PersistentScheduler"
REDBEAT = "redbeat.RedBeatScheduler"
TITLES = {OURS: "ours", STOCK: "PersistentScheduler", REDBEAT: "celery-redbeat"}
P = keys.prefix("bench")
#: The queues of messages: of plain tasks, and of runs that are handed over.
QUEUES = ("celery", "default.granted")

#: The most fires a second, the share of the loop's rate, and the seconds between two fires of an entry.
MOST_RATE, OF_LOOP, EVERY = 1000, 0.8, 10
#: The number of messages of that loop.
LOOP = 3000
#: The number of entries that are due every second, and of others, few or many.
BUSY_ENTRIES, FEW, MANY = 10, 90, 9990
#: Seconds until a scheduler has settled, and until entries that began together fire one by one.
SETTLE = 6.0
HUNDRED_AT_ONCE = [(100, 1.0)]
HUNDRED_ONE_BY_ONE = [(1, (900 + 2 * number) / 1000) for number in range(100)]
#: Entries of the takeovers: one whose fires show that the schedule continues, and those whose due times are looked up.
#: A takeover may take longer than the shorter interval, but not than the longer one.
PULSE, SHORT, LONG = (1, 0.2), (10, 5.0), (10, 15.0)

Schedule = Iterable[tuple[int, float]]


def measure(stage: Stage) -> dict[str, Any]:
    return {
        "fires": _fires(stage),
        "cpu": _cpu(stage),
        "late": _late(stage),
        "takeover": _takeover(stage),
    }


# -- a scheduler at work


@dataclass
class Site:
    """A Redis, and the schedulers that use it."""

    stage: Stage
    server: RedisServer
    redis: redis.Redis

    @classmethod
    @contextlib.contextmanager
    def open(cls, stage: Stage, worker: bool = False) -> Iterator[Site]:
        with stage.redis() as server, redis.Redis.from_url(server.url()) as connection:
            if worker:
                _pretend_a_worker(server.url())
            yield cls(stage, server, connection)

    @contextlib.contextmanager
    def beat(self, scheduler: str, schedule: Schedule) -> Iterator[CeleryProcess]:
        kind = "fires" if scheduler == OURS else "plain"
        with self.stage.beat(kind, self.server.url(), scheduler, list(schedule)) as process:
            yield process

    def begun(self, scheduler: str, schedule: Schedule) -> int:
        """Waits until the scheduler has all its entries. For our scheduler, returns when they began (ms)."""
        names = [entry_name(every, number) for count, every in schedule for number in range(count)]
        key = {OURS: key_of(P, "entry", names[-1]), REDBEAT: f"redbeat:{names[-1]}"}.get(scheduler)
        self.wait(lambda: self.redis.exists(key) if key else self.depth(), f"{scheduler} has its entries")
        if scheduler != OURS:
            return 0
        self.wait(lambda: self.redis.hexists(key, "next"), f"{scheduler} has its entries")
        return int(self.redis.hget(key, "last"))

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError(f"not within {PATIENCE:.0f} s: {what}")
            time.sleep(0.01)

    def now(self) -> float:
        """Redis's time, ms."""
        seconds, micros = self.redis.time()
        return seconds * 1000 + micros / 1000

    def depth(self) -> int:
        return sum(self.redis.llen(queue) for queue in QUEUES)

    def sent(self) -> int:
        """The number of fires whose messages are in the broker now. A run that was handed over again counts once."""
        return len({_headers(text)["id"] for queue in QUEUES for text in self.redis.lrange(queue, 0, -1)})

    def due_times(self, entries: Iterable[str]) -> dict[str, int]:
        """For runs of our scheduler: when each was due (ms), for all that can have been fired so far."""
        found = {}
        for name in entries:
            entry = Entry(name, Call(FIRED, (), {}, {}), "", None)
            generation, last = self.redis.hmget(key_of(P, "entry", entry.id), "generation", "last")
            entry.generation = generation.decode()
            every = round(float(name.split("-")[1]) * 1000)
            for due in range(int(last) - 600 * every, int(last) + 10 * every, every):
                found[entry.run_id(due)] = due
        return found


def _headers(text: bytes) -> dict[str, Any]:
    headers: dict[str, Any] = json.loads(text)["headers"]
    return headers


class PretendedWorker(Node):
    """A node that has slots for everything, and executes nothing."""

    def presence(self) -> Presence:
        present = self.as_present("pretended@localhost", "prefork", 10_000_000, QUEUES)
        return replace(present, lease_ms=3_600_000)

    def give_up(self, why: str) -> None:
        raise RuntimeError(why)

    def send_event(self, type: str, id: str, **fields: Any) -> None: ...


def _pretend_a_worker(url: str) -> None:
    app = Celery("bench", broker=url, set_as_current=False)
    add_fired(app, OrchestratedTask)
    app.finalize()
    node = PretendedWorker(app)
    node.ledger.register(node.presence())
    node.ledger.close()


# -- fires


@dataclass(frozen=True)
class Case:
    name: str
    scheduler: str
    entries: int
    every: float
    worker: bool
    title: str

    @property
    def schedule(self) -> Schedule:
        return [(self.entries, self.every)]


def _fires(stage: Stage) -> dict[str, Any]:
    loop = _plain_loop(stage)
    rate = min(MOST_RATE, round(OF_LOOP * loop))
    many = rate * EVERY
    stage.say(f"fires: a plain apply_async loop sends {loop:.0f}/s; {many} entries every {EVERY} s")
    ours = (
        Case("ledger", OURS, many, EVERY, False, "ours, no worker: into the ledger"),
        Case("broker", OURS, many, EVERY, True, "ours, into ledger and broker"),
        Case("seconds", OURS, 2000, 1, True, "ours, into ledger and broker"),
    )
    others = (
        Case("stock", STOCK, 2000, 1, False, "PersistentScheduler"),
        Case("redbeat200", REDBEAT, 200, 1, False, "celery-redbeat"),
        Case("redbeat2000", REDBEAT, 2000, 1, False, "celery-redbeat"),
    )
    rounds: dict[str, list[dict[str, Any]]] = {case.name: [] for case in (*ours, *others)}
    for number in range(stage.size.schedule.rounds):
        # The others are slower by factors: one round is enough.
        for case in (*ours, *others) if number == 0 else reversed(ours):
            found = _periods(stage, case) if case.every == EVERY else _steady(stage, case)
            rounds[case.name].append(found)
            stage.say(
                f"fires {number + 1}/{stage.size.schedule.rounds}: {case.title}, {case.entries} entries every "
                f"{case.every:g} s: {found['sent']} of {found['due']} sent, {found['per_second']:.0f}/s{found['ended']}"
            )
    cases = {case.name: {**asdict(case), **_summary(rounds[case.name])} for case in (*ours, *others)}
    return {"loop": loop, "rate": rate, "cases": cases}


def _summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "sent": sum(one["sent"] for one in rounds),
        "due": sum(one["due"] for one in rounds),
        "per_second": median(one["per_second"] for one in rounds),
        "others": median(one["others"] for one in rounds),
        "ended": next((one["ended"] for one in rounds if one["ended"]), ""),
        "rounds": rounds,
    }


def _plain_loop(stage: Stage) -> float:
    """The messages a second of a loop that only calls ``apply_async``."""
    with stage.redis() as server:
        command = [sys.executable, "-m", "bench.fill", str(LOOP), "0"]
        env = {**environment(), "BENCH_APP": "plain", "BENCH_BROKER": server.url()}
        found = [subprocess.run(command, env=env, check=True, capture_output=True, text=True) for _ in range(3)]
    return median(float(one.stdout) for one in found)


def _periods(stage: Stage, case: Case) -> dict[str, Any]:
    """All entries are due at once, every ten seconds. Counts the fires that were sent by the end of the last period."""
    with Site.open(stage, case.worker) as site, site.beat(case.scheduler, case.schedule) as process:
        begun = site.begun(case.scheduler, case.schedule)
        others, took = Others(), []
        count = site.depth if case.worker else (lambda: site.redis.zcard(key_of(P, "waiting")))
        for period in range(1, stage.size.schedule.periods + 1):
            due = begun + period * case.every * 1000
            while site.now() < due + case.every * 1000 - 100:
                if count() >= period * case.entries and len(took) < period:
                    took.append((site.now() - due) / 1000)
                time.sleep(0.05)
        share, sent = others.share(), site.sent() if case.worker else count()
        all_due = case.entries * stage.size.schedule.periods
        return {
            "sent": sent,
            "due": all_due,
            "per_second": case.entries / median(took) if sent >= all_due else sent / case.every,
            "took": took,
            "others": share,
            "ended": _end_of(process),
        }


def _steady(stage: Stage, case: Case) -> dict[str, Any]:
    """Counts the fires of some seconds, beginning two seconds after the first fire."""
    with Site.open(stage, case.worker) as site, site.beat(case.scheduler, case.schedule) as process:
        site.begun(case.scheduler, case.schedule)
        site.wait(lambda: site.depth() or not process.running, "something is fired")
        time.sleep(2)
        others, before, since = Others() if process.running else None, site.depth(), time.monotonic()
        time.sleep(stage.size.schedule.seconds)
        passed, after = time.monotonic() - since, site.sent()
        share = others.share() if others and process.running else 0.0
        sent = after - before
        return {
            "sent": sent,
            "due": round(case.entries * passed / case.every),
            "per_second": sent / passed,
            "others": share,
            "ended": _end_of(process),
        }


def _end_of(process: CeleryProcess) -> str:
    if process.running:
        return ""
    last = [line for line in process.log().splitlines() if line.strip()][-1]
    return f"; it ended: {last.strip()[:100]}"


# -- processor time


def _cpu(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number in range(stage.size.schedule.rounds):
        for scheduler in (OURS, STOCK, REDBEAT) if number == 0 else (OURS,):
            few, many = (_busy(stage, scheduler, idle) for idle in (FEW, MANY))
            one = found.setdefault(TITLES[scheduler], {"rounds": []})
            one["rounds"].append({"few": few, "many": many})
            stage.say(
                f"cpu {number + 1}/{stage.size.schedule.rounds}: {TITLES[scheduler]:20} {BUSY_ENTRIES} fires/s beside "
                f"{FEW} entries {few['ms']:.1f}, beside {MANY} {many['ms']:.1f} ms of CPU a second"
            )
    for one in found.values():
        for size in ("few", "many"):
            one[size] = median(each[size]["ms"] for each in one["rounds"])
        one["ratio"] = median(each["many"]["ms"] / each["few"]["ms"] for each in one["rounds"])
        one["others"] = median(each[size]["others"] for each in one["rounds"] for size in ("few", "many"))
    return found


def _busy(stage: Stage, scheduler: str, idle: int) -> dict[str, float]:
    """Milliseconds of processor time in a second."""
    schedule = [(BUSY_ENTRIES, 1.0), (idle, 3600.0)]
    with Site.open(stage) as site, site.beat(scheduler, schedule) as process:
        site.begun(scheduler, schedule)
        time.sleep(SETTLE)
        others, before, since = Others(), _cpu_seconds(process.pid), time.monotonic()
        time.sleep(stage.size.schedule.seconds)
        used, passed, share = _cpu_seconds(process.pid) - before, time.monotonic() - since, others.share()
    return {"ms": used / passed * 1000, "others": share}


def _cpu_seconds(pid: int) -> float:
    """In nanoseconds where the kernel keeps them for each thread; else in hundredths of a second."""
    try:
        spent = [task.joinpath("schedstat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return cpu_seconds(pid)
    return sum(int(text.split()[0]) for text in spent) / 1e9


# -- lateness


def _late(stage: Stage) -> dict[str, Any]:
    variants = (
        ("one by one", OURS, HUNDRED_ONE_BY_ONE),
        ("at once", OURS, HUNDRED_AT_ONCE),
        ("stock", STOCK, HUNDRED_AT_ONCE),
        ("redbeat", REDBEAT, HUNDRED_AT_ONCE),
    )
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name, *_ in variants}
    for number in range(stage.size.schedule.rounds):
        for name, scheduler, schedule in variants:
            if scheduler == OURS or number == 0:
                found = _lateness(stage, scheduler, schedule)
                rounds[name].append(found)
                stage.say(
                    f"late {number + 1}/{stage.size.schedule.rounds}: {name:10} {found['fires']} fires, "
                    f"{found['broker']['median']:.1f} ms (99 %: {found['broker']['p99']:.1f})"
                )
    return {name: _late_summary(found) for name, found in rounds.items()}


def _late_summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"rounds": rounds, "others": median(one["others"] for one in rounds)}
    for where in ("broker", "ledger"):
        if rounds[0][where]:
            found[where] = {what: median(one[where][what] for one in rounds) for what in ("median", "p99", "worst")}
    return found


def _lateness(stage: Stage, scheduler: str, schedule: Schedule) -> dict[str, Any]:
    with Site.open(stage, worker=scheduler == OURS) as site, site.beat(scheduler, schedule):
        site.begun(scheduler, schedule)
        time.sleep(SETTLE)
        others = Others()
        messages = _taken(site, stage.size.schedule.seconds)
        share = others.share()
        if scheduler != OURS:
            broker, ledger = _against_the_fire_before(messages), []
        else:
            due = site.due_times({_entry_of(headers) for _, headers in messages})
            broker = [at - due[headers["id"]] for at, headers in messages]
            ledger = _arrivals_in_ledger(site, due, [headers["id"] for _, headers in messages])
    return {"fires": len(messages), "broker": _spread(broker), "ledger": _spread(ledger), "others": share}


def _taken(site: Site, seconds: float) -> list[tuple[float, dict[str, Any]]]:
    """The messages that come within this time, taken from the queues as a worker takes them: when (ms), and their
    headers."""
    for queue in QUEUES:
        site.redis.delete(queue)
    found, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        taken = site.redis.brpop(QUEUES, timeout=1)
        if taken:
            found.append((time.time() * 1000, taken[1]))
    return [(at, _headers(text)) for at, text in found]


def _entry_of(headers: dict[str, Any]) -> str:
    """The name of the entry: the only argument of the call."""
    return str(headers["argsrepr"]).strip("([,'])")


def _against_the_fire_before(messages: list[tuple[float, dict[str, Any]]]) -> list[float]:
    """How much later than its interval after the message before it each message comes: these schedulers count each
    interval from the time at which they sent the last message."""
    last: dict[str, float] = {}
    found = []
    for at, headers in messages:
        name = _entry_of(headers)
        if name in last:
            found.append(at - last[name] - float(name.split("-")[1]) * 1000)
        last[name] = at
    return found


def _arrivals_in_ledger(site: Site, due: dict[str, int], ids: list[str]) -> list[float]:
    script = site.redis.register_script(
        "local found = {} for i, key in ipairs(KEYS) do local record = redis.call('HGET', key, 'record') "
        "found[i] = record and string.format('%.0f', cmsgpack.unpack(record).arrived) or '' end return found"
    )
    found = zip(ids, script(keys=[key_of(P, "run", id) for id in ids]), strict=True)
    return [float(arrived) - due[id] for id, arrived in found if arrived]


def _spread(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    values = sorted(values)
    return {"median": median(values), "p99": values[int(len(values) * 0.99)], "worst": values[-1]}


# -- takeover


def _takeover(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = {"redbeat_lock_seconds": _redbeat_lock(stage)}
    for name, number, times in (
        ("terminated", signal.SIGTERM, stage.size.schedule.terminations),
        ("killed", signal.SIGKILL, stage.size.schedule.kills),
    ):
        found[name] = _change_leaders(stage, number, times)
        stage.say(
            f"takeover: {name}: another one leads after {_worst(found[name]['leads'])} and fires after "
            f"{_worst(found[name]['fires'])}; of {found[name]['due']} due times {found[name]['lost']} got lost, "
            f"{found[name]['passed']} were passed over, {found[name]['twice']} came twice"
        )
    return found


def _redbeat_lock(stage: Stage) -> float:
    """Seconds for which the lock of a dead holder stays at default settings: nobody takes over before that."""
    with Site.open(stage) as site, site.beat(REDBEAT, [PULSE]):
        site.wait(lambda: site.redis.exists("redbeat::lock"), "celery-redbeat has its lock")
        return float(site.redis.pttl("redbeat::lock")) / 1000


def _worst(seconds: list[float]) -> str:
    return f"{median(seconds):.2f} s (worst {max(seconds):.2f})"


def _change_leaders(stage: Stage, number: signal.Signals, times: int) -> dict[str, Any]:
    schedule = [PULSE, SHORT, LONG]
    with Site.open(stage) as site, contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(site.beat(OURS, schedule)) for _ in range(2))
        begun, leads, fires = site.begun(OURS, schedule), [], []
        for _ in range(times):
            site.wait(lambda: all(_is_member(site, one) for one in (first, second)), "both schedulers are there")
            leader, standby = (first, second) if _name(first) == _leader(site) else (second, first)
            # An entry is due while nobody leads.
            due = begun + ((site.now() - begun) // 5000 + 1) * 5000
            site.wait(lambda: site.now() > due - 50, "it is about to be due")  # noqa: B023
            leader.signal(number)
            since = time.monotonic()
            site.wait(lambda one=standby: _leader(site) == _name(one), "another one leads")  # type: ignore[misc]
            leads.append(time.monotonic() - since)
            _wait_fire(site)
            fires.append(time.monotonic() - since)
            site.wait(lambda one=leader: not one.running, "the old one ended")  # type: ignore[misc]
            leader.start()
        time.sleep(LONG[1] + 1)
        return {"leads": leads, "fires": fires, **_accounted(site, begun)}


def _name(process: CeleryProcess) -> str:
    return f"beat-{process.pid}@{socket.gethostname()}"


def _leader(site: Site) -> str:
    name, until = site.redis.hmget(key_of(P, "leader"), "name", "until")
    return name.decode() if name and float(until) >= site.now() else ""


def _is_member(site: Site, process: CeleryProcess) -> bool:
    return bool(site.redis.hexists(key_of(P, "worker_names"), _name(process)))


def _wait_fire(site: Site) -> None:
    """Waits until the entry that is due all the time fires once more."""
    key = key_of(P, "entry", entry_name(PULSE[1], 0))
    last = site.redis.hget(key, "last")
    site.wait(lambda: site.redis.hget(key, "last") != last, "it fires")


def _accounted(site: Site, begun: int) -> dict[str, int]:
    """What became of the due times since the beginning, of the entries that are due every few seconds."""
    total = Counter(due=0, lost=0, passed=0, twice=0)
    runs = {id.decode() for id in site.redis.zrange(key_of(P, "waiting"), 0, -1)}
    now = site.now()
    for every, number in ((every, number) for count, every in (SHORT, LONG) for number in range(count)):
        entry = Entry(entry_name(every, number), Call(FIRED, (), {}, {}), "", None)
        generation, fires, misses = site.redis.hmget(key_of(P, "entry", entry.id), "generation", "fires", "misses")
        entry.generation = generation.decode()
        step, made = round(every * 1000), int(fires or 0)
        times = range(begun + step, round(now) - 1000, step)
        found = sum(entry.run_id(at) in runs for at in range(begun, round(now) + step, step))
        total["due"] += len(times)
        passed = int(misses or 0) if every == SHORT[1] else 0
        total["passed"] += passed
        total["lost"] += max(0, len(times) - found - passed)
        total["twice"] += made - found
    return dict(total)
