"""Places of pools in the ledger: two supervisors never hold the same one, also after lost replies, repeated calls and
lost data."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import redis

from celery_orchestration.errors import Superseded
from celery_orchestration.ledger import ClaimedPlace, Ledger, Place, RenewedPlaces
from celery_orchestration.ledger.records import key_of
from support.ledger import PREFIX, Shop
from support.servers import RedisServer

LEASE = 30_000


class Machine:
    """A supervisor, verb by verb."""

    def __init__(self, server: RedisServer, name: str, most: int = 4) -> None:
        self.ledger = Ledger(redis.ConnectionPool.from_url(server.url()), PREFIX)
        self.name, self.session = name, f"{name}-first"
        self.most = most
        self.places: list[Place] = []
        self.epoch, self.token = "", 0

    def renew(self, takes_over: bool = False, interval_ms: int = 5000) -> RenewedPlaces:
        about = {"host": "h", "pid": 1, "tables": {"images": {"min": 1, "max": self.most}}, "report": ""}
        found = self.ledger.renew_places(
            self.name, self.session, takes_over, LEASE, interval_ms, self.epoch, about, self.places
        )
        self.epoch = found.epoch
        answers = dict(zip(self.places, found.answers, strict=True))
        self.places = [place for place in self.places if answers[place] != "void"] + found.found
        return found

    def claim(self, token: str | None = None) -> ClaimedPlace:
        self.token += 1
        found = self.ledger.claim_place(self.name, self.session, token or f"t{self.token}", "images", LEASE)
        if found.place and found.place not in self.places:
            self.places.append(found.place)
        return found

    def numbers(self) -> list[int]:
        return sorted(place.number for place in self.places)

    def scale(self, known: int | None, wanted: int, may_go: Any = ()) -> bool:
        return self.ledger.scale_pool(self.name, "images", known, wanted, 0, 0, "because", {"ready": 1}, may_go)

    def pools(self) -> dict[str, Any]:
        return self.ledger.read_pools({"images": ["images.granted", "images.normal"]}, changes=10)

    def pool(self) -> dict[str, Any]:
        return self.pools()["pools"]["images"]

    def held(self) -> dict[int, str]:
        return {one["number"]: one["by"] for one in self.pool().get("places") or ()}


#: Redis 7 calls verbs as functions, 6.2 as scripts.
VERB_STATS = ("cmdstat_fcall", "cmdstat_evalsha")


class Site:
    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.redis = server.client()

    def machine(self, name: str, **options: Any) -> Machine:
        machine = Machine(self.server, name, **options)
        machine.renew(takes_over=True)
        return machine

    def passes(self, ms: int) -> None:
        """This much time passes on the ledger clock."""
        self.redis.hincrby(key_of(PREFIX, "ledger"), "clock", ms)


@pytest.fixture
def site(redis_server: RedisServer) -> Site:
    return Site(redis_server)


class TestClaims:
    def test_as_many_as_wanted_are_shared_and_each_is_held_once(self, site: Site):
        a, b = site.machine("a"), site.machine("b")
        assert a.claim().what == "enough", "nobody has said how many are wanted"
        assert a.scale(None, 3)
        assert [machine.claim().what for machine in (a, b, a, b)] == ["claimed", "claimed", "claimed", "enough"]
        assert a.held() == {1: "a", 2: "b", 3: "a"}

    def test_a_claim_whose_reply_was_lost_gives_the_same_place_again(self, site: Site):
        a = site.machine("a")
        a.scale(None, 2)
        first = a.claim("token")
        assert a.claim("token") == first
        assert a.held() == {1: "a"}

    def test_no_number_beyond_max_even_while_workers_stop(self, site: Site):
        a = site.machine("a", most=2)
        a.scale(None, 2)
        a.claim()
        a.claim()
        going = a.places[0]
        assert a.scale(2, 1, [(going.number, going.fence)])
        assert a.scale(1, 2)
        assert a.claim().what == "full", "the one that stops has its number until it is gone"
        assert a.renew().answers == ["leaving", "ok"]
        assert a.ledger.leave_place("a", going)
        assert not a.ledger.leave_place("a", going)
        assert a.claim().place.number == going.number

    def test_the_smaller_max_of_two_tables_applies(self, site: Site):
        a, b = site.machine("a", most=8), site.machine("b", most=1)
        a.scale(None, 8)
        assert a.claim().what == "claimed"
        assert a.claim().what == "full"
        assert b.claim().what == "full"
        tables = [json.loads(one["tables"])["images"]["max"] for one in a.pools()["supervisors"]]
        assert sorted(tables) == [1, 8]

    def test_a_place_that_was_left_with_an_old_fence_stays(self, site: Site):
        a = site.machine("a")
        a.scale(None, 1)
        a.claim()
        assert not a.ledger.leave_place("a", Place("images", 1, "123"))
        assert not a.ledger.leave_place("b", a.places[0])
        assert a.held() == {1: "a"}


class TestLeases:
    def test_a_place_that_the_same_machine_has_claimed_anew_is_void_under_its_old_fence(self, site: Site):
        a = site.machine("a")
        a.scale(None, 1)
        a.claim()
        [old] = a.places
        site.passes(LEASE + 1)
        a.places = []
        a.renew()
        new = a.claim().place
        assert new is not None
        assert (new.number, new.fence != old.fence) == (old.number, True)
        a.places = [old, new]
        assert a.renew().answers == ["void", "ok"]

    def test_the_places_of_a_dead_machine_are_taken_after_one_lease_and_not_before(self, site: Site):
        a, b = site.machine("a"), site.machine("b")
        a.scale(None, 1)
        a.claim()
        site.passes(LEASE)
        assert b.claim().what == "enough"
        site.passes(1)
        b.renew()
        assert b.claim().place.number == 1
        assert b.held() == {1: "b"}

    def test_one_that_comes_back_too_late_learns_that_its_place_is_gone(self, site: Site):
        a, b = site.machine("a"), site.machine("b")
        a.scale(None, 1)
        a.claim()
        old = a.places[0]
        site.passes(LEASE + 1)
        b.renew()
        b.claim()
        assert a.renew().answers == ["void"]
        assert a.places == []
        assert not a.ledger.holds_place("images", 1, old.fence)
        assert a.ledger.holds_place("images", 1, b.places[0].fence)

    def test_one_whose_place_nobody_took_meanwhile_keeps_it(self, site: Site):
        a = site.machine("a")
        a.scale(None, 1)
        a.claim()
        site.passes(10 * LEASE)
        assert a.renew().answers == ["ok"]
        assert a.held() == {1: "a"}

    def test_a_supervisor_that_was_killed_finds_its_places_again_by_its_name(self, site: Site):
        a = site.machine("a")
        a.scale(None, 2)
        a.claim()
        a.claim()
        again = Machine(site.server, "a")
        again.session = "a-second"
        found = again.renew(takes_over=True).found
        assert sorted(place.number for place in found) == [1, 2]
        with pytest.raises(Superseded, match="another supervisor of pools runs under the name 'a'"):
            a.renew()
        with pytest.raises(Superseded):
            a.claim()

    def test_a_place_that_is_to_go_is_found_as_one_that_is_to_go(self, site: Site):
        a = site.machine("a")
        a.scale(None, 2)
        a.claim()
        going = a.claim().place
        a.scale(2, 1, [(going.number, going.fence)])
        again = Machine(site.server, "a")
        assert [(place.number, place.leaving) for place in again.renew(takes_over=True).found] == [
            (1, False),
            (2, True),
        ]

    def test_supervisors_alone_let_the_clock_run(self, site: Site):
        """If every worker died with its machine, only supervisors advance the clock."""
        a = site.machine("a")
        before = int(site.redis.hget(key_of(PREFIX, "ledger"), "clock"))
        site.redis.hincrby(key_of(PREFIX, "ledger"), "swept", -4000)
        a.renew()
        assert int(site.redis.hget(key_of(PREFIX, "ledger"), "clock")) >= before + 4000


class TestEpochs:
    def test_an_emptied_ledger_is_filled_again_by_those_that_had_places(self, site: Site):
        a, b = site.machine("a"), site.machine("b")
        a.scale(None, 4)
        for machine in (a, b, a):
            machine.claim()
        site.redis.flushall()
        a.renew()
        a.scale(None, 4)
        assert a.claim().what == "closed", "b may have places that the ledger has forgotten"
        b.renew()
        assert a.held() == {1: "a", 2: "b", 3: "a"}
        for _ in range(2):
            site.passes(LEASE // 2 + 1)
            for machine in (a, b):
                machine.renew()
        assert a.claim().place.number == 4

    def test_a_new_machine_that_comes_first_to_an_emptied_ledger_does_not_make_two_holders(self, site: Site):
        a = site.machine("a")
        a.scale(None, 1)
        a.claim()
        site.redis.flushall()
        c = site.machine("c")
        c.scale(None, 1)
        assert c.claim().what == "claimed"
        assert a.renew().answers == ["void"]
        assert c.held() == {1: "c"}


class TestScaling:
    def test_of_two_that_decide_at_once_one_is_recorded(self, site: Site):
        a, b = site.machine("a"), site.machine("b")
        assert a.scale(None, 2)
        assert not b.scale(None, 3)
        assert b.scale(2, 3)
        pool = a.pool()
        assert pool["wanted"] == 3
        changes = [json.loads(one) for one in pool["changes"]]
        assert [(one["by"], one.get("before"), one["wanted"], one["why"]) for one in changes] == [
            ("b", 2, 3, "because"),
            ("a", None, 2, "because"),
        ]
        assert json.loads(changes[0]["figures"]) == {"ready": 1}

    def test_one_that_looked_earlier_does_not_take_back_that_workers_were_needed_later(self, site: Site):
        a, b = site.machine("a"), site.machine("b")
        a.scale(None, 2)
        now = a.pools()["now"]
        for machine, needed in ((a, now), (b, now - 50_000)):
            assert machine.ledger.scale_pool(machine.name, "images", 2, 2, needed, 0, "because", {})
        assert a.pool()["needed"] == now

    def test_a_time_in_the_future_does_not_keep_workers_after_redis_s_clock_went_back(self, site: Site):
        a = site.machine("a")
        a.scale(None, 2)
        site.redis.hset(key_of(PREFIX, "pool", "images"), "needed", a.pools()["now"] + 3_600_000)
        assert a.scale(2, 2)
        assert a.pool()["needed"] <= a.pools()["now"]

    def test_the_list_of_changes_is_bounded(self, site: Site):
        a = site.machine("a")
        known = None
        for number in range(130):
            assert a.scale(known, number % 2)
            known = number % 2
        assert site.redis.llen(key_of(PREFIX, "pool_changes", "images")) == 100

    def test_only_surplus_workers_are_asked_to_stop(self, site: Site):
        a = site.machine("a")
        a.scale(None, 3)
        for _ in range(3):
            a.claim()
        order = [(place.number, place.fence) for place in reversed(a.places)]
        assert a.scale(3, 2, order)
        assert a.scale(2, 2, order), "called again"
        assert a.renew().answers == ["ok", "ok", "leaving"]


def test_whatever_happens_no_place_has_two_holders(site: Site):
    """Machines that claim, renew, leave, die, come back and stand still past their lease, in a random order."""
    chance = random.Random(13)
    machines = {name: site.machine(name) for name in "abc"}
    machines["a"].scale(None, 4)
    for _ in range(600):
        machine = machines[chance.choice("abc")]
        what = chance.choice(["claim", "claim", "renew", "renew", "leave", "time", "restart", "forget"])
        if what == "claim":
            machine.claim()
        elif what == "renew":
            machine.renew()
        elif what == "leave" and machine.places:
            machine.ledger.leave_place(machine.name, machine.places.pop())
        elif what == "time":
            site.passes(chance.randrange(LEASE))
        elif what == "restart":
            machine.places, machine.session = [], f"{machine.name}-{chance.random()}"
            machine.renew(takes_over=True)
        elif what == "forget" and chance.random() < 0.05:
            site.redis.flushall()
            machine.renew()
            machine.scale(None, 4)
        # Only the ledger counts: each place has one holder there. A machine that believes otherwise learns the truth at
        # its next renewal.
        before = machine.held()
        assert len(before) <= 4
        machine.renew()
        for place in machine.places:
            assert machine.held()[place.number] == machine.name


class TestFigures:
    def test_runs_that_the_gate_holds_back_ask_for_no_worker(self, redis_server: RedisServer):
        shop = Shop(redis_server)
        shop.install({"one": {"max_running": 1}})
        for number in range(20):
            shop.come(f"run {number}", "one")
        found = shop.ledger.read_pools({"images": ["q"]}, ["one"])
        assert "open" not in found["pools"]["images"]
        assert "handed" not in found["pools"]["images"]
        assert found["jobs"]["one"]["room"] == 0
        assert found["workers"][0]["running"] == 1

    def test_it_returns_how_many_runs_the_cap_over_all_jobs_still_lets_in(self, redis_server: RedisServer):
        shop = Shop(redis_server)
        shop.install({"a": {}}, cap=2)
        assert shop.ledger.read_pools({"images": ["q"]})["room"] == 2
        for number in range(20):
            shop.come(f"run {number}", "a")
        assert shop.ledger.read_pools({"images": ["q"]})["room"] == 0
        shop.install({"a": {}})
        assert "room" not in shop.ledger.read_pools({"images": ["q"]})

    def test_workers_in_observe_mode_have_no_limits(self, redis_server: RedisServer):
        shop = Shop(redis_server)
        shop.install({"one": {"max_running": 1}}, cap=2)
        shop.redis.hset(key_of(PREFIX, "worker", "w1"), "mode", "observe")
        found = shop.ledger.read_pools({"images": ["q"]}, ["one"])
        assert "room" not in found
        assert "room" not in found["jobs"]["one"]

    def test_runs_that_only_wait_for_a_slot_ask_for_a_worker(self, redis_server: RedisServer):
        shop = Shop(redis_server)
        shop.install({"one": {"max_running": 2}})
        for number in range(20):
            shop.come(f"run {number}", "one")
        shop.ledger.leave("w1")
        found = shop.ledger.read_pools({"images": ["q"]})
        assert found["pools"]["images"]["open"] == [{"job": "one", "runs": 2}]

    def test_handed_over_runs_and_typical_durations_are_returned(self, redis_server: RedisServer):
        shop = Shop(redis_server)
        shop.install({"one": {"max_running": 1}})
        shop.come("first", "one")
        shop.come("second", "one")
        shop.end("first", free=0)
        found = shop.ledger.read_pools({"images": ["q"]})
        (handed,) = found["pools"]["images"]["handed"]
        assert (handed["job"], handed["queue"], handed["runs"]) == ("one", "q", 1)
        assert found["jobs"]["one"]["took"] >= 0

    def test_reading_the_figures_is_cheap(self, redis_server: RedisServer):
        """With 10 pools, 100 workers and 1,000 jobs with a history, Redis is kept busy for a few milliseconds."""
        shop = Shop(redis_server)
        shop.install({f"job{number}": {} for number in range(1000)})
        last = ("granted", "critical", "high", "normal", "low")
        queues = {f"pool{n}": [f"pool{n}.{one}" for one in last] for n in range(10)}
        for number in range(100):
            shop.register(f"w{number}", queues=tuple(queues[f"pool{number % 10}"]))
        for number in range(50):
            shop.come(f"r{number}", f"job{number}")
            shop.end(f"r{number}")
        shop.redis.config_resetstat()
        for _ in range(20):
            shop.ledger.read_pools(queues, [f"job{number}" for number in range(50)])
        stats = next(stat for name, stat in shop.redis.info("commandstats").items() if name in VERB_STATS)
        assert stats["usec_per_call"] < 20_000, stats
