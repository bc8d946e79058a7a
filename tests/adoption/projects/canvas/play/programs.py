"""The table of canvas programs. ``python -m play.programs`` executes all of them and prints the result of each.

A program is a function. Its return value, and the calls that ``echo`` received meanwhile, must be the same for plain
tasks and jobs.

This file is long because it is a table: each program stands alone.
"""

import json
import re
import sys
import time
import traceback

from celery import chain, chord, group, signature
from celery.canvas import StampingVisitor
from celery.result import AsyncResult, GroupResult

from .celery import app
from .tasks import (
    about,
    add,
    echo,
    errback,
    fail,
    gather,
    give_up,
    identity,
    ignored,
    old_errback,
    rejected,
    replace_with_chain,
    replace_with_chord,
    replace_with_group,
    replace_with_itself,
    resend,
    retry_until,
    send_with_id,
    slow_echo,
    store,
)

#: The time limit of all waits of one program, counted from its beginning.
PATIENCE = 60.0
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__.replace("_", " ")] = function
    return function


class Deadline:
    """The deadline of the program that is being executed."""

    ends = 0.0

    @classmethod
    def left(cls):
        return max(0.1, cls.ends - time.monotonic())


def value(result):
    """Its result, or its error."""
    try:
        return result.get(timeout=Deadline.left())
    except Exception as exc:
        return [type(exc).__name__, UUID.sub("…", str(exc))]


def run(canvas, **options):
    return value(canvas.apply_async(**options))


def echoes(count):
    """Waits for this many echoes. Returns them sorted, because members of a group have no order."""
    while len(found := store.lrange("echoes", 0, -1)) < count:
        if time.monotonic() > Deadline.ends:
            raise TimeoutError(f"{len(found)} of {count} echoes: {found}")
        time.sleep(0.02)
    return sorted(UUID.sub("…", text) for text in found)


def ended(result):
    """Waits for a task that stores no result of its own."""
    while not result.ready():
        if time.monotonic() > Deadline.ends:
            raise TimeoutError(f"{result} is {result.state}")
        time.sleep(0.02)
    return result.state


# -- the plain shapes


@program
def a_chain():
    return run(add.s(1, 2) | add.s(3) | add.s(4))


@program
def a_group():
    return run(group(add.s(n, n) for n in range(20)))


@program
def a_chord():
    return run(chord([add.s(n, n) for n in range(10)], gather.s()))


@program
def a_chord_of_chains():
    return run(chord([add.s(n, 1) | add.s(10) | add.s(100) for n in range(4)], gather.s()))


@program
def a_chord_of_one_and_of_none():
    return [run(chord([add.s(1, 1)], gather.s())), run(group([]))]


@program
def a_group_within_a_chain():
    return run(add.s(1, 1) | group(add.s(n) for n in range(3)) | gather.s() | echo.s())


@program
def groups_after_groups():
    return run(group(identity.s(n) for n in range(2)) | group(gather.s(), gather.s()) | gather.s())


@program
def nested_chords():
    return run(chord([chord([add.s(1, n), add.s(2, n)], gather.s()) for n in range(3)], gather.s()) | gather.s())


@program
def nested_groups():
    return run(group(group(add.s(1, n) for n in range(2)), group(add.s(2, n) | add.s(1) for n in range(2))))


@program
def chunks_map_and_starmap():
    pairs = [(n, n) for n in range(6)]
    return [
        run(add.chunks(pairs, 2)),
        run(add.starmap(pairs)),
        run(identity.map([1, 2, 3])),
        run(add.chunks(pairs, 4).group()),
    ]


@program
def members_that_are_immutable():
    return run(add.s(1, 1) | add.si(5, 5) | group(add.si(1, 2), add.s(1)) | gather.s())


@program
def a_partial_with_keywords():
    return run(chain(add.s(x=1, y=2), add.s(y=10), identity.s()))


# -- one object, several times


@program
def a_chain_object_that_is_applied_again():
    reused = echo.s("first") | echo.s("second")
    found = [run(reused) for _ in range(3)]
    return [found, echoes(6)]


@program
def a_chain_object_that_is_applied_again_without_waiting():
    reused = slow_echo.s("a") | echo.s("b")
    for _ in range(3):
        reused.delay()
    return echoes(6)


@program
def a_group_and_a_chord_object_that_are_applied_again():
    members, whole = group(echo.s(n) for n in range(2)), chord([echo.s(n) for n in range(2)], gather.s())
    return [[run(members) for _ in range(2)], [run(whole) for _ in range(2)], echoes(8)]


@program
def a_frozen_signature_that_is_applied_again():
    frozen = echo.s("frozen")
    frozen.freeze()
    for _ in range(3):
        run(frozen)
    return echoes(3)


