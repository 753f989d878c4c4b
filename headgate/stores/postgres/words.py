"""What was said of limits, as a program reads it whose schema may be migrated under it."""

from __future__ import annotations

from headgate.stores.postgres import schema
from headgate.stores.relational.transaction import Transaction
from headgate.stores.relational.values import Words, WordsCache


class OwnWords(WordsCache):
    """A migration counts as a change of limits. So what is read here is read before anything is
    granted in a schema that another release has changed, and by this nothing is."""

    def _load(self, tx: Transaction, version: int) -> Words:
        schema.refuse_other(tx)
        return super()._load(tx, version)
