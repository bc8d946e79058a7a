"""Serves the number of workers that pools need over HTTP: for KEDA's ``metrics-api`` scaler and others.

``GET /`` answers with the output of ``pools --desired --json``, ``GET /images`` with one pool of it, ``GET /health``
with 200 while the ledger answers. The figures are read once a second, however many clients ask.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from celery_orchestration.errors import BadCall
from celery_orchestration.operate.client import Orchestration
from celery_orchestration.operate.pools.models import Desired

#: Seconds between two reads.
INTERVAL = 1.0


def address_of(text: str) -> tuple[str, int]:
    """``8080``, ``:8080`` or ``0.0.0.0:8080``; loopback if no host is given."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise BadCall(f"--serve takes HOST:PORT, such as 127.0.0.1:8080, not {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


class Figures(threading.Thread):
    """The latest figures, or why there are none."""

    def __init__(self, client: Orchestration) -> None:
        super().__init__(name="orchestration-figures", daemon=True)
        self._client = client
        self._over = threading.Event()
        self.latest: Desired | None = None
        self.problem = "not asked yet"

    def run(self) -> None:
        while True:
            self.read()
            if self._over.wait(INTERVAL):
                return

    def read(self) -> None:
        try:
            self.latest, self.problem = self._client.desired(), ""
        except Exception as exc:  # any error is passed on to clients
            self.problem = str(exc)

    def stop(self) -> None:
        self._over.set()


class Server:
    def __init__(self, client: Orchestration, host: str, port: int) -> None:
        """Raises OSError if it cannot listen there."""
        figures = self.figures = Figures(client)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                code, found = answer(figures, self.path)
                body = json.dumps(found).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Logs nothing: probes ask all the time."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def run(self) -> None:
        """Serves until :meth:`stop`."""
        self.figures.start()
        self._server.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        self.figures.stop()
        self._server.shutdown()
        self._server.server_close()


def answer(figures: Figures, path: str) -> tuple[int, dict[str, Any]]:
    latest, problem = figures.latest, figures.problem
    name = path.partition("?")[0].strip("/")
    if latest is None or problem:
        return 503, {"problem": problem}
    if name == "health":
        return 200, {"ok": True}
    document: dict[str, Any] = latest.model_dump(mode="json")
    if not name:
        return 200, document
    pool = document["pools"].get(name.removeprefix("pools/"))
    return (200, pool) if pool else (404, {"problem": f"there is no pool {name!r}"})
