"""The graph of jobs: relations that are refused at start, and the result of the others."""

from itertools import pairwise

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job.graph import Graph, cliques, conflicts, cycles, merge
from celery_orchestration.job.options import Dependency, JobOptions
from celery_orchestration.job.policy import Policy


def job(name, **options):
    return Policy.resolve(name, JobOptions(**{"max_running": 1, **options}))


def build(jobs, **names):
    return Graph.build({name: job(name, **options) for name, options in jobs.items()}, **names)


def refusal(jobs, **names):
    with pytest.raises(ConfigurationError) as caught:
        build(jobs, **names)
    return str(caught.value).splitlines()


NAMES = st.sampled_from([f"shop.{letter}" for letter in "abcdefgh"])
EDGES = st.dictionaries(NAMES, st.lists(NAMES, max_size=3), max_size=8)


def nodes(edges):
    return sorted(set(edges).union(*edges.values()))


class TestNames:
    def test_an_unknown_name_is_reported_with_the_nearest_one(self):
        said = refusal(
            {
                "shop.fetch": {"depends_on": ["shop.proces"]},
                "shop.clean": {"blocks": ["process"]},
                "shop.process": {},
            }
        )
        assert said == [
            "job 'shop.fetch': depends_on names an unknown job 'shop.proces', did you mean 'shop.process'?",
            "job 'shop.clean': blocks names an unknown job 'process', did you mean 'shop.process'?",
        ]

    def test_a_job_of_another_service_is_external_or_known_to_the_ledger(self):
        graph = build(
            {"shop.a": {"depends_on": [Dependency("bank.x", external=True), "bank.y"], "blocks": ["bank.y"]}},
            known=["bank.y"],
        )
        assert graph.dependencies["shop.a"] == ("bank.x", "bank.y")
        assert graph.dependents["bank.x"] == ("shop.a",)
        assert graph.conflicts["bank.y"] == ("shop.a",)
        assert graph.order() == ["shop.a"]

    def test_a_plain_task_cannot_be_waited_for(self):
        said = refusal({"shop.a": {"depends_on": ["shop.plain"]}}, plain=["shop.plain", "shop.a"])
        assert said == ["job 'shop.a': depends_on names 'shop.plain', a task without base=OrchestratedTask"]

    def test_names_are_shown_harmlessly(self):
        said = refusal({"shop.a": {"blocks": ["\x1b[31m\n", "x" * 1_000_000]}})
        assert len(said) == 2
        assert all(line.isprintable() and len(line) < 300 for line in said)

    def test_tasks_stand_for_their_names(self):
        app = Celery("shop", set_as_current=False)

        @app.task(name="shop.fetch", shared=False)
        def fetch(): ...

        assert build({"shop.fetch": {}, "shop.a": {"depends_on": [fetch], "blocks": [fetch]}}).order() == [
            "shop.fetch",
            "shop.a",
        ]

    def test_all_problems_are_named_together(self):
        said = refusal(
            {
                "shop.a": {"depends_on": ["shop.a", "shop.free", "zebra"], "blocks": ["shop.a"]},
                "shop.b": {"depends_on": ["shop.c"]},
                "shop.c": {"depends_on": ["shop.b"]},
                "shop.free": {"max_running": None},
            }
        )
        assert [line.partition(": ")[2][:28] for line in said] == [
            "depends_on names an unknown ",
            "depends_on names the job its",
            "blocks names the job itself:",
            "depends_on waits for the suc",
            "shop.b -> shop.c -> shop.b",
        ]

    def test_many_problems_of_a_kind_are_cut_short(self):
        said = refusal({"shop.a": {"blocks": [f"bank.{n}" for n in range(1000)]}})
        assert len(said) == 11
        assert said[-1] == "... and 990 more"


