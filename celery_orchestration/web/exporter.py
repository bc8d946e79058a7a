"""``orchestration metrics --port``: a small server with ``/metrics`` and ``/health``, for use without the dashboard.

It reads the ledger for each request, one request after another, so that parallel requests do not multiply the load of
Redis.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from celery_orchestration.web import health, metrics

if TYPE_CHECKING:
    from celery_orchestration.operate import Orchestration

logger = get_logger(__name__)

#: Seconds that a client has to send its request, and to read the answer.
PATIENCE = 10.0


class Exporter(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, client: Orchestration) -> None:
        self._client = client
        self._lock = threading.Lock()  # a client has one connection, and serves one thread at a time
        super().__init__((host, port), _Handler)

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Status, type and text."""
        with self._lock:
            if path == "/metrics":
                return 200, metrics.CONTENT_TYPE_LATEST, metrics.text(self._client.measured)
            if path == "/health":
                status, document = health.answer(self._client.health())
                return status, "application/json", document
        return 404, "text/plain", b"/metrics and /health are here\n"


class _Handler(BaseHTTPRequestHandler):
    timeout = PATIENCE
    server: Exporter

    def do_GET(self) -> None:
        try:
            status, kind, document = self.server.answer(self.path.partition("?")[0])
        except Exception:
            logger.exception("The metrics or the health cannot be read")
            status, kind, document = 500, "text/plain", b"see the log\n"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(document)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(document)

    def log_message(self, format: str, *args: object) -> None:
        logger.debug(format, *args)
