"""Options and settings: accepted values, refusals, and the policy that they result in.

This file is long because it is a list: each test stands alone.
"""

import inspect
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.app.registry import TaskRegistry
from celery.exceptions import Reject, SoftTimeLimitExceeded
from celery.local import Proxy
from celery.schedules import crontab, schedule

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job.options import OPTIONS, Dependency, JobOptions, Priority, RecurringDefaults, read_options
from celery_orchestration.job.policy import Policy
from celery_orchestration.job.settings import Settings
from celery_orchestration.job.text import show, suggest

PROJECT = Path(__file__).parents[2]


def policy(celery=None, **options):
    return Policy.resolve("shop.job", read_options("shop.job", options), celery or {})


def refusal(**attributes):
    with pytest.raises(ConfigurationError) as caught:
        read_options("shop.job", attributes)
    return str(caught.value)


class TestOnCrash:
    """A task that only inherits runs as often as with Celery: once."""

    @pytest.mark.parametrize(
        ("celery", "options", "value", "source"),
        [
            ({}, {}, "fail", "default"),
            ({}, {"max_running": None}, "fail", "default"),
            ({"max_retries": 5, "time_limit": 9}, {}, "fail", "default"),
            ({}, {"on_crash": "fail"}, "fail", "written"),
            ({}, {"on_crash": "requeue"}, "requeue", "written"),
            ({}, {"pool": "default"}, "requeue", "default with options"),
            ({}, {"priority": "high"}, "requeue", "default with options"),
            ({}, {"depends_on": ["shop.other"]}, "requeue", "default with options"),
            ({}, {"max_recoveries": 1}, "requeue", "default with options"),
            ({}, {"interval_seconds": 60}, "requeue", "recurring default"),
            ({}, {"mode": "continuous"}, "requeue", "recurring default"),
            ({"acks_late": True}, {}, "requeue", "acks_late"),
            ({"acks_late": False}, {}, "fail", "default"),
            ({"acks_late": True}, {"on_crash": "fail"}, "fail", "written"),
            ({"on_crash": "requeue"}, {}, "requeue", "orchestration_on_crash"),
            ({"on_crash": "fail"}, {"interval_seconds": 60}, "fail", "orchestration_on_crash"),
            ({"on_crash": "fail", "acks_late": True}, {"pool": "images"}, "fail", "orchestration_on_crash"),
            ({"on_crash": "fail"}, {"on_crash": "requeue"}, "requeue", "written"),
            ({"reject_on_worker_lost": True}, {"on_crash": "fail"}, "requeue", "reject_on_worker_lost"),
            ({"reject_on_worker_lost": False}, {"max_running": 1}, "fail", "reject_on_worker_lost"),
            ({"reject_on_worker_lost": False, "retry_on_worker_lost": True}, {}, "requeue", "retry_on_worker_lost"),
        ],
    )
    def test_on_crash_follows_what_was_written_else_celerys_options(self, celery, options, value, source):
        found = policy(celery, **options)
        assert (found.on_crash, found.sources["on_crash"]) == (value, source)
        assert found.document()["on_crash"] == value


class TestPriority:
    @pytest.mark.parametrize("written", ["high", "HIGH", "High", Priority.HIGH])
    def test_is_read_from_a_name_in_any_case_or_a_priority(self, written):
        assert Priority.parse(written) is Priority.HIGH

    @pytest.mark.parametrize("written", [2, 0, True, 1.0, None, "", "9"])
    def test_other_values_are_no_priority(self, written):
        with pytest.raises(ValueError, match="low, normal, high, critical"):
            Priority.parse(written)

    def test_a_misspelt_priority_is_refused_with_the_right_one(self):
        with pytest.raises(ValueError, match="not 'hihg', did you mean 'high'"):
            Priority.parse("hihg")

    def test_ranks_from_0_to_3(self):
        assert [int(priority) for priority in Priority] == [0, 1, 2, 3]


class TestSuggestions:
    @pytest.mark.parametrize(
        ("word", "found"),
        [
            ("shop.proces_data", "shop.process_data"),
            ("process_data", "shop.process_data"),
            ("proces_data", "shop.process_data"),
            ("Process_Data", "shop.process_data"),
        ],
    )
    def test_a_short_or_misspelt_name_finds_the_full_one(self, word, found):
        assert suggest(word, ["shop.fetch", "shop.process_data"]) == f", did you mean '{found}'?"

    @pytest.mark.parametrize("word", ["zebra", "", "x" * 1_000_000])
    def test_nothing_is_suggested_when_nothing_is_close(self, word):
        assert suggest(word, ["shop.fetch", "shop.process_data"]) == ""

    @pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred", "\x00", "\u202egnp.exe", "x" * 1_000_000])
    def test_any_name_is_shown_harmlessly(self, name):
        assert show(name).isprintable()
        assert len(show(name)) < 200


