"""``make demo``: the pipeline at work by its schedule, on a Redis, a worker and two schedulers of its own.

It lets time pass twenty times as fast, shows live what is fired, who runs, who waits and why, asks for a few runs more,
kills the scheduler that leads and all processes of the worker's pool, and ends after half a minute with a summary of
what happened. Everything that it says was seen; if something is not as it should be it ends with 1. Nothing is left
behind.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from celery_orchestration.cli.show.status import render
from celery_orchestration.operate import Status
from examples.fires import Record, account
from examples.stage import JOBS, Scheduler, Stage, stage, wait_until

PACE = 20
#: Seconds until the leader is killed, the pool's processes are, the schedulers are stopped; most for all of it.
KILL_LEADER, KILL_POOL, STOP, LONGEST = 11.0, 17.0, 26.0, 60.0
#: Seconds that the schedulers are stopped later if nothing could be killed yet.
PATIENCE = 15.0

console = Console()


@dataclass
class Takeover:
    """The scheduler that led was killed."""

    killed: Scheduler
    at: float
    by: Scheduler | None = None
    after: float = 0.0


@dataclass
class Demo:
    stage: Stage
    live: Live
    began: float = field(default_factory=time.monotonic)
    #: Runs that were asked for by hand.
    by_hand: dict[str, str] = field(default_factory=dict)
    #: Runs that waited: of which job, and how long so far.
    waits: dict[str, tuple[str, float]] = field(default_factory=dict)
    first_due: dict[str, int] = field(default_factory=dict)
    takeover: Takeover | None = None
    pool_killed: str = ""
    stopping: bool = False

    def play(self) -> None:
        """Until all is over."""
        self._ask_for("process_data")
        while self.now < LONGEST:
            self._listen()
            status = self.stage.orchestration.status()
            self._look(status)
            self._act(status)
            self.live.update(Group(Text(), render(status)), refresh=True)
            if self.stopping and self.stage.is_idle() and not any(one.alive for one in self.stage.schedulers):
                return
            time.sleep(0.1)

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    def note(self, text: str) -> None:
        self.live.console.print(Text(f"{self.now:5.1f} s  {text}", style="dim"), soft_wrap=True)

    # -- seeing

    def _listen(self) -> None:
        for scheduler in self.stage.schedulers:
            for text in scheduler.said():
                fire = re.match(r"Scheduler: Sending due task \S+ \(\S+\.(\w+)\)", text)
                if fire or text.startswith(("Scheduler:", "This scheduler", "Standing by")):
                    self.note(f"{scheduler.name}: {'fires ' + fire[1] if fire else text}")
        takeover, leader = self.takeover, self.stage.leader
        if takeover and not takeover.by and leader:
            takeover.by, takeover.after = leader, (leader.leads or 0.0) - takeover.at
            self.note(f"{leader.name} has taken over, {takeover.after:.1f} s after {takeover.killed.name} was killed")
            takeover.killed.start()
            self.note(f"{takeover.killed.name} is started again")

    def _look(self, status: Status) -> None:
        for run in status.waits:
            job = run.job.rpartition(".")[2]
            if run.id not in self.waits:
                self.note(f"{job} waits: {run.reason}")
            self.waits[run.id] = (job, run.seconds)
        if not self.first_due:
            self.first_due = self.stage.first_due()

    # -- acting

    def _act(self, status: Status) -> None:
        running = {run.job.rpartition(".")[2]: run for run in status.runs if run.state == "running"}
        wanted = 1 if self.now < KILL_POOL else 2
        if "process_data" in running and not self.stopping and [*self.by_hand.values()].count("cleanup") < wanted:
            self._ask_for("cleanup")
        if self.takeover is None and self.now > KILL_LEADER and self._is_nearly_due():
            self._kill_leader()
        if not self.pool_killed and self.now > KILL_POOL and "fetch_data" in running:
            self._kill_pool("fetch_data", running["fetch_data"].seconds)
        # A busy machine may have missed the moment to kill something: another one comes.
        all_done = self.now > STOP and self.pool_killed and self.takeover
        if (all_done or self.now > STOP + PATIENCE) and not self.stopping:
            self.stopping = True
            self.note("both schedulers are told to stop")
            for scheduler in self.stage.schedulers:
                scheduler.signal(signal.SIGTERM)

    def _ask_for(self, job: str) -> None:
        found = self.stage.orchestration.trigger(self.stage.name_of(job))
        self.by_hand[found.run_id] = job
        self.note(f"asked for {job}")

    def _is_nearly_due(self) -> bool:
        """So that something is due while nobody leads."""
        until = int(self.stage.entries()["fetch_data"]["next"]) / 1000 - time.time()
        return 0.05 < until < 0.4

    def _kill_leader(self) -> None:
        leader = self.stage.leader
        if leader is not None:
            self.takeover = Takeover(leader, time.time())
            leader.signal(signal.SIGKILL)
            leader.wait(10)
            self.note(f"{leader.name}, which leads, is killed with SIGKILL")

    def _kill_pool(self, job: str, seconds: float) -> None:
        children = self.stage.worker.children()
        if children and seconds < 1:  # it takes 1.5 s
            self.pool_killed = job
            for child in children:
                os.kill(child, signal.SIGKILL)
            self.note("every pool process of the worker is killed with SIGKILL")


def summary(demo: Demo) -> list[str]:
    """Says what happened; returns what should not have."""
    wrong: list[str] = []
    history, entries = demo.stage.history(), demo.stage.entries()
    console.print()
    console.print("[bold]summary[/bold]")
    for job in JOBS:
        found = account(demo.first_due[job], int(entries[job]["last"]), demo.stage.every(job), history[job])
        wrong += [f"{job}, {problem}" for problem in found.problems]
        say(f"{job}: {found}" + ("; none lost, none twice" if found.due and not found.problems else ""))
        by_hand = [id for id, name in demo.by_hand.items() if name == job]
        waited = [seconds for name, seconds in demo.waits.values() if name == job]
        longest = f", the longest for {max(waited):.1f} s" if waited else ""
        say(f"{' ' * len(job)}  {len(by_hand)} asked for by hand; {len(waited)} runs waited{longest}")
        ended = {record.id for record in history[job] if record.outcome == "succeeded"}
        wrong += [f"{job} {id}, asked for by hand, did not succeed" for id in by_hand if id not in ended]
        wrong += [f"{job} {one.id} was {one.outcome}" for one in history[job] if one.is_run and one.id not in ended]
    if not demo.waits:
        wrong.append("no run waited")
    wrong += _takeover(demo, history)
    again = sum(record.recoveries > 0 for records in history.values() for record in records)
    if demo.pool_killed and again:
        say(f"processes killed while {demo.pool_killed} ran: started again {again}")
    else:
        wrong.append("no run was started again after its process was killed")
    for what, count in demo.stage.together().items():
        say(f"{what} at the same time: {count} times")
        wrong += [f"{what} were at the same time"] if count else []
    return wrong


def _takeover(demo: Demo, history: Mapping[str, Sequence[Record]]) -> list[str]:
    takeover = demo.takeover
    if takeover is None or takeover.by is None:
        return ["nobody took over from a scheduler that was killed"]
    since, until = takeover.at * 1000, (takeover.at + takeover.after) * 1000
    late = [r.arrived - r.due for records in history.values() for r in records if r.due and since <= r.due <= until]
    up_to = f", made up to {max(late) / 1000:.1f} s late" if late else ""
    say(f"the leading scheduler killed: the other one led {takeover.after:.1f} s later")
    say(f"  {len(late)} fires were due meanwhile{up_to}")
    return []


def say(text: str) -> None:
    console.print(Text(f"  {text}"), soft_wrap=True)


def main() -> None:
    with stage(PACE) as set_up:
        console.print(f"Redis on port {set_up.port}; starting [bold]celery -A examples.pipeline worker[/bold] …")
        set_up.start_worker()
        console.print("and twice [bold]celery -A examples.pipeline beat[/bold] …")
        for scheduler in set_up.schedulers:
            scheduler.start()
            scheduler.wait_for("beat: Starting...")
        with Live(console=console, auto_refresh=False, transient=False) as live:
            demo = Demo(set_up, live)
            demo.play()
        wait_until("Celery's events have come", set_up.is_all_seen, 10)
        wrong = summary(demo) if demo.stopping and set_up.is_idle() else ["it did not come to its end"]
        set_up.timeline.stopped = True
    console.print("Redis, worker and schedulers are stopped, nothing is left behind.")
    if wrong:
        sys.exit("\n".join(["this should not be:", *wrong]))


if __name__ == "__main__":
    main()
