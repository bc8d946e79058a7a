"""Authentication: who may look, and who may act.

An identity comes from the host app's own function (when mounted), from credentials (a password with a session cookie,
or a token in a header), or, on a loopback address without credentials, from being on this machine.

Credentials are lines ``name:role:hash``. A hash is ``scrypt$N$r$p$salt$key`` of a password, or ``sha256$digest`` of a
token: tokens are long and random, so that a quick hash is enough. Comparisons take constant time, unknown names cost as
much as known ones, and failed attempts are counted per address and per name.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["viewer", "operator"]
ROLES: tuple[Role, ...] = ("viewer", "operator")

#: Cost of a password's hash: 16 MB, and about 50 ms.
_N, _R, _P = 2**14, 8, 1
_LENGTH = 32
SESSION_SECONDS = 12 * 3600
#: After this many failed attempts within this many seconds, the next ones have to wait.
MOST_FAILURES, FAILURE_SECONDS = 5, 60.0
#: At most this many addresses and names with failed attempts are remembered.
_MOST_REMEMBERED = 10_000


class BadCredentials(ValueError):
    """A line of the credentials cannot be read."""


@dataclass(frozen=True)
class Identity:
    name: str
    role: Role

    @property
    def may_act(self) -> bool:
        return self.role == "operator"


def hash_password(password: str) -> str:
    salt = secrets.token_bytes(16)
    return f"scrypt${_N}${_R}${_P}${_encoded(salt)}${_encoded(_scrypt(password, salt, _N, _R, _P))}"


def hash_token(token: str) -> str:
    return f"sha256${hashlib.sha256(token.encode()).hexdigest()}"


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=256 * n * r, dklen=_LENGTH)


def _encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@dataclass(frozen=True)
class Credentials:
    """Names, each with a role and a hash."""

    users: Mapping[str, tuple[Role, str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.users)

    @classmethod
    def read(cls, text: str) -> Credentials:
        """One line each; empty lines and lines that begin with # do not count."""
        users: dict[str, tuple[Role, str]] = {}
        lines = [line.strip() for line in text.splitlines()]
        for number, line in enumerate(lines, 1):
            if not line or line.startswith("#"):
                continue
            name, role, hashed = (*line.split(":", 2), "", "")[:3]
            if role not in ROLES:
                raise BadCredentials(f"line {number}: write name:role:hash, where role is viewer or operator")
            if not name or name in users:
                raise BadCredentials(f"line {number}: a name is needed that no other line has")
            if not _is_hash(hashed):
                raise BadCredentials(f"line {number}: the third part is no hash; --hash-password makes one")
            users[name] = (ROLES[ROLES.index(role)], hashed)
        return cls(users)

    def with_password(self, name: str, password: str) -> Identity | None:
        """Takes equally long for unknown names."""
        role, hashed = self.users.get(name, ("viewer", ""))
        kind, *parts = hashed.split("$")
        known = kind == "scrypt"
        n, r, p, salt, key = parts if known else (str(_N), str(_R), str(_P), "AAAA", "AAAA")
        found = _scrypt(password, _decoded(salt), int(n), int(r), int(p))
        return Identity(name, role) if hmac.compare_digest(found, _decoded(key)) and known else None

    def with_token(self, token: str) -> Identity | None:
        given, found = hash_token(token), None
        for name, (role, hashed) in self.users.items():  # all of them, in constant time
            if hmac.compare_digest(given, hashed):
                found = Identity(name, role)
        return found

    def again(self, name: str) -> Identity | None:
        """The current identity of a session's name: its role may have changed, or it may be gone."""
        return Identity(name, self.users[name][0]) if name in self.users else None


def _is_hash(text: str) -> bool:
    if re.fullmatch(r"sha256\$[0-9a-f]{64}", text):
        return True
    try:
        kind, n, r, p, salt, key = text.split("$")
        return kind == "scrypt" and bool(_decoded(salt)) and len(_decoded(key)) == _LENGTH and _is_cost(n, r, p)
    except ValueError:
        return False


def _is_cost(*texts: str) -> bool:
    """Whether scrypt accepts these numbers, and a login does not take much longer than with ours."""
    n, r, p = map(int, texts)
    return n > 1 and not n & (n - 1) and r > 0 and p > 0 and n * r * p <= 2**22


@dataclass(frozen=True)
class Session:
    """The content of the cookie: the user's name ('' before login), and a number for the CSRF token."""

    name: str
    number: str
    until: float


class Sessions:
    """Signed cookies: the server keeps no sessions. Without a given secret, each restart ends all of them."""

    def __init__(self, secret: bytes | None = None, now: Callable[[], float] = time.time) -> None:
        self._secret = secret or secrets.token_bytes(32)
        self._now = now

    def begin(self, name: str) -> tuple[Session, str]:
        session = Session(name, secrets.token_urlsafe(16), self._now() + SESSION_SECONDS)
        body = _encoded(json.dumps([session.name, session.number, session.until]).encode())
        return session, f"{body}.{self._sign('session', body)}"

    def read(self, cookie: str) -> Session | None:
        body, _, signature = cookie.partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign("session", body).encode()):
            return None
        session = Session(*json.loads(_decoded(body)))
        return session if session.until > self._now() else None

    def csrf(self, session: Session) -> str:
        return self._sign("csrf", session.number)

    def is_csrf(self, session: Session, token: str) -> bool:
        return hmac.compare_digest(self.csrf(session).encode(), token.encode())

    def _sign(self, purpose: str, text: str) -> str:
        return _encoded(hmac.digest(self._secret, f"{purpose}:{text}".encode(), "sha256"))


class Attempts:
    """Counts failed and unfinished logins by address and by name, so that parallel attempts count, too."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._failures: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    def begin(self, who: Sequence[str]) -> float:
        """Seconds until the next attempt is allowed. 0: now; it counts as a failure until it succeeds."""
        now = self._now()
        with self._lock:
            recent = [[at for at in self._failures.get(one, ()) if now - at < FAILURE_SECONDS] for one in who]
            wait = max(
                (FAILURE_SECONDS - (now - some[-MOST_FAILURES]) for some in recent if len(some) >= MOST_FAILURES),
                default=0.0,
            )
            if not wait:
                self._failures |= {one: [*some, now] for one, some in zip(who, recent, strict=True)}
                self._forget(now)
            return wait

    def _forget(self, now: float) -> None:
        if len(self._failures) > _MOST_REMEMBERED:
            self._failures = {one: some for one, some in self._failures.items() if now - some[-1] < FAILURE_SECONDS}

    def succeeded(self, who: Iterable[str]) -> None:
        with self._lock:
            for one in who:
                self._failures.pop(one, None)
