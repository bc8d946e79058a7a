"""Who makes a request, and what they may do: host, identity, role, session, CSRF token."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from celery_orchestration.operate.acting_user import current_user
from celery_orchestration.web import auth, security
from celery_orchestration.web.auth import Attempts, Credentials, Identity, Role, Session, Sessions

COOKIE = "orchestration_session"
#: A function of the host app that says who makes a request.
RoleOf = Callable[[Request], "Identity | Role | Awaitable[Identity | Role | None] | None"]


@dataclass(frozen=True)
class Guest:
    """Who makes a request, and the session for CSRF tokens. `cookie`: set it, because the session is new."""

    identity: Identity | None
    session: Session
    cookie: str | None


class Refused(Exception):
    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class Access:
    def __init__(
        self,
        credentials: Credentials | None,
        role_of: RoleOf | None,
        read_only: bool,
        secure_cookies: bool,
        secret: bytes | None,
    ) -> None:
        self.credentials = credentials or Credentials()
        self._role_of = role_of
        self.read_only = read_only
        self.secure_cookies = secure_cookies
        self.sessions, self.attempts = Sessions(secret), Attempts()

    def check_host(self, request: Request) -> None:
        """Without credentials: a web page elsewhere must not reach us through a name that leads to this machine."""
        if self.credentials or self._role_of:
            return
        client = request.client.host if request.client else ""
        if not security.is_loopback(security.named_host(request)) or not (security.is_loopback(client) or client == ""):
            raise Refused(
                HTTPStatus.FORBIDDEN, "Without credentials the dashboard serves browsers on its own machine only."
            )

    async def guest(self, request: Request) -> Guest:
        session = self.sessions.read(request.cookies.get(COOKIE, ""))
        cookie = None
        if session is None:
            session, cookie = self.sessions.begin("")
        identity = await self._identity(request, session)
        if identity is not None and self.read_only:
            identity = Identity(identity.name, "viewer")
        return Guest(identity, session, cookie)

    async def _identity(self, request: Request, session: Session) -> Identity | None:
        if self._role_of is not None:
            found = self._role_of(request)
            who = await found if inspect.isawaitable(found) else found
            return Identity("", who) if isinstance(who, str) else who
        if not self.credentials:
            return Identity(current_user(), "operator")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._with_token(request, token.strip())
        return self.credentials.again(session.name) if session.name else None

    def _with_token(self, request: Request, token: str) -> Identity | None:
        tried = [security.client_address(request)]
        if self.attempts.begin(tried):
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, "Too many attempts. Try again in a minute.")
        found = self.credentials.with_token(token)
        if found is not None:
            self.attempts.succeeded(tried)
        return found

    def viewer(self, guest: Guest) -> Identity:
        """Raises :class:`Refused` if they may not look."""
        if guest.identity is None:
            if self._role_of is not None:
                raise Refused(HTTPStatus.FORBIDDEN, "You may not see this dashboard.")
            raise Refused(HTTPStatus.UNAUTHORIZED, "Log in first.")
        return guest.identity

    def operator(self, guest: Guest) -> Identity:
        """Raises :class:`Refused` if they may not act."""
        identity = self.viewer(guest)
        if not identity.may_act:
            raise Refused(HTTPStatus.FORBIDDEN, "You may look, but not change anything.")
        return identity

    def check_csrf(self, request: Request, guest: Guest, fields: Mapping[str, str]) -> None:
        token = request.headers.get("x-csrf-token") or fields.get("csrf", "")
        with_header = request.headers.get("authorization", "").lower().startswith("bearer ")  # no browser adds it
        if with_header and self.credentials:
            return
        if not security.is_same_origin(request) or not self.sessions.is_csrf(guest.session, token):
            raise Refused(HTTPStatus.FORBIDDEN, "This page has expired. Load it again.")

    def set_cookie(self, request: Request, response: Response, value: str) -> None:
        response.set_cookie(
            COOKIE,
            value,
            max_age=auth.SESSION_SECONDS,
            path=security.root_path(request) or "/",
            secure=self.secure_cookies,
            httponly=True,
            samesite="lax",
        )
