"""What commands wrote: put by their attempts, fenced by token, and read by anyone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headgate.stores.protocol import Output, OutputRecord
from headgate.stores.relational.transaction import Row, Transaction

_LAST = 2**62


def put(tx: Transaction, outputs: Sequence[Output]) -> set[int]:
    """Keep what these attempts wrote; the tokens of those that do not run are stale."""
    stale: set[int] = set()
    # In one order everywhere: two workers never wait for each other's attempts in a ring.
    for output in sorted(outputs, key=lambda output: output.token):
        token = output.token
        running = tx.row(tx.sql.outputs.attempt, {"token": token})
        # The fence: an attempt that was declared lost has no row any more, and what its command
        # still wrote before it was killed must not stand among the output of the next one.
        if running is None:
            stale.add(token)
            continue
        own = {"job": running["job"], "token": token}
        if output.forget is not None:
            first, last = output.forget
            tx.run(tx.sql.outputs.forget, {**own, "first": first, "last": last})
        tx.many(
            tx.sql.outputs.put,
            [
                {
                    **own,
                    "attempt": running["attempt"],
                    "seq": piece.seq,
                    "stream": piece.stream,
                    "at": tx.now - max(0.0, piece.ago),
                    "start": piece.start,
                    "data": piece.data,
                }
                for piece in output.pieces
            ],
        )
    if len(stale) < len(outputs):
        tx.ring("output")
    return stale


def after(tx: Transaction, job: int, place: tuple[int, int], limit: int) -> list[OutputRecord]:
    """What follows that place, in the order in which it was written."""
    token, seq = place
    rows = tx.rows(tx.sql.outputs.after, {"job": job, "token": token, "seq": seq, "limit": limit})
    return _records(rows)


def before(
    tx: Transaction, job: int, place: tuple[int, int] | None, limit: int
) -> list[OutputRecord]:
    """The last before that place, or of all; in the order in which they were written."""
    token, seq = place or (_LAST, 0)
    cells = {"job": job, "token": token, "seq": seq, "limit": limit}
    return _records(reversed(tx.rows(tx.sql.outputs.before, cells)))


def _records(rows: Iterable[Row]) -> list[OutputRecord]:
    return [
        OutputRecord(
            *(row["token"], row["attempt"], row["seq"], row["stream"], row["at"], row["start"]),
            bytes(row["data"]),
        )
        for row in rows
    ]
