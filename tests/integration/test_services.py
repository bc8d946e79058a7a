"""Services that share a ledger: apps of different names that write the same ``orchestration_namespace``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery

from celery_orchestration import Dependency, External, OrchestratedTask, Orchestration
from celery_orchestration.errors import ConfigurationError, LedgerRefused, UnknownEntry
from celery_orchestration.ledger import Adoption, Fire
from celery_orchestration.scheduler.side import SchedulerSide
from celery_orchestration.task import jobs_of, owner_of
from celery_orchestration.worker import policies
from support.servers import RedisServer
from support.workers import close_app
from tests.integration.test_ledger import PREFIX, Shop


class Service(Shop):
    """One of the services: its ledger, a worker of its own, a scheduler that leads it."""

    def __init__(self, server: RedisServer, name: str) -> None:
        super().__init__(server)
        self.ledger.service = self.name = name
        self.worker, self.release = f"worker of {name}", f"release-of-{name}"

    def bring(self, jobs: dict[str, dict[str, Any]], *others: Service, release: str = "") -> None:
        """Deploys a release beside those of the other services."""
        self.release = release or self.release
        documents = {one.release: one.document for one in others}
        self.document_of(jobs)
        live = self.register(self.worker, release=self.release).live
        documents[self.release] = self.document
        merged = policies.merged([documents[one] for one in live.split()])
        assert self.ledger.install(live, merged.cap, merged.jobs)

    def document_of(self, jobs: dict[str, dict[str, Any]]) -> None:
        scratch = Shop(self.server)
        scratch.ledger = _Nowhere()  # type: ignore[assignment]
        scratch.install(jobs)
        self.document, self.jobs = scratch.document, scratch.jobs

    def starts(self, id: str, job: str) -> bool:
        return self.come(id, job) == "start"

    def turn(self, **options: Any) -> Any:
        return super().turn(**{"worker": self.worker, **options})

    # -- its scheduler

    def lead(self) -> str:
        self.term = self.ledger.lead(f"s-{self.name}", f"beat of {self.name}", 10_000, "").term
        return self.term

    def adopt(self, name: str, job: str, ago_ms: int = 60_000) -> None:
        seconds, micros = self.redis.time()
        self.now = int(seconds) * 1000 + int(micros) // 1000
        entry = self.ledger.entry_id(name)
        adoption = Adoption(entry, name, job, job, "every 60 s", "code", None)
        [found] = self.ledger.adopt(self.term, self.now - ago_ms, [adoption]) or ()
        self.generation, self.last_ms = found.generation, found.last_ms

    def fire(self, name: str, job: str, seconds: int = 1) -> str:
        due = self.last_ms + 1000 * seconds
        entry, id = self.ledger.entry_id(name), f"{self.name} {due}"
        fire = Fire(entry, self.generation, due, due + 1000, 0, job, id, 10**9, message=b"m")
        return self.ledger.dispatch(self.term, [fire]).answers[0][0]


class _Nowhere:
    def register(self, *_: Any) -> None: ...

    def install(self, *_: Any) -> bool:
        return True


@pytest.fixture
def shop(redis_server: RedisServer) -> Service:
    return Service(redis_server, "shop")


@pytest.fixture
def billing(redis_server: RedisServer) -> Service:
    return Service(redis_server, "billing")


class TestJobs:
    def test_a_job_blocks_one_of_another_service(self, shop: Service, billing: Service):
        shop.bring({"shop.export": {"cap": 1, "blocks": ["billing.invoice"]}})
        assert shop.starts("e1", "shop.export"), "the other service is not deployed yet"
        shop.end("e1")
        billing.bring({"billing.invoice": {"cap": 1}}, shop)
        assert billing.starts("i1", "billing.invoice")
        assert not shop.starts("e2", "shop.export")
        billing.end("i1")
        assert [start.id for start in shop.turn(free=1).starts] == ["e2"]

    def test_a_job_depends_on_one_of_another_service(self, shop: Service, billing: Service):
        shop.bring({"shop.ship": {"cap": 1, "deps": [{"job": "billing.invoice"}]}})
        assert not shop.starts("s1", "shop.ship"), "the other service is not deployed yet"
        billing.bring({"billing.invoice": {"cap": 1}}, shop)
        assert billing.starts("i1", "billing.invoice")
        billing.end("i1")
        assert [start.id for start in shop.turn(free=1).starts] == ["s1"]

    def test_the_policies_of_a_service_hold_while_it_is_stopped(self, shop: Service, billing: Service):
        """It is redeployed by stopping all its workers; those of the other service go on meanwhile."""
        billing.bring({"billing.invoice": {"cap": 1}})
        shop.bring({"shop.ship": {"cap": 1, "deps": [{"job": "billing.invoice"}]}}, billing)
        billing.starts("i1", "billing.invoice")
        billing.end("i1")
        billing.ledger.leave(billing.worker)
        swept = shop.ledger.sweep(shop.worker, 1, 5000)
        assert swept.live_releases == swept.installed_releases == "release-of-billing release-of-shop"
        assert shop.starts("s1", "shop.ship"), "the outcome is remembered"
        billing.bring({"billing.invoice": {"cap": 2}}, shop, release="another-of-billing")
        assert shop.ledger.sweep(shop.worker, 2, 5000).live_releases == "release-of-shop another-of-billing"

    def test_the_policies_of_a_service_that_is_gone_for_good_go_after_a_week(self, shop: Service, billing: Service):
        billing.bring({"billing.invoice": {"cap": 1}})
        shop.bring({"shop.ship": {}}, billing)
        billing.ledger.leave(billing.worker)
        shop.redis.hincrby(f"{PREFIX}stopped", "release-of-billing", -8 * 86_400_000)
        assert shop.ledger.sweep(shop.worker, 1, 5000).live_releases == "release-of-shop"


class TestSchedulers:
    @pytest.fixture(autouse=True)
    def _lead(self, shop: Service, billing: Service) -> None:
        shop.bring({"shop.ship": {}})
        billing.bring({"billing.invoice": {}}, shop)
        for service in (shop, billing):
            assert service.lead()

    def test_each_service_has_a_leader(self, shop: Service, billing: Service):
        for service in (shop, billing):
            assert service.ledger.health("shop")["lead"] == f"beat of {service.name}"
            assert service.ledger.status(10, 10)["lead"]["name"] == f"beat of {service.name}"
            assert not service.ledger.lead("another", "another", 10_000, "").term
        assert shop.ledger.resign("s-shop", shop.term)
        assert billing.ledger.health("shop")["lead"] == "beat of billing"
        assert "lead" not in shop.ledger.health("shop")

    def test_entries_of_the_same_name_fire_for_each(self, shop: Service, billing: Service):
        shop.adopt("nightly", "shop.ship")
        billing.adopt("nightly", "billing.invoice")
        for service, job in ((shop, "shop.ship"), (billing, "billing.invoice")):
            assert service.fire("nightly", job) == "fired"
            assert service.fire("nightly", job) == "known"
            found = service.ledger.entry("nightly")
            assert found is not None
            assert (found["task"], found["fires"]) == (job, "1")

    def test_a_leader_retires_only_its_own_entries(self, shop: Service, billing: Service):
        shop.adopt("old", "shop.ship")
        billing.adopt("nightly", "billing.invoice")
        for key in (shop.ledger.entry_id("old"), billing.ledger.entry_id("nightly")):
            shop.redis.zadd(f"{PREFIX}entries", {key: 1})
        assert shop.ledger.retire(shop.term)
        assert shop.ledger.entry("old") is None
        assert billing.ledger.entry("nightly") is not None
        shop.redis.hset(f"{PREFIX}lead:billing", "until", shop.now - 8 * 86_400_000)
        assert shop.ledger.retire(shop.term)
        assert billing.ledger.entry("nightly") is None, "nobody has led that service for a week"

    def test_a_leader_hears_of_the_changes_to_its_own_entries(self, shop: Service, billing: Service):
        written = ("billing.invoice", "billing.invoice", "every 60 s", "{}", "")
        assert billing.ledger.schedule("me", "add", "extra", "", written) == "ok"
        for known in (None, 0):
            assert [entry for entry, *_ in billing.ledger.changes(known).entries] == ["billing:extra"]
            assert shop.ledger.changes(known).entries == []

    def test_a_term_of_one_service_is_none_of_another(self, shop: Service, billing: Service):
        shop.adopt("nightly", "shop.ship")
        assert shop.ledger.resign("s-shop", shop.term)
        assert shop.ledger.dispatch(shop.term, []).what == "term"
        assert billing.ledger.dispatch(billing.term, []).what == "ok"


@pytest.fixture
def make_app(redis_server: RedisServer) -> Iterator[Callable[..., Celery]]:
    apps = []

    def make(name: str, namespace: str | None = "company", **jobs: dict[str, Any]) -> Celery:
        app = Celery(name, broker=redis_server.url(), set_as_current=False)
        app.conf.orchestration_namespace = namespace
        for job, options in jobs.items():

            @app.task(base=OrchestratedTask, name=f"{name}.{job}", shared=False, **options)
            def run() -> None: ...

        apps.append(app)
        return app

    yield make
    for app in apps:
        close_app(app)


def registered(app: Celery) -> SchedulerSide:
    side = SchedulerSide(app, {})
    side.check_ledger()
    found = side.ledger.register(side.presence())
    merged = policies.merged(side.ledger.releases(found.live))
    assert side.ledger.install(found.live, merged.cap, merged.jobs)
    return side


class TestApps:
    def test_a_namespace_that_both_write_is_shared(self, make_app: Callable[..., Celery]):
        shop = make_app("shop", ship={"blocks": [External("billing.invoice")]})
        billing = make_app("billing", invoice={})
        assert owner_of(shop) == owner_of(billing) == "company"
        for app in (shop, billing):
            registered(app)
        assert [job.name for job in Orchestration(shop).status(depths=False).jobs] == ["billing.invoice", "shop.ship"]

    def test_a_ledger_with_the_default_namespace_is_one_apps(self, make_app: Callable[..., Celery]):
        registered(make_app("my shop", None, ship={}))
        with pytest.raises(LedgerRefused, match="belongs to the app 'my shop'"):
            registered(make_app("my_shop", None, other={}))

    def test_people_see_each_services_leader_and_entries(self, make_app: Callable[..., Celery]):
        shop, billing = make_app("shop", ship={}), make_app("billing", invoice={})
        sides = {app.main: registered(app) for app in (shop, billing)}
        clients = {app.main: Orchestration(app) for app in (shop, billing)}
        for name, side in sides.items():
            assert side.ledger.lead(side.worker, side.name, 10_000, "").term
            task = {"shop": "shop.ship", "billing": "billing.invoice"}[name]
            clients[name].schedule.add("extra", task, 60)
        clients["billing"].schedule.add("nightly", "billing.invoice", 60)
        status = clients["shop"].status(depths=False).scheduler
        assert (status.leader, status.standbys) == (sides["shop"].name, [])
        assert [(one.service, one.leader) for one in status.others] == [("billing", sides["billing"].name)]
        listed = [(entry.name, entry.service, entry.problem) for entry in clients["shop"].schedule.list()]
        of_billing = [("extra", "billing", None), ("nightly", "billing", None)]
        assert sorted(listed, key=str) == sorted([*of_billing, ("extra", None, None)], key=str)
        assert clients["billing"].schedule.get("extra").task == "billing.invoice"
        with pytest.raises(UnknownEntry, match="belongs to the service 'billing'"):
            clients["shop"].schedule.pause("nightly")

    def test_a_misspelt_job_is_suggested(self, make_app: Callable[..., Celery]):
        registered(make_app("billing", invoice={}))
        with pytest.raises(ConfigurationError, match=r"write External\('…'\)"):
            SchedulerSide(make_app("other", ship={"blocks": ["billing.invoice"]}), {})
        shop = make_app("shop", ship={"blocks": [External("billing.invoce")]})
        registered(shop)
        [found] = [check for check in Orchestration(shop).doctor().checks if check.name == "services"]
        assert found.state == "problem"
        assert "which no service has brought yet, did you mean 'billing.invoice'?" in found.found

    def test_external_is_the_same_in_depends_on(self, make_app: Callable[..., Celery]):
        short = jobs_of(make_app("a", ship={"depends_on": [External("b.c")]}))["a.ship"].depends_on
        assert short == (Dependency("b.c", external=True),)