class TestDependency:
    def test_takes_the_job_first_and_defaults_to_success(self):
        dependency = Dependency("shop.fetch")
        assert (dependency.name, dependency.on, dependency.max_age_seconds) == ("shop.fetch", "success", None)
        assert not dependency.fresh
        assert not dependency.external

    @pytest.mark.parametrize("condition", [{"max_age_seconds": 5}, {"fresh": True}])
    def test_idle_goes_with_no_condition_on_a_past_run(self, condition):
        assert Dependency("shop.fetch", on="finish", **condition)
        with pytest.raises(ConfigurationError, match=r"'shop.fetch': on='idle' ignores past runs"):
            Dependency("shop.fetch", on="idle", **condition)

    @pytest.mark.parametrize(
        ("written", "message"),
        [
            ({"on": "idl"}, "on should be 'success', 'finish' or 'idle', not 'idl', did you mean 'idle'?"),
            ({"max_age_seconds": 0}, "max_age_seconds should be greater than 0, not 0"),
            ({"max_age": 5}, "unknown option 'max_age', did you mean 'max_age_seconds'?"),
            ({"fresh": "yes"}, "fresh should be a valid boolean, not 'yes'"),
        ],
    )
    def test_a_wrong_dependency_is_refused_in_one_line(self, written, message):
        with pytest.raises(ConfigurationError) as caught:
            Dependency("shop.fetch", **written)
        assert str(caught.value) == f"Dependency on 'shop.fetch': {message}"

    @pytest.mark.parametrize("job", [None, "", 5, SimpleNamespace(name=None)])
    def test_needs_a_job(self, job):
        with pytest.raises(ConfigurationError, match="job should name a job by its task or its full name"):
            Dependency(job)


class TestTasksAsNames:
    def test_a_lazy_task_is_not_evaluated_until_its_name_is_asked_for(self):
        app = Celery("shop", set_as_current=False)

        @app.task(name="shop.fetch", shared=False)
        def fetch(): ...

        waits = policy(depends_on=[fetch], blocks=[fetch])
        assert not fetch.__evaluated__()
        assert not app.finalized
        assert waits.depends_on[0].name == "shop.fetch"
        assert waits.blocked == ("shop.fetch",)

    def test_a_wrong_use_of_a_lazy_task_is_refused_without_evaluating_it(self):
        app = Celery("shop", set_as_current=False)

        @app.task(name="shop.fetch", shared=False)
        def fetch(): ...

        assert "depends_on should be a list of jobs" in refusal(depends_on=fetch)
        assert not fetch.__evaluated__()

    def test_a_shared_task_is_looked_up_when_its_name_is_asked_for(self):
        registry = {}
        waits = policy(depends_on=[Dependency(Proxy(lambda: registry["shared"]), on="idle")])
        registry["shared"] = SimpleNamespace(name="shop.shared")
        assert waits.depends_on[0].name == "shop.shared"

    @pytest.mark.parametrize("proxied", [object, lambda: TaskRegistry()["shop.elsewhere"]])
    def test_an_object_that_is_no_task_in_the_end_is_explained(self, proxied):
        waits = policy(blocks=[Proxy(proxied)])
        with pytest.raises(ConfigurationError, match="write the job's full name"):
            _ = waits.blocked

    def test_a_bound_task_is_kept_by_its_name(self):
        assert policy(blocks=[SimpleNamespace(name="shop.fetch")]).blocks == ("shop.fetch",)


