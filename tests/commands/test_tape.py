"""What is kept of an output: bounded, in order, each byte at its place, nothing twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.commands.tape import COST, Tape
from headgate.stores.protocol import OutputPiece

MOST = 4096
WRITES = st.lists(
    st.tuples(
        st.sampled_from(("out", "err")),
        st.integers(0, 3000),
        st.sampled_from(("keep", "store", "repeat", "fail")),
    ),
    max_size=60,
)


def text(start: int, size: int) -> bytes:
    """Bytes that tell where they stand."""
    return bytes((place * 7 + place // 256) % 251 for place in range(start, start + size))


class Shelf:
    """What a store would hold."""

    def __init__(self) -> None:
        self.pieces: dict[int, OutputPiece] = {}

    def put(self, tape: Tape, times: int = 1) -> None:
        for _ in range(times):
            output = tape.batch(0.0)
            if output.forget is not None:
                first, last = output.forget
                for seq in range(first, last):
                    self.pieces.pop(seq, None)
            for piece in output.pieces:
                self.pieces.setdefault(piece.seq, piece)

    def in_order(self) -> list[OutputPiece]:
        return [self.pieces[seq] for seq in sorted(self.pieces)]


@given(WRITES)
def test_the_beginning_and_the_end_are_kept_within_the_bound(
    writes: list[tuple[str, int, str]],
) -> None:
    tape, shelf, written = Tape(1, MOST), Shelf(), 0
    for stream, size, then in writes:
        tape.write(stream, text(written, size), 0.0)
        written += size
        if then == "fail":
            tape.batch(0.0)  # the store did not answer: the same again, later
        elif then != "keep":
            shelf.put(tape, 2 if then == "repeat" else 1)
            tape.stored()
        assert sum(len(p.data) for p in shelf.in_order()) <= 2 * MOST
    while not tape.empty:
        shelf.put(tape)
        tape.stored()
    kept = shelf.in_order()
    place = 0
    for piece in kept:
        assert piece.start >= place, "in order, nothing twice"
        assert piece.data == text(piece.start, len(piece.data)), "at its place"
        place = piece.start + len(piece.data)
    assert place == written, "the end is there"
    total = sum(len(piece.data) for piece in kept)
    assert total <= MOST
    assert len(kept) <= MOST // COST + 1
    if written + COST * (len(writes) + 2) <= MOST // 2:
        assert total == written, "nothing is left out that fits"


def test_letter_by_letter_to_two_streams_is_bounded() -> None:
    tape = Tape(1, MOST)
    for number in range(10_000):
        tape.write(("out", "err")[number % 2], b"x", 0.0)
    assert len(tape.batch(0.0).pieces) <= MOST // COST + 1


def test_a_little_is_kept_whole() -> None:
    tape = Tape(1, MOST)
    for _ in range(10):
        tape.write("out", b"line\n", 0.0)
    (piece,) = tape.batch(0.0).pieces
    assert piece.data == b"line\n" * 10
