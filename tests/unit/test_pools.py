"""Parts of pools that need no server: the table, the machine, how long the oldest run has waited."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from celery import Celery
from kombu import Queue

from celery_orchestration import OrchestratedTask, Pool
from celery_orchestration.errors import BadCall, ConfigurationError
from celery_orchestration.job.pool import pool_problems
from celery_orchestration.job.task import jobs_of
from celery_orchestration.operate.pools.serve import Figures as Served
from celery_orchestration.operate.pools.serve import address_of, answer
from celery_orchestration.pools import child
from celery_orchestration.pools.machine import Machine, machine
from celery_orchestration.pools.places import identity
from celery_orchestration.pools.pool_snapshot import Waits
from celery_orchestration.pools.table import arguments_of, differences, queues_of, shared, strictest
from celery_orchestration.worker import supervised

DOCS = Path(__file__).resolve().parents[2] / "docs" / "pools.md"


class TestTable:
    def test_a_pool_has_queues_of_its_own_and_the_default_pool_what_workers_served_before(self):
        app = Celery("shop")
        assert queues_of(app, "images") == [f"images.{one}" for one in ("granted", "critical", "high", "normal", "low")]
        assert arguments_of(app, "images") == ["-Q", "images.critical,images.high,images.normal,images.low"]
        assert queues_of(app, "default")[-1] == "celery"
        assert arguments_of(app, "default") == []

    def test_the_default_pool_leaves_other_pools_queues_alone_that_are_configured(self):
        app = Celery("shop")
        app.conf.task_queues = [Queue("mine"), Queue("images.high"), Queue("default.high")]
        assert arguments_of(app, "default") == ["-X", "images.high"]
        assert "mine" in queues_of(app, "default")
        assert "images.high" not in queues_of(app, "default")

    def test_of_two_lines_the_one_with_fewer_workers_applies(self):
        own = Pool(min=1, max=8, concurrency=4, target_wait_seconds=10)
        other = shared(Pool(min=3, max=5, concurrency=2, target_wait_seconds=30))
        found = strictest(own, [other])
        assert (found.min, found.max, found.concurrency, found.target_wait_seconds) == (3, 5, 2, 30)
        assert strictest(Pool(min=4, max=8), [shared(Pool(min=1, max=2))]).min == 2
        assert strictest(own, [shared(own)]) == own

    def test_differences_are_reported_with_the_value_that_applies(self):
        own, other = Pool(min=1, max=8), shared(Pool(min=1, max=5))
        (told,) = differences("images", own, {"b": other, "c": shared(own)})
        assert told.startswith("supervisor b has another table of pools: pool 'images' has max=5 there and 8 here.")
        assert "applies: max=5" in told

    def test_jobs_without_a_pool_and_pools_without_a_job_are_reported(self):
        app = Celery("shop")
        for name, pool in (("a", "images"), ("b", "imagse"), ("c", None)):
            app.task(base=OrchestratedTask, name=name, **({"pool": pool} if pool else {}))(_nothing)
        jobs = jobs_of(app)
        assert pool_problems({}, jobs) == [], "nobody manages pools"
        assert pool_problems({"images": Pool(), "email": Pool(), "default": Pool()}, jobs) == [
            "pool 'imagse' of b is not in orchestration_pools, and no worker is started for it, did you mean 'images'?",
            "pool 'email' is in orchestration_pools, and no job uses it",
        ]

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"min": 3, "max": 2}, "min=3 is more than max=2"),
            ({"kind": "eventlet"}, "kind should be 'prefork', 'threads', 'gevent' or 'solo', not 'eventlet'"),
            ({"concurency": 2}, "unknown option 'concurency', did you mean 'concurrency'?"),
            ({"worker_args": "-E"}, "worker_args should be a list of texts"),
            ({"worker_args": ["--concurrency=3"]}, "worker_args holds '--concurrency=3', which is set by concurrency"),
            ({"worker_args": ["-B"]}, "start a scheduler with celery beat"),
            ({"scale_up_at": 10, "scale_down_at": 10}, "scale_down_at=10 should be less than scale_up_at=10"),
            ({"nice": 20}, "nice should be less than or equal to 19, not 20"),
        ],
    )
    def test_bad_options_are_refused_by_name(self, options, said):
        with pytest.raises(ConfigurationError) as caught:
            Pool(**options)
        assert said in str(caught.value)


def _nothing() -> None: ...


def test_the_documentation_has_every_option_of_a_pool_with_its_default_and_its_meaning():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", DOCS.read_text(), re.MULTILINE))
    for name, option in Pool.model_fields.items():
        default = "none" if option.default is None else "`[]`" if option.default == () else f"`{option.default}`"
        assert rows.get(name) == f"{default} | {option.description}"


class TestMachine:
    def test_the_limits_of_its_control_group_count(self, tmp_path: Path):
        group = tmp_path / "cgroup" / "system.slice" / "shop"
        group.mkdir(parents=True)
        (group / "cpu.max").write_text("50000 100000\n")
        (group.parent / "memory.max").write_text(f"{512 * 1024 * 1024}\n")
        (group / "memory.max").write_text("max\n")
        proc = tmp_path / "proc"
        (proc / "self").mkdir(parents=True)
        (proc / "self" / "cgroup").write_text("0::/system.slice/shop\n")
        (proc / "meminfo").write_text("MemTotal:       16000000 kB\n")
        assert machine(tmp_path / "cgroup", proc) == Machine(0.5, 512.0)

    def test_a_process_without_a_control_group_has_the_machines_limits(self, tmp_path: Path):
        (tmp_path / "meminfo").write_text("MemTotal:       2048 kB\n")
        found = machine(tmp_path / "none", tmp_path)
        assert found.memory_mb == 2.0
        assert found.cpus >= 1

    def test_a_machine_without_room_for_a_worker_says_what_it_lacks(self):
        here = Machine(cpus=4, memory_mb=1000)
        assert here.lacks(1, 100, used_cpus=3, used_mb=900) == ""
        assert here.lacks(1, None, used_cpus=4) == "a worker takes 1 cpu, and 0 of 4 are left"
        assert here.lacks(2, None, used_cpus=3) == "a worker takes 2 cpus, and 1 of 4 are left"
        assert "a worker takes 200 MB of memory, and 100 of 1000 MB are left" in here.lacks(None, 200, used_mb=900)
        assert here.lacks(None, None, used_cpus=99) == "", "a pool that says nothing is not counted"


class TestWaits:
    def test_the_oldest_message_was_sent_when_so_many_had_been_sent(self):
        waits = Waits()
        assert waits.oldest(0, 0, {"w": 0}) == 0
        assert waits.oldest(10, 100, {"w": 0}) == 0  # 100 came
        assert waits.oldest(20, 150, {"w": 50}) == 10  # 100 more; the first 50 are done
        assert waits.oldest(30, 50, {"w": 150}) == 10, "what is next came at 20"
        assert waits.oldest(35, 0, {"w": 200}) == 0

    def test_workers_that_come_and_go_do_not_confuse_it(self):
        waits = Waits()
        waits.oldest(0, 10, {"a": 1000})
        assert waits.oldest(5, 10, {"b": 0}) == 5
        assert waits.oldest(6, 4, {"b": 6}) == 6


def test_the_name_of_a_variable_that_a_script_sets_and_workers_read_is_the_same():
    assert child.CHILD == supervised.CHILD


class TestIdentity:
    def test_an_identity_survives_a_restart_and_is_not_shared(self, tmp_path: Path):
        first = identity(None, tmp_path, "shop")
        second = identity(None, tmp_path, "shop")
        assert first.name != second.name
        first.release()
        again = identity(None, tmp_path, "shop")
        assert again.name == first.name
        again.release()
        second.release()

    def test_a_given_name_is_taken_as_it_is(self, tmp_path: Path):
        assert identity("pod-7", tmp_path, "shop").name == "pod-7"

    def test_an_identity_without_a_directory_lasts_as_long_as_its_process(self, tmp_path: Path):
        (tmp_path / "file").touch()
        assert not identity(None, tmp_path / "file" / "below", "shop").lasting


class TestServe:
    @pytest.mark.parametrize(
        ("text", "address"),
        [
            ("8080", ("127.0.0.1", 8080)),
            (":80", ("127.0.0.1", 80)),
            ("0.0.0.0:1", ("0.0.0.0", 1)),
            ("[::1]:2", ("::1", 2)),
        ],
    )
    def test_figures_are_served_on_loopback_unless_a_host_is_named(self, text, address):
        assert address_of(text) == address

    @pytest.mark.parametrize("text", ["", "host", "host:", "host:http", "1:70000"])
    def test_a_bad_address_is_refused(self, text):
        with pytest.raises(BadCall, match="--serve takes HOST:PORT"):
            address_of(text)

    def test_a_server_without_figures_says_why(self):
        class Client:
            def desired(self):
                raise RuntimeError("the ledger does not answer")

        figures = Served(Client())  # type: ignore[arg-type]
        assert answer(figures, "/")[0] == 503
        figures.read()
        assert answer(figures, "/health") == (503, {"problem": "the ledger does not answer"})