class TestOptions:
    def test_nothing_written_is_nothing_changed(self):
        plain = policy()
        assert plain.celery_options() == {}
        assert not plain.recurring
        assert not plain.routed
        assert plain.mode == "triggered"
        assert plain.max_running is None
        assert plain.timeout_seconds is None
        assert set(plain.sources.values()) == {"default"}

    @pytest.mark.parametrize("cadence", [{"interval_seconds": 60}, {"schedule": crontab()}])
    def test_a_recurring_job_gets_the_recurring_defaults(self, cadence):
        recurring = policy(**cadence)
        assert recurring.recurring
        assert (recurring.mode, recurring.timeout_seconds, recurring.max_running) == ("scheduled", 60, 1)
        assert recurring.sources["max_running"] == "recurring default"
        assert recurring.sources[next(iter(cadence))] == "written"
        assert recurring.sources["pool"] == "default"

    def test_a_written_option_wins_even_when_it_is_none(self):
        recurring = policy(interval_seconds=60, max_running=None, timeout_seconds=None)
        assert (recurring.max_running, recurring.timeout_seconds) == (None, None)
        assert recurring.sources["max_running"] == "written"
        assert "time_limit" not in recurring.celery_options()

    def test_a_job_of_an_exclusive_group_runs_once_at_a_time_unless_written_otherwise(self):
        assert policy(exclusive="reports").max_running == 1
        assert policy(exclusive="reports").sources["max_running"] == "exclusive"
        assert policy(exclusive="reports", key="{tenant}").max_running == 1
        assert policy(exclusive="reports", max_running=3).max_running == 3
        assert policy(exclusive="reports", interval_seconds=60).sources["max_running"] == "recurring default"

    def test_none_undoes_what_a_base_class_wrote(self):
        undone = policy(interval_seconds=None, pool=None, mode=None, priority=None, depends_on=None)
        assert undone.celery_options() == {}
        assert not undone.recurring
        assert not undone.routed
        assert (undone.pool, undone.mode) == ("default", "triggered")

    def test_a_crontab_may_be_written_as_text(self):
        assert policy(schedule="*/5 3 * 6 mon").schedule == crontab("*/5", "3", "mon", "*", "6")

    def test_a_recurring_job_may_cool_down(self):
        assert policy(interval_seconds=5, cool_down_seconds=60).max_consecutive_failures == 5

    @pytest.mark.parametrize("written", [crontab(minute=5), schedule(5), timedelta(seconds=5), 5, 0.5])
    def test_any_celery_schedule_is_taken_as_it_is(self, written):
        assert policy(schedule=written).schedule is written

    @pytest.mark.parametrize(
        ("attribute", "option"),
        [
            ("depend_on", "depends_on"),
            ("dependson", "depends_on"),
            ("interval_second", "interval_seconds"),
            ("time_out_seconds", "timeout_seconds"),
            ("priorty", "priority"),
            ("block", "blocks"),
            ("max_runing", "max_running"),
            ("cooldown_seconds", "cool_down_seconds"),
            ("schedul", "schedule"),
        ],
    )
    def test_a_misspelt_option_is_named_with_the_right_one(self, attribute, option):
        message = f"job 'shop.job': unknown option '{attribute}', did you mean '{option}'?"
        assert refusal(**{attribute: 5}) == message

    @pytest.mark.parametrize(
        "attributes",
        [
            {"model": "shop.Order", "keys": ["a"], "lock": "x", "locks": 1, "node": 1, "models": []},
            {"timeout": 30, "interval": 5, "queue": "x", "unique_on": [], "ignore_result": True},
            {"autoretry_for": (Exception,), "retry_backoff": True, "rate_limit": "1/s", "max_retries": 5},
            {"_depend_on": 1, "__depend_on__": 1},
            {"schedules": lambda self: None, "blocked": property(lambda self: None)},
            {"schedule": lambda self: None, "pool": property(lambda self: None), "mode": classmethod(print)},
            {"priority": 5},
            {"priority": None},
        ],
    )
    def test_attributes_of_the_users_own_are_left_alone(self, attributes):
        assert read_options("shop.job", attributes).model_fields_set == set()

    @pytest.mark.parametrize(
        ("attributes", "message"),
        [
            ({"interval_seconds": -1}, "interval_seconds should be greater than 0, not -1"),
            ({"interval_seconds": 0}, "interval_seconds should be greater than 0, not 0"),
            ({"interval_seconds": "60"}, "interval_seconds should be a valid number, not '60'"),
            ({"interval_seconds": True}, "interval_seconds should be a valid number, not True"),
            ({"interval_seconds": 1e10}, "interval_seconds should be less than or equal to"),
            ({"interval_seconds": float("nan")}, "interval_seconds should be"),
            ({"timeout_seconds": 0}, "timeout_seconds should be greater than 0"),
            ({"timeout_seconds": float("inf")}, "timeout_seconds should be less than"),
            ({"schedule": crontab}, "schedule should be a Celery schedule such as crontab(...)"),
            ({"schedule": "hourly"}, "schedule should be a crontab such as '*/5 * * * *', not 'hourly'"),
            ({"schedule": "61 * * * *"}, "schedule should be a crontab such as '*/5 * * * *', not '61 * * * *'"),
            ({"cool_down_seconds": 60}, "cool_down_seconds needs max_consecutive_failures"),
            ({"cool_down_seconds": 60, "interval_seconds": 5, "max_consecutive_failures": None}, "cool_down"),
            ({"schedule": timedelta(0)}, "a timedelta above zero"),
            ({"schedule": 0}, "a number of seconds above zero"),
            ({"schedule": float("nan")}, "a number of seconds above zero"),
            ({"mode": "schedule"}, "mode should be 'scheduled', 'triggered' or 'continuous'"),
            ({"mode": "schedule"}, "did you mean 'scheduled'?"),
            ({"priority": "hihg"}, "priority should be one of low, normal, high, critical"),
            ({"priority": True}, "priority should be one of"),
            ({"pool": ""}, "pool should be made of letters, digits, '-' and '_', not ''"),
            ({"pool": "a.b"}, "pool should be made of"),
            ({"pool": "a\n"}, "pool should be made of"),
            ({"pool": "bilder-für"}, "pool should be made of"),
            ({"depends_on": "shop.fetch"}, "depends_on should be a list of jobs"),
            ({"depends_on": SimpleNamespace(name="shop.fetch")}, "depends_on should be a list of jobs"),
            ({"depends_on": Dependency("shop.fetch")}, "depends_on should be a list of jobs"),
            ({"depends_on": [5]}, "depends_on should name a job by its task or its full name, not 5"),
            ({"blocks": "shop.fetch"}, "blocks should be a list of jobs"),
            ({"blocks": [Dependency("shop.fetch")]}, "blocks should be a list of jobs"),
            ({"blocks": [""]}, "blocks should name a job"),
            ({"exclusive": ["reports"]}, "exclusive should be the name of a group"),
            ({"exclusive": ""}, "exclusive should be the name of a group"),
            ({"max_running": 0}, "max_running should be greater than or equal to 1, not 0"),
            ({"max_running": 1.0}, "max_running should be a valid integer, not 1.0"),
            ({"on_crash": "requeu"}, "should be 'requeue' or 'fail', not 'requeu', did you mean 'requeue'?"),
            ({"max_recoveries": -1}, "max_recoveries should be greater than or equal to 0, not -1"),
            ({"interval_seconds": 5, "schedule": crontab()}, "interval_seconds and schedule exclude"),
            ({"mode": "scheduled"}, "mode='scheduled' needs interval_seconds or schedule"),
            ({"mode": "triggered", "interval_seconds": 5}, "drop interval_seconds or the mode"),
            ({"mode": "triggered", "schedule": crontab()}, "drop schedule or the mode"),
            ({"mode": "continuous", "interval_seconds": -1}, "interval_seconds should be at least 0, not -1"),
            ({"overlap": "skipp"}, "overlap should be 'skip', 'queue' or 'allow', not 'skipp', did you mean 'skip'?"),
            ({"overlap": True}, "overlap should be 'skip', 'queue' or 'allow', not True"),
            ({"catch_up": "all"}, "catch_up should be 'latest' or 'none', not 'all'"),
            ({"catch_up_seconds": 0}, "catch_up_seconds should be greater than 0, not 0"),
            ({"catch_up_seconds": "60"}, "catch_up_seconds should be a valid number, not '60'"),
            ({"key": "{0}"}, "key needs max_running"),
            ({"key": "{0}", "interval_seconds": 5, "max_running": None}, "key needs max_running"),
            ({"timeout_seconds": 5, "time_limit": 9}, "timeout_seconds and time_limit exclude each other"),
            ({"timeout_seconds": 5, "soft_time_limit": 9}, "timeout_seconds and soft_time_limit exclude"),
        ],
    )
    def test_a_bad_value_is_refused_with_job_option_and_what_is_accepted(self, attributes, message):
        said = refusal(**attributes)
        assert said.startswith("job 'shop.job': ")
        assert message in said
        assert "\n" not in said

    def test_several_mistakes_are_named_together_one_a_line(self):
        said = refusal(max_running=0, pool="a b", on_crash="x").splitlines()
        assert [line.split()[2] for line in said] == ["pool", "max_running", "on_crash"]

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("mode", "scheduled"),
            ("mode", "continuous"),
            *(("overlap", value) for value in ("skip", "queue", "allow")),
            *(("catch_up", value) for value in ("latest", "none")),
            ("catch_up_seconds", 0.5),
        ],
    )
    def test_how_a_recurring_job_fires_may_be_written(self, option, value):
        written = policy(**{option: value, "interval_seconds": 60})
        assert getattr(written, option) == value
        assert written.sources[option] == "written"

    def test_a_recurring_job_skips_and_catches_up_within_an_hour_by_default(self):
        recurring = policy(interval_seconds=60)
        assert (recurring.overlap, recurring.catch_up, recurring.catch_up_seconds) == ("skip", "latest", 3600)

    def test_a_recurring_default_accepts_what_the_option_accepts(self):
        for option, field in RecurringDefaults.model_fields.items():
            if option in OPTIONS:
                assert field.annotation == JobOptions.model_fields[option].annotation

    @pytest.mark.parametrize("option", OPTIONS)
    def test_every_option_is_documented_in_a_table(self, option):
        pages = [PROJECT / "README.md", *(PROJECT / "docs").glob("*.md")]
        rows = [line for page in pages for line in page.read_text().splitlines() if line.startswith("|")]
        assert any(f"`{option}`" in row.split("|")[1] for row in rows)

    def test_where_every_value_comes_from_is_known(self):
        assert set(policy(interval_seconds=5).sources) == set(OPTIONS)

    def test_a_continuous_job_may_have_no_pause(self):
        for pause in ({}, {"interval_seconds": 0}, {"interval_seconds": 2.5}):
            continuous = policy(mode="continuous", **pause)
            assert continuous.recurring
            assert (continuous.max_running, continuous.timeout_seconds) == (1, 60)


