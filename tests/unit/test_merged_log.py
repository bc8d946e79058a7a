"""One log of several processes."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import threading

import pytest

from celery_orchestration.pools.merged_log import LONGEST, MergedLog, wants_colour


@pytest.fixture
def output() -> io.StringIO:
    return io.StringIO()


def plain(output: io.StringIO) -> MergedLog:
    return MergedLog(output, colour=False)


def test_each_line_has_the_name_of_its_process(output: io.StringIO) -> None:
    log = plain(output)
    log.line("redis", "ready")
    log.line("images-1", "one\ntwo")
    log.line("redis", "done")
    assert output.getvalue() == "redis | ready\nimages-1 | one\nimages-1 | two\nredis    | done\n"


def test_each_process_has_a_colour_of_its_own_and_keeps_it(output: io.StringIO) -> None:
    log = MergedLog(output, colour=True)
    for name in ("a", "b", "a"):
        log.line(name, "x")
    first, second, third = output.getvalue().splitlines()
    assert first == third == "\x1b[36ma | \x1b[0mx"
    assert second == "\x1b[33mb | \x1b[0mx"


def test_colours_of_a_process_end_with_its_line(output: io.StringIO) -> None:
    MergedLog(output, colour=True).line("a", "\x1b[31mred")
    assert output.getvalue().endswith("\x1b[31mred\x1b[0m\n")


def test_without_colour_there_are_no_escapes_at_all(output: io.StringIO) -> None:
    plain(output).line("a", "\x1b[31mred\x1b[0m and \x1b]0;title\x07plain", alarm=True)
    assert output.getvalue() == "a | red and plain\n"


@pytest.mark.parametrize("order", ["\x1b[2J", "\x1b[H", "\x1bc", "\x1b]0;title\x07", "\x07", "\r", "\x9b2J"])
@pytest.mark.parametrize("colour", [True, False])
def test_nothing_that_a_process_writes_moves_the_cursor(output: io.StringIO, order: str, colour: bool) -> None:
    MergedLog(output, colour=colour).line("a", f"before{order}after\tend")
    shown = output.getvalue()
    assert order not in shown
    assert shown.removesuffix("\n").endswith("after\tend")


def test_an_alarm_is_red(output: io.StringIO) -> None:
    MergedLog(output, colour=True).line("a", "x", alarm=True)
    assert output.getvalue().endswith("\x1b[1;31mx\x1b[0m\n")


def test_the_output_of_a_process_is_followed_to_its_end(output: io.StringIO) -> None:
    reading, writing = os.pipe()
    log = plain(output)
    log.follow("a", os.fdopen(reading, "rb"))
    os.write(writing, b"one\r\nbad \xff byte\nno newline at the end")
    os.close(writing)
    log.finish(10)
    assert output.getvalue() == "a | one\na | bad � byte\na | no newline at the end\n"


def test_a_line_without_end_does_not_fill_the_memory(output: io.StringIO) -> None:
    reading, writing = os.pipe()
    log = plain(output)
    log.follow("a", os.fdopen(reading, "rb"))
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(b"x" * (2 * LONGEST + 1))
    log.finish(10)
    assert [len(line) for line in output.getvalue().splitlines()] == [LONGEST + 4, LONGEST + 4, 5]


def test_lines_of_many_threads_do_not_mix(output: io.StringIO) -> None:
    log = plain(output)
    threads = [
        threading.Thread(target=lambda name=name: [log.line(name, name * 50) for _ in range(100)]) for name in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = output.getvalue().splitlines()
    assert len(lines) == 400
    assert all(line == f"{line[0]} | {line[0] * 50}" for line in lines)


def test_an_output_that_is_gone_stops_nobody() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    reached: list[str] = []
    with contextlib.suppress(BrokenPipeError), os.fdopen(writing, "w") as stream:
        log = MergedLog(stream)
        log.line("a", "x")
        log.line("a", "y")
        reached.append("here")
    assert reached == ["here"]


def test_colours_are_for_terminals_only(output: io.StringIO) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "w"), os.fdopen(theirs, "w") as terminal:
        assert wants_colour(terminal, {})
        assert not wants_colour(terminal, {"NO_COLOR": "1"})
        assert not wants_colour(terminal, {"TERM": "dumb"})
        assert wants_colour(terminal, {"NO_COLOR": ""})
    assert not wants_colour(terminal, {})
    assert not wants_colour(output, {})
