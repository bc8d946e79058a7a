"""Who changes something, for the audit; and what people can type."""

import getpass
import os
import shlex
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

#: Who acts through this process, if it is not the one who started it: a user of the dashboard.
_acting: ContextVar[str | None] = ContextVar("acting", default=None)


@contextmanager
def acting_as(name: str | None) -> Iterator[None]:
    """Within the block the audit names this person; None: whoever started the process."""
    token = _acting.set(name)
    try:
        yield
    finally:
        _acting.reset(token)


def me() -> str:
    if (name := _acting.get()) is not None:
        return name
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a user id without a name
        return f"{os.getuid()}@{socket.gethostname()}"


def command(*words: str, program: str = "orchestration") -> str:
    """A line to type: for the app that this process was started for, if it is a celery command."""
    if program == "orchestration" and words[-1].startswith("-"):  # a name that looks like an option
        words = (*words[:-1], "--", words[-1])
    return " ".join([CELERY, program, *map(shlex.quote, words)])


def worker_for(queue: str) -> str:
    """A line to type: a worker that serves this queue, with a name of its own beside others of its machine."""
    return command("-n", f"{queue}@%h", "-Q", queue, program="worker")


def no_release(job: str, last: str) -> str:
    """`last`: the release that had the job last, or ''."""
    return f"no live worker has job {job}" + (f"; it was last seen in release {last}" if last else "")


def without_release(job: str) -> str:
    """What to do about runs whose job no live worker has."""
    return (
        f"start a worker whose code has it, or {command('cancel', '--job', job)}, "
        f"or {command('requeue', '--as', 'NEW_JOB', '--job', job)}"
    )


def redis_cli(address: str, *words: str) -> str:
    """A line to type, for the Redis at an address without secrets; '…' where that does not say which one it is."""
    scheme, _, rest = address.partition(";")[0].partition("://")
    secret, _, place = rest.rpartition("@")
    host, _, port = place.partition("/")[0].rpartition(":")
    if not host or host.endswith("]") != host.startswith("["):  # there is no port
        host, port = place.partition("/")[0], ""
    if "socket" in scheme or scheme == "unix":
        where = ["-s", place]
    elif scheme == "sentinel" or "*" in host:
        where = ["-h", "…"]
    else:
        where = ["-h", host.strip("[]") or "localhost", "-p", port or "6379"]
    where += ["--tls"] if scheme in ("rediss", "valkeys") else []
    user = secret.partition(":")[0]
    where += [*(["--user", user] if user else []), "--askpass"] if secret else []
    return " ".join(["redis-cli", *(word if word == "…" else shlex.quote(word) for word in (*where, *words))])


def _app_name(argv: Sequence[str]) -> str:
    before = ""
    for word in argv[1:]:
        if before in ("-A", "--app"):
            return shlex.quote(word)
        if word.startswith("--app=") or (word.startswith("-A") and len(word) > 2):
            return shlex.quote(word.removeprefix("--app=").removeprefix("-A"))
        before = word
    return shlex.quote(os.environ["CELERY_APP"]) if os.environ.get("CELERY_APP") else "…"


#: How commands of this app begin.
CELERY = f"celery -A {_app_name(sys.argv)}"
