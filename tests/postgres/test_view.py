"""A lane as a look saw it: what lies beyond is asked for only when it is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headgate.choice import LaneKey
from headgate.stores.postgres.view import Lane, Seen, Turns, View, ViewLine
from headgate.stores.relational.values import Words

BAND = ("default", 0, '["task",[],[],""]')
KEY = LaneKey(*BAND, "", "")


class Beyond:
    """The tables behind a view, of which only one lane is ever asked for."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.asked = 0

    def call(self, sql: str, params: Mapping[str, Any]) -> Sequence[Any]:
        self.asked += 1
        return [{"n": min(self.jobs, params["most"]), "place": 7, "job": 1, "since": 0.0}]

    def read(self) -> Any:
        raise AssertionError("nothing else is read")

    write = read


def line(counted: int, *, more: bool, jobs: int, wanted: int = 40) -> tuple[ViewLine, Beyond]:
    """`counted` of the lane's jobs were seen."""
    seen = Seen(
        now=0.0, version=1, bands=[BAND], turns=[Turns(0, None, [""], True, [], True)],
        lanes=[Lane(0, "", "", counted, more, 7, 1, 0.0)],
    )  # fmt: skip
    beyond = Beyond(jobs)
    return ViewLine(
        View(seen, wanted), Words(1, {}, {}, {}, {}, {}, frozenset()), beyond, "w", {}
    ), beyond


def places(rows: Sequence[Any]) -> list[int]:
    return [row["place"] for row in rows]


def test_what_is_known_is_given_before_anybody_asks_for_more() -> None:
    """Two batches of 13 are one more than were counted: that is not worth a round trip as long as
    nobody wants the last one."""
    seen, beyond = line(25, more=True, jobs=100)
    first, more = seen.heads(KEY, -1, 13)
    assert (places(first), more) == (list(range(7, 20)), True)
    second, more = seen.heads(KEY, 19, 13)
    assert (places(second), more, beyond.asked) == (list(range(20, 32)), True, 0)
    third, more = seen.heads(KEY, 31, 13)
    assert (places(third), more, beyond.asked) == (list(range(32, 45)), True, 1)
    fourth, more = seen.heads(KEY, 44, 13)
    assert (len(fourth), more, beyond.asked) == (13, True, 1), "all that may be wanted was counted"


def test_a_lane_that_was_seen_whole_ends_there() -> None:
    seen, beyond = line(25, more=False, jobs=25)
    assert len(seen.heads(KEY, -1, 13)[0]) == 13
    rows, more = seen.heads(KEY, 19, 13)
    assert (len(rows), more) == (12, False)
    assert (*seen.heads(KEY, 31, 13), beyond.asked) == ([], False, 0)


def test_a_lane_that_ends_behind_what_was_counted() -> None:
    seen, beyond = line(25, more=True, jobs=30)
    assert seen.heads(KEY, 31, 13)[1] is False
    assert len(seen.heads(KEY, 31, 13)[0]) == 5
    assert beyond.asked == 1


def test_a_lane_that_was_emptied_meanwhile() -> None:
    seen, beyond = line(25, more=True, jobs=20)
    assert seen.heads(KEY, 31, 13) == ([], False)
    assert beyond.asked == 1
