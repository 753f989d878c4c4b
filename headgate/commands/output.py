"""Reading what commands wrote: all that is there, or as it comes, from any machine."""

from __future__ import annotations

import select
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack

from headgate.errors import JobNotFound
from headgate.jobs import JobRecord
from headgate.stores.protocol import Bell, OutputRecord, Store

_PAGE = 64
_SAFETY_POLL = 1.0
_POLL_WITHOUT_BELL = 0.1


def pieces(
    store: Store, id: str, after: tuple[int, int] = (0, -1)
) -> Generator[OutputRecord, None, None]:
    """All that is kept of the output of a job, in the order in which it was written."""
    while page := store.output(id, after, _PAGE):
        yield from page
        after = page[-1].place


def whole(store: Store, id: str) -> bytes:
    """The same in one; what was left out is said where it was."""
    return b"".join(data for _, data in told(pieces(store, id)))


def follow(store: Store, id: str) -> Generator[OutputRecord, None, JobRecord | None]:
    """The output as it comes, over all attempts, until the job is over. Gives the job as it
    ended; None when it was pruned meanwhile."""
    after = (0, -1)
    with ExitStack() as stack:
        # Opened before the first look: what changes after that look rings.
        bells = [store.bell(what) for what in ("output", "done")]
        for bell in bells:
            stack.callback(bell.close)
        while True:
            try:
                # The state first: the output is stored before the end is, so that what is read
                # after an end was seen is all of it.
                record = store.job(id)
                for piece in pieces(store, id, after):
                    yield piece
                    after = piece.place
            except JobNotFound:
                return None
            if record is None or record.done:
                return record
            _wait(bells)


def _wait(bells: list[Bell]) -> None:
    """Until one of them rings, or a while has passed."""
    heard = [fd for bell in bells if (fd := bell.fileno()) is not None]
    if len(heard) < len(bells):
        bells[0].wait(_POLL_WITHOUT_BELL)
        return
    poll = select.poll()
    for fd in heard:
        poll.register(fd, select.POLLIN)
    poll.poll(_SAFETY_POLL * 1000)
    # Drained before anyone looks: a ring that comes after that is kept for the next round.
    for bell in bells:
        bell.drain()


def told(
    records: Iterator[OutputRecord],
    left_out: Callable[[int], bytes] = lambda size: b"\n[... %d bytes left out ...]\n" % size,
) -> Iterator[tuple[OutputRecord, bytes]]:
    """Each piece with what is to be shown for it: a word where something was left out before."""
    token, place = 0, 0
    for record in records:
        if record.token != token:
            token, place = record.token, 0
        gap = record.start - place
        place = record.start + len(record.data)
        yield record, (left_out(gap) if gap > 0 else b"") + record.data