class TestRouting:
    @pytest.mark.parametrize(
        ("written", "routed"),
        [
            ({}, False),
            ({"priority": "HIGH"}, True),
            ({"priority": Priority.NORMAL}, True),
            ({"pool": "images"}, True),
            ({"priority": 5}, False),
            ({"interval_seconds": 5}, False),
        ],
    )
    def test_a_job_leaves_its_queue_only_when_that_was_written(self, written, routed):
        assert policy(**written).routed is routed


class TestCeleryOptions:
    def test_a_recurring_job_is_retried_but_keeps_reject_and_timeout(self):
        assert policy(interval_seconds=60).celery_options() == {
            "autoretry_for": (Exception,),
            "max_retries": 3,
            "retry_backoff": True,
            "retry_jitter": True,
            "dont_autoretry_for": (Reject, SoftTimeLimitExceeded),
            "soft_time_limit": 60,
            "time_limit": 70,
        }

    @pytest.mark.parametrize("limit", ["time_limit", "soft_time_limit"])
    def test_written_limits_are_left_alone(self, limit):
        limited = policy({limit: 5}, interval_seconds=60)
        assert limited.timeout_seconds is None
        assert not {"time_limit", "soft_time_limit"} & limited.celery_options().keys()

    def test_a_timeout_is_a_soft_limit_with_a_hard_one_ten_seconds_later(self):
        assert policy(timeout_seconds=30).celery_options() == {"soft_time_limit": 30, "time_limit": 40}
        assert policy(timeout_seconds=0.5).celery_options() == {"soft_time_limit": 0.5, "time_limit": 10.5}

    @pytest.mark.parametrize(
        ("autoretry_for", "exempt"),
        [
            ((), ()),
            ((OSError,), ()),
            ((Exception,), (Reject, SoftTimeLimitExceeded)),
            ((Exception, SoftTimeLimitExceeded), (Reject,)),
            ((SoftTimeLimitExceeded,), ()),
            ((Reject,), (Reject,)),
        ],
    )
    def test_written_retries_win_and_still_keep_reject_and_timeout(self, autoretry_for, exempt):
        options = policy({"autoretry_for": autoretry_for}, interval_seconds=60).celery_options()
        assert "autoretry_for" not in options
        assert options.get("dont_autoretry_for", ()) == exempt

    def test_written_exemptions_are_kept(self):
        written = {"dont_autoretry_for": (OSError, Reject)}
        options = policy(written, interval_seconds=60).celery_options()
        assert options["dont_autoretry_for"] == (OSError, Reject, SoftTimeLimitExceeded)

    @pytest.mark.parametrize("name", ["max_retries", "retry_backoff", "retry_jitter"])
    def test_each_written_retry_option_wins_alone(self, name):
        options = policy({name: None}, interval_seconds=60).celery_options()
        assert name not in options
        assert options["autoretry_for"] == (Exception,)

    @pytest.mark.parametrize("written", [{"default_retry_delay": 5}, {"retry_kwargs": {"countdown": 5}}])
    def test_the_default_backoff_does_not_replace_a_written_delay(self, written):
        assert "retry_backoff" not in policy(written, interval_seconds=60).celery_options()

    def test_retries_of_other_jobs_stay_celerys(self):
        assert policy({"autoretry_for": (Exception,)}, max_running=1).celery_options() == {}

    def test_a_timeout_asked_of_us_is_final_for_other_jobs_too(self):
        options = policy({"autoretry_for": (Exception,)}, timeout_seconds=5).celery_options()
        assert options["dont_autoretry_for"] == (SoftTimeLimitExceeded,)


