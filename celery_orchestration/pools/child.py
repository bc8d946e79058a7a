"""``python child.py PARENT NICE COMMAND ...`` becomes a worker that ends with its supervisor.

The kernel sends the worker SIGTERM when the thread that started it ends, so that it drains; the setting survives exec.
If the supervisor died before that was set, the process ends here. On systems without ``prctl`` the worker itself checks
whether its parent is alive (``worker.supervised``).

The worker gets its own process group: Ctrl-C in a terminal is for the supervisor, which drains its workers.
"""

import contextlib
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
#: The process for which the other variables were set; they are not for the processes that it starts.
CHILD = "CELERY_ORCHESTRATION_CHILD"


def die_with_parent(number: int) -> None:
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes  # noqa: PLC0415

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def main(arguments: list[str]) -> None:
    parent, nice, *command = arguments
    die_with_parent(signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit(0)  # the supervisor died just before
    os.setpgid(0, 0)
    if int(nice):
        os.nice(int(nice))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ[CHILD] = str(os.getpid())
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
