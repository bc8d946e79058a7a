"""Who changes something, for the audit; and what people can type."""

import getpass
import os
import shlex
import socket
import sys
from collections.abc import Sequence


def me() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a user id without a name
        return f"{os.getuid()}@{socket.gethostname()}"


def command(*words: str, program: str = "orchestration") -> str:
    """A line to type: for the app that this process was started for, if it is a celery command."""
    return " ".join([CELERY, program, *map(shlex.quote, words)])


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
