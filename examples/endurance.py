"""``make endurance``: the pipeline by its schedule, under two schedulers, each of which is killed at random times.

Each scheduler lives for some seconds, is killed or asked to stop, and is started again after some more; now and then
both are gone. At the end every due time of every entry has to be in the history once: as a run, or counted among those
that were skipped or missed. No run may have been started twice, and none beside one that the gate forbids. Ends with 1
if that did not hold.

python -m examples.endurance --minutes 10 --pace 20 --seed 7
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from examples.fires import account
from examples.stage import JOBS, Scheduler, Stage, stage, wait_until

#: How many seconds a scheduler lives, and how many it is gone.
LIVES, GONE = (2.0, 14.0), (0.2, 7.0)
#: Within how many seconds another scheduler has to lead, if one stood by.
LONGEST_TAKEOVER = 15.0
#: One death in this many is by SIGTERM.
STOPPED_ONE_IN = 4


@dataclass
class Takeover:
    #: SIGKILL or SIGTERM.
    by: str
    at: float
    #: Whether another scheduler stood by the whole time until one led.
    standby: bool
    #: Seconds until another one led; None: none has.
    seconds: float | None = None


@dataclass
class Endurance:
    stage: Stage
    chance: random.Random
    takeovers: list[Takeover] = field(default_factory=list)
    deaths: int = 0
    first_due: dict[str, int] = field(default_factory=dict)
    #: When the next scheduler is killed or started.
    _turns: dict[str, float] = field(default_factory=dict)

    def run(self, seconds: float) -> None:
        for scheduler in self.stage.schedulers:
            self._start(scheduler)
        wait_until("a scheduler leads", self._see, 20)
        wait_until("the entries are planned", self.stage.first_due, 20)
        self.first_due = self.stage.first_due()
        end = time.monotonic() + seconds
        shown = time.monotonic()
        while time.monotonic() < end:
            self._see()
            for scheduler in self.stage.schedulers:
                if time.monotonic() >= self._turns[scheduler.name]:
                    self._kill(scheduler) if scheduler.alive else self._start(scheduler)
            if time.monotonic() > shown + 30:
                shown = time.monotonic()
                print(f"{end - shown:5.0f} s to go, {self.deaths} deaths, {len(self.takeovers)} as leader", flush=True)
            time.sleep(0.02)
        for scheduler in self.stage.schedulers:
            if not scheduler.alive:
                self._start(scheduler)
        wait_until("a scheduler leads", self._see, 20)
        self._come_to_rest()

    def _see(self) -> bool:
        """The schedulers that lead now, according to their logs."""
        for scheduler in self.stage.schedulers:
            scheduler.read_log()
        leader = self.stage.leader
        if leader and leader.leads and self.takeovers and self.takeovers[-1].seconds is None:
            self.takeovers[-1].seconds = leader.leads - self.takeovers[-1].at
        return leader is not None

    def _start(self, scheduler: Scheduler) -> None:
        scheduler.start()
        self._turns[scheduler.name] = time.monotonic() + self.chance.uniform(*LIVES)

    def _kill(self, scheduler: Scheduler) -> None:
        how = signal.SIGKILL if self.chance.randrange(STOPPED_ONE_IN) else signal.SIGTERM
        others = [one for one in self.stage.schedulers if one is not scheduler]
        at = time.time()
        scheduler.signal(how)
        if scheduler.leads:
            self.takeovers.append(Takeover(how.name, at, any(one.stands_by and one.alive for one in others)))
        elif self.takeovers and self.takeovers[-1].seconds is None:
            self.takeovers[-1].standby = False
        self.deaths += 1
        scheduler.wait(20)
        self._turns[scheduler.name] = time.monotonic() + self.chance.uniform(*GONE)

    def _come_to_rest(self) -> None:
        """Waits until missed fires are caught up, then stops the schedulers and ends everything."""
        late = max(self.stage.every(job) for job in JOBS[:2]) / 1000
        wait_until("the schedule is caught up with", self._is_up_to_date, 30 + late)
        for scheduler in self.stage.schedulers:
            scheduler.signal(signal.SIGTERM)
        for scheduler in self.stage.schedulers:
            scheduler.wait(20)
        wait_until("all runs are over", self.stage.is_idle, 60)
        wait_until("Celery's events have come", self.stage.is_all_seen, 20)

    def _is_up_to_date(self) -> bool:
        return all(int(entry["next"]) > time.time() * 1000 for entry in self.stage.entries().values())

    # -- results

    def report(self) -> Iterator[str]:
        """Prints what happened; returns what went wrong."""
        history, entries = self.stage.history(), self.stage.entries()
        for job in JOBS:
            found = account(self.first_due[job], int(entries[job]["last"]), self.stage.every(job), history[job])
            late = f", made at most {found.latest / 1000:.2f} s after its due time" if found.ran else ""
            print(f"{job}: {found}{late}")
            yield from (f"{job}, {problem}" for problem in found.problems)
            counted = tuple(int(entries[job].get(name, 0)) for name in ("fires", "skips", "misses"))
            if counted != (found.ran, found.skipped, found.missed):
                yield f"{job}: the entry has counted {counted} fires, skips and misses"
            for record in history[job]:
                starts = len(self.stage.timeline.started.get(record.id, ()))
                if record.is_run and (record.outcome, starts) != ("succeeded", 1):
                    yield f"{job} {record.id} was {record.outcome}, and started {starts} times"
        for what, count in self.stage.together().items():
            print(f"{what} at the same time: {count} times")
            if count:
                yield f"{what} were at the same time"
        print(f"{self.deaths} schedulers ended, {len(self.takeovers)} of them led")
        yield from self._report_takeovers()

    def _report_takeovers(self) -> Iterator[str]:
        for by, standby in (("SIGKILL", True), ("SIGTERM", True), ("SIGKILL", False), ("SIGTERM", False)):
            found = [one for one in self.takeovers if (one.by, one.standby) == (by, standby)]
            lengths = [one.seconds for one in found if one.seconds is not None]
            if lengths:
                who = "one stood by" if standby else "none did"
                print(f"  {by}, {who}: {len(found)}, took {median(lengths):.2f} s, at most {max(lengths):.2f} s")
            if standby and (len(lengths) < len(found) or max(lengths, default=0) > LONGEST_TAKEOVER):
                yield f"after {by} nobody led for more than {LONGEST_TAKEOVER:g} s although one stood by"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.endurance", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--pace", type=float, default=20, help="how much faster than the clock the schedule goes")
    parser.add_argument("--seed", default=str(time.time_ns() % 100_000))
    given = parser.parse_args()
    print(f"{given.minutes:g} minutes at pace {given.pace:g}, seed {given.seed}", flush=True)
    with stage(given.pace) as set_up:
        set_up.start_worker()
        endurance = Endurance(set_up, random.Random(given.seed))
        endurance.run(given.minutes * 60)
        wrong = list(endurance.report())
        set_up.timeline.stopped = True
    if wrong:
        sys.exit("\n".join([f"seed {given.seed}: this should not be:", *wrong]))
    print("every fire is accounted for")


if __name__ == "__main__":
    main()
