"""``make demo``: ``orchestration up`` on the pipeline, while this script breaks things and reports what follows.

It lets time pass twenty times as fast, triggers runs that have to wait, kills a worker's process in the middle of a
run, a whole worker, and the scheduler, disables a job and enables it again. It reports only what it has
observed. It ends by itself within a minute, with 0, or with 1 if something went wrong. No process is left behind.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from examples.stage import JOBS, free_port

PACE = 20
#: How many seconds each step may take.
PATIENCE = 30.0
#: The lines of the log that are shown; all others are left out.
TOLD = re.compile(r"^up |^pools |ready\.|Scheduler: Sending due task|This scheduler leads|ERROR|CRITICAL")

console = Console(highlight=False)


class Up:
    """``celery -A examples.pipeline orchestration up``, with the important lines of its log."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "celery", "-A", "examples.pipeline", "orchestration", "up"]
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [*command, "--data", str(folder / "data")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Killed workers leave a directory behind there.
            env={**os.environ, "TMPDIR": str(folder)},
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))
            if TOLD.search(line):
                console.print(Text(f"    {line.rstrip()[:150]}", style="dim"), soft_wrap=True)

    def has_said(self, words: str, since: int = 0) -> bool:
        if self._process.poll() is not None:
            sys.exit("\n".join(["up has ended:", *self.lines[-20:]]))
        return any(re.search(words, line) for line in self.lines[since:])

    def processes(self, *words: str) -> list[int]:
        """Processes below it with these words in their command lines, the oldest first."""
        found, looked_at = [], [self._process.pid]
        while looked_at:
            pid = looked_at.pop(0)
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                looked_at += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
                if all(word in command for word in words):
                    found.append(pid)
        return found

    def press_ctrl_c(self) -> int:
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(PATIENCE)

    def end(self) -> None:
        """Ends `up`, however this script ends. The processes that `up` started then end by themselves."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE)
        self._process.kill()
        self._process.wait()


class Demo:
    def __init__(self, up: Up) -> None:
        from celery_orchestration import Orchestration  # noqa: PLC0415
        from examples import pipeline  # noqa: PLC0415

        self.up, self.pipeline = up, pipeline
        self.orchestration = Orchestration(pipeline.app)
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        console.print(Text(f"{time.monotonic() - self.began:5.1f} s  {text}", style="bold"), soft_wrap=True)

    def wait(self, what: str, condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            if time.monotonic() > deadline:
                sys.exit(f"this should have been within {seconds:g} s: {what}")
            self.up.has_said("")  # it lives
            time.sleep(0.05)
        return found

    def name(self, job: str) -> str:
        return f"{self.pipeline.__name__}.{job}"

    def runs(self, job: str, state: str) -> list[Any]:
        status = self.orchestration.status(depths=False)
        found = status.runs if state != "waiting" else status.waits
        return [run for run in found if run.job == self.name(job) and run.state == state]

    def ended(self, run_id: str) -> Any:
        return next((one for one in self.history() if one.id == run_id), None)

    def history(self) -> list[Any]:
        return [one for job in JOBS for one in self.orchestration.history(self.name(job))]

    # -- the acts

    def play(self) -> None:
        self.start()
        self.wait_at_the_gate()
        self.kill_a_process()
        self.kill_the_worker()
        self.kill_the_scheduler()
        self.disable_a_job()
        self.stop()

    def start(self) -> None:
        self.say("one command starts a Redis, a scheduler and a worker; jobs run by their schedule")
        self.wait("a worker is ready", lambda: self.up.has_said(r"^default-1 .* ready\."))
        self.wait("fetch_data runs", lambda: self.runs("fetch_data", "running"))

    def wait_at_the_gate(self) -> None:
        self.say("process_data depends on fetch_data: asked for now, it waits, and takes no slot meanwhile")
        wanted = self.orchestration.trigger(self.name("process_data")).run_id
        waits = self.wait("process_data waits", lambda: self.runs("process_data", "waiting"))
        self.say(f"process_data waits: {waits[0].reason}")
        self.wait("process_data has run", lambda: self.ended(wanted))
        self.say("fetch_data has succeeded, and process_data ran at once")

    def kill_a_process(self) -> None:
        run = self.wait("fetch_data runs", lambda: self.young("fetch_data"))
        self.say("fetch_data runs: the processes of its worker are killed in the middle of it")
        for pid in self.up.processes(" worker ", "default-1")[1:]:
            os.kill(pid, signal.SIGKILL)
        found = self.wait("it has run again", lambda: self.ended(run.id))
        if found.outcome != "succeeded" or not found.recoveries:
            sys.exit(f"this should not be: {found}")
        self.say(f"its worker noticed, started new processes, and the run has {found.outcome} in its second try")

    def kill_the_worker(self) -> None:
        # Its runs would be back after its lease of 30 s, which is too long for a demo.
        self.wait("nothing runs", lambda: not self.orchestration.status(depths=False).runs)
        since = len(self.up.lines)
        self.say("the whole worker is killed with SIGKILL")
        os.kill(self.up.processes(" worker ", "default-1")[0], signal.SIGKILL)
        self.wait("another one is ready", lambda: self.up.has_said(r"^default-1 .* ready\.", since))
        self.say("its supervisor has started another one on its place")

    def kill_the_scheduler(self) -> None:
        since = len(self.up.lines)
        self.say("the scheduler is killed with SIGKILL")
        os.kill(self.up.processes(" beat ")[0], signal.SIGKILL)
        self.wait("it leads again", lambda: self.up.has_said(r"^scheduler .*This scheduler leads", since))
        self.say("it was started again; the ledger knows what was fired, so that nothing is fired twice or forgotten")

    def disable_a_job(self) -> None:
        cleanup = self.name("cleanup")
        self.say("somebody disables cleanup; a run that is asked for is held")
        self.orchestration.disable(cleanup, "stocktaking")
        wanted = self.orchestration.trigger(cleanup).run_id
        waits = self.wait("cleanup waits", lambda: self.runs("cleanup", "waiting"))
        self.say(f"cleanup waits: {waits[0].reason}")
        self.orchestration.enable(cleanup)
        found = self.wait("cleanup has run", lambda: self.ended(wanted))
        self.say(f"enabled again, it has {found.outcome}")

    def stop(self) -> None:
        failed = [one for one in self.history() if one.outcome in ("failed", "dead")]
        self.orchestration.close()
        self.say("Ctrl-C: everything drains and ends")
        status = self.up.press_ctrl_c()
        if status or failed:
            sys.exit(f"this should not be: up ended with {status}, failed runs: {failed}")
        self.say("Redis, scheduler and worker have ended, nothing is left behind")

    def young(self, job: str) -> Any:
        """A run of fetch_data that began a moment ago. It takes 1.5 s; at first it is only on its way to a process."""
        return next((run for run in self.runs(job, "running") if 0.3 < run.seconds < 1), None)


@contextlib.contextmanager
def everything() -> Iterator[Up]:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    with tempfile.TemporaryDirectory(prefix="orchestration-") as scratch:
        os.environ |= {"PIPELINE_REDIS": f"redis://127.0.0.1:{free_port()}/0", "PIPELINE_PACE": f"{PACE:g}"}
        up = Up(Path(scratch))
        try:
            yield up
        finally:
            up.end()


def main() -> None:
    console.print("celery -A examples.pipeline orchestration up", style="bold")
    with everything() as up:
        Demo(up).play()


if __name__ == "__main__":
    main()
