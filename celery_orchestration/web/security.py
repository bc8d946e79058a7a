"""Checks for every request: security headers, the size of the body, the host name, the origin."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: The most bytes and fields of a body: forms with the arguments of a call.
MOST_BYTES, MOST_FIELDS = 64 * 1024, 100

HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class SecurityHeaders:
    """Adds the headers to every answer, errors included. Answers are not cached unless they say so."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        return await self._app(scope, receive, with_headers)


class TooLarge(Exception):
    """The body of a request is larger than any that our pages send."""


async def form(request: Request) -> dict[str, str]:
    """The fields of a form. Each has one value."""
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > MOST_BYTES:
                raise TooLarge
    except ClientDisconnect:
        return {}
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:  # too many fields
        raise TooLarge from None


def is_loopback(host: str) -> bool:
    """`host`: a name or an address, to bind or from a browser."""
    host = host.strip("[]").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def named_host(request: Request) -> str:
    """The host name in the browser's address."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:  # not a valid host
        return ""


def is_same_origin(request: Request) -> bool:
    """Whether one of our pages sent it, by the browser's headers. Old browsers send none."""
    if request.headers.get("sec-fetch-site") not in (None, "same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    return origin is None or origin.partition("://")[2] == request.headers.get("host", "")


def root_path(request: Request) -> str:
    """The prefix under which the dashboard is mounted."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def client_address(request: Request) -> str:
    return f"address {request.client.host if request.client else '?'}"
