"""Who changes something, for the audit; and what people can type."""

import getpass
import os
import shlex
import socket
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit


def me() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a user id without a name
        return f"{os.getuid()}@{socket.gethostname()}"


def command(*words: str, program: str = "orchestration") -> str:
    """A line to type: for the app that this process was started for, if it is a celery command."""
    return " ".join([CELERY, program, *map(shlex.quote, words)])


def redis_cli(address: str, *words: str) -> str:
    """A line to type: for the Redis at an address, as it is shown; its password, if it has one, is asked for."""
    url = urlsplit(address.split(";", maxsplit=1)[0])
    try:
        host, port = url.hostname or "localhost", url.port or 6379
    except ValueError:  # no number
        host, port = "localhost", 6379
    there = ["-h", host] if host not in ("localhost", "127.0.0.1") else []
    there += ["-p", str(port)] if port != 6379 else []
    there += ["--tls"] if url.scheme == "rediss" else []
    there += ["--askpass"] if "@" in url.netloc else []
    if url.scheme not in ("redis", "rediss"):  # a sentinel or a socket: who asks knows how to get there
        there = []
    return " ".join(["redis-cli", *map(shlex.quote, there), *words])


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
