"""What goes through the ledger comes out as it went in."""

from __future__ import annotations

import math
import random
import struct
from pathlib import Path

import pytest

from headgate.jobs import NewJob
from headgate.stores.bucket import keeping, replacing
from headgate.stores.bucket.s3 import S3
from headgate.stores.bucket.store import BucketStore
from headgate.stores.bucket.url import parse
from headgate.stores.protocol import Output, OutputPiece
from tests.bucket.machines import opened, same
from tests.bucket.memory import MemoryObjects
from tests.bucket.server import shared

dice = random.Random(6)
TEXTS = [
    "", " ", '"', "\\", "\\u0000", "\x00", "a\x00b", "\x1f\x7f\x80", "\n\r\t", "ä€𝄞", "\u2028",
    "\ufeff", "\uffff", "🏳️‍🌈", "'; DROP TABLE jobs; --", '"slots":{', "null", "1e999",
    "x" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("how", ["inline", "objects", "gathered"])
def test_texts(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "objects":
        monkeypatch.setattr(replacing, "INLINE", 10)
    if how == "gathered":
        monkeypatch.setattr(keeping, "SEAL_ENTRIES", 3)
        monkeypatch.setattr(keeping, "CHECKPOINT_BYTES", 3000)
    objects = MemoryObjects()
    with opened(tmp_path, objects, "a", "b") as (a, b):
        ids = {}
        for text in TEXTS:
            (done,) = a.submit([NewJob("task", args=text, turn=text[:50], parent=text)])
            ids[done.id] = text
            a.kept()
        with opened(tmp_path, objects, "c") as (c,):
            for machine in (a, b, c):
                for id, text in ids.items():
                    record = machine.job(id)
                    assert record is not None
                    assert record.args == text
                    assert record.parent == text
            same(a, b, c)


def numbers() -> list[float]:
    found = [0.1, 1 / 3, 1e300, 5e-324, 1.7976931348623157e308, 1794837506.2655218, 2.0**53 + 2.0]
    while len(found) < 500:
        (number,) = struct.unpack("d", dice.randbytes(8))
        if math.isfinite(number):
            found.append(abs(number))
    found += [1.8e9 + dice.random() * 1e8 for _ in range(500)]
    found += [dice.random() * 10 ** dice.randrange(-4, 14) for _ in range(500)]
    found += [-number for number in found[:100]]
    return found


def test_numbers_keep_every_digit(tmp_path: Path) -> None:
    objects = MemoryObjects()
    with opened(tmp_path, objects, "a", "b") as (a, b):
        wanted = numbers()

        def put() -> None:
            with a._write() as tx:
                for n, number in enumerate(wanted):
                    tx.run(
                        "INSERT INTO carried (grp, value, at) VALUES (?, ?, ?)",
                        (str(n), (1 << 62) + n, number),
                    )

        a._commits.run(put)
        b.tables()
        with b._replica.db.read() as tx:
            found = tx.rows("SELECT grp, value, at FROM carried")
        assert {int(row["grp"]): row["at"] for row in found} == dict(enumerate(wanted))
        assert all(row["value"] == (1 << 62) + int(row["grp"]) for row in found)
        same(a, b)


@pytest.mark.parametrize("number", [math.inf, -math.inf])
def test_numbers_without_end(tmp_path: Path, number: float) -> None:
    objects = MemoryObjects()
    with opened(tmp_path, objects, "a", "b") as (a, b):

        def put() -> None:
            with a._write() as tx:
                tx.run("INSERT INTO carried (grp, value, at) VALUES ('x', NULL, ?)", (number,))

        a._commits.run(put)
        same(a, b)
        with b._replica.db.read() as tx:
            assert tx.value("SELECT at FROM carried") == number


def test_bytes_of_outputs(tmp_path: Path) -> None:
    written = [bytes(range(256)), b"", b"\x00", dice.randbytes(3000), dice.randbytes(20_000)]
    with opened(tmp_path, MemoryObjects(), "a", "b") as (a, b):
        worker = a.worker(lease=1e6)
        (id,) = a.add(1)
        (claimed,) = a.claim(worker)
        start, pieces = 0, []
        for n, data in enumerate(written):
            pieces.append(OutputPiece(n, "out", 1.5, start, data))
            start += len(data)
        a.put_output([Output(claimed.token, tuple(pieces))])
        assert [record.data for record in b.output(id)] == written
        same(a, b)


def test_over_the_wire(tmp_path: Path) -> None:
    server = shared()
    prefix = server.fresh(tmp_path).split("/")[3].split("?")[0] + "/ä b"
    stores = []
    for name in ("a", "b"):
        url = server.url(prefix.replace("ä b", "%C3%A4%20b"), tmp_path / name)
        stores.append(BucketStore(url, objects=S3(parse(url))))
    ids = {stores[0].submit([NewJob("task", args=text)])[0].id: text for text in TEXTS}
    for id, text in ids.items():
        record = stores[1].job(id)
        assert record is not None
        assert record.args == text
    for store in stores:
        store.close()
