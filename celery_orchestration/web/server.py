"""The dashboard as its own server: ``celery -A app orchestration dashboard``, also used by ``up``."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import uvicorn
from celery import Celery

from celery_orchestration.errors import UserError
from celery_orchestration.web.app import create_app
from celery_orchestration.web.auth import BadCredentials, Credentials
from celery_orchestration.web.security import is_loopback

HOST, PORT = "127.0.0.1", 5577
CREDENTIALS = "CELERY_ORCHESTRATION_DASHBOARD_CREDENTIALS"
CREDENTIALS_FILE = "CELERY_ORCHESTRATION_DASHBOARD_CREDENTIALS_FILE"
SECRET = "CELERY_ORCHESTRATION_DASHBOARD_SECRET"


class CannotServe(UserError):
    """The server cannot start with these options."""


def credentials_from(env: Mapping[str, str], path: str | None = None) -> Credentials:
    """Read credentials from a file, or from the environment."""
    path = path or env.get(CREDENTIALS_FILE)
    where = path or CREDENTIALS
    try:
        return Credentials.read(Path(path).read_text() if path else env.get(CREDENTIALS, ""))
    except BadCredentials as exc:
        raise CannotServe(f"{where}: {exc}") from None
    except (OSError, UnicodeDecodeError) as exc:
        raise CannotServe(f"the credentials in {path} cannot be read: {exc}") from None


def serve(
    app: Celery,
    host: str = HOST,
    port: int = PORT,
    *,
    read_only: bool = False,
    credentials: Credentials | None = None,
    certfile: str | None = None,
    keyfile: str | None = None,
    ready: Callable[[str], None] = print,
) -> None:
    """Serve until SIGTERM or SIGINT. `ready` gets the address when connections are accepted; port 0 is any free port.

    `credentials`: None reads them from the environment. Without credentials only a loopback host is allowed.
    """
    known = credentials_from(os.environ) if credentials is None else credentials
    local = is_loopback(host)
    if not local and not known:
        raise CannotServe(
            f"{host} can be reached by others: give credentials ({CREDENTIALS_FILE}, or --credentials FILE), "
            "or serve 127.0.0.1 only"
        )
    secret = os.environ.get(SECRET, "").encode() or None
    secure = certfile is not None or not local
    asgi = create_app(app, credentials=known, read_only=read_only, secure_cookies=secure, secret=secret)
    config = uvicorn.Config(
        asgi,
        log_level="warning",
        access_log=False,
        server_header=False,
        ssl_certfile=certfile,
        ssl_keyfile=keyfile,
        timeout_graceful_shutdown=2,
        # The person who runs a proxy names it here.
        forwarded_allow_ips=os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1"),
    )
    with _listening(host, port) as sock:
        named = f"[{host}]" if ":" in host else host
        address = f"{'https' if certfile else 'http'}://{named}:{sock.getsockname()[1]}/"
        _Server(config, lambda: ready(address), asgi.state.dashboard.end_streams).run(sockets=[sock])


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(128)
    except OSError as exc:
        sock.close()
        raise CannotServe(f"{host}:{port} cannot be served: {exc.strerror or exc}") from None
    return sock


class _Server(uvicorn.Server):
    """Reports when it accepts connections, and ends the streams before it waits for connections to close."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], close: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready, self._close = ready, close

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._close()
        await super().shutdown(sockets)
