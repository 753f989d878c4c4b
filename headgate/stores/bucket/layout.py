"""Where what is in the bucket. docs/bucket.md tells it to people."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    prefix: str

    def _at(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name

    @property
    def ledger(self) -> str:
        return self._at("ledger.json")

    @property
    def shards(self) -> str:
        """Stood in the place of the ledger in a store of several shards."""
        return self._at("shards.json")

    @property
    def runs(self) -> str:
        return self._at("runs/")

    @property
    def checkpoints(self) -> str:
        return self._at("checkpoints/")

    @property
    def parts(self) -> str:
        return self._at("parts/")

    @property
    def bodies(self) -> str:
        return self._at("bodies/")

    @property
    def probes(self) -> str:
        return self._at("probes/")

    def run(self, first: int, last: int, nonce: str) -> str:
        return f"{self.runs}{first:012}-{last:012}-{nonce}.json"

    def checkpoint(self, seq: int, nonce: str) -> str:
        return f"{self.checkpoints}{seq:012}-{nonce}.json"

    def part(self, name: str) -> str:
        return f"{self.parts}{name}.json"

    def digest_of(self, part: str) -> str:
        """Of its content, as its name tells it."""
        return part.removeprefix(self.parts).partition("-")[0]

    def body(self, name: str) -> str:
        return f"{self.bodies}{name}.txt"
