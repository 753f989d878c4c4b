"""Limits as an operator handles them, from a program: `app.concurrency`.

The same words as `headgate concurrency` on the command line.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from headgate import limitfile
from headgate.config import check_weight
from headgate.errors import DeclarationError
from headgate.limits import check_group, check_value
from headgate.options import seconds
from headgate.threads import twin

if TYPE_CHECKING:
    from headgate.limitfile import Difference
    from headgate.stores.protocol import EventRecord, LimitChange, LimitRecord, Store, Words

HISTORY = 50


class Concurrency:
    """Change limits live, and see who changed what.

    >>> app.concurrency.set("payments-api", 3, reason="the provider is slow", lasts=7200)
    ...                                                                 # doctest: +SKIP
    >>> app.concurrency.reset("payments-api")                           # doctest: +SKIP

    A GROUP is a limit (`gpu`) or one key of it (`tenant/acme`). Every change is kept with who
    made it (`by`, else this process), when and why. What is said with `lasts` (seconds) or
    `until` (a time with its zone) ends by itself, by the store's clock.
    """

    def __init__(self, store: Callable[[], Store], who: Callable[[], str]) -> None:
        self._store = store
        self._who = who

    def set(
        self,
        group: str,
        limit: int | None,
        *,
        reason: str,
        lasts: float | timedelta | None = None,
        until: datetime | None = None,
        by: str | None = None,
    ) -> LimitRecord:
        """Set the limit of a group now, over file and code; None is unlimited."""
        if not reason.strip():
            raise DeclarationError("reason is empty: say why, for those who look later")
        value = check_value(limit, group)
        return self._change(group, by, reason, lasts, until, value=value, set_value=True)

    def reset(self, group: str, *, reason: str = "", by: str | None = None) -> LimitRecord:
        """Take back a `set`: file and code decide again."""
        return self._change(group, by, reason, reset=True)

    def pause(
        self,
        group: str,
        *,
        reason: str = "",
        lasts: float | timedelta | None = None,
        until: datetime | None = None,
        by: str | None = None,
    ) -> LimitRecord:
        """Let nothing more start in a group; what runs goes on."""
        return self._change(group, by, reason, lasts, until, paused=True)

    def resume(self, group: str, *, reason: str = "", by: str | None = None) -> LimitRecord:
        """Take back a `pause`."""
        return self._change(group, by, reason, paused=False)

    def weight(
        self,
        group: str,
        n: int | None,
        *,
        reason: str,
        lasts: float | timedelta | None = None,
        until: datetime | None = None,
        by: str | None = None,
    ) -> LimitRecord:
        """Let the fairness key of `tenant/acme` (or a key alone, `acme`) have `n` jobs per turn,
        over file and code; None takes it back."""
        if n is None:
            return self._change(group, by, reason, reset_weight=True)
        return self._change(group, by, reason, lasts, until, weight=check_weight(n))

    def ls(self) -> list[LimitRecord]:
        """All limits, and the groups with something of their own: a word or a holder."""
        return self._store().limits()

    def history(self, group: str | None = None, limit: int = HISTORY) -> list[EventRecord]:
        """Who changed which limit, when, from what to what, and why: the latest first."""
        subject = None if group is None else check_group(group)
        return self._store().events("limit_changed", limit, subject)

    def words(self) -> list[Words]:
        """What operators said and is in force."""
        return self._store().words()

    def export_toml(self) -> str:
        """What operators said and is in force, as a file for review."""
        return limitfile.dump(self.words())

    def import_toml(
        self,
        text: str,
        name: str = "the file",
        *,
        exact: bool = False,
        dry_run: bool = False,
        by: str | None = None,
    ) -> tuple[list[Difference], list[Difference]]:
        """Make the store say what the file does, all of it or nothing; doing it again changes
        nothing. Gives what was changed (or would be), and the words that the file does not have:
        those stay, unless the store is to say `exact`ly what the file does."""
        store, who = self._store(), by if by is not None else self._who()
        now = store.now()
        file = limitfile.load(text, name, by=who, now=now)
        differences, besides = limitfile.compare(store.words(), file, now=now, exact=exact)
        if differences and not dry_run:
            store.change_limits([difference.change(who) for difference in differences])
        return differences, besides

    def _change(
        self,
        group: str,
        by: str | None,
        reason: str,
        lasts: float | timedelta | None = None,
        until: datetime | None = None,
        **what: int | bool | None,
    ) -> LimitRecord:
        from headgate.stores.protocol import LimitChange

        if lasts is not None and until is not None:
            raise DeclarationError("lasts and until both say when it ends: give one of them")
        if until is not None and until.tzinfo is None:
            raise DeclarationError(f"until must be a time with its zone, got {until}")
        change: LimitChange = LimitChange(
            check_group(group),
            by=self._who() if by is None else by,
            reason=reason,
            lasts=None if lasts is None else seconds(lasts, "lasts", above=True),
            until=None if until is None else until.timestamp(),
            # Who calls this names fields of a change, each with a value of its kind.
            **what,  # pyright: ignore[reportArgumentType]
        )
        return self._store().change_limit(change)

    # --- the same for code in an event loop ------------------------------------------------

    aset = twin(set)
    areset = twin(reset)
    apause = twin(pause)
    aresume = twin(resume)
    aweight = twin(weight)
    als = twin(ls)
    ahistory = twin(history)
    aexport_toml = twin(export_toml)
    aimport_toml = twin(import_toml)