def served(tenant_id, page=1, *rest, **more): ...


class TestRoomKey:
    @pytest.mark.parametrize(
        ("template", "args", "kwargs", "key"),
        [
            ("{tenant_id}", (7,), {}, "7"),
            ("{tenant_id}", (), {"tenant_id": 7}, "7"),
            ("{0}", (), {"tenant_id": 7}, "7"),
            ("t-{tenant_id}/{page}", (7,), {}, "t-7/1"),
            ("{2}", (7, 2, "x"), {}, "x"),
            ("{region}", (7,), {"region": "eu"}, "eu"),
            ("{{{tenant_id}}}", (7,), {}, "{7}"),
        ],
    )
    def test_an_argument_counts_the_same_however_it_is_passed(self, template, args, kwargs, key):
        keyed = policy(key=template, max_running=1)
        assert keyed.room_key(args, kwargs, inspect.signature(served)) == key

    def test_works_without_a_signature(self):
        assert policy(key="{0}:{page}", max_running=1).room_key((7,), {"page": 2}) == "7:2"

    @pytest.mark.parametrize("key", [lambda tenant_id: tenant_id, staticmethod(str)])
    def test_a_callable_gets_the_calls_arguments(self, key):
        assert policy(key=key, max_running=1).room_key((7,), {}) == "7"

    def test_without_a_key_all_calls_share_one_room(self):
        assert policy(max_running=1).room_key((7,), {}) == ""

    @pytest.mark.parametrize(
        "template",
        [
            "{x.__class__}",
            "{x[0]}",
            "{x!r}",
            "{x:>9}",
            "{x:{y}}",
            "{}",
            "{",
            "}",
            "tenant_id",
            "",
            "{0.real}",
            5,
        ],
    )
    def test_only_plain_fields_are_taken_in_a_template(self, template):
        assert "key should be a template like '{tenant_id}'" in refusal(key=template, max_running=1)

    @pytest.mark.parametrize(
        ("key", "args"),
        [("{tenant}", (7,)), ("{9}", (7,)), ("{tenant_id}", ()), (lambda: "x", (7,)), (lambda x: None, (7,))],
    )
    def test_a_call_that_does_not_fit_is_an_error_that_names_the_job(self, key, args):
        keyed = policy(key=key, max_running=1)
        with pytest.raises(ValueError, match=r"job 'shop.job': key .* does not fit the call"):
            keyed.room_key(args, {}, inspect.signature(served))


