"""The user whom the audit names for a change."""

import getpass
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: The user of the dashboard on whose behalf this process acts; None: the user who started the process.
_acting: ContextVar[str | None] = ContextVar("acting", default=None)


@contextmanager
def acting_as(name: str | None) -> Iterator[None]:
    """Within the block the audit names this person; None: the user who started the process."""
    token = _acting.set(name)
    try:
        yield
    finally:
        _acting.reset(token)


def current_user() -> str:
    if (name := _acting.get()) is not None:
        return name
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a user id without a name
        return f"{os.getuid()}@{socket.gethostname()}"
