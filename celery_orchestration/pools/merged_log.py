"""One log of several processes: each line begins with the name of its process, in its own colour.

There is no colour if the output is not a terminal, or if NO_COLOR is set (https://no-color.org).
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from typing import IO

#: Colours of names, in the order of their appearance: cyan, yellow, green, magenta, blue, and their bright variants.
COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
BOLD_RED = "1;31"
#: A longer line is cut into several.
LONGEST = 16_384
_RESET = "\x1b[0m"
_COLOUR_CODE = re.compile(r"\x1b\[[0-9;]*m")
#: What a terminal would execute instead of showing: other escape sequences, and control characters except tabs.
_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def wants_colour(stream: IO[str], environ: Mapping[str, str] = os.environ) -> bool:
    if environ.get("NO_COLOR") or environ.get("TERM") == "dumb":
        return False
    try:
        return stream.isatty()
    except ValueError:  # it is closed
        return False


class MergedLog:
    """``log.line("images-1", "text")``, from any thread. ``log.follow("redis", pipe)`` for the output of a process."""

    def __init__(self, stream: IO[str], *, colour: bool | None = None, width: int = 0) -> None:
        """`width`: of the expected names; it grows with a longer name."""
        self._stream = stream
        self._colour = wants_colour(stream) if colour is None else colour
        self._colours: dict[str, int] = {}
        self._width = width
        self._lock = threading.Lock()
        self._followers: list[threading.Thread] = []
        self._broken = False

    def line(self, name: str, text: str, *, alarm: bool = False) -> None:
        """`alarm`: a person should look at this."""
        with self._lock:
            self._write("".join(self._lines(name, text, alarm)))

    def follow(self, name: str, pipe: IO[bytes]) -> None:
        """Log each line until the pipe ends, which happens when the last process that has it open is gone."""
        thread = threading.Thread(target=self._follow, args=(name, pipe), name=f"log of {name}", daemon=True)
        thread.start()
        self._followers = [one for one in self._followers if one.is_alive()] + [thread]

    def finish(self, seconds: float) -> None:
        """Wait for the last output of processes that have ended."""
        for thread in self._followers:
            thread.join(seconds)

    # -- inside

    def _follow(self, name: str, pipe: IO[bytes]) -> None:
        with pipe:
            while line := pipe.readline(LONGEST):
                self.line(name, line.decode("utf-8", errors="replace").rstrip("\r\n"))

    def _lines(self, name: str, text: str, alarm: bool) -> list[str]:
        self._width = max(self._width, len(name))
        colour = self._colours.setdefault(name, COLOURS[len(self._colours) % len(COLOURS)])
        prefix = f"{name:<{self._width}} | "
        if self._colour:
            prefix = f"\x1b[{colour}m{prefix}{_RESET}"
        return [f"{prefix}{self._shown(one, alarm)}\n" for one in text.split("\n")]

    def _shown(self, text: str, alarm: bool) -> str:
        if not self._colour:
            return _CONTROL.sub("", _COLOUR_CODE.sub("", text))
        # Colours are kept, and reset at the end of the line.
        parts = _COLOUR_CODE.split(text)
        codes = [*_COLOUR_CODE.findall(text), ""]
        shown = "".join(_CONTROL.sub("", part) + code for part, code in zip(parts, codes, strict=True))
        if alarm:
            shown = f"\x1b[{BOLD_RED}m{shown}"
        return shown + (_RESET if alarm or len(codes) > 1 else "")

    def _write(self, text: str) -> None:
        if self._broken:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal or the reader is gone: the services continue, or stop in order
            self._broken = True
