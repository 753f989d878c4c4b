"""The claimer: one round trip after the other, each telling what ended and asking for more.

It wakes when the bell rings, when an attempt has ended, when something falls due, and once
a second in any case. What has ended travels with the next claim; while one round trip is
under way the next one's load gathers by itself, so busy workers send few large ones.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Container

from headgate.app import App
from headgate.backoff import grown, worth_telling
from headgate.errors import StoreBusy, StoreUnavailable, StoreVersion
from headgate.jobs import Claimed, Finish, Progress
from headgate.stores.protocol import Claim, Exchange, Exchanged, Store
from headgate.turns import ClaimState
from headgate.worker.board import STARTS
from headgate.worker.chains import Chains
from headgate.worker.courier import Courier
from headgate.worker.ear import Ear
from headgate.worker.offering import Offering
from headgate.worker.outbox import Outbox
from headgate.worker.queues import Queues
from headgate.worker.router import Router
from headgate.worker.runner import Runner
from headgate.worker.settling import Settler
from headgate.worker.tempo import Tempo
from headgate.worker.watch import SOON, Watch, gap

log = logging.getLogger("headgate.worker")

Send = Callable[[Exchange], Awaitable[Exchanged | None]]

SAFETY_POLL = 1.0
_POLL_WITHOUT_BELL = 0.05
_QUIET = 0.1
"""Seconds between two round trips that a bell asks for while there is no room anyway."""
_LONGEST_BACKOFF = 2.0
_AHEAD_KEYED = 2
"""Jobs of keys reserved at once, for each that may run: who comes new waits for no more of
another's than this."""
_APART = 0.5
"""Seconds between two tries to tell an end that waits for somebody's transaction."""


