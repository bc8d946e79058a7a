"""How many workers a pool needs: as properties, and against known mistakes of other autoscalers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_orchestration.job.pool import Pool
from celery_orchestration.pools.decide import Figures, Ready, decide

pools = st.builds(
    lambda least, more, slots, target, quiet, up: Pool(
        min=least,
        max=max(1, least + more),
        concurrency=slots,
        target_wait_seconds=target,
        quiet_seconds=quiet,
        scale_up_at=up,
    ),
    st.integers(0, 5),
    st.integers(0, 20),
    st.integers(1, 16),
    st.floats(0.1, 100),
    st.floats(1, 300),
    st.none() | st.integers(1, 1000),
)
ready = st.lists(
    st.builds(
        Ready,
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 100_000),
        st.none() | st.floats(0, 1000),
        st.none() | st.integers(0, 50),
    ),
    max_size=3,
)
times = st.none() | st.floats(-1e6, 2e6)
figures = st.builds(
    Figures,
    pool=pools,
    now=st.floats(0, 1e6),
    wanted=st.none() | st.integers(0, 60),
    ready=ready,
    oldest_wait_seconds=st.floats(0, 1e5),
    busy_slots=st.integers(0, 500),
    workers=st.integers(0, 60),
    needed_at=times,
    changed_at=times,
    paused=st.booleans(),
    room=st.none() | st.integers(0, 500),
    in_new_epoch=st.booleans(),
)


#: Nothing may start, or it is unknown what may.
HELD_BACK = [{"paused": True}, {"in_new_epoch": True}, {"unknown": "the broker is silent"}]


class Run:
    """A pool over time, second by second, that always gets the decided number of workers."""

    def __init__(self, pool: Pool, **first):
        self.figures = Figures(pool, now=0.0, **first)
        self.sizes: list[int] = []

    def seconds(self, count: int, **figures) -> "Run":
        for _ in range(count):
            self.figures = replace(self.figures, now=self.figures.now + 1, **figures)
            found = decide(self.figures)
            changed = found.wanted != self.figures.wanted
            self.figures = replace(
                self.figures,
                wanted=found.wanted,
                workers=found.wanted,
                needed_at=found.needed_at,
                changed_at=self.figures.now if changed else self.figures.changed_at,
            )
            self.sizes.append(found.wanted)
        return self

    @property
    def size(self) -> int:
        return self.sizes[-1]


class TestAlways:
    @given(figures)
    def test_the_size_is_between_min_and_max_and_has_a_reason(self, given):
        found = decide(given)
        assert given.pool.min <= found.wanted <= given.pool.max
        assert found.reason
        assert given.pool.min <= found.needed <= given.pool.max

    @given(figures)
    def test_a_pool_shrinks_by_one_worker_at_a_time(self, given):
        if given.wanted is not None:
            assert decide(given).wanted >= min(given.wanted, given.pool.max) - 1

    @given(figures)
    def test_while_nobody_waits_no_worker_is_added(self, given):
        idle = replace(given, ready=())
        if idle.wanted is not None:
            assert decide(idle).wanted <= max(idle.wanted, idle.pool.min)

    @given(figures)
    def test_nothing_changes_while_everything_is_paused_or_a_new_epoch_is_closed(self, given):
        for held in (replace(given, paused=True), replace(given, in_new_epoch=True)):
            if held.wanted is not None and held.pool.min <= held.wanted <= held.pool.max:
                assert decide(held).wanted == held.wanted

    @given(figures, st.integers(1, 10_000))
    def test_more_work_never_means_fewer_workers(self, given, more):
        fuller = replace(given, ready=[*given.ready, Ready("more", more, 1.0)])
        assert decide(fuller).wanted >= decide(given).wanted

    @given(pools, st.integers(0, 200))
    def test_a_steady_load_does_not_start_and_stop_workers_in_turn(self, pool, busy):
        run = Run(pool).seconds(5, busy_slots=busy, ready=[Ready("a", 3, 0.1)])
        settled = run.size
        run.seconds(int(pool.quiet_seconds) * 2, busy_slots=busy)
        assert run.sizes[5:].count(settled) == len(run.sizes[5:])

    @given(pools)
    def test_a_pool_without_work_shrinks_to_min_one_worker_at_a_time(self, pool):
        run = Run(pool).seconds(1, ready=[Ready("a", 10**6, 10.0)])
        assert run.size == pool.max
        steps = pool.max - pool.min
        run.seconds(int(pool.quiet_seconds) + 2 + 6 * steps, ready=(), busy_slots=0)
        assert run.size == pool.min
        assert all(before - after <= 1 for before, after in zip(run.sizes, run.sizes[1:], strict=False))

    @given(pools.filter(lambda pool: pool.scale_up_at is None), st.integers(1, 10**5), st.floats(0.001, 60))
    def test_a_backlog_gets_at_once_what_it_needs_to_start_within_the_target(self, pool, runs, seconds):
        found = decide(Figures(pool, 0.0, wanted=pool.min, ready=[Ready("a", runs, seconds)]))
        slots = min(runs, runs * seconds / pool.target_wait_seconds)
        assert found.wanted == pool.max or found.wanted * pool.slots >= slots - 1e-6


class TestWhatOthersGetWrong:
    pool = Pool(min=1, max=8, concurrency=2)

    def test_a_pool_does_not_flap_while_nobody_waits(self):
        run = Run(self.pool, wanted=3)
        for second in range(300):
            run.seconds(1, busy_slots=(0, 3, 6, 2)[second % 4])
        assert set(run.sizes) == {3}

    def test_a_run_of_unknown_duration_starts_the_first_worker(self):
        found = decide(Figures(Pool(min=0, max=4), 0.0, wanted=0, ready=[Ready("new", 1, None)]))
        assert found.wanted == 1
        assert "1 ready run of unknown duration" in found.reason

    def test_runs_that_take_no_time_get_a_worker_too(self):
        assert decide(Figures(Pool(min=0, max=4), 0.0, wanted=0, ready=[Ready("quick", 1, 0.0)])).wanted == 1

    @pytest.mark.parametrize("held_back", HELD_BACK)
    def test_a_pool_does_not_grow_for_work_that_cannot_start(self, held_back):
        waits = Figures(self.pool, 0.0, wanted=2, ready=[Ready("a", 1000, 10.0)])
        assert (decide(waits).wanted, decide(replace(waits, **held_back)).wanted) == (8, 2)

    @pytest.mark.parametrize("held_back", HELD_BACK)
    def test_a_pool_does_not_shrink_while_its_work_is_unknown(self, held_back):
        idle = Figures(self.pool, 1e6, wanted=2, needed_at=0.0, changed_at=0.0)
        assert (decide(idle).wanted, decide(replace(idle, **held_back)).wanted) == (1, 2)

    def test_a_pool_without_durations_scales_by_queue_depth(self):
        wanted = [
            decide(Figures(self.pool, 0.0, wanted=1, ready=[Ready("new", runs, None)])).wanted
            for runs in (1, 20, 60, 1000)
        ]
        assert wanted == [1, 1, 3, 8]

    def test_slots_that_execute_short_runs_take_on_the_next_ones(self):
        alone = Pool(min=1, max=8, target_wait_seconds=1)
        short = Figures(alone, 0.0, wanted=1, busy_slots=1, ready=[Ready("quick", 7, 0.007)])
        assert decide(short).wanted == 2  # the run at work may be long
        assert decide(replace(short, soon_free_slots=0.99)).wanted == 1
        assert "need 1 slot" in decide(replace(short, soon_free_slots=0.99)).reason

    def test_a_new_pool_starts_at_min(self):
        assert decide(Figures(self.pool, 0.0)).wanted == 1

    def test_one_long_or_limited_job_does_not_force_max(self):
        long = Ready("nightly", 1, 3600.0)
        assert decide(Figures(self.pool, 0.0, wanted=1, ready=[long])).wanted == 1
        limited = Ready("one_at_a_time", 10_000, 60.0, room=1)
        assert decide(Figures(self.pool, 0.0, wanted=1, ready=[limited])).wanted == 1

    def test_runs_that_the_cap_over_all_jobs_holds_back_ask_for_no_worker(self):
        many = Figures(self.pool, 0.0, wanted=1, busy_slots=2, ready=[Ready("a", 1000, 60.0)])
        assert decide(many).wanted == 8
        found = decide(replace(many, room=3))
        assert (found.wanted, "orchestration_max_running lets 3 of them start" in found.reason) == (3, True)
        assert decide(replace(many, room=0, oldest_wait_seconds=100.0)).wanted == 1

    def test_a_pool_without_workers_gets_one_although_the_cap_over_all_jobs_is_reached(self):
        """Runs are handed over only where workers are: else it would never be its turn."""
        found = decide(Figures(Pool(min=0, max=4), 0.0, wanted=0, room=0, ready=[Ready("a", 9, 60.0)]))
        assert found.wanted == 1

    def test_long_jobs_do_not_prevent_scale_down(self):
        run = Run(self.pool, wanted=4).seconds(120, busy_slots=4)  # one in each worker
        assert run.size == 2

    def test_a_pool_never_has_fewer_workers_than_min(self):
        run = Run(Pool(min=3, max=4), wanted=0).seconds(1)
        assert run.size == 3
        assert run.seconds(500).size == 3

    def test_a_large_backlog_gets_max_workers_at_once(self):
        found = decide(Figures(self.pool, 0.0, wanted=1, ready=[Ready("a", 50_000, 0.005)]))
        assert found.wanted == 8  # at once

    def test_a_pool_grows_when_a_job_became_slower(self):
        """By the durations two workers are enough; the wait of the oldest run shows that they are not."""
        run = Run(self.pool, wanted=2)
        run.seconds(25, ready=[Ready("a", 10, 0.1)], busy_slots=4, oldest_wait_seconds=30.0)
        assert 3 <= run.size <= 5

    def test_max_counts_the_workers_of_all_hosts_together(self):
        many = Figures(Pool(min=1, max=4), 0.0, wanted=4, workers=4, ready=[Ready("a", 10**6, 1.0)])
        assert decide(many).wanted == 4

    @pytest.mark.parametrize(("depth", "workers"), [(0, 1), (1, 1), (100, 1), (101, 2), (5000, 8)])
    def test_a_pool_may_scale_by_queue_depth_alone(self, depth, workers):
        pool = Pool(min=1, max=8, scale_up_at=100, scale_down_at=10)
        assert decide(Figures(pool, 0.0, wanted=1, ready=[Ready("a", depth, 99.0)])).wanted == workers

    def test_a_pool_that_scales_by_depth_shrinks_when_little_is_left(self):
        pool = Pool(min=1, max=8, scale_up_at=100, scale_down_at=10, quiet_seconds=5)
        assert Run(pool, wanted=4).seconds(60, ready=[Ready("a", 40, None)]).size == 4
        assert Run(pool, wanted=4).seconds(6, ready=[Ready("a", 20, None)]).size == 3

    def test_a_lower_max_applies_at_once(self):
        assert decide(Figures(Pool(min=1, max=2), 0.0, wanted=6, paused=True)).wanted == 2