@program
def a_frozen_signature_that_went_through_json():
    frozen = echo.s("stored")
    frozen.freeze()
    stored = json.dumps(frozen)
    for _ in range(2):
        run(signature(json.loads(stored), app=app))
    return echoes(2)


@program
def a_fixed_id_after_its_last_run():
    for n in range(3):
        echo.apply_async((n,), task_id="sync-5")
        echoes(n + 1)
    return echoes(3)


@program
def a_fixed_id_while_its_last_run_goes_on():
    for n in range(3):
        slow_echo.apply_async((n,), task_id="sync-6")
    return echoes(3)


@program
def a_fixed_id_from_within_a_task_and_by_name():
    run(send_with_id.s("sync-7", "from a task"))
    echoes(1)
    app.send_task(echo.name, ("by name",), task_id="sync-7")
    echoes(2)
    app.send_task(echo.name, ("later",), task_id="sync-7", countdown=0.3)
    return echoes(3)


@program
def a_fixed_id_that_failed_is_tried_again():
    states = []
    for task in (fail, echo):
        AsyncResult("sync-8", app=app).forget()
        states.append(value(task.apply_async(("x",), task_id="sync-8")))
    return states


@program
def a_task_that_sends_itself_again_under_its_own_id():
    resend.delay(4)
    return echoes(5)


# -- callbacks and errbacks


@program
def links():
    value(add.apply_async((1, 2), link=[echo.s("one"), echo.si("two")]))
    return echoes(2)


@program
def one_link_of_several_tasks():
    shared = echo.s("called")
    shared.freeze()
    for n in range(3):
        value(add.apply_async((n, n), link=shared))
    return echoes(3)


@program
def errbacks_of_a_task():
    found = value(fail.apply_async(link_error=[errback.s(), old_errback.s(), echo.si("immutable")]))
    return [found, echoes(3)]


@program
def one_errback_of_several_tasks():
    shared = echo.si("shared errback")
    shared.freeze()
    for _ in range(4):
        value(fail.apply_async(link_error=shared))
    return echoes(4)


@program
def one_mutable_errback_of_several_tasks():
    shared = errback.s()
    shared.freeze()
    for _ in range(3):
        value(fail.apply_async(link_error=shared))
    return echoes(3)


@program
def an_errback_of_a_chain():
    canvas = add.s(1, 1) | fail.s() | add.s(1)
    found = value(canvas.apply_async(link_error=echo.si("chain failed")))
    return [found, echoes(1)]


@program
def an_errback_of_a_group():
    canvas = group(add.s(1, 1), fail.s(), fail.s())
    canvas.link_error(echo.si("group failed"))
    return [run(canvas), echoes(2)]


def _failing_chord(told, on_header):
    app.conf.task_allow_error_cb_on_chord_header = on_header
    try:
        canvas = chord([fail.s(), identity.si(42), fail.s()], gather.s())
        canvas.link_error(told)
        return canvas.apply_async()
    finally:
        app.conf.task_allow_error_cb_on_chord_header = False


@program
def an_immutable_errback_of_a_chord():
    return [ended(_failing_chord(echo.si("chord failed"), on_header=False)), echoes(1)]


@program
def a_mutable_errback_of_a_chord():
    return [ended(_failing_chord(errback.s(), on_header=False)), echoes(1)]


@program
def an_immutable_errback_of_a_chord_and_its_header():
    return [ended(_failing_chord(echo.si("chord failed"), on_header=True)), echoes(3)]


@program
def a_mutable_errback_of_a_chord_and_its_header():
    return [ended(_failing_chord(errback.s(), on_header=True)), echoes(3)]


@program
def an_old_errback_of_a_chord_and_its_header():
    return [ended(_failing_chord(old_errback.s(), on_header=True)), echoes(3)]


@program
def an_errback_of_a_chord_within_a_chord():
    """The errback of the outer one is not called, with plain tasks neither."""
    inner = chord([add.s(1, 1), fail.s()], gather.s())
    inner.link_error(echo.si("inner"))
    chord([inner, add.s(1, 2)], gather.s()).apply_async()
    return echoes(1)


@program
def errbacks_of_nested_chords():
    inner = chord([add.s(1, 1), add.s(2, 2)], gather.s())
    inner.link_error(echo.si("inner"))
    outer = chord([inner, fail.s()], gather.s())
    outer.link_error(errback.s())
    outer.link_error(echo.si("outer"))
    return [ended(outer.apply_async()), echoes(2)]


@program
def a_chord_whose_body_fails():
    canvas = chord([add.s(1, 1), add.s(2, 2)], fail.s())
    canvas.link_error(errback.s())
    return [run(canvas), echoes(1)]


