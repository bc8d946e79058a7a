"""A command in a terminal of its own, as a person would see it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from support.wait import until

_ALTERNATE = re.compile(rb"\x1b\[\?1049([hl])")


class Terminal:
    """``with Terminal(command, env) as terminal: terminal.shows("text")``"""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], rows: int = 40, columns: int = 100, term: str = "xterm"
    ) -> None:
        self.command = command
        shaped = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
        self.env = {**{key: value for key, value in env.items() if key not in shaped}, "TERM": term}
        self.written = b""
        self._ours, self._theirs = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self._theirs)

    def __enter__(self) -> Terminal:
        # The leader of a session gets the first terminal that it opens as its own. Only then Ctrl-C has an effect.
        opened = ["sh", "-c", 'exec "$@" <"$TTY" >"$TTY" 2>&1', "sh", *self.command]
        env = {**self.env, "TTY": os.ttyname(self._theirs)}
        self.process = subprocess.Popen(opened, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._reader.join(5)
        os.close(self._ours)
        os.close(self._theirs)

    def _read(self) -> None:
        over = False
        while not over:
            over = self.process.poll() is not None
            while select.select([self._ours], [], [], 0.05)[0]:
                self.written += os.read(self._ours, 65536)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def screen(self) -> list[str]:
        """The lines that were drawn last in the alternate screen."""
        frames = self.written.split(b"\x1b[H")
        text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", frames[-1]).decode(errors="replace")
        return [line.rstrip() for line in text.split("\n")]

    def shows(self, words: str, timeout: float = 30) -> list[str]:
        def found() -> Any:
            screen = self.screen()
            return screen if any(re.search(words, line) for line in screen) else None

        return until(found, timeout, f"{words!r} is shown")

    def ends(self, timeout: float = 30) -> int:
        self.process.wait(timeout)
        self._reader.join(5)
        return self.process.returncode

    def is_as_before(self) -> bool:
        """The alternate screen is left, and keys have their usual meaning."""
        switches = _ALTERNATE.findall(self.written)
        return switches[-1:] != [b"h"] and termios.tcgetattr(self._theirs) == self.before