class Claimer:
    """Lives in the event loop; the store is called in one thread of its own."""

    def __init__(
        self,
        app: App,
        worker: str,
        *,
        concurrency: int,
        queues: Queues,
        router: Router,
        max_jobs: int | None = None,
        groups: tuple[str, ...] | None = None,
        note_ahead: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._app = app
        self.store: Store = app.store
        self._worker = worker
        self._concurrency = concurrency
        self._queues = queues
        self._router = router
        self._served = None if groups is None else frozenset(groups)
        self._left = max_jobs
        """How many more jobs this process may start; None: no bound."""
        self._loop = asyncio.get_running_loop()
        self._courier = Courier(self.store, app.clock.boot)
        self.know_tasks()
        self._state = ClaimState()
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()
        """Set by what happened here; a bell from elsewhere only wakes."""
        self._rang = False
        self._news = True
        """Something may have changed in the store since the last look."""
        self._progress_due: asyncio.TimerHandle | None = None
        self._gathering: asyncio.TimerHandle | None = None
        self._late_due: asyncio.TimerHandle | None = None
        self._apart_due = 0.0
        self._under_way = False
        self._ends = False
        """Something has ended since the last round trip was put together."""
        self._released = 0
        self._watching: Ear | None = None
        """The bell that is answered by who hears it, while this keeps watch."""
        self._last = 0.0
        self._look_by = 0.0
        """When to ask anew in any case."""
        self._empty = 0
        self._failures = 0
        self.runner: Runner | None = None
        ahead = self.store.capabilities.ahead
        self.chains = Chains(self._give_back, note_ahead, self._loop.time, ahead)
        self._tempo = Tempo(concurrency, ahead, self.chains.longest_wait)
        self._offering = Offering(self.chains, concurrency, self._loop.time, self._courier.used)
        self._settler = Settler(self.store, worker, self.chains, self.wake)
        self.outbox = Outbox(self.chains)
        self._accepting = True
        """False: nothing new is claimed, and what comes in is given back."""
        self.closing = False
        """True: the loop ends as soon as there is nothing left to tell."""
        self.dead = False
        """The store has given this worker's slots away."""
        self.idle = False
        """The last claim found nothing, and nothing runs here."""
        self.on_idle: Callable[[], None] = lambda: None
        self.on_dead: Callable[[], None] = lambda: None
        self.on_refused: Callable[[Container[int]], None] = lambda _: None
        """Called with the tokens of ends that came after this worker was declared dead."""

    def know_tasks(self) -> None:
        """Claim what the app declares now."""
        tasks = self._app.tasks
        self._tasks = frozenset(tasks)
        self._in_threads = frozenset(
            name for name, task in tasks.items() if not task.is_async and not task.isolate
        )

    @property
    def spent(self) -> bool:
        """It has started as many jobs as it may."""
        return self._left == 0 and not self.chains.waiting

    def accept(self, accepting: bool) -> None:
        self._accepting = accepting
        if not accepting:
            self.chains.give_all_back("shutdown")

    # --- the desk of the attempts -------------------------------------------------------------

    def note_end(self, token: int, finish: Finish | None) -> None:
        self.outbox.progress.pop(token, None)
        if finish is not None:
            self.outbox.finishes[token] = finish
        self._ends = True
        if not self._under_way:
            self._tell_ends()

    def _tell_ends(self) -> None:
        """At once where slots are free or will be soon; where the next jobs run already, or most
        still run that were started with it, a little later, with more."""
        pause = self._pause_for_more()
        if pause <= 0:
            self._gathered()
        elif self._gathering is None:
            self._gathering = self._loop.call_later(pause, self._gathered)

    def _pause_for_more(self) -> float:
        assert self.runner is not None
        running = self.runner.running
        if self.chains.waiting and not self.chains.pressing(running):
            return self._tempo.gathering
        return self._tempo.pause(len(self.outbox.finishes), running)

    def _gathered(self) -> None:
        self._stop_gathering()
        self.wake()

    def _stop_gathering(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None

    def _give_back(self, claimed: Claimed, reason: str) -> None:
        if self._left is not None:
            self._left += 1
        self.outbox.finishes[claimed.token] = Finish(claimed.token, "returned", reason)
        self.wake()

    def _give_late_back(self) -> None:
        self._late_due = None
        self.chains.give_late_back()
        self._watch_for_late()

    def _watch_for_late(self) -> None:
        if self.chains.waiting and self._late_due is None:
            self._late_due = self._loop.call_later(
                self.chains.longest_wait / 5, self._give_late_back
            )

    def settle(self, token: int) -> None:
        """From any thread: return when the store knows that this attempt runs."""
        self._settler.settle(token)

    def note_progress(self, progress: Progress) -> None:
        """From any thread: it travels with the next round trip, at most some 10 a second."""
        self._loop.call_soon_threadsafe(self._note_progress, progress)

    def _note_progress(self, progress: Progress) -> None:
        if self.runner is None or progress.token not in self.runner.attempts:
            return
        self.outbox.progress[progress.token] = progress
        if self._progress_due is None:
            self._progress_due = self._loop.call_later(_QUIET, self._send_progress)

    def _send_progress(self) -> None:
        self._progress_due = None
        self.wake()

    def note_released(self, change: int) -> None:
        """From any thread. Code that waits in `ctx.released()` lends its room to others:
        the job it waits for may have to run right here."""
        self._loop.call_soon_threadsafe(self._note_released, change)

    def _note_released(self, change: int) -> None:
        self._released += change
        self.wake()

    # --- the loop -----------------------------------------------------------------------------

    def wake(self) -> None:
        self._urgent.set()
        self._wake.set()
        if self._watching is not None:
            self._watching.dismiss()

    async def run(self) -> None:
        """Never cancelled: a round trip under way may be bringing jobs that are ours then."""
        ear = Ear(self.store.bell("work"), self._heard)
        try:
            wait = 0.0
            if not ear.hears:  # nor do others: they come along between two looks
                self._offering.alone += _POLL_WITHOUT_BELL
            while not (self.closing and self.outbox.empty):
                # Full, or about to ask again anyway: nobody need be told to wake us.
                ear.awake(busy=wait <= 0 or self._room() <= 0)
                if wait > 0 and ear.attends and self._at_rest():
                    wait = await self._keep_watch(ear, wait)
                    await asyncio.sleep(0)  # what it brought begins before all else
                else:
                    await self._sleep(wait if ear.hears else min(wait, _POLL_WITHOUT_BELL))
                    wait = await self._round_trip(self._courier.carry)
                if not self._failures:
                    # Not before the starts are told: an end alone would give slots back in which
                    # others run by now.
                    wait = min(wait, await self._tell_apart())
        finally:
            ear.close()
            self._settler.heard(StoreUnavailable("the worker has stopped"))
            self._courier.close()

    def _heard(self) -> None:
        self._rang = True
        self._wake.set()

    async def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            timer = self._loop.call_later(seconds, self._wake.set)
            await self._wake.wait()
            timer.cancel()
        else:
            await asyncio.sleep(0)
        if self._rang and not self._urgent.is_set():
            # Woken only by the bell: when claims keep coming back empty, look a little less
            # often; after a silence, look at once. What ends here meanwhile cuts the wait short:
            # its slots are free for others only then.
            pause = _QUIET if self._room() <= 0 else gap(self._empty)
            late = self._last + max(pause, self._unasked()) - self._loop.time()
            if late > 0:
                timer = self._loop.call_later(late, self._urgent.set)
                await self._urgent.wait()
                timer.cancel()
        # Woken by our own ends alone, there is nothing to see that the last look had missed.
        if self._rang or not (self._urgent.is_set() or seconds <= 0):
            self._news = True
        self._rang = False
        self._urgent.clear()
        self._wake.clear()

    def _at_rest(self) -> bool:
        """Nothing runs and nothing is to be told: all that can happen is that the bell rings."""
        runner = self.runner
        return (
            runner is not None
            and not runner.running
            and self._room() > 0
            and self.outbox.empty
            and not self._offering.left()  # for a moment only
            and not self._failures
            and not self._wake.is_set()
        )

    async def _keep_watch(self, ear: Ear, seconds: float) -> float:
        watch = Watch(self._courier.trip, self._empty, self._last)

        async def kept(exchange: Exchange) -> Exchanged | None:
            answer = await watch.keep(ear, exchange, seconds)
            self._empty = watch.empty
            return answer

        self._watching, self._news = ear, True
        try:
            return await self._round_trip(kept)
        finally:
            self._watching = None

    def _room(self) -> int:
        if not self._accepting or self.runner is None:
            return 0
        room = self._concurrency - self.runner.running + self._released
        return room if self._left is None else min(room, self._left)

    def _ahead_room(self, room: int) -> int:
        chains = self.chains
        if not self._accepting or not chains.pace.short:
            return 0
        # Enough to go on with while a round trip is under way; and no more than is remembered of
        # starts that the store has not heard of.
        ahead = min(self._tempo.ahead_jobs, STARTS - len(chains.untold)) - chains.waiting
        return max(0, ahead if self._left is None else min(ahead, self._left - room))

    def _claim(self) -> Claim | None:
        if self._nothing_new():
            return None
        room = max(0, self._room())
        ahead_room = self._ahead_room(room)
        # Without room for more it is a claim all the same while something runs or is reserved: its
        # answer says who is to stop, and whether what is reserved still stands.
        if self.runner is None or not (room or self.chains.waiting or self.runner.running):
            return None
        places = self.runner.places()
        wants = bool(room or places or self.chains.waiting)
        return Claim(
            room=room,
            tasks=self._tasks,
            state=self._state,
            queues=self._queues.shares(room, self.runner.by_queue()),
            other_queues=self._queues.others,
            weights=self._app.weights,
            running=self.runner.by_turn(),
            spread=self._in_threads,
            ageing=self._app.ageing,
            left=self._offering.left(),
            served=self._served,
            ahead=dict(self.chains.pace.short),
            ahead_room=ahead_room if wants else 0,
            ahead_work=self._tempo.ahead_work,
            ahead_keyed=max(0, _AHEAD_KEYED * self._concurrency - self.chains.keyed),
            chains=self.chains.describe(places),
            # Where it would be made for the ends alone, the look behind it is early enough.
            fresh=self._news and not (self.outbox.finishes and self.runner.running),
            news=self._news,
            again=wants and self.runner.running > 0,
        )

    def _nothing_new(self) -> bool:
        """The last claim took the one job in line, that has ended for good, and nobody has rung
        since: there is nothing to ask for."""
        assert self.runner is not None
        if not self._state.emptied or self._news or self.runner.running:
            return False
        return all(
            finish.outcome in ("succeeded", "failed") and not finish.followups
            for finish in self.outbox.finishes.values()
        )

    async def _round_trip(self, send: Send) -> float:
        """Tell, ask, and act on the answer; how long to sleep then. Where `send` gives None nothing
        was said."""
        assert self.runner is not None
        self.runner.account()
        self._stop_gathering()  # whatever has gathered goes with this one
        self._offering.consider()
        claim = self._claim()
        load = self.outbox.load()
        exchange = load.exchange(self._worker, claim)
        self._under_way, self._ends = True, False
        claimed: int | None = None
        try:
            answer = await send(exchange)
            claimed = 0 if answer is None else len(answer.claimed)
            if answer is None:
                return 0.0
        except (StoreBusy, StoreUnavailable, StoreVersion) as error:
            if isinstance(error, StoreBusy) and self.outbox.set_apart(load):
                self._apart_due = self._loop.time() + _APART
                return 0.0
            return self._refused(error)
        except Exception as error:
            # Not the store's state but something that was sent.
            log.exception("a round trip to the store failed")
            told = await self.outbox.send_apart(load, self._worker, self._courier.beside)
            assert self.runner is not None
            self.runner.heard((), told)
            return self._refused(error)
        finally:
            self._under_way = False
            took = self._note_trips(claimed)
        if self._failures:
            log.info("the store answers again, after %d tries", self._failures)
        self._failures = 0
        lost = self.outbox.accepted(load, answer.stale)
        self._settler.heard()
        assert self.runner is not None
        unseen = False
        if claim is not None:
            unseen, self._news = self._news and self._state.reused, False
            self.runner.granted_at = self._courier.sent_at
            if claim.chains:
                self._offering.answered(self.runner.running)
        self.runner.heard(load.finishes, answer.refused)
        if answer.dead:
            self.on_refused(load.finishes)
        for token in lost:
            self.runner.stop(token, "lease", "the slots it took over are not ours any more")
        wait = await self._act(answer, claim, self._last - took)
        if unseen:
            # What is new was seen behind this round trip: act on it.
            wait = min(wait, self._unasked())
        if self._ends:
            self._tell_ends()
        return wait

    async def _tell_apart(self) -> float:
        """Try the ends that wait for others' transactions, until one still has to; how long to
        sleep before the next try."""
        while self.outbox.apart:
            late = self._apart_due - self._loop.time()
            if late > 0:
                return late
            token, finish = next(iter(self.outbox.apart.items()))
            try:
                answer = await self._courier.beside(Exchange(self._worker, (finish,)))
            except (StoreBusy, StoreUnavailable, StoreVersion):
                # Behind the others: they may wait for somebody else.
                self.outbox.apart[token] = self.outbox.apart.pop(token)
                self._apart_due = self._loop.time() + _APART
                continue
            except Exception:
                answer = None
            del self.outbox.apart[token]
            if answer is None or answer.dead:
                # The next round trip tells it, and knows what to do about either.
                self.outbox.finishes[token] = finish
                return 0.0
            assert self.runner is not None
            self.runner.heard((token,), answer.refused)
        return math.inf

    def _note_trips(self, claimed: int | None) -> float:
        """Round trips have ended, all but the last without anything; how long that one took."""
        trips = self._courier.trips()
        took = trips[-1] if trips else 0.0
        if trips:
            self._last = self._loop.time()
            self._tempo.note(took)
        if self._app.meter is not None:
            for number, seconds in enumerate(trips, 1):
                self._app.meter.round_trip(seconds, claimed if number == len(trips) else 0)
        return took

    async def _act(self, answer: Exchanged, claim: Claim | None, sent: float) -> float:
        assert self.runner is not None
        if answer.dead and not self.dead:
            log.error("this worker was declared dead: its slots are not its own any more")
            self.dead = True
            self.on_dead()
        for token in answer.stale:
            self.runner.stop(token, "stale", "the attempt is no longer the running one")
        if answer.recall or answer.dead:
            self.chains.give_all_back("recalled")
        self.chains.gives_way, self._state.gives_way = self._state.gives_way, None
        self._offering.wanted, self._state.idle_elsewhere = self._state.idle_elsewhere, frozenset()
        for token, reason in answer.cancels:
            if self.chains.remove(token):
                self._left = None if self._left is None else self._left + 1
                self.note_end(token, Finish(token, "cancelled", reason))
            else:
                self.runner.stop(token, "cancel", reason)
        for claimed in answer.claimed:
            if self._left is not None:
                self._left -= 1
            if not self._accepting:
                # The order to stop came while this claim was under way.
                self._give_back(claimed, "shutdown")
            elif claimed.reserved:
                self.chains.reserve(claimed, sent)
            else:
                self.runner.start(claimed)
        self.runner.start_reserved()
        self._watch_for_late()
        if answer.unrouted and await self._router.route():
            return 0.0
        if claim is not None:
            self._empty = 0 if answer.claimed else min(self._empty + 1, 10)
        self.idle = not answer.claimed and not answer.more and self.runner.running == 0
        self.idle = self.idle and not self.outbox.apart
        if self.idle or self.spent:
            self.on_idle()
        if claim is None and answer.more:
            self._news = True  # what has just ended let somebody in
        elif claim is None and self._nothing_new():
            return max(0.0, self._look_by - self._loop.time())
        wait = SAFETY_POLL if answer.wake_in is None else min(SAFETY_POLL, answer.wake_in + SOON)
        self._look_by = self._loop.time() + wait
        return 0.0 if answer.more and self._accepting else wait

    def _unasked(self) -> float:
        """Seconds between a round trip and the next for which nothing has ended here."""
        return self._tempo.unasked if self.runner is not None and self.runner.running else 0.0

    def _refused(self, error: Exception) -> float:
        """The store changed nothing: keep everything, and ask again a little later."""
        self._settler.heard(error)
        self._failures += 1
        pause = grown(self._failures - 1, 0.05, _LONGEST_BACKOFF)
        if worth_telling(self._failures):
            log.warning("the store refused a round trip (%s); trying again", error)
        return pause * random.uniform(0.5, 1.0)