class TestDocument:
    def test_holds_what_the_ledger_needs(self):
        written = policy(
            interval_seconds=60,
            key="{0}",
            priority="critical",
            pool="images",
            depends_on=["shop.b", Dependency("shop.a", on="finish", max_age_seconds=1.5, fresh=True)],
            blocks=["shop.z", "shop.y", "shop.z"],
            exclusive="reports",
            on_crash="fail",
            max_recoveries=0,
            cool_down_seconds=2.5,
            when_disabled="drop",
        )
        assert written.document() == {
            "max_running": 1,
            "keyed": True,
            "depends_on": [
                {"job": "shop.a", "on": "finish", "max_age_seconds": 1.5, "fresh": True},
                {"job": "shop.b", "on": "success", "max_age_seconds": None, "fresh": False},
            ],
            "blocks": ["shop.y", "shop.z"],
            "exclusive": ["reports"],
            "on_crash": "fail",
            "max_recoveries": 0,
            "max_consecutive_failures": 5,
            "cool_down_seconds": 2.5,
            "when_disabled": "drop",
            "priority": 3,
            "pool": "images",
            "recurring": True,
        }

    def test_is_the_same_whatever_order_things_were_written_in(self):
        jobs = ["shop.a", "shop.b", Dependency("shop.a", on="idle"), Dependency("shop.a", max_age_seconds=1)]
        one = policy(depends_on=jobs, blocks=["shop.c", "shop.d"]).document()
        assert one == policy(depends_on=[*jobs[::-1], "shop.a"], blocks=["shop.d", "shop.c"]).document()


