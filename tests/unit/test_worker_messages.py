"""Which call a message belongs to, and which outcome an exception means."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject, Retry, Terminated

from celery_orchestration.ledger import keys
from celery_orchestration.worker.endings import LONGEST_NOTE, note_of, outcome_of, raised
from celery_orchestration.worker.publications import header_of, publication_of


def message(redelivered: bool = False, **properties: Any) -> Any:
    return SimpleNamespace(properties=properties, delivery_info={"redelivered": redelivered})


class TestPublications:
    def test_our_header_says_which_call_it_is(self):
        ours = keys.publication("call")
        assert publication_of(message(message_id="x"), {"publication": ours}) == (ours, False)

    @pytest.mark.parametrize("header", [None, "text", {}, {"publication": 7}, {"publication": "x" * 1000}])
    def test_else_the_message_id_or_the_delivery_tag_does(self, header: Any):
        assert publication_of(message(message_id="m", delivery_tag="t"), header) == (keys.publication("m"), False)
        assert publication_of(message(delivery_tag="t"), header) == (keys.publication("t"), False)

    def test_without_either_every_delivery_is_a_call_of_its_own_and_a_redelivered_one_is_unknown(self):
        first, second = publication_of(message(), None), publication_of(message(redelivered=True), None)
        assert first[0] != second[0]
        assert (first[1], second[1]) == (False, True)

    @pytest.mark.parametrize(
        "header", ["text", None, {"grant": 3}, {"grant": "x"}, {"grant": "3", "routing_key": ""}, {"grant": b"3"}]
    )
    def test_a_header_that_we_would_not_have_written_counts_for_nothing(self, header: Any):
        assert header_of(header) == {}

    def test_our_own_header_is_read(self):
        header = {"publication": "p", "grant": "3", "exchange": "", "routing_key": "celery"}
        assert header_of(header) == header


class TestEndings:
    @pytest.mark.parametrize(
        ("exc", "outcome"),
        [
            (Retry(), "retry"), (Reject(), "rejected"), (Ignore(), "ignored"), (Terminated(), "revoked"),
            (ValueError(), "failed"), (SystemExit(), "failed"),
        ],
    )  # fmt: skip
    def test_an_exception_says_how_a_run_ended(self, exc: BaseException, outcome: str):
        assert outcome_of(exc) == outcome

    def test_a_note_is_short_and_never_fails(self):
        class Silent(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        assert note_of(ValueError("bad data")) == "ValueError: bad data"
        assert note_of(Silent()) == "Silent"
        assert len(note_of(ValueError("x" * 1000))) == LONGEST_NOTE

    def test_an_exception_that_no_task_raised_has_a_traceback_too(self):
        assert "ValueError: bad" in raised(ValueError("bad")).traceback
