"""What `headgate.act` is told and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from headgate.claim import Group, Room
from headgate.limits import needs_of
from headgate.rates import Pace
from headgate.stores.postgres import arrays
from headgate.stores.postgres.view import Order
from headgate.stores.protocol import Exchange
from headgate.stores.relational import moves


class Act(msgspec.Struct):
    """What `headgate.act` answers."""

    now: float = 0.0
    claimed: list[list[Any]] | None = None
    expired: list[int] | None = None
    told: list[int] | None = None
    known: list[int] | None = None
    contended: bool = False
    changed: bool = False
    refused: bool = False
    version: int | None = None
    dead: bool = False


decode = msgspec.json.Decoder(Act).decode


def parameters(
    exchange: Exchange,
    op: int,
    order: Order,
    room: Room | None,
    version: int,
    followed: Callable[[int], str | None],
) -> tuple[Any, ...]:
    """All that one round trip says, in the order in which the function takes it. `followed` tells
    what an attempt held in slots that were never under its name."""
    f = exchange.finishes
    r = exchange.progress
    tokens = [x.token for x in f]
    ended = set(tokens)
    ago = {one.token: one.ago for one in exchange.passed if one.token in ended}
    passed = [one for one in exchange.passed if one.token not in ended]
    keys = order.lanes
    groups, needs = _needs(order, room)
    return (
        exchange.worker, op,
        arrays.numbers(tokens), arrays.texts([x.outcome for x in f]),
        arrays.texts([x.reason for x in f]), arrays.texts([x.result for x in f]),
        arrays.texts([x.error and moves.error_text(x.error) for x in f]),
        arrays.numbers(map(ago.get, tokens)),
        arrays.texts([followed(token) if token in ago else None for token in tokens]),
        arrays.flags([x.keep for x in f]),
        arrays.numbers(x.token for x in passed), arrays.numbers(x.owner for x in passed),
        arrays.numbers(x.ago for x in passed),
        arrays.numbers(x.token for x in r), arrays.numbers(x.fraction for x in r),
        arrays.texts(x.text for x in r),
        arrays.texts(x.queue for x in keys), arrays.numbers(x.priority for x in keys),
        arrays.texts(x.band for x in keys), arrays.texts(x.turn for x in keys),
        arrays.texts(x.lane for x in keys), arrays.numbers(order.places),
        arrays.texts(groups),
        arrays.numbers(_limit(room.group(name)) if room is not None else 0 for name in groups),
        *_rates(groups, room),
        *(arrays.numbers(column) for column in needs),
        version,
        arrays.numbers(order.jobs),
    )  # fmt: skip


def _needs(order: Order, room: Room | None) -> tuple[list[str], list[list[int]]]:
    """The groups, and per need: its lane, its choice, its group and its units."""
    groups: dict[str, int] = {}
    columns: list[list[int]] = [[], [], [], []]
    wanted = {number for number in order.jobs if number > 0}
    for number, key in enumerate(order.lanes, 1):
        if number not in wanted:
            continue
        needs = needs_of(key.band, key.lane)
        choices = [(0, need) for need in needs.all]
        choices += [
            (i, need)
            for i, m in enumerate(needs.one_of, 1)
            for need in m
            if room is None or room.picks(need.limit)
        ]
        for choice, need in choices:
            group = groups.setdefault(need.group, len(groups) + 1)
            for column, cell in zip(columns, (number, choice, group, need.units), strict=True):
                column.append(cell)
    return list(groups), columns


def _rates(groups: list[str], room: Room | None) -> tuple[str | None, str | None]:
    """The periods of the groups that are rates, and how many may start at once in each of those
    that has less than its value for that. Of most round trips nothing."""
    if room is None or not room.rated(groups):
        return None, None
    paces: list[Pace | None] = []
    bursts: list[int | None] = []
    for group in map(room.group, groups):
        # Where there is no value, nothing is counted.
        starts = group.starts if group.value is not None else None
        paces.append(None if starts is None else starts.pace)
        most = group.most()
        bursts.append(None if starts is None or not most or most == group.value else most)
    return (
        arrays.numbers(None if pace is None else pace.per for pace in paces),
        arrays.numbers(bursts),
    )


def _limit(group: Group) -> int | None:
    """The value by which `act` grants: of a group that is shut, nothing."""
    return 0 if group.paused or group.missing else group.value
