"""A supervisor of pools with a real ledger, step by step: how it handles the places that it finds there."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from celery import Celery

from celery_orchestration import Pool
from celery_orchestration.job.app import read_settings
from celery_orchestration.ledger import Ledger
from celery_orchestration.pools import run
from celery_orchestration.pools.backlog import Backlog
from celery_orchestration.pools.places import Places
from celery_orchestration.pools.supervisor import Supervisor
from celery_orchestration.pools.table import shared
from support.servers import RedisServer
from support.wait import until

POOL = Pool(min=0, max=2)


@pytest.fixture
def app(redis_server: RedisServer) -> Celery:
    return Celery("shop", broker=redis_server.url())


@pytest.fixture
def ledger(app: Celery) -> Iterator[Ledger]:
    found = Ledger.of(app, read_settings(app))
    yield found
    found.close()


@pytest.fixture
def places(app: Celery, ledger: Ledger) -> Places:
    """The places of a supervisor ``a`` that is killed later."""
    found = Places(ledger, read_settings(app), "a")
    found.renew({"host": "h", "pid": 1, "tables": {"images": shared(POOL)}, "report": ""}, {})
    return found


@pytest.fixture
def lines() -> list[str]:
    """The messages of the supervisor."""
    return []


@pytest.fixture
def supervise(app: Celery, tmp_path: Path, lines: list[str]) -> Iterator[Callable[[], Supervisor]]:
    made: list[Supervisor] = []

    def make() -> Supervisor:
        found = Supervisor(
            app,
            "shop",
            {"images": POOL},
            {},
            lambda _, line: lines.append(line),
            name="a",
            state_directory=tmp_path / "state",
        )
        made.append(found)
        found.start()
        return found

    yield make
    for one in made:
        one.stop()


def scale(ledger: Ledger, known: int | None, wanted: int, may_go: list[tuple[int, str]]) -> None:
    assert ledger.scale_pool("a", "images", known, wanted, 0, 0, "because", {}, may_go)


def test_a_place_that_was_to_go_when_its_supervisor_died_gets_no_worker_again(
    ledger: Ledger, places: Places, supervise: Callable[[], Supervisor]
):
    scale(ledger, None, 1, [])
    place = places.claim("images")
    assert place is not None
    scale(ledger, 1, 0, [(place.number, place.fence)])
    supervisor = supervise()
    supervisor.step()
    assert list(supervisor.place_workers) == [("images", 1)]

    def is_given_up() -> bool:
        supervisor.step()
        assert all(one.worker is None for one in supervisor.place_workers.values())
        return not supervisor.place_workers

    until(is_given_up, 10)
    assert not ledger.read_pools({"images": []})["pools"]["images"].get("places")


def test_a_claim_whose_reply_was_lost_is_not_made_again_once_a_renewal_has_found_it(ledger: Ledger, places: Places):
    scale(ledger, None, 2, [])
    ask = ledger.claim_place

    def lose_the_reply(*args: object) -> object:
        ask(*args)  # type: ignore[arg-type]
        raise ConnectionError

    ledger.claim_place = lose_the_reply  # type: ignore[assignment, method-assign]
    with pytest.raises(ConnectionError):
        places.claim("images")
    ledger.claim_place = ask  # type: ignore[method-assign]
    about = {"host": "h", "pid": 1, "tables": {"images": shared(POOL)}, "report": ""}
    assert [place.number for place in places.renew(about, {})[2]] == [1]
    second = places.claim("images")
    assert second is not None
    assert second.number == 2


def test_mismatches_with_a_new_table_are_found_with_the_current_code(
    supervise: Callable[[], Supervisor], lines: list[str]
):
    """The jobs that this process has loaded are those of the old code."""
    supervisor = supervise()
    lines.clear()
    told = json.dumps({"pools": {"images": {}, "new": {}}, "problems": ["pool 'x' of a new job is not in the table"]})
    run.reload(supervisor, [sys.executable, "-c", f"print({told!r})"])
    assert lines == [
        "The configuration was read again; pools: images, new",
        "pool 'x' of a new job is not in the table",
    ]


def test_the_broker_is_asked_as_soon_as_a_supervisor_starts(app: Celery):
    backlog = Backlog(app, lambda: ["images.normal"], interval=600)
    backlog.start()
    try:
        assert until(lambda: backlog.reading, 10).queues["images.normal"].length == 0
    finally:
        backlog.stop()
        backlog.join(10)
