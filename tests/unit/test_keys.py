"""Users' names, keys and notes on their way into Redis: encoded, cut or refused in one place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.ledger import keys
from support.hostile import TEXTS

MEGABYTE = 1_000_000


@given(st.text(max_size=20) | st.sampled_from(sorted(TEXTS.values())))
def test_a_name_is_encoded_without_what_has_a_meaning_and_back(name):
    encoded = keys.encode_job(name)
    assert encoded.isascii()
    assert encoded.isprintable()
    assert not set(encoded) & set(":{}*?[] ")
    assert keys.decode_job(encoded) == name


def test_ordinary_names_stay_as_they_are():
    assert keys.encode_job("shop.tasks.fetch_data-2") == "shop.tasks.fetch_data-2"


@pytest.mark.parametrize("name", ["x" * MEGABYTE, "\u202e" * 40], ids=["long", "long when encoded"])
def test_a_name_that_is_too_long_is_refused_in_a_short_line(name):
    with pytest.raises(ConfigurationError, match="a job's name may have at most 200 characters") as error:
        keys.encode_job(name)
    assert len(str(error.value)) < 400
    assert str(error.value).isprintable()


def test_half_a_pair_in_a_name_is_refused():
    with pytest.raises(ConfigurationError, match=r"^job 'a\\ud800': a job's name must be a text that UTF-8 can"):
        keys.encode_job("a\ud800")


@given(st.text(alphabet=st.characters(), max_size=300))
def test_a_room_key_is_short_and_can_be_sent(value):
    found = keys.room_key(value)
    assert len(found) <= keys.LONGEST_ROOM_KEY
    found.encode()


def test_room_keys_stay_different():
    values = ["x" * 120, "x" * 121, "x" * MEGABYTE, "x" * MEGABYTE + "y", "\ud800", "\ud801", "", *TEXTS.values()]
    assert len({keys.room_key(value) for value in values}) == len(values)


def test_a_note_is_short_and_can_be_sent():
    assert keys.note("as it is") == "as it is"
    assert keys.note("half a pair: \ud800") == "half a pair: ?"
    assert keys.note("x" * MEGABYTE) == "x" * (keys.LONGEST_NOTE - 1) + "…"


@pytest.mark.parametrize(
    "name",
    ["shop.tasks.fetch_data", "x" * 200, "数据" * 11, "a%3Ab: c"],
    ids=["ordinary", "long", "encoded", "escaped"],
)
def test_the_name_of_an_entry_comes_back(name):
    assert keys.decode_entry(keys.entry(name)) == name


@given(st.text(min_size=201, max_size=400) | st.text("数\u202e%~ é", min_size=67, max_size=400))
def test_of_the_name_of_an_entry_that_is_too_long_the_beginning_comes_back(name):
    encoded = keys.entry(name)
    shown = keys.decode_entry(encoded)
    if shown == name:
        assert len(encoded) < keys.LONGEST_NAME
    else:
        assert len(encoded) == keys.LONGEST_NAME
        assert shown.endswith("…")
        assert name.startswith(shown[:-1].rstrip("\N{REPLACEMENT CHARACTER}"))
        assert len(shown) > 12
