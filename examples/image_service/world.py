"""The world outside: a mail server and a shop's web server. They store nothing and count every request.

``python -m examples.image_service.world`` says "ready", and serves until its standard input ends. Then it prints as
JSON how many mails and webhooks of each load came, and how many of them were different ones.
"""

import json
import os
import sys
import threading
from collections import Counter, defaultdict
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller

from examples.image_service.app import SMTP_PORT, WEBHOOK_PORT

#: The address to listen on: loopback, unless the workers are in other containers.
LISTEN = os.environ.get("IMAGE_SERVICE_LISTEN", "127.0.0.1")

#: How often each number arrived, by load and kind.
Received = dict[str, dict[str, Counter[str]]]


class MailServer:
    """aiosmtpd calls handle_DATA for each mail."""

    def __init__(self, received: Received) -> None:
        self._received = received

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        message = message_from_bytes(envelope.content)
        self._received[message["X-Load"]]["mail"][message["To"]] += 1
        return "250 OK"


def web_server(received: Received) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            received[sent["load"]]["webhook"][sent["order"]] += 1
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingHTTPServer):
        request_queue_size = 256
        daemon_threads = True

    return Server((LISTEN, WEBHOOK_PORT), Handler)


def main() -> None:
    received: Received = defaultdict(lambda: defaultdict(Counter))
    web = web_server(received)
    mail = Controller(MailServer(received), hostname=LISTEN, port=SMTP_PORT)
    mail.start()
    threading.Thread(target=web.serve_forever, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()
    mail.stop()
    web.shutdown()
    web.server_close()
    print(
        json.dumps(
            {
                load: {kind: {"came": sum(each.values()), "different": len(each)} for kind, each in kinds.items()}
                for load, kinds in received.items()
            }
        )
    )


if __name__ == "__main__":
    main()
