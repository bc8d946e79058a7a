"""Commands and sentences that tell people what to do."""

import os
import shlex
import sys
from collections.abc import Sequence


def command(*words: str, program: str = "orchestration") -> str:
    """A celery command to type, for the app of this process if that is a celery command, too."""
    if program == "orchestration" and words[-1].startswith("-"):  # a name that looks like an option
        words = (*words[:-1], "--", words[-1])
    return " ".join([CELERY, program, *map(shlex.quote, words)])


def worker_for(queue: str) -> str:
    """A command that starts a worker for this queue. Its name differs from other workers of the machine."""
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
    """A redis-cli command for the Redis at this address, which has no secrets; '…' where the address is not enough."""
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


#: The beginning of every command for this app.
CELERY = f"celery -A {_app_name(sys.argv)}"
