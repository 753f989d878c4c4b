"""What operators say about limits, over all that files and code declare.

A word is a limit, a pause or a weight of one group, with who said it, when, why, and until when.
It ends by itself: from its end on nobody goes by it, whether or not anybody has noticed. Who
notices first takes it away and records that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.errors import DeclarationError
from headgate.limits import split_group
from headgate.stores.protocol import LimitChange, Word
from headgate.stores.protocol import Words as Said
from headgate.stores.relational.events import record
from headgate.stores.relational.transaction import Transaction
from headgate.stores.relational.values import Values, changed, word_of

KIND = "limit_changed"


def change(tx: Transaction, changes: Sequence[LimitChange]) -> None:
    """Apply an operator's words and record each: who, when, old, new, why."""
    end(tx)
    for one in changes:
        _check(one)
        old = _standing(tx, one.group)
        if _apply(tx, one):
            changed(tx)
            said = {} if one.said is None else {"said_by": one.said.by, "said_at": one.said.at}
            _record(tx, one.group, old, one.by, one.reason, **said)


def _check(change: LimitChange) -> None:
    if change.weight is not None and split_group(change.group)[1] == "":
        raise DeclarationError(f"{change.group!r} names no key: write LIMIT/KEY, or the key alone")


def _apply(tx: Transaction, change: LimitChange) -> bool:
    """Whether it made a difference."""
    done = False
    if change.set_value or change.reset:
        done |= _say(tx, change, "limit", change.value, keep=change.set_value)
    if change.paused is not None:
        done |= _say(tx, change, "pause", None, keep=change.paused)
    if change.weight is not None or change.reset_weight:
        done |= _say(tx, change, "weight", change.weight, keep=change.weight is not None)
    return done


def _say(tx: Transaction, change: LimitChange, what: str, value: int | None, *, keep: bool) -> bool:
    place = {"grp": change.group, "what": what}
    if not keep:
        return tx.run(tx.sql.limits.drop_override, place).rowcount > 0
    said = change.said or Word(value, change.by, change.reason, tx.now)
    until = change.until if change.lasts is None else tx.now + change.lasts
    if until is not None and until <= tx.now:
        return False  # over before it began
    word = Word(value, said.by, said.reason, said.at, until)
    row = tx.row(tx.sql.limits.override, place)
    if row is not None and word_of(row) == word:
        return False
    tx.run(
        tx.sql.limits.set_override,
        {
            **place,
            "value": value,
            "who": word.by,
            "reason": word.reason,
            "at": word.at,
            "ends": until,
        },
    )
    return True


def end(tx: Transaction) -> bool:
    """Take back the words whose time is over. Nothing depends on it but the record: nobody goes
    by them since they ended."""
    rows = tx.rows(tx.sql.limits.ended, {"now": tx.now})
    for row in rows:
        group, what = row["grp"], row["what"]
        tx.run(tx.sql.limits.drop_override, {"grp": group, "what": what})
        old = _standing(tx, group)
        if what == "limit":
            old |= {"value": row["value"], "source": "override"}
        else:
            old[what] = row["value"] if what == "weight" else True
        why = f": {row['reason']}" if row["reason"] else ""
        said = f"its time was over (said by {row['who'] or 'nobody'}{why})"
        _record(tx, group, old, "", said, ended=what)
    if rows:
        changed(tx)
    return bool(rows)


def every(tx: Transaction) -> list[Said]:
    """All that is in force, by group."""
    words = Values(tx, reservations=False).words
    groups = sorted({*words.limits, *words.pauses, *words.weights})
    return [Said(g, words.limits.get(g), words.pauses.get(g), words.weights.get(g)) for g in groups]


def _standing(tx: Transaction, group: str) -> dict[str, Any]:
    """What is in force for a group now."""
    values = Values(tx, reservations=False)
    value, weight = values.of(group), values.words.weights.get(group)
    return {
        "value": value.value,
        "source": value.source,
        "pause": value.paused,
        "weight": None if weight is None else weight.value,
        "until": None if value.override is None else value.override.until,
    }


def _record(
    tx: Transaction, group: str, old: dict[str, Any], by: str, reason: str, **more: Any
) -> None:
    new = _standing(tx, group)
    record(
        tx, KIND, group, by,
        old=old["value"], new=new["value"], old_source=old["source"], new_source=new["source"],
        paused=new["pause"], was_paused=old["pause"],
        weight=new["weight"], old_weight=old["weight"], until=new["until"],
        reason=reason, **more,
    )  # fmt: skip
