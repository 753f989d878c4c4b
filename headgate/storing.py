"""Jobs on their way into the store: in pieces, through its own connections or the caller's."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager

from headgate.calls import Call
from headgate.errors import DeclarationError
from headgate.jobs import NewJob, Submitted
from headgate.stores.protocol import Store

CHUNK_JOBS = 200
CHUNK_BYTES = 4 * 1024 * 1024
"""A bulk submit is stored in pieces of at most this, so that nobody waits long for one."""


def store_all(store: Store, jobs: list[NewJob], conn: object = None) -> list[Submitted]:
    """Store the jobs, each piece whole; in the transaction of `conn` if there is one."""
    done: list[Submitted] = []
    with _counting(done, jobs):
        for chunk in chunks(jobs):
            stored = store.submit(chunk) if conn is None else store.submit_with(conn, chunk)
            done.extend(stored)
    return done


async def astore_all(store: Store, jobs: list[NewJob], conn: object) -> list[Submitted]:
    """The same through an asynchronous connection of the caller's."""
    done: list[Submitted] = []
    with _counting(done, jobs):
        for chunk in chunks(jobs):
            done.extend(await store.asubmit_with(conn, chunk))
    return done


@contextmanager
def _counting(done: Sequence[Submitted], jobs: Sequence[NewJob]) -> Generator[None]:
    try:
        yield
    # Whatever went wrong goes on as it is, with a note.
    except Exception as error:
        if len(jobs) > 1:
            error.add_note(f"{len(done)} of {len(jobs)} jobs were stored before this")
        raise


def chunks(jobs: list[NewJob]) -> Iterable[list[NewJob]]:
    """Pieces of a bulk submit, bounded in number and in size."""
    piece: list[NewJob] = []
    size = 0
    for job in jobs:
        if piece and (len(piece) == CHUNK_JOBS or size + len(job.args) > CHUNK_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(job)
        size += len(job.args)
    if piece:
        yield piece


def common_connection(calls: Sequence[Call[object]], conn: object) -> object:
    """The connection that all of these go through: they are one submit."""
    if conn is not None:
        return conn
    conns = [call.task.conn for call in calls]
    if any(one is not conns[0] for one in conns):
        raise DeclarationError(
            "calls of one submit_many go through one connection: these have different conn=, or"
            " only some have one. Pass it once, submit_many(calls, conn=…)"
        )
    return conns[0] if conns else None