class TestDependencies:
    def test_a_job_cannot_depend_on_itself(self):
        (said,) = refusal({"shop.a": {"depends_on": ["shop.a"]}})
        assert said == "job 'shop.a': depends_on names the job itself"

    def test_a_job_that_blocks_itself_gets_a_hint_about_max_running(self):
        (said,) = refusal({"shop.a": {"blocks": ["shop.a"]}})
        assert said == "job 'shop.a': blocks names the job itself: write max_running=1 instead"

    @pytest.mark.parametrize("options", [{"max_running": None}, {"max_running": 1, "key": "{0}"}])
    def test_the_success_of_an_unbounded_job_cannot_be_waited_for(self, options):
        (said,) = refusal({"shop.a": {"depends_on": ["shop.free"]}, "shop.free": options})
        assert said.startswith("job 'shop.a': depends_on waits for the success of 'shop.free'")
        assert "max_running" in said
        assert "on='finish'" in said

    @pytest.mark.parametrize("on", ["finish", "idle"])
    def test_that_an_unbounded_job_ended_can_be_waited_for(self, on):
        waits = {"depends_on": [Dependency("shop.free", on=on)]}
        assert build({"shop.a": waits, "shop.free": {"max_running": None}}).order() == ["shop.free", "shop.a"]

    def test_depending_on_and_blocking_the_same_job_is_fine(self):
        assert build({"shop.a": {"depends_on": ["shop.b"], "blocks": ["shop.b"]}, "shop.b": {}})

    def test_a_cycle_is_named_whole(self):
        ring = {f"shop.{n}": {"depends_on": [f"shop.{(n + 1) % 3}"]} for n in range(3)}
        assert refusal(ring) == ["dependency cycle: shop.0 -> shop.1 -> shop.2 -> shop.0"]

    def test_each_knot_of_cycles_is_named_once(self):
        everyone = [f"shop.{n}" for n in range(5)]
        knot = {name: {"depends_on": [other for other in everyone if other != name]} for name in everyone}
        pair = {"bank.a": {"depends_on": ["bank.b", "shop.0"]}, "bank.b": {"depends_on": ["bank.a"]}}
        assert refusal(knot | pair) == [
            "dependency cycle: bank.a -> bank.b -> bank.a",
            "dependency cycle: shop.0 -> shop.1 -> shop.0",
        ]

    def test_ten_thousand_jobs_in_a_row_are_put_in_order(self):
        names = [f"shop.{n:05}" for n in range(10_000)]
        policies = {name: job(name, depends_on=[after]) for name, after in pairwise(names)}
        graph = Graph.build(policies | {names[-1]: job(names[-1])})
        assert graph.order() == names[::-1]

    def test_ten_thousand_jobs_in_a_ring_are_named_in_bounded_space(self):
        names = [f"shop.{n:05}" for n in range(10_000)]
        policies = {name: job(name, depends_on=[after]) for name, after in pairwise([*names, names[0]])}
        with pytest.raises(ConfigurationError, match=r"00000 -> shop.00001 -> .* more .* -> shop.00000$") as caught:
            Graph.build(policies)
        assert len(str(caught.value)) < 2000

    def test_ten_thousand_misspelt_names_are_reported(self):
        names = [f"shop.{n:05}" for n in range(10_000)]
        policies = {name: job(name, depends_on=[f"{name}x"]) for name in names}
        with pytest.raises(ConfigurationError, match="9990 more"):
            Graph.build(policies)

    @given(EDGES)
    def test_order_puts_every_dependency_first_or_a_cycle_is_named(self, edges):
        jobs = {name: {"depends_on": edges.get(name, [])} for name in nodes(edges)}
        documents = {name: job(name, **options).document() for name, options in jobs.items()}
        if found := cycles(documents):
            for cycle in found:
                assert cycle[0] == cycle[-1]
                assert all(name in edges[after] for after, name in pairwise(cycle))
            assert refusal(jobs)
        else:
            order = build(jobs).order()
            position = {name: place for place, name in enumerate(order)}
            assert sorted(order) == sorted(jobs)
            assert all(position[name] < position[after] for after, names in edges.items() for name in names)

    @given(EDGES, st.randoms())
    def test_order_does_not_hang_on_the_order_of_definition(self, edges, random):
        jobs = {name: {"depends_on": [d for d in edges.get(name, []) if d < name]} for name in nodes(edges)}
        shuffled = random.sample(list(jobs.items()), len(jobs))
        assert build(jobs).order() == build(dict(shuffled)).order()


class TestConflicts:
    def test_conflicts_hold_in_either_direction(self):
        graph = build({"shop.a": {"blocks": ["shop.b", "shop.c"]}, "shop.b": {}, "shop.c": {}, "shop.d": {}})
        assert graph.conflicts == {
            "shop.a": ("shop.b", "shop.c"),
            "shop.b": ("shop.a",),
            "shop.c": ("shop.a",),
            "shop.d": (),
        }

    @given(EDGES)
    def test_conflicts_are_symmetric_and_nothing_is_added(self, blocks):
        closed = conflicts(blocks)
        assert all(one in closed[other] for one, others in closed.items() for other in others)
        assert all(set(names) <= set(closed[name]) for name, names in blocks.items())
        assert all(
            other in blocks.get(one, ()) or one in blocks.get(other, ())
            for one, others in closed.items()
            for other in others
        )
        assert all(list(others) == sorted(set(others)) for others in closed.values())
        assert conflicts(closed) == closed

    def test_jobs_of_one_group_never_run_beside_each_other(self):
        graph = build(
            {"shop.a": {"exclusive": "reports", "blocks": ["shop.c"]}, "shop.b": {"exclusive": "reports"}, "shop.c": {}}
        )
        assert graph.never_beside("shop.a") == ("shop.b", "shop.c")
        assert graph.never_beside("shop.b") == ("shop.a",)
        assert graph.never_beside("shop.c") == ("shop.a",)

    def test_jobs_that_all_block_each_other_are_found(self):
        blocks = {"a": ["b", "c"], "b": ["c"], "c": [], "d": ["a"], "e": ["f"], "f": []}
        assert cliques(conflicts(blocks)) == [], "a has a conflict that b and c have not"
        assert cliques(conflicts({**blocks, "d": []})) == [{"a", "b", "c"}]

    @given(EDGES)
    def test_only_jobs_that_all_block_each_other_are_found(self, blocks):
        closed = conflicts({job: [one for one in names if one != job] for job, names in blocks.items()})
        for clique in cliques(closed):
            assert len(clique) >= 3
            assert all(clique <= {job, *closed[job]} for job in clique)


