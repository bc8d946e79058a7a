"""Apps that connect to nobody."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery


@pytest.fixture
def new_app() -> Iterator[Callable[..., Celery]]:
    apps = []

    def make(main: str = "shop", **conf: Any) -> Celery:
        app = Celery(main, broker="memory://", backend="cache+memory://", set_as_current=False)
        app.conf.update(conf)
        apps.append(app)
        return app

    yield make
    for app in apps:
        app.close()


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError(f"connects: {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def app(new_app: Callable[..., Celery]) -> Celery:
    return new_app()
