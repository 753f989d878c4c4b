"""The ledger: one small object that says what the store holds, replaced by compare-and-swap.

Whoever replaces it has added one entry: what a few transactions have changed, as rows. The last
entries stand in the ledger itself; older ones are gathered in objects of their own, the runs, and
those in a checkpoint. So the ledger stays small, whatever the store holds, and all that it names
never changes.
"""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from headgate.errors import StoreVersion
from headgate.stores.bucket.rows import Changes

FORMAT = 1
INLINE = 384 * 1024
"""An entry with more bytes than these is an object of its own."""
FULL = 768 * 1024
"""With more bytes than these in its entries, the ledger takes more in only by their name."""
SEAL_BYTES = 256 * 1024
SEAL_ENTRIES = 256
"""With more than these in the ledger itself, the oldest are gathered in a run."""
NONCES = 512
"""So many of the last writers' marks are kept, to tell whether a write was carried out."""
SHOWN_SLOTS = 200


class Entry(msgspec.Struct, omit_defaults=True):
    """What one replacement of the ledger changed."""

    seq: int
    nonce: str
    by: str
    at: float
    rings: list[str] = msgspec.field(default_factory=list[str])
    rows: msgspec.Raw = msgspec.Raw(b"{}")
    """The JSON of `Changes`."""
    object: str | None = None
    """Where the rows are, if not here."""


class Run(msgspec.Struct):
    """The entries `first` to `last`, of each row only what became of it in the end."""

    first: int
    last: int
    object: str
    bytes: int


class Checkpoint(msgspec.Struct):
    """All rows as they were after the entry `seq`."""

    seq: int
    object: str
    bytes: int


class Ledger(msgspec.Struct, omit_defaults=True):
    format: int
    id: str
    """Of this store: one that is made anew in the same place has another."""
    seq: int
    at: float
    nonces: list[str]
    recent: list[Entry]
    runs: list[Run] = msgspec.field(default_factory=list[Run])
    checkpoint: Checkpoint | None = None
    slots: dict[str, list[dict[str, Any]]] = msgspec.field(
        default_factory=dict[str, list[dict[str, Any]]]
    )
    """Who holds what, for people: nothing reads it."""


class Part(msgspec.Struct):
    """A piece of one table, in a checkpoint."""

    table: str
    columns: list[str]
    rows: list[list[Any]]


class Manifest(msgspec.Struct):
    """What a checkpoint consists of."""

    seq: int
    parts: list[str]


class _Format(msgspec.Struct):
    format: int = 0


def new_nonce() -> str:
    return secrets.token_hex(6)


def first(at: float, by: str, rows: str) -> Ledger:
    """The ledger of a new store, which holds these rows."""
    nonce = new_nonce()
    entry = Entry(1, nonce, by, at, rows=msgspec.Raw(rows.encode()))
    return Ledger(FORMAT, secrets.token_hex(8), 1, at, [nonce], [entry])


def changes_of(raw: bytes | msgspec.Raw) -> Changes:
    return _changes.decode(raw)


_decoder = msgspec.json.Decoder(Ledger)
_changes = msgspec.json.Decoder(Changes)


def read(body: bytes, where: str) -> Ledger:
    version = format_of(body, where)
    if version != FORMAT:
        raise refused(version, where)
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise _strange(where, error) from error


def format_of(body: bytes, where: str) -> int:
    try:
        version = msgspec.json.decode(body, type=_Format).format
    except msgspec.MsgspecError as error:
        raise _strange(where, error) from error
    if version < 1:
        raise _strange(where, "it tells no format")
    return version


def refused(version: int, where: str) -> StoreVersion:
    newer = version > FORMAT
    return StoreVersion(
        f"{where} has format {version}, this Headgate knows {FORMAT}: it was written by"
        f" {'a newer' if newer else 'an older'} version;"
        f" {'upgrade this program' if newer else 'run headgate migrate'}"
    )


def _strange(where: str, error: object) -> StoreVersion:
    return StoreVersion(f"the object at {where} is not a ledger of Headgate's: {error}")


def compose(
    id: str,
    seq: int,
    at: float,
    nonces: list[str],
    recent: list[tuple[int, str]],
    runs: list[Run],
    checkpoint: Checkpoint | None,
    slots: str,
) -> str:
    """The text of a ledger, an entry a line, for people who look at it too."""

    def text(value: object) -> str:
        return msgspec.json.encode(value).decode()

    parts = [f'"format": {FORMAT}, "id": "{id}", "seq": {seq}, "at": {at!r}']
    if checkpoint is not None:
        parts.append(f'"checkpoint": {text(checkpoint)}')
    parts.append(f'"runs": {text(runs)}')
    parts.append(f'"slots": {slots}')
    parts.append(f'"nonces": {text(nonces)}')
    entries = ",\n  ".join(entry for _, entry in recent)
    parts.append(f'"recent": [\n  {entries}\n ]')
    return "{" + ",\n ".join(parts) + "}\n"