class TestRecurringDefaults:
    """``orchestration_recurring_defaults``."""

    def test_recurring_defaults_say_where_values_come_from(self):
        found = policy({"recurring_defaults": {"timeout_seconds": None, "max_retries": 9}}, interval_seconds=60)
        assert found.sources["timeout_seconds"] == "orchestration_recurring_defaults"
        assert found.sources["max_running"] == "recurring default"
        assert found.source_of_celery_option("max_retries") == "orchestration_recurring_defaults"
        assert found.source_of_celery_option("autoretry_for") == "recurring default"
        assert found.source_of_celery_option("rate_limit") is None
        written = policy({"recurring_defaults": {"timeout_seconds": None}}, interval_seconds=60, timeout_seconds=5)
        assert (written.timeout_seconds, written.sources["timeout_seconds"]) == (5, "written")

    def test_a_recurring_default_of_on_crash_wins_over_the_default_of_all_jobs(self):
        app = {"on_crash": "requeue", "recurring_defaults": {"on_crash": "fail"}}
        assert policy(app, interval_seconds=60).on_crash == "fail"
        assert policy(app, interval_seconds=60).sources["on_crash"] == "orchestration_recurring_defaults"
        assert policy(app).on_crash == "requeue"
        assert policy(app, interval_seconds=60, on_crash="requeue").on_crash == "requeue"

    def test_recurring_defaults_must_fit_the_written_options(self):
        with pytest.raises(ConfigurationError, match=r"job 'shop.job': key needs max_running"):
            policy({"recurring_defaults": {"max_running": None}}, interval_seconds=60, key="{0}")

    def test_defaults_in_force_are_the_options_that_nobody_wrote(self):
        assert policy(interval_seconds=60).defaults_in_force() == {
            "timeout_seconds": 60,
            "max_running": 1,
            "max_consecutive_failures": 5,
            "on_crash": "requeue",
            "autoretry_for": (Exception,),
            "max_retries": 3,
            "retry_backoff": True,
            "retry_jitter": True,
        }
        written = {"timeout_seconds": 5, "max_running": 1, "max_consecutive_failures": None, "on_crash": "fail"}
        celerys = {"autoretry_for": (), "max_retries": 0, "retry_backoff": False}
        found = policy({**celerys, "recurring_defaults": {"retry_jitter": False}}, interval_seconds=60, **written)
        assert found.defaults_in_force() == {}
        assert policy(max_running=1).defaults_in_force() == {}
        assert policy(exclusive="a").defaults_in_force() == {}

    @pytest.mark.parametrize(
        ("value", "problem"),
        [
            (60, "should be a mapping such as {'timeout_seconds': None}, not 60"),
            ({"timeout_second": 5}, "is wrong: unknown option 'timeout_second', did you mean 'timeout_seconds'?"),
            ({"timeout_seconds": -1}, "is wrong: timeout_seconds should be greater than 0, not -1"),
            ({"on_crash": "fial"}, "is wrong: on_crash should be 'requeue' or 'fail', not 'fial', did you mean 'fail'"),
            ({"autoretry_for": "Exception"}, "is wrong: autoretry_for should be a tuple of exception classes"),
            ({"autoretry_for": [Exception, 5]}, "is wrong: autoretry_for should be a tuple of exception classes"),
            ({"max_retries": "3"}, "is wrong: max_retries should be a valid integer, not '3'"),
        ],
    )
    def test_wrong_recurring_defaults_are_refused(self, value, problem):
        with pytest.raises(ConfigurationError) as caught:
            Settings.read({"orchestration_recurring_defaults": value}, {}, "shop")
        assert str(caught.value).startswith(f"orchestration_recurring_defaults {problem}")


