"""Outlives a test run that was killed, and ends what it left behind.

Fixtures end every process, unless pytest itself is killed (SIGKILL, ``os._exit`` of pytest-timeout's thread
method, a closed terminal). This program reads ``+pid`` and ``-pid`` lines from the test run; when the pipe
closes, for whatever reason, the process groups that are still on its list are killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main() -> None:
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        (groups.add if line[0] == "+" else groups.discard)(group)
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
