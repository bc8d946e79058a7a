"""The supervisor of pools on one machine: claims places, and keeps a worker on each.

:meth:`Supervisor.start`, :meth:`~Supervisor.step` again and again, :meth:`~Supervisor.stop`: all from one thread, which
has to live as long as the workers are wanted (see ``worker_process``). Nothing here is global; any number of
supervisors may live in one process.

A step never raises because of Redis, the broker or a worker. While Redis does not answer, workers stay as they are.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic

from celery import Celery

from celery_orchestration.errors import ConfigurationError, LedgerError, LedgerUnavailable, Superseded
from celery_orchestration.job.policy import Policy, Pool, pool_problems
from celery_orchestration.job.task import owner_of, read_settings
from celery_orchestration.ledger import Ledger, Place
from celery_orchestration.pools.backlog import Backlog
from celery_orchestration.pools.command import worker_command, worker_environment
from celery_orchestration.pools.figures import Looker
from celery_orchestration.pools.machine import Machine, machine
from celery_orchestration.pools.places import Places, identity
from celery_orchestration.pools.post import Launch, Post
from celery_orchestration.pools.scaled import Scaled
from celery_orchestration.pools.stall import Stalls
from celery_orchestration.pools.table import Table, queues_of, shared
from celery_orchestration.pools.worker_process import OnLine

#: Seconds that workers get to drain, unless orchestration_drain_seconds says otherwise.
DRAIN_SECONDS = 30.0
#: Seconds between two steps, and between two looks at what there is to do.
STEP_SECONDS, LOOK_SECONDS = 0.25, 1.0
#: A broker's answer that is older counts as none.
OLDEST_READING_SECONDS = 10.0
STATE_DIRECTORY = Path(".orchestration")

PREFIX = "pools"


class Supervisor:
    def __init__(
        self,
        app: Celery,
        app_name: str,
        table: Table,
        jobs: Mapping[str, Policy],
        on_line: OnLine,
        *,
        name: str | None = None,
        state_directory: Path = STATE_DIRECTORY,
        worker_options: Sequence[str] = (),
        here: Machine | None = None,
    ) -> None:
        """`app_name`: what workers are started with as ``celery -A``. `on_line`: gets a prefix and a line, from any
        thread: what workers print, and under ``pools`` what the supervisor has to say. `worker_options`: more options
        of every worker."""
        self._app, self._app_name, self._jobs = app, app_name, jobs
        self._settings = read_settings(app)
        if self._settings.mode == "off":
            raise ConfigurationError("pools need the ledger, and orchestration_mode is off: start workers by hand")
        self._on_line = on_line
        self._worker_options = list(worker_options)
        self.machine = here or machine()
        self._host = socket.gethostname()
        self.identity = identity(name, state_directory, self._settings.namespace)
        self._ledger = Ledger.of(app, self._settings)
        self.places = Places(self._ledger, self._settings, self.identity.name)
        self._pools = {name: Scaled(name, pool) for name, pool in table.items()}
        self._looker = Looker(self._ledger, self._queues())
        self._backlog = Backlog(app, self._all_queues, LOOK_SECONDS)
        self._stalls = Stalls(app)
        self.posts: dict[tuple[str, int], Post] = {}
        self._renew_at = self._look_at = 0.0
        self._renewed = False
        self._trouble = ""
        #: Told to stop: no place is claimed any more, and workers drain.
        self.stopping = False
        self.superseded: Superseded | None = None

    # -- what callers do ----------------------------------------------------------------------------

    def start(self) -> None:
        """Raises if the ledger is another app's. A ledger that does not answer is waited for."""
        try:
            self._ledger.check(owner_of(self._app))
        except LedgerUnavailable as exc:
            self._say_trouble(exc)
        for problem in pool_problems(self.table, self._jobs):
            self.say(problem)
        if not self.identity.lasting:
            self.say("The state directory cannot be written to: after a restart the places come back after one lease")
        for name, pool in self.table.items():
            if lacks := self.machine.lacks(pool.cpus, pool.memory_mb):
                self.say(f"No worker of pool {name!r} can start on this machine: {lacks}")
        self._backlog.start()

    def step(self) -> float:
        """Does what is due. Returns the seconds until the next step."""
        now = monotonic()
        self._tend(now)
        try:
            if now >= self._renew_at and self.superseded is None:
                self._renew_at = now + self._settings.sweep_interval_seconds
                self._renew()
                self._trouble = ""
            if now >= self._look_at and self._renewed and self.superseded is None:
                self._look_at = now + LOOK_SECONDS
                self._look(now)
        except Superseded as exc:
            self.superseded = exc
            self.places.held.clear()  # the other process has them, with the same fences
            self.say(str(exc))
            self.drain()
        except LedgerError as exc:
            self._say_trouble(exc)
        return STEP_SECONDS

    def drain(self) -> None:
        """All workers drain, within ``drain_seconds``, and no more are started."""
        if not self.stopping:
            self.stopping = True
            self._renew_at = 0.0
            self.say("Draining all workers")
        for post in self.posts.values():
            post.leave("the supervisor stops", self.drain_seconds)

    def hurry(self) -> None:
        """What still runs is ended, and goes back to its queue."""
        self.drain()
        for post in self.posts.values():
            post.hurry()

    @property
    def is_over(self) -> bool:
        return self.stopping and not self.posts

    def stop(self) -> None:
        """At the very end: what is still there is killed, and the places are given up."""
        for post in self.posts.values():
            post.kill()
        self.places.leave_all()
        self._backlog.stop()
        self._ledger.close()
        self.identity.release()

    def reload(self, table: Table, problems: Sequence[str] = ()) -> None:
        """Another table of pools: workers whose options changed are replaced one after the other, and those that keep
        dying are tried at once. `problems`: what does not fit between the table and the jobs, by the code of now."""
        pools = {name: self._pools.get(name) or Scaled(name, pool) for name, pool in table.items()}
        for name, pool in table.items():
            pools[name].pool = pool
        self._pools = pools
        self._looker.queues = self._queues()
        for (name, _), post in self.posts.items():
            if name not in pools:
                post.leave("its pool is no longer in the table", None)
            else:
                post.try_at_once()
        self._renew_at = self._look_at = 0.0
        self.say(f"The configuration was read again; pools: {', '.join(sorted(pools)) or 'none'}")
        for problem in problems:
            self.say(problem)

    def restart_workers(self, why: str) -> None:
        """All workers are replaced: each drains, and another starts on its place."""
        for post in self.posts.values():
            post.replace(why, self.drain_seconds)

    @property
    def table(self) -> dict[str, Pool]:
        return {name: scaled.pool for name, scaled in self._pools.items()}

    @property
    def drain_seconds(self) -> float:
        configured = self._settings.drain_seconds
        return DRAIN_SECONDS if configured is None else configured

    def say(self, text: str) -> None:
        self._on_line(PREFIX, text)

    # -- places and their workers -------------------------------------------------------------------

    def _tend(self, now: float) -> None:
        for key, post in list(self.posts.items()):
            for text in post.tend(now):
                self.say(text)
            if post.is_over:
                del self.posts[key]
                self._leave(post.place)

    def _leave(self, place: Place) -> None:
        try:
            if self.places.held.get((place.pool, place.number)) == place:
                self.places.leave(place)
        except LedgerError as exc:
            self._say_trouble(exc)

    def _launch(self, place: Place) -> Launch:
        """A worker on this place, by the table of now."""
        scaled = self._pools.get(place.pool)
        pool = scaled.applied if scaled is not None else Pool()
        command = worker_command(self._app, self._app_name, place, pool, self._worker_options)
        return Launch(command, worker_environment(place, self.drain_seconds), pool.nice)

    def _renew(self) -> None:
        about = {
            "host": self._host,
            "pid": os.getpid(),
            "tables": {name: shared(pool) for name, pool in self.table.items()},
            "report": self._report(),
        }
        info = {key: post.info() for key, post in self.posts.items()}
        leaving, void, found = self.places.renew(about, info)
        self._renewed = True
        for place in leaving:
            if post := self.posts.get((place.pool, place.number)):
                post.leave("the pool shrinks", None)
        for place in void:
            if post := self.posts.get((place.pool, place.number)):
                self.say(f"Place {place.number} of pool {place.pool!r} is no longer ours: its worker here drains")
                post.leave("its place is no longer ours", self.drain_seconds)
        for place in found:
            self._found(place)

    def _found(self, place: Place) -> None:
        """The last process of this name had it: its worker drains, or is gone."""
        if self.stopping or place.pool not in self._pools:
            return self._leave(place)
        self.say(f"Place {place.number} of pool {place.pool!r} is ours from before")
        post = self._occupy(place)
        post.wait_for_last(place)
        if place.leaving:
            post.leave("the pool shrinks", None)
        return None

    def _occupy(self, place: Place) -> Post:
        """A worker is to be on this place. If one still drains there, from before another supervisor had the place for
        a while, the next one starts after it."""
        key = place.pool, place.number
        if key in self.posts:
            self.posts[key].stay(place)
        else:
            self.posts[key] = Post(place, self._launch, self._on_line)
        return self.posts[key]

    # -- how many ------------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        reading = self._backlog.reading
        is_fresh = reading is not None and now - reading.at < OLDEST_READING_SECONDS
        queued = reading.queues if reading is not None and is_fresh else None
        looks = self._looker.look(self.table, queued, self._backlog.problem or "the broker does not answer")
        for name, look in looks.items():
            scaled = self._pools[name]
            for text in scaled.seen(look, self.identity.name):
                self.say(text)
            alive = {(one.name.partition("@")[0], one.pid) for one in look.workers if not one.dead}
            for key, post in self.posts.items():
                if key[0] == name:
                    post.note_alive(alive)
            if self.stopping:
                continue
            said, told_to_stop = scaled.decide(self._ledger, self.identity.name, now)
            if said:
                self.say(said)
            if told_to_stop:
                self._renew_at = 0.0
            self._replace_changed(name)
            self._claim(scaled, now)
        if not self.stopping:
            running = {key: post for key, post in self.posts.items() if post.is_running}
            for key, why in self._stalls.look(running, looks, self.table, now):
                self.say(f"Worker {self.posts[key].name} is stalled: {why}. It drains and is replaced")
                self.posts[key].note_stall(why)
                self.posts[key].replace("it was stalled", self.drain_seconds)

    def _claim(self, scaled: Scaled, now: float) -> None:
        for _ in range(scaled.missing(now)):
            scaled.lacks = self.machine.lacks(scaled.pool.cpus, scaled.pool.memory_mb, *self._used())
            mine = len([key for key in self.places.held if key[0] == scaled.name])
            if scaled.lacks or not scaled.is_our_turn(mine, now):
                return
            place = self.places.claim(scaled.name)
            if place is None:
                return
            self._occupy(place)

    def _used(self) -> tuple[float, float]:
        """Processors and memory that the workers of this machine take, whichever supervisor has them."""
        counted = set(self.places.held).union(*(scaled.on_host(self._host) for scaled in self._pools.values()))
        pools = [self._pools[name].pool for name, _ in counted if name in self._pools]
        return sum(pool.cpus or 0.0 for pool in pools), sum(pool.memory_mb or 0.0 for pool in pools)

    def _replace_changed(self, name: str) -> None:
        """After a reload: one worker of a pool at a time."""
        of_pool = [post for key, post in self.posts.items() if key[0] == name]
        if any(post.is_changing for post in of_pool):
            return
        for post in of_pool:
            if post.has_other_command():
                self.say(f"Worker {post.name} is replaced: its options changed")
                post.replace("its options changed", None)
                return

    # -- for people ----------------------------------------------------------------------------------

    def _report(self) -> str:
        problems = [problem for post in self.posts.values() for problem in post.problems()]
        for name, scaled in self._pools.items():
            problems += scaled.differences
            if scaled.lacks:
                problems.append(f"pool {name!r} has fewer workers than wanted: {scaled.lacks} on {self._host}")
        return json.dumps({"problems": problems, "stopping": self.stopping})

    def _say_trouble(self, exc: Exception) -> None:
        text = f"The ledger at {self._ledger.address} does not answer: {str(exc).rstrip('.')}. Workers stay as they are"
        if text != self._trouble:
            self._trouble = text
            self.say(text)

    def _queues(self) -> dict[str, list[str]]:
        return {name: queues_of(self._app, name) for name in self._pools}

    def _all_queues(self) -> list[str]:
        return [queue for queues in list(self._looker.queues.values()) for queue in queues]
