"""What commands wrote: kept once, in order, fenced by the attempt, gone with the job."""

from __future__ import annotations

import pytest

from headgate.errors import JobNotFound
from headgate.jobs import Claimed, Retention
from headgate.stores.protocol import Output, OutputPiece
from tests.waiting import PATIENCE

from .conftest import Rig


def piece(seq: int, data: bytes, start: int = 0, stream: str = "out") -> OutputPiece:
    return OutputPiece(seq, stream, 0.5, start, data)


def read(rig: Rig, id: str) -> list[bytes]:
    return [record.data for record in rig.store.output(id)]


def claimed_job(rig: Rig) -> tuple[str, Claimed]:
    (id,) = rig.submit()
    (claimed,) = (rig.hands[0] if rig.hands else rig.hand()).claim()
    return id, claimed


def test_pieces_are_kept_in_order_and_once(rig: Rig) -> None:
    id, claimed = claimed_job(rig)
    assert rig.store.output(id) == []
    told = Output(claimed.token, [piece(0, b"a\x00\xff"), piece(1, b"err", 3, "err")])
    assert rig.store.put_output([told]) == frozenset()
    assert rig.store.put_output([told]) == frozenset(), "the answer was lost, told again"
    rig.store.put_output([Output(claimed.token, [piece(2, b"c", 6)])])
    first, second, third = rig.store.output(id)
    assert (first.data, first.stream, first.start, first.attempt) == (b"a\x00\xff", "out", 0, 1)
    assert (second.data, second.stream, second.start) == (b"err", "err", 3)
    assert rig.store.now() - 5 < first.at <= rig.store.now()
    assert rig.store.output(id, after=first.place) == [second, third]
    assert rig.store.output(id, after=first.place, limit=1) == [second]
    assert rig.store.output(id, after=third.place) == []
    assert rig.store.last_output(id) == [first, second, third]
    assert rig.store.last_output(id, limit=2) == [second, third]
    assert rig.store.last_output(id, before=third.place, limit=1) == [second]
    assert rig.store.last_output(id, before=first.place) == []


def test_pieces_may_be_forgotten(rig: Rig) -> None:
    id, claimed = claimed_job(rig)
    pieces = [piece(seq, b"%d" % seq, seq) for seq in range(5)]
    rig.store.put_output([Output(claimed.token, pieces)])
    rig.store.put_output([Output(claimed.token, [piece(5, b"5", 5)], forget=(1, 4))])
    assert read(rig, id) == [b"0", b"4", b"5"]


def test_an_attempt_that_does_not_run_keeps_nothing(rig: Rig) -> None:
    id, first = claimed_job(rig)
    other, running = claimed_job(rig)
    rig.store.put_output([Output(first.token, [piece(0, b"first")])])
    (hand,) = rig.hands
    hand.end(first, "retry")
    rig.clock.advance(10)
    (again,) = hand.claim()
    assert again.job == id
    told = [
        Output(again.token, [piece(0, b"again")]),
        Output(first.token, [piece(1, b"late")], forget=(0, 1)),
        Output(running.token, [piece(0, b"other")]),
    ]
    assert rig.store.put_output(told) == {first.token}
    assert read(rig, id) == [b"first", b"again"]
    assert [record.attempt for record in rig.store.output(id)] == [1, 2]
    assert read(rig, other) == [b"other"]


def test_output_goes_with_its_job(rig: Rig) -> None:
    id, claimed = claimed_job(rig)
    kept, other = claimed_job(rig)
    for token in (claimed.token, other.token):
        rig.store.put_output([Output(token, [piece(0, b"text")])])
    rig.hands[0].end(claimed)
    assert read(rig, id) == [b"text"], "it stays after the end"
    rig.clock.advance(100)
    assert rig.store.prune(Retention(succeeded=50)) == 1
    with pytest.raises(JobNotFound):
        rig.store.output(id)
    with pytest.raises(JobNotFound):
        rig.store.output("no id at all")
    assert read(rig, kept) == [b"text"]


def test_who_follows_is_woken(rig: Rig) -> None:
    _, claimed = claimed_job(rig)
    bell = rig.store.bell("output")
    try:
        bell.drain()
        rig.store.put_output([Output(claimed.token, [piece(0, b"text")])])
        assert bell.wait(PATIENCE)
    finally:
        bell.close()