@st.composite
def documents(draw):
    capped = draw(st.booleans())
    return Policy.resolve(
        "shop.job",
        JobOptions(
            max_running=draw(st.integers(1, 3)) if capped else None,
            key=draw(st.sampled_from([None, "{0}"])) if capped else None,
            depends_on=[
                Dependency(name, on=on, max_age_seconds=age)
                for name, on, age in draw(
                    st.lists(
                        st.tuples(NAMES, st.sampled_from(["success", "finish"]), st.sampled_from([None, 1])),
                        max_size=3,
                    )
                )
            ],
            blocks=draw(st.lists(NAMES, max_size=3)),
            pool=draw(st.sampled_from(["default", "images"])),
            max_recoveries=draw(st.integers(0, 2)),
        ),
    ).document()


RELEASES = st.dictionaries(NAMES, documents(), max_size=3)


def strict(merged):
    parts = ("max_running", "keyed", "depends_on", "blocks")
    return {name: {part: document[part] for part in parts if part in document} for name, document in merged.items()}


class TestMerge:
    @given(RELEASES)
    def test_one_release_alone_holds_as_it_is(self, release):
        assert merge([release]) == release
        assert merge([release, release]) == release

    @given(RELEASES, RELEASES)
    def test_which_release_came_first_does_not_make_it_less_strict(self, one, other):
        assert strict(merge([one, other])) == strict(merge([other, one]))

    @given(RELEASES, RELEASES, RELEASES)
    def test_it_does_not_matter_how_releases_are_grouped(self, one, two, three):
        together = merge([one, two, three])
        assert merge([merge([one, two]), three]) == together
        assert merge([one, merge([two, three])]) == together

    @given(st.lists(RELEASES, min_size=1, max_size=4))
    def test_nothing_that_any_release_forbids_is_allowed(self, releases):
        merged = merge(releases)
        for release in releases:
            for name, document in release.items():
                held = merged[name]
                assert set(document["blocks"]) <= set(held["blocks"])
                assert all(dep in held["depends_on"] for dep in document["depends_on"])
                if document.get("max_running") is not None:
                    assert held["max_running"] <= document["max_running"]
                    assert document["keyed"] or not held["keyed"]

    @given(st.lists(RELEASES, min_size=1, max_size=4))
    def test_all_other_options_come_from_the_newest_release(self, releases):
        for name, held in merge(releases).items():
            newest = [release[name] for release in releases if name in release][-1]
            assert {**newest, **strict({name: held})[name]} == held

    def test_a_release_without_a_cap_does_not_widen_a_cap_per_key_to_the_whole_job(self):
        free, keyed = (job("shop.a", **options).document() for options in ({"max_running": None}, {"key": "{0}"}))
        assert merge([{"shop.a": free}, {"shop.a": keyed}])["shop.a"]["keyed"]

    def test_a_run_that_one_release_would_not_repeat_after_a_crash_is_not_repeated(self):
        again, never = ({"shop.a": job("shop.a", on_crash=written).document()} for written in ("requeue", "fail"))
        assert [merge(order)["shop.a"]["on_crash"] for order in ([again, never], [never, again])] == ["fail", "fail"]
        assert merge([again, again])["shop.a"]["on_crash"] == "requeue"

    def test_the_fewest_failures_that_disable_a_job_hold(self):
        many, few, never = (
            {"shop.a": job("shop.a", max_consecutive_failures=most).document()} for most in (9, 2, None)
        )
        for order in ([many, few, never], [never, few, many], [few, never]):
            assert merge(order)["shop.a"]["max_consecutive_failures"] == 2

    def test_no_release_is_changed_by_merging(self):
        old, new = ({"shop.a": job("shop.a", blocks=[name]).document()} for name in ("shop.b", "shop.c"))
        assert merge([old, new])["shop.a"]["blocks"] == ["shop.b", "shop.c"]
        assert (old["shop.a"]["blocks"], new["shop.a"]["blocks"]) == (["shop.b"], ["shop.c"])

    def test_a_cycle_that_two_releases_make_together_is_found(self):
        old = {"shop.a": job("shop.a", depends_on=["shop.b"]).document(), "shop.b": job("shop.b").document()}
        new = {"shop.a": job("shop.a").document(), "shop.b": job("shop.b", depends_on=["shop.a"]).document()}
        assert cycles(old) == cycles(new) == []
        assert cycles(merge([old, new])) == [["shop.a", "shop.b", "shop.a"]]
