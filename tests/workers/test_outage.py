"""An outage is reported once, however many threads run into it and however late they notice."""

from __future__ import annotations

import logging

import pytest
import redis

from workers.outage import Outage


def fail(outage: Outage) -> None:
    with pytest.raises(redis.ConnectionError), outage.watched():
        raise redis.ConnectionError("Connection refused.")


def answer(outage: Outage) -> None:
    with outage.watched():
        pass


def test_each_outage_has_one_beginning_and_one_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    outage = Outage()
    answer(outage)
    for _ in range(2):
        for _ in range(3):
            fail(outage)
        answer(outage)
        answer(outage)
    said = [record.getMessage() for record in caplog.records]
    assert [("does not answer: Connection refused." in one, "answers again" in one) for one in said] == [
        (True, False),
        (False, True),
    ] * 2


def test_what_was_asked_before_begins_and_ends_none(caplog: pytest.LogCaptureFixture) -> None:
    """A request that was sent before an outage began (or ended) and is answered (or fails) afterwards reports
    nothing.
    """
    caplog.set_level(logging.INFO)
    outage = Outage()
    with outage.watched():  # answered in the end, but sent before the others failed
        fail(outage)
    assert len(caplog.records) == 1
    with pytest.raises(redis.TimeoutError), outage.watched():
        answer(outage)
        raise redis.TimeoutError("Timeout reading from socket")
    assert [record.getMessage().startswith("Redis answers again") for record in caplog.records] == [False, True]


def test_an_answer_that_refuses_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(redis.ResponseError), Outage().watched():
        raise redis.ResponseError("NOPERM")
    assert not caplog.records


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (redis.ResponseError("MISCONF Errors writing to the AOF file: No space left on device"), "No space left"),
        (redis.ResponseError("Command # 1 (XADD a * b c) of pipeline caused error: NOREPLICAS Not enough."), "NOREPL"),
        (redis.ReadOnlyError("You can't write against a read only replica."), "read only"),
        (redis.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), "maxmemory"),
    ],
)
def test_a_broker_that_takes_nothing_is_away_until_it_takes_something(
    error: redis.RedisError, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As when its disk is full: it answers whoever reads."""
    outage = Outage()
    for _ in range(2):
        with pytest.raises(redis.RedisError), outage.watched(writes=True):
            raise error
        answer(outage)
    with outage.watched(writes=True):
        pass
    begin, end = (record.getMessage() for record in caplog.records)
    assert begin.startswith("Redis (REDIS_URL) takes nothing: ") and said in begin and "pipeline" not in begin
    assert end.startswith("Redis takes what is sent again, after ")
