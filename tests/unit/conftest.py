"""Apps that connect to nobody."""

from __future__ import annotations

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
def app(new_app: Callable[..., Celery]) -> Celery:
    return new_app()
