"""Who changes something, for the audit."""

import getpass
import os
import socket


def me() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a user id without a name
        return f"{os.getuid()}@{socket.gethostname()}"
