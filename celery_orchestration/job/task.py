"""OrchestratedTask: the base class that makes a task a job.

Binding checks the shape of the options and nothing else; what the options mean is decided by the gate in the worker.
Calling the function, ``apply()`` and eager mode never meet the gate.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, ClassVar, get_args

from celery import Celery, Task, chain, chord, group
from celery.app.annotations import resolve_all
from celery.app.autoretry import add_autoretry_behaviour
from celery.exceptions import Ignore, SoftTimeLimitExceeded, TimeLimitExceeded
from celery.schedules import maybe_schedule
from celery.utils.imports import symbol_by_name
from celery.utils.log import get_logger

from celery_orchestration.errors import ConfigurationError, LedgerError
from celery_orchestration.job import progress, tracing
from celery_orchestration.job.envelope import ADMITTED, FENCE, HEADER, PUBLICATION, RUN, WAITS, new_message_id
from celery_orchestration.job.limits import Clock, Limit, Run, clocks
from celery_orchestration.job.policy import OnCrash, Policy, Priority, RecurringDefaults, Settings, read_options
from celery_orchestration.job.queues import PRIORITY_HEADER, announce, install_route, queue_name
from celery_orchestration.ledger import Ledger, keys

logger = get_logger(__name__)

#: Options of Celery's that a policy has to know of when they are written on a job.
_CELERY_OPTIONS = (
    "autoretry_for",
    "dont_autoretry_for",
    "max_retries",
    "retry_backoff",
    "retry_backoff_max",
    "retry_jitter",
    "retry_kwargs",
    "default_retry_delay",
    "time_limit",
    "soft_time_limit",
    "reject_on_worker_lost",
    "retry_on_worker_lost",
    "acks_late",
)
_LIMITS = ("time_limit", "soft_time_limit")
#: What Celery does about retries unless told otherwise.
_CELERYS_RETRIES = {
    "autoretry_for": (),
    "dont_autoretry_for": (),
    "max_retries": Task.max_retries,
    "retry_backoff": False,
    "retry_jitter": True,
}
#: Those that count as written when the app's configuration has them.
_CONFIGURED = (*_LIMITS, "reject_on_worker_lost", "retry_on_worker_lost", "acks_late")
SCHEDULER = "celery_orchestration:OrchestratedScheduler"


class OrchestratedTask(Task):  # type: ignore[misc]
    """A job. Its options are described in the README; inheriting changes nothing that was not written."""

    abstract = True
    Strategy = "celery_orchestration.worker.custom:strategy"
    Request = "celery_orchestration.worker.request:OrchestratedRequest"

    #: What the options come to, once the task is bound.
    orchestration: ClassVar[Policy | None] = None
    #: A ``priority`` that is ours: Celery's attribute of that name is the message's priority.
    orchestration_priority: ClassVar[Any] = None
    #: What is wrong with its options.
    mistake: ClassVar[ConfigurationError | None] = None
    #: Attributes of this very class that were not written but follow from its options.
    _implied: ClassVar[frozenset[str]] = frozenset()
    _written_by_users: ClassVar[dict[str, Any]]
    #: What was last resolved, and to what.
    _resolved: ClassVar[tuple[dict[str, Any], dict[str, Any], Policy, dict[str, Any]]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._lift_priority()
        # Celery wraps `run` for automatic retries before it binds a class-based task, so this cannot wait.
        try:
            implied = cls._resolve("?", cls._written(), {}).celery_options()
        except ConfigurationError:
            return  # binding says it, with the job's name
        undone = {name: value for name, value in _CELERYS_RETRIES.items() if cls._inherits_implied(name)}
        cls._imply({name: value for name, value in {**undone, **implied}.items() if name not in _LIMITS})

    @classmethod
    def _lift_priority(cls) -> None:
        """Before Celery sees it: a word is ours, a number stays Celery's."""
        value = cls.__dict__.get("priority")
        if value is not None and type(value) is not int:
            cls.orchestration_priority = value
            del cls.priority

    @classmethod
    def _imply(cls, options: dict[str, Any]) -> None:
        for name, value in options.items():
            setattr(cls, name, value)
        cls._implied = cls.__dict__.get("_implied", frozenset()) | options.keys()

    @classmethod
    def _inherits_implied(cls, name: str) -> bool:
        owner = next((klass for klass in cls.__mro__ if name in vars(klass)), object)
        return name in vars(owner).get("_implied", ())

    @classmethod
    def _written(cls) -> dict[str, Any]:
        """The attributes that users wrote, on the class and its bases; the nearest one counts."""
        written: dict[str, Any] = {}
        for klass in reversed(cls.__mro__):
            if klass not in (OrchestratedTask, Task, object):
                implied = klass.__dict__.get("_implied", ())
                written |= {name: value for name, value in vars(klass).items() if name not in implied}
        if "orchestration_priority" in written:
            written["priority"] = written.pop("orchestration_priority")
        return written

    @classmethod
    def _resolve(cls, name: str, written: dict[str, Any], configured: dict[str, Any]) -> Policy:
        """Celery binds a task twice or more often: what was given before comes to the same."""
        before = cls.__dict__.get("_resolved")
        if before is not None and before[3] is written and _is_same(configured, before[1]) and before[2].name == name:
            return before[2]  # type: ignore[no-any-return]
        given = {option: value for option, value in written.items() if not option.startswith("_")}
        if before is not None and _is_same(given, before[0]) and _is_same(configured, before[1]):
            policy: Policy = before[2]
            policy = policy if policy.name == name else policy.model_copy(update={"name": name})
        else:
            of_celery = {option: written[option] for option in _CELERY_OPTIONS if option in written}
            policy = Policy.resolve(name, read_options(name, written), {**configured, **of_celery})
        cls._resolved = given, configured, policy, written
        return policy

    @classmethod
    def bind(cls, app: Celery) -> Any:
        # Before Celery binds: it fills the class with values from the configuration.
        written = cls.__dict__.get("_written_by_users")
        if written is None:
            written = cls._written_by_users = cls._written()
        bound = super().bind(app)
        cls._lift_priority()  # an annotation may have set it
        if cls.name and cls.name.startswith("celery."):
            # Where the app's task_cls is this class, Celery's own tasks have it, too: they are no jobs.
            cls.Strategy, cls.Request = Task.Strategy, Task.Request
        elif cls.name:
            annotated = {key: value for found in resolve_all(app.annotations, cls) for key, value in found.items()}
            try:
                cls._bind_job(app, {**written, **annotated} if annotated else written)
            except ConfigurationError as exc:
                cls.mistake = exc  # said when the job is used: an error while modules are imported is a wall of text
        return bound

    @classmethod
    def _bind_job(cls, app: Celery, written: dict[str, Any]) -> None:
        app.steps["worker"].add("celery_orchestration.worker.bootsteps:Boot")
        app.steps["consumer"].add("celery_orchestration.worker.bootsteps:GateStep")
        conf = app.conf
        configured = {name: value for name in _CONFIGURED if (value := conf.get(f"task_{name}"))}
        if conf.get("orchestration_on_crash") in get_args(OnCrash):  # if not: what starts says so
            configured["on_crash"] = conf["orchestration_on_crash"]
        if _is_sound(recurring_defaults := conf.get("orchestration_recurring_defaults")):
            configured["recurring_defaults"] = recurring_defaults
        policy = cls._resolve(cls.name, written, configured)
        if isinstance(policy.key, str) and (signature := _signature_of_run(cls)) is not None:
            policy.check_key(signature)
        cls.orchestration = policy
        implied = policy.celery_options()
        if policy.recurring and "recurring_defaults" in configured:
            cls._imply(implied)
            _retry_as_implied(app._tasks.get(cls.name))
        else:
            cls._imply({name: value for name, value in implied.items() if name in _LIMITS})
        install_route(app)
        if policy.mode == "scheduled" and conf.beat_scheduler != SCHEDULER:
            conf.beat_schedule.setdefault(cls.name, _entry_of(app, policy))

    # -- calling ------------------------------------------------------------------------------------

    def apply_async(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        """``priority="high"`` moves this one run to another queue and rank; a number stays Celery's.

        One call is one run, whatever its ``task_id``: the message's id tells copies of it from another call.
        """
        if self.mistake is not None:
            raise self.mistake
        priority = options.get("priority")
        if priority is not None and type(priority) is not int:
            label = Priority.parse(priority).label
            del options["priority"]
            options["headers"] = {**(options.get("headers") or {}), PRIORITY_HEADER: label}
            self._announce_queue(Priority.parse(label))
        options.setdefault("message_id", new_message_id())
        return super().apply_async(args, kwargs, *rest, **options)

    def signature_from_request(self, request: Any = None, *args: Any, **options: Any) -> Any:
        """That of a retry says which run it continues."""
        request = self.request if request is None else request
        signature = super().signature_from_request(request, *args, **options)
        if (signature.options.get("retries") or 0) > (request.retries or 0):
            _belong_to_run_of(request, signature)
        return signature

    subtask_from_request = signature_from_request

    def _announce_queue(self, priority: Priority) -> None:
        policy = self.orchestration
        if policy is not None and settings_of(self.app).mode != "off" and not self.app.conf.task_always_eager:
            announce(self.app, queue_name(policy.pool, priority), jobs_of(self.app))

    # -- in the worker ------------------------------------------------------------------------------

    def start_strategy(self, app: Celery, consumer: Any, **kwargs: Any) -> Any:
        """Through the gate, whatever ``Strategy`` and ``Request`` the class has got from its other bases."""
        if self.orchestration is None:
            return super().start_strategy(app, consumer, **kwargs)
        return symbol_by_name(OrchestratedTask.Strategy)(self, app, consumer, **kwargs)

    # -- running ------------------------------------------------------------------------------------

    @property
    def fence(self) -> int | None:
        """A number that rises with every start of a run: a store that remembers the highest one it saw can refuse what
        a run writes that lost its lease. None outside a worker."""
        fence = (self.request.properties or {}).get(FENCE)
        return int(fence) if fence else None

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """How far this run has come, for ``status``: so many of so many (None: nobody knows), and a few words.

        Say it as often as you like: it is told to the ledger a few times a second, and never waits for it. Outside a
        worker nothing happens.
        """
        said = progress.said(done, total, note)
        if self.fence is not None:
            app = self.app
            progress.reporter(app, lambda: _ledger_of(app)).say(_run_of(self.request), said)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        request = self.request  # once: it is looked up each time
        if request.called_directly or not (request.properties or {}).get(FENCE):
            return super().__call__(*args, **kwargs)
        run = _run_of(request)
        self._refuse_if_void(request, run)
        if waits := request.properties.get(WAITS):
            tracing.tell(request, self.name, waits)
        try:
            result = super().__call__(*args, **kwargs)
        except Ignore:
            clocks.stop(run)
            raise
        except BaseException as exc:
            self._refuse_if_void(request, run)
            _stop_clock(run)
            if isinstance(exc, SoftTimeLimitExceeded) and (found := default_limit(self, request.timelimit)):
                exc.args = (*exc.args, found)
            raise
        self._refuse_if_void(request, run)
        _stop_clock(run)
        return result

    def retry(self, *args: Any, **kwargs: Any) -> Any:
        with self._as_a_last_word():
            return super().retry(*args, **kwargs)

    def replace(self, sig: Any) -> Any:
        with self._as_a_last_word():
            last = sig.tasks[-1] if isinstance(sig, chain) and sig.tasks else sig
            if not isinstance(last, chain | group | chord):  # the body of a chord comes as a call of its own
                _belong_to_run_of(self.request, last)
            return super().replace(sig)

    def add_to_chord(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse_if_void(self.request, _run_of(self.request))
        return super().add_to_chord(*args, **kwargs)

    @contextmanager
    def _as_a_last_word(self) -> Iterator[None]:
        """For what ends a run with an exception. Its time cannot be over once its next attempt is under way; should it
        return all the same, the clock goes on."""
        request = self.request
        run = _run_of(request)
        self._refuse_if_void(request, run)
        clock = _stop_clock(run)
        yield
        if clock is not None:
            clocks.go_on(run, clock)

    def _refuse_if_void(self, request: Any, run: Run) -> None:
        """A run that was admitted more than half a lease ago may have lost it: then it stores no result and calls
        nobody back. Neither does one whose time is over."""
        if clocks.is_over(run):
            raise Ignore(f"the time of run {run[0]} is over, it has failed")
        if lost_lease(self.app, run, request.properties or {}):
            raise Ignore(f"run {run[0]} lost its lease, another one has started since")


def _stop_clock(run: Run) -> Clock | None:
    """Where the execution pool has no time limits: the code has returned. Raises if that is too late."""
    clock = clocks.stop(run)
    if clock is None:
        if clocks.is_over(run):
            raise Ignore(f"the time of run {run[0]} is over, it has failed")
    elif monotonic() > clock.ends:
        raise TimeLimitExceeded(clock.limit)
    return clock


def _is_sound(recurring_defaults: Any) -> bool:
    """If not: what starts says so."""
    try:
        return bool(recurring_defaults and RecurringDefaults.read(recurring_defaults))
    except ValueError:
        return False


def _retry_as_implied(task: Task | None) -> None:
    """Celery wraps the function of a class-based task for automatic retries before it binds it: by the defaults of
    recurring jobs, of which the app has others."""
    if task is not None and "_orig_run" in vars(task):
        task.run = vars(task).pop("_orig_run")
        add_autoretry_behaviour(task)


def _run_of(request: Any) -> Run:
    properties = request.properties or {}
    return str(properties.get(RUN) or request.id), str(properties.get(FENCE) or "")


def _belong_to_run_of(request: Any, signature: Any) -> None:
    """What it sends is the next attempt of this run, not another run of the same task id."""
    publication = (request.properties or {}).get(PUBLICATION)
    if publication is not None:
        headers = signature.options.get("headers") or {}
        signature.options["headers"] = {**headers, HEADER: {"publication": publication}}


def default_limit(task: Task, limits: Sequence[float | None] | None) -> str:
    """What to say of a run that was over a limit that nobody has written; '' if somebody has. `limits` (hard, soft) are
    those of the call."""
    policy: Policy | None = task.orchestration
    if policy is None or policy.sources["timeout_seconds"] != "recurring default" or policy.timeout_seconds is None:
        return ""
    hard, soft = limits or (None, None)
    if hard not in (None, task.time_limit) or soft not in (None, task.soft_time_limit):
        return ""
    return f"{policy.timeout_seconds:g} s is the default limit of recurring jobs: write timeout_seconds to change it"


def lost_lease(app: Celery, run: Run, properties: Mapping[str, Any]) -> bool:
    """As far as the ledger can be asked; a run that was admitted less than half a lease ago has it."""
    admitted = properties.get(ADMITTED)
    if admitted is None or monotonic() - admitted < settings_of(app).lease_seconds / 2:
        return False
    try:
        return not _ledger_of(app).holds_lease(*run)
    except LedgerError as exc:
        logger.warning("Run %s cannot see whether its lease holds: %s", run[0], exc)
        return False


def settings_of(app: Celery) -> Settings:
    """The ``orchestration_*`` settings, read once per app and process."""
    found: Settings | None = app.__dict__.get("_orchestration_settings")
    if found is None:
        found = app.__dict__["_orchestration_settings"] = read_settings(app)
    return found


def read_settings(app: Celery) -> Settings:
    conf = {}
    for key in app.conf:
        name = key.lower().removeprefix("celery_")  # config_from_object(..., namespace="CELERY")
        if name.startswith("orchestration_"):
            conf[name] = app.conf[key]
    return Settings.read(conf, os.environ, app.main)


def _is_same(these: dict[str, Any], those: dict[str, Any]) -> bool:
    """By identity: a lazy task that is compared would be bound there and then."""
    return these.keys() == those.keys() and all(value is those[name] for name, value in these.items())


def owner_of(app: Celery) -> str:
    """Whose ledger it is. One with the default namespace is the app's, by its main name; a namespace that was written
    is for all services that write it."""
    namespace = read_settings(app).namespace
    return namespace if keys.service(app.main, namespace) else app.main or "__main__"


def service_of(app: Celery) -> str:
    """Which of the services that share a ledger it is, as a part of keys: see :func:`keys.service`."""
    return keys.service(app.main, settings_of(app).namespace)


def jobs_of(app: Celery) -> dict[str, Policy]:
    """The policies of an app's jobs, by name."""
    jobs, mistakes = sound_jobs_of(app)
    if mistakes:
        raise ConfigurationError("\n".join(mistakes))
    return jobs


def sound_jobs_of(app: Celery) -> tuple[dict[str, Policy], list[str]]:
    """Those whose options can be read, and what is wrong with the others."""
    tasks = {name: task for name, task in app.tasks.items() if isinstance(task, OrchestratedTask)}
    mistakes = [str(task.mistake) for task in tasks.values() if task.mistake is not None]
    return {name: task.orchestration for name, task in tasks.items() if task.orchestration is not None}, mistakes


def schedule_of(app: Celery) -> dict[str, dict[str, Any]]:
    """The entries that follow from jobs' options, as ``beat_schedule`` has them."""
    return {name: _entry_of(app, policy) for name, policy in jobs_of(app).items() if policy.mode == "scheduled"}


def _entry_of(app: Celery, policy: Policy) -> dict[str, Any]:
    every = policy.schedule if policy.schedule is not None else policy.interval_seconds
    return {"task": policy.name, "schedule": maybe_schedule(every, app=app), "args": (), "kwargs": {}}


def limits_of(app: Celery) -> dict[str, Limit]:
    """Time limits of the tasks that have one, jobs and others, whoever has set it."""
    limits = {name: (task.time_limit, task.soft_time_limit) for name, task in app.tasks.items()}
    return {name: limit for name, limit in limits.items() if any(limit) and not name.startswith("celery.")}


def signature_of(task: Task) -> inspect.Signature | None:
    """Of a job's function, for its room key: an argument counts the same by position, by name or by default."""
    try:
        return inspect.signature(task.run)
    except (TypeError, ValueError):
        return None


def _signature_of_run(cls: type[Task]) -> inspect.Signature | None:
    """The same, before there is a task: of a method without its ``self``."""
    run = inspect.getattr_static(cls, "run")
    try:
        return inspect.signature(run.__get__(object(), cls) if hasattr(run, "__get__") else run)
    except (TypeError, ValueError):
        return None


_local = threading.local()


def _ledger_of(app: Celery) -> Ledger:
    """A connection of this thread (or of this child process) to the ledger."""
    if getattr(_local, "pid", None) != os.getpid():
        _local.pid, _local.ledgers = os.getpid(), {}
    if id(app) not in _local.ledgers:
        _local.ledgers[id(app)] = Ledger.of(app, settings_of(app))
    ledger: Ledger = _local.ledgers[id(app)]
    return ledger