@program
def a_chord_after_which_a_chain_goes_on():
    """The exception of get() depends on when it is called: the header's error, or the chord's."""
    result = (chord([add.s(1, 1), fail.s()], gather.s()) | echo.s()).apply_async()
    return [ended(result), type(result.result).__name__]


# -- retried, replaced, ignored


@program
def retries_in_a_chain():
    return run(retry_until.s(2, 7) | retry_until.si(1, 8) | identity.s())


@program
def retries_in_a_chord():
    return run(chord([retry_until.s(n) for n in range(3)], gather.s()))


@program
def a_retry_that_gives_up_in_a_chain():
    found = value((give_up.s() | add.s(1)).apply_async(link_error=echo.si("gave up")))
    return [found, echoes(1)]


@program
def a_retry_with_callbacks():
    found = value(retry_until.apply_async((2,), link=echo.s("once")))
    return [found, echoes(1)]


@program
def replaced_by_a_chain_a_chord_and_a_group():
    return [run(replace_with_chain.s(1)), run(replace_with_chord.s(1)), run(replace_with_group.s(1))]


@program
def replaced_within_a_chain():
    return run(add.s(1, 1) | replace_with_chain.s() | replace_with_chord.s() | gather.s())


@program
def replaced_within_a_chord():
    return run(chord([replace_with_chain.s(1), replace_with_chord.s(2), add.s(1, 1)], gather.s()))


@program
def a_replacement_that_is_replaced():
    found = value(replace_with_itself.apply_async((4,), link=echo.s("after")))
    return [found, echoes(1)]


@program
def a_reused_chain_of_replacements():
    reused = add.s(1, 1) | replace_with_chain.s()
    return [run(reused) for _ in range(2)]


@program
def ignored_and_rejected():
    ignored.delay()
    rejected.delay()
    return echoes(2)


# -- what results and requests tell


@program
def what_a_task_sees_of_itself():
    tenant = {"headers": {"tenant": "eu"}, "shadow": "shown as"}
    return [
        run(about.s(1)),
        value(about.apply_async((2,), **tenant)),
        run(add.s(1, 1) | about.s()),
        run(chord([about.s(3), about.s(4)], gather.s())),
    ]


@program
def what_a_task_sees_when_it_waited_for_its_time():
    return value(about.apply_async((1,), countdown=0.5, headers={"tenant": "eu"}))


class Stamp(StampingVisitor):
    def on_signature(self, sig, **headers):
        return {"tenant": "eu"}


@program
def stamps():
    canvas = add.s(1, 1) | about.s()
    canvas.stamp(Stamp())
    return run(canvas)


@program
def a_group_result_that_is_saved_and_restored():
    result = group(add.s(n, 1) for n in range(3)).apply_async()
    result.save()
    restored = GroupResult.restore(result.id, app=app)
    return [restored.join(timeout=Deadline.left()), restored.completed_count(), restored.successful()]


@program
def a_results_children_and_what_is_stored_of_it():
    result = (add.s(1, 2) | identity.s()).apply_async()
    value(result)
    first = result.parent
    ended(first)
    return [[child.get(timeout=Deadline.left()) for child in first.children], first.name, first.args, result.state]


@program
def results_that_nobody_wants():
    result = echo.apply_async(("unwanted",), ignore_result=True)
    return [echoes(1), result.state]


# -- not now, not at all


@program
def a_chain_with_pauses():
    return run(add.s(1, 1).set(countdown=0.3) | add.s(1).set(countdown=0.3) | add.s(1))


@program
def revoked_before_its_time():
    result = echo.apply_async(("never",), countdown=2)
    result.revoke()
    return value(result)


@program
def expired_before_its_time():
    return value(echo.apply_async(("never",), countdown=1, expires=0.2))


@program
def a_fixed_id_after_it_was_revoked():
    """Celery's workers remember revoked ids: it stays revoked."""
    result = echo.apply_async(("never",), task_id="sync-9", countdown=2)
    result.revoke()
    return value(result)


def execute(function):
    """Its deadline counts from here."""
    store.delete("echoes")
    began = time.monotonic()
    Deadline.ends = began + PATIENCE
    try:
        found = function()
    except Exception:
        found = ["did not end as it should", traceback.format_exc(limit=-2)]
    return {"found": found, "seconds": round(time.monotonic() - began, 2)}


def settled():
    """How often each task was executed, after two seconds without a further execution."""
    before, since = None, time.monotonic()
    while time.monotonic() - since < 2:
        now = store.hgetall("executions")
        if now != before:
            before, since = now, time.monotonic()
        time.sleep(0.1)
    return before


if __name__ == "__main__":
    wanted = sys.argv[1:] or PROGRAMS
    for name in wanted:
        print(json.dumps({"program": name, **execute(PROGRAMS[name])}, default=str), flush=True)
    print(json.dumps({"executions": settled()}))
