"""Groups: what is limited, who holds it, who waits for it; and the operator's words."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from headgate.errors import DeclarationError
from headgate.limits import check_group, check_name, split_group
from headgate.stores.protocol import LaneRecord, LaneWalk, LimitLoad
from headgate.web import asked, charts
from headgate.web.charts import Series
from headgate.web.site import NotThere, Site, back_to, by, form_of, site_of
from headgate.web.survey import SORTS

PAGE = 50
SLOTS = 200
LANES = 50
LANES_SHOWN = 25
WALKS = 4
"""Times that lanes are looked for along a limit whose keys are scattered."""

SORTED = {
    "full": "nearest to full",
    "waiting": "most waiting",
    "oldest": "longest wait",
    "name": "name",
}


def groups(request: Request) -> Response:
    site = site_of(request)
    cells = asked.query(request)
    search, sort = asked.text(cells, "q"), cells.get("sort", "full")
    if sort not in SORTED:
        sort = "full"
    sample = site.sampler.latest()
    found = [load for load in sample.loads if search in load.limit.group]
    found.sort(key=_ORDER[sort])
    offset = max(0, asked.whole(cells, "offset", 0))
    others = site.store.held_groups("", cells.get("others") or None, PAGE)
    known = {load.limit.group for load in sample.loads}
    names = {load.limit.group for load in sample.loads if load.limit.keyed}
    return site.page(
        request,
        "groups.html",
        now=sample.at,
        loads=found[offset : offset + PAGE],
        total=len(found),
        offset=offset,
        more=offset + PAGE if len(found) > offset + PAGE else None,
        search=search,
        sort=sort,
        sorts=SORTED,
        refusals=_refusals(site),
        others=[
            group
            for group in others.groups
            if group.group not in known and split_group(group.group)[0] not in names
        ],
        others_after=others.after,
    )


def _fullness(load: LimitLoad) -> tuple[float, int, str]:
    value = load.limit.value
    share = 0.0 if value is None or load.limit.keyed else load.held / value if value else 1.0
    return -share, -load.waiting, load.limit.group


_ORDER: dict[str, Callable[[LimitLoad], tuple[float | str, ...]]] = {
    "full": _fullness,
    "waiting": lambda load: (-load.waiting, load.limit.group),
    "oldest": lambda load: (load.oldest or 1e18, load.limit.group),
    "name": lambda load: (load.limit.group,),
}


def _refusals(site: Site) -> dict[str, int]:
    """By group: submissions that a cap refused, of those among the last events."""
    found: dict[str, int] = {}
    for event in site.store.past_events("cap_refused", limit=200):
        found[event.subject] = found.get(event.subject, 0) + int(event.data.get("count", 1))
    return found


def keys(request: Request) -> Response:
    """The keys of a keyed limit."""
    site = site_of(request)
    cells = asked.query(request)
    limit = check_name(asked.required(cells, "limit"), "limit")
    sort = cells.get("sort", "waiting")
    if sort not in SORTS:
        sort = "waiting"
    search, offset = asked.text(cells, "q"), min(100_000, max(0, asked.whole(cells, "offset", 0)))
    page = site.surveys.of(limit).page(sort, search, offset, PAGE)
    shown = site.store.values(tuple(f"{limit}/{load.key}" for load in page.keys))
    return site.page(
        request,
        "keys.html",
        now=site.store.now(),
        limit=limit,
        page=page,
        shown=shown,
        sort=sort,
        sorts=SORTS,
        search=search,
        offset=offset,
        size=PAGE,
    )


def group(request: Request) -> Response:
    site = site_of(request)
    name = check_group(asked.required(asked.query(request), "group"))
    sample = site.sampler.latest()
    record, slots = site.store.group(name)
    load = sample.load(name)
    limit, key = split_group(name)
    keyed = load is not None and load.limit.keyed
    lanes, lanes_more = _lanes(site, limit, key, name)
    waiting, bounded, oldest = _waiting(load, lanes, lanes_more, key)
    events = site.store.past_events("limit_changed", name, limit=20)
    if record.source == "none" and not (slots or lanes or events or load):
        raise NotThere(f"no group {name}: nothing declares it, nobody holds it or waits for it")
    points = list(site.sampler.history.groups.get(name, ()))
    series = [
        Series("held", "running", [point.held for point in points]),
        Series("limit", "limit", [point.limit for point in points]),
    ]
    times = [point.at for point in points]
    chart = charts.lines(f"Units of {name} held", times, series)
    if key is None:
        # On a scale of its own: next to a backlog of thousands, what is held is a line at the foot.
        waits = [Series("waiting", "ready", [point.waiting for point in points])]
        chart += charts.lines(f"Jobs that wait for {name}", times, waits)
    return site.page(
        request,
        "group.html",
        now=sample.at,
        group=name,
        limit_name=limit,
        key=key,
        record=record if load is None else load.limit,
        load=load,
        keyed=keyed,
        waiting=waiting,
        waiting_bounded=bounded,
        oldest=oldest,
        slots=slots[:SLOTS],
        more_slots=max(0, len(slots) - SLOTS),
        leases={worker.id: worker.lease_ends for worker in sample.workers},
        lanes=lanes[:LANES_SHOWN],
        lanes_more=lanes_more or len(lanes) > LANES_SHOWN,
        chart=chart if points else "",
        events=events,
    )


def _waiting(
    load: LimitLoad | None, lanes: list[LaneRecord], more: bool, key: str | None
) -> tuple[int, bool, float | None]:
    """How many wait: what was counted for a limit as a whole, else what its lanes show."""
    if load is not None and key is None:
        return load.waiting, load.waiting_bounded, load.oldest
    bounded = more or any(lane.bounded for lane in lanes)
    oldest = min((lane.since for lane in lanes), default=None)
    return sum(lane.waiting for lane in lanes), bounded, oldest


def _lanes(site: Site, limit: str, key: str | None, group: str) -> tuple[list[LaneRecord], bool]:
    found: list[LaneRecord] = []
    after = None
    for _ in range(WALKS):
        page = site.store.lanes(LaneWalk(limit, key, after, LANES))
        found += [
            lane
            for lane in page.lanes
            if any(
                need.group == group or (key is None and need.limit == limit) for need in lane.needs
            )
        ]
        after = page.after
        if after is None or len(found) >= LANES:
            break
    return found[:LANES], after is not None or len(found) > LANES


def change(request: Request) -> Response:
    """An operator's word on a group."""
    site, form = site_of(request), form_of(request)
    name = check_group(asked.required(form, "group"))
    action, who = asked.required(form, "action"), by(request)
    reason, lasts = asked.text(form, "reason"), asked.span(form, "lasts")
    desk = site.app.concurrency
    if action == "set":
        desk.set(name, asked.units(form, "value"), reason=reason, lasts=lasts, by=who)
    elif action == "reset":
        desk.reset(name, reason=reason, by=who)
    elif action == "pause":
        desk.pause(name, reason=reason, lasts=lasts, by=who)
    elif action == "resume":
        desk.resume(name, reason=reason, by=who)
    elif action == "weight":
        weight = asked.whole(form, "value")
        desk.weight(name, weight, reason=reason, lasts=lasts, by=who)
    elif action == "reset-weight":
        desk.weight(name, None, reason=reason, by=who)
    else:
        raise DeclarationError(f"{action[:40]!r} can be done to no group")
    return back_to(request, "/groups/show", group=name, done=action)


def release(request: Request) -> Response:
    """Take a slot from its holder. Fenced: only from the holder that was seen."""
    site, form = site_of(request), form_of(request)
    name = check_group(asked.required(form, "group"))
    slot, token = asked.whole(form, "slot"), asked.whole(form, "token")
    if form.get("sure") != "yes":
        raise DeclarationError(
            "the holder of that slot may still run, and one more than the limit would then run"
            " beside it: say that this is what you want, or cancel the job instead"
        )
    held = [
        found for found in site.store.group(name)[1] if (found.slot, found.token) == (slot, token)
    ]
    if not held or not site.store.drop_slot(name, slot, token, by=by(request)):
        raise NotThere(f"that holder does not hold slot {slot} of {name} any more")
    return back_to(request, "/groups/show", group=name, done="released")