class TestSettings:
    def test_settings_have_defaults(self):
        settings = Settings.read({"broker_url": "redis://", "task_routes": {}}, {}, "shop")
        assert settings == Settings(namespace="shop")
        assert (settings.mode, settings.lease_seconds, settings.sweep_seconds) == ("enforce", 30, 5)
        assert (settings.redis_url, settings.max_running, settings.strict_priority) == (None, None, False)
        assert (settings.drain_seconds, settings.term_seconds) == (None, 10)

    @pytest.mark.parametrize(
        ("main", "namespace"),
        [
            ("shop", "shop"),
            (None, "celery"),
            ("__main__", "celery"),
            ("", "celery"),
            ("my {shop}\n", "my__shop__"),
        ],
    )
    def test_the_namespace_is_the_apps_name(self, main, namespace):
        assert Settings.read({}, {}, main).namespace == namespace
        assert Settings.read({"orchestration_namespace": "x"}, {}, main).namespace == "x"

    def test_the_environment_wins(self):
        conf = {"orchestration_mode": "observe", "orchestration_redis_url": "redis://conf"}
        env = {"CELERY_ORCHESTRATION_MODE": "off", "CELERY_ORCHESTRATION_REDIS_URL": "redis://env"}
        settings = Settings.read(conf, env, "shop")
        assert (settings.mode, settings.redis_url) == ("off", "redis://env")
        assert Settings.read(conf, {"CELERY_ORCHESTRATION_MODE": ""}, "shop").mode == "observe"

    def test_settings_are_read_from_the_apps_configuration(self):
        app = Celery("shop", set_as_current=False)
        app.conf.orchestration_mode = "observe"
        app.conf.orchestration_max_running = None
        assert Settings.read(app.conf, {}, app.main) == Settings(mode="observe", namespace="shop")

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            (
                "mode",
                "observ",
                "orchestration_mode should be 'enforce', 'observe' or 'off', not 'observ', did",
            ),
            (
                "lease_second",
                5,
                "unknown setting 'orchestration_lease_second', did you mean 'orchestration_l",
            ),
            ("zebra", 5, "unknown setting 'orchestration_zebra'"),
            ("lease_seconds", 2, "orchestration_lease_seconds should be greater than or equal to 3, not 2"),
            ("sweep_seconds", 0, "orchestration_sweep_seconds should be greater than 0"),
            ("max_running", 0, "orchestration_max_running should be greater than or equal to 1"),
            ("strict_priority", "yes", "orchestration_strict_priority should be a valid boolean, not 'yes'"),
            ("namespace", "", "orchestration_namespace should be"),
            ("namespace", "a b", "orchestration_namespace should be"),
            ("namespace", "{a}", "orchestration_namespace should be"),
            ("namespace", "a\x00", "orchestration_namespace should be"),
            ("namespace", "a\u202e", "orchestration_namespace should be"),
            ("redis_url", "", "orchestration_redis_url should"),
            ("drain_seconds", -1, "orchestration_drain_seconds should be greater than or equal to 0, not -1"),
            ("drain_seconds", "30", "orchestration_drain_seconds should be a valid number, not '30'"),
            ("term_seconds", 0.5, "orchestration_term_seconds should be greater than or equal to 1, not 0.5"),
            ("term_seconds", 7200, "orchestration_term_seconds should be less than or equal to 3600, not 7200"),
            ("term_seconds", "10", "orchestration_term_seconds should be a valid number, not '10'"),
            ("history", -1, "orchestration_history should be greater than or equal to 0, not -1"),
            ("pools", [], "orchestration_pools should be a table such as {'images': Pool(min=1, max=4)}, not []"),
            ("pools", {"a b": {}}, "orchestration_pools of pool 'a b': should be made of letters, digits"),
            ("pools", {"a": 3}, "orchestration_pools of pool 'a': should be a Pool(...) or its options as a mapping"),
            ("pools", {"a": {"mim": 1}}, "orchestration_pools of pool 'a': unknown option 'mim', did you mean 'min'?"),
            ("pools", {"a": {"min": 3, "max": 2}}, "orchestration_pools of pool 'a': min=3 is more than max=2"),
        ],
    )
    def test_a_bad_setting_is_refused_by_its_full_name(self, name, value, message):
        with pytest.raises(ConfigurationError) as caught:
            Settings.read({f"orchestration_{name}": value}, {}, "shop")
        assert str(caught.value).startswith(message)

    def test_the_environment_says_how_long_a_worker_may_drain(self):
        env = {"CELERY_ORCHESTRATION_DRAIN_SECONDS": "12.5"}
        assert Settings.read({"orchestration_drain_seconds": 3}, env, "shop").drain_seconds == 12.5
        with pytest.raises(ConfigurationError, match=r"^CELERY_ORCHESTRATION_DRAIN_SECONDS should be a valid number"):
            Settings.read({}, {"CELERY_ORCHESTRATION_DRAIN_SECONDS": "long"}, "shop")

    def test_a_bad_value_of_the_environment_is_refused_by_the_variables_name(self):
        with pytest.raises(ConfigurationError, match=r"^CELERY_ORCHESTRATION_MODE should be"):
            Settings.read({}, {"CELERY_ORCHESTRATION_MODE": "of"}, "shop")

    def test_the_password_in_a_url_is_never_shown(self):
        assert "secret" not in repr(Settings(redis_url="redis://:secret@host"))
        with pytest.raises(ConfigurationError) as caught:
            Settings.read({"orchestration_redis_url": ["redis://:secret@host"]}, {}, "shop")
        assert "secret" not in str(caught.value)
