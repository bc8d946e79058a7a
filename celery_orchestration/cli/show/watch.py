"""Shows a status as it changes.

A thread asks the ledger, so that keys and a resized window are noticed while Redis does not answer.
"""

from __future__ import annotations

import contextlib
import json
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from types import FrameType
from typing import IO, Any, Protocol

from pydantic import BaseModel
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from celery_orchestration.cli.show.base import console_to
from celery_orchestration.cli.show.grid import short
from celery_orchestration.cli.show.status import ALL, ROWS, View
from celery_orchestration.errors import LedgerError, LedgerRefused
from celery_orchestration.job.text import printable
from celery_orchestration.operate.clock import lasting
from celery_orchestration.operate.models import Status

Read = Callable[[], BaseModel]


class Drawn(Protocol):
    """A view as lines."""

    def lines(self, width: int) -> list[Text]: ...


#: Takes the latest status, rows of a section (None: as many as fit), the height of the window, and a note that replaces
#: the sentence that everything is all right.
Draw = Callable[[Any, int | None, int | None, str], Drawn]


def draw_status(status: Status, rows: int | None, height: int | None, note: str) -> Drawn:
    return View(status, ROWS if rows is None else rows, height, live=height is not None, note=note)


#: Seconds within which a key or a resized window is noticed.
NOTICE = 0.1
_ENDING = ("q", "Q", "\x04")


def is_window(file: IO[str]) -> bool:
    """Whether the file is a terminal that can be redrawn."""
    return file.isatty() and not Console().is_dumb_terminal


def follow(
    read: Read,
    interval: float,
    count: int | None,
    as_json: bool,
    everything: bool,
    file: IO[str],
    draw: Draw = draw_status,
) -> None:
    """Prints a status every interval. If the ledger stops answering, that is printed once, on stderr."""
    console, seen, away = console_to(file), 0, False
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            began = time.monotonic()
            try:
                status = read()
            except LedgerRefused:
                raise
            except LedgerError as exc:
                if seen == 0:
                    raise
                if not away:
                    print(printable(str(exc)), file=sys.stderr, flush=True)
                away = True
            else:
                if as_json:
                    file.write(json.dumps(status.model_dump(mode="json")) + "\n")
                else:
                    lines = draw(status, ALL if everything else ROWS, None, "").lines(console.width)
                    console.print(*([Text()] if seen else []), *lines, sep="\n")
                file.flush()
                seen, away = seen + 1, False
            if seen == count:
                return
            time.sleep(max(0.0, began + interval - time.monotonic()))


class Asking:
    """The last answer of the ledger, and since when it does not answer."""

    def __init__(self, read: Read, interval: float, draw: Draw = draw_status) -> None:
        self._read, self._draw = read, draw
        self._interval = interval
        self._over = threading.Event()
        self.status = read()
        self.seen = 1
        self.problem = ""
        self.away_since: float | None = None
        self.refused: LedgerRefused | None = None
        self._thread = threading.Thread(target=self._ask, name="watch", daemon=True)

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Does not wait for a pending answer."""
        self._over.set()
        self._thread.join(NOTICE)

    def _ask(self) -> None:
        while not self._over.wait(self._interval):
            try:
                self.status = self._read()
            except LedgerRefused as exc:
                self.refused = exc
                return
            except Exception as exc:  # any error is shown, and watching continues
                if self.away_since is None:
                    self.away_since = time.monotonic()
                self.problem = str(exc)
            else:
                self.away_since = None
                self.seen += 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, console.height
        note = ""
        if self.away_since is not None:
            note = (
                f"no answer for {lasting(time.monotonic() - self.away_since)}, the last status is shown; {self.problem}"
            )
        lines = self._draw(self.status, None, height, note).lines(width)
        if len(lines) > height:
            lines = [*lines[: height - 1], Text("…", "dim")]
        yield Text("\n").join(short(line, width) for line in lines)


def watch_live(read: Read, interval: float, count: int | None = None, draw: Draw = draw_status) -> None:
    """Uses the whole window until q, Ctrl-C or a signal, and restores the terminal then."""
    with contextlib.suppress(KeyboardInterrupt):
        asking = Asking(read, interval, draw)
        with _signals() as caught:
            _draw(asking, count, caught)
        if asking.refused is not None:
            raise asking.refused
        if signal.SIGTERM in caught:
            sys.exit(128 + signal.SIGTERM)


def _draw(asking: Asking, count: int | None, caught: Collection[int]) -> None:
    console = console_to(sys.stdout)
    live = Live(asking, console=console, screen=True, auto_refresh=False, vertical_overflow="crop")
    shown: tuple[object, ...] = ()
    with asking, _keys() as pressed, live:
        while asking.refused is None and not caught:
            away = asking.away_since and int(time.monotonic() - asking.away_since)
            now = (asking.seen, console.size, away)
            if now != shown:
                live.refresh()
                shown = now
            if asking.seen == count or pressed(NOTICE) in _ENDING:
                return


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yields a function that returns the key pressed within a number of seconds, or ''."""
    if not sys.stdin.isatty():
        yield _no_key
        return
    import termios  # noqa: PLC0415 - not everywhere
    import tty  # noqa: PLC0415

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield _key
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _no_key(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def _key(seconds: float) -> str:
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return ""
    key = sys.stdin.read(1)
    return key or "q"  # the terminal was closed


@contextlib.contextmanager
def _signals() -> Iterator[Collection[int]]:
    """Collects signals. An error in the middle of drawing could leave the terminal unusable."""
    caught: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        caught.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
