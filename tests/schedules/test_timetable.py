"""When a schedule is due: against a plain search minute by minute, over changes of the clocks."""

from __future__ import annotations

import functools
import os
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import InvalidSchedule
from headgate.schedules.rrule import Recurrence
from headgate.schedules.timetable import Timetable

FULL = bool(os.environ.get("HEADGATE_PROOF"))
EXAMPLES = 3000 if FULL else 60
DAY = 86400.0

# Around these moments the clocks are changed there: by an hour in both directions, by half an
# hour, at midnight (so that the day before comes twice in part), and by a whole day.
CHANGES = [
    ("Europe/Berlin", datetime(2026, 3, 29)),
    ("Europe/Berlin", datetime(2026, 10, 25)),
    ("America/New_York", datetime(2026, 3, 8)),
    ("America/New_York", datetime(2026, 11, 1)),
    ("Australia/Lord_Howe", datetime(2026, 4, 5)),
    ("Australia/Lord_Howe", datetime(2026, 10, 4)),
    ("America/Havana", datetime(2026, 3, 8)),
    ("America/Havana", datetime(2026, 11, 1)),
    ("Pacific/Apia", datetime(2011, 12, 30)),
    ("UTC", datetime(2026, 2, 28)),
    ("Asia/Kolkata", datetime(2024, 2, 29)),
]


def local(table: Timetable, moments: list[float]) -> list[str]:
    return [datetime.fromtimestamp(m, table.zone).isoformat() for m in moments]


def of_day(when: str, zone: str, day: str, days: int = 1, name: str = "x") -> list[str]:
    table = Timetable(when, name, timezone=zone)
    begin = datetime.fromisoformat(day).replace(tzinfo=table.zone)
    end = (datetime.fromisoformat(day) + timedelta(days=days)).replace(tzinfo=table.zone)
    return local(table, list(table.between(begin.timestamp() - 0.5, end.timestamp() - 0.5)))


def table_or_error(when: str, zone: str) -> Timetable | InvalidSchedule:
    try:
        return Timetable(when, "x", timezone=zone)
    except InvalidSchedule as error:
        return error


# --- the clocks are changed --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "day", "time", "expected"),
    [
        ("Europe/Berlin", "2026-03-29", "30 2 * * *", ["2026-03-29T03:00:00+02:00"]),
        ("Europe/Berlin", "2026-10-25", "30 2 * * *", ["2026-10-25T02:30:00+02:00"]),
        ("America/New_York", "2026-03-08", "15 2 * * *", ["2026-03-08T03:00:00-04:00"]),
        ("America/New_York", "2026-11-01", "15 1 * * *", ["2026-11-01T01:15:00-04:00"]),
        # Two times of the skipped hour, and the one at which it ends: one run.
        ("Europe/Berlin", "2026-03-29", "0,30 2,3 * * *",
         ["2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00"]),
        ("America/New_York", "2026-11-01", "0 */2 * * *",
         [f"2026-11-01T{h:02}:00:00-0{4 if h < 2 else 5}:00" for h in range(0, 24, 2)]),
    ],
)  # fmt: skip
def test_times_of_the_day_run_once(zone: str, day: str, time: str, expected: list[str]) -> None:
    assert of_day(time, zone, day) == expected


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", "2026-03-29", 23),
        ("Europe/Berlin", "2026-10-25", 25),
        ("America/New_York", "2026-03-08", 23),
        ("America/New_York", "2026-11-01", 25),
    ],
)
def test_the_clock_as_it_runs_misses_and_doubles_nothing(zone: str, day: str, hours: int) -> None:
    for when, per_hour in (("* * * * *", 60), ("*/15 * * * *", 4), ("7 * * * *", 1)):
        table = Timetable(when, "x", timezone=zone)
        found = of_day(when, zone, day)
        assert len(found) == hours * per_hour
        moments = [datetime.fromisoformat(text).timestamp() for text in found]
        gaps = {b - a for a, b in pairwise(moments)}
        assert gaps == {3600 / per_hour}
        assert table.after(moments[0]) == moments[1]


@pytest.mark.parametrize(
    ("zone", "day", "when"),
    [
        ("Europe/Berlin", "2026-10-25", "15,45 2 * * *"),
        ("America/New_York", "2026-11-01", "15,45 1 * * *"),
        ("Europe/Berlin", "2026-03-29", "15,45 2 * * *"),
        ("America/New_York", "2026-03-08", "*/20 2,3 * * *"),
    ],
)
def test_from_any_minute_of_that_day_the_next_is_ahead(zone: str, day: str, when: str) -> None:
    """Also from within the hour that is shown for the second time."""
    table = Timetable(when, "x", timezone=zone)
    begin = datetime.fromisoformat(day).replace(tzinfo=table.zone).timestamp()
    all_of_it = list(table.between(begin, begin + 3 * DAY))
    for n in range(26 * 60):
        moment = begin + 60 * n
        assert table.after(moment) == next(m for m in all_of_it if m > moment)


def test_a_rule_keeps_to_the_wall_too() -> None:
    weekly = "RRULE:FREQ=DAILY;BYHOUR=2;BYMINUTE=30;BYSECOND=0"
    assert of_day(weekly, "Europe/Berlin", "2026-03-28", 3) == [
        "2026-03-28T02:30:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]
    assert of_day(weekly, "Europe/Berlin", "2026-10-25") == ["2026-10-25T02:30:00+02:00"]
    hourly = "RRULE:FREQ=HOURLY;BYMINUTE=0;BYSECOND=0"
    assert len(of_day(hourly, "Europe/Berlin", "2026-10-25")) == 25
    assert len(of_day(hourly, "America/New_York", "2026-03-08")) == 23


# --- against a plain search ----------------------------------------------------------------------


def field(low: int, high: int, most: int = 4) -> st.SearchStrategy[set[int] | None]:
    some = st.sets(st.integers(low, high), min_size=1, max_size=most)
    return st.one_of(st.none(), some, st.just(set(range(low, high + 1))))


def text_of(values: set[int] | None) -> str:
    return "*" if values is None else ",".join(map(str, sorted(values)))


Fields = tuple[set[int] | None, ...]


def fits(fields: Fields, wall: datetime) -> bool:
    minute, hour, day, month, weekday = fields
    if minute is not None and wall.minute not in minute:
        return False
    if hour is not None and wall.hour not in hour:
        return False
    if month is not None and wall.month not in month:
        return False
    by_day = day is None or wall.day in day
    by_weekday = weekday is None or (wall.weekday() + 1) % 7 in weekday
    # The OR rule: where both are restricted, either will do.
    if day is not None and weekday is not None:
        return by_day or by_weekday
    return by_day and by_weekday


@functools.cache
def clock(zone: ZoneInfo, low: float, days: int) -> tuple[list[float], list[datetime]]:
    minutes = [low + 60 * n for n in range(days * 24 * 60)]
    return minutes, [datetime.fromtimestamp(m, zone).replace(tzinfo=None) for m in minutes]


def expected(fields: Fields, zone: ZoneInfo, begin: float, end: float) -> list[float]:
    """Every minute from two days before on, as a clock on the wall shows it."""
    minutes, walls = clock(zone, (begin // 86400 - 2) * 86400, 5)
    _, hours, *_ = fields
    found: set[float] = set()
    if hours is None or len(hours) == 24:
        found = {m for m, wall in zip(minutes, walls, strict=True) if fits(fields, wall)}
    else:
        highest = walls[0]
        for moment, wall in zip(minutes, walls, strict=True):
            # Each minute on the wall once: what is shown again has been, what is skipped is now.
            while highest < wall:
                highest += timedelta(minutes=1)
                if fits(fields, highest):
                    found.add(moment)
    return sorted(m for m in found if begin < m <= end)


@pytest.mark.timeout(900)
@settings(max_examples=EXAMPLES if FULL else 30)
@given(
    st.tuples(field(0, 59), field(0, 23, 6), field(1, 31), field(1, 12, 9), field(0, 6)),
    st.sampled_from(CHANGES),
    st.integers(-24 * 60, 24 * 60),
    st.integers(0, 59),
)
def test_cron_is_what_a_plain_search_finds(
    fields: Fields, change: tuple[str, datetime], minutes: int, seconds: int
) -> None:
    zone_name, day = change
    text = " ".join(text_of(values) for values in fields)
    table = table_or_error(text, zone_name)
    if isinstance(table, InvalidSchedule):
        assert "never comes" in str(table)  # 30 February
        return
    begin = day.replace(tzinfo=UTC).timestamp() + minutes * 60 + seconds
    end = begin + 30 * 3600
    assert list(table.between(begin, end)) == expected(fields, table.zone, begin, end)


TEXTS = [
    *("* * * * *", "30 2 * * *", "*/20 1-3 * * *", "H H * * *", "* * * * * */7", "@weekly"),
    *("0 0 1 * 1", "0 0 29 2 *", "RRULE:FREQ=HOURLY;INTERVAL=5", "RRULE:FREQ=MONTHLY;BYDAY=-1FR"),
    *("RRULE:FREQ=MINUTELY;INTERVAL=7", "RRULE:FREQ=YEARLY;INTERVAL=3"),
    *("RRULE:FREQ=WEEKLY;INTERVAL=2", "RRULE:FREQ=SECONDLY;INTERVAL=11;BYHOUR=2"),
]


@settings(max_examples=EXAMPLES)
@given(st.sampled_from(CHANGES), st.integers(0, 3 * 86400), st.sampled_from(TEXTS))
def test_wherever_one_begins_the_same_moments_follow(
    change: tuple[str, datetime], offset: int, when: str
) -> None:
    """`after` is what `between` gives, and asking from anywhere before a moment finds it."""
    zone, day = change
    table = Timetable(when, "job", timezone=zone)
    begin = day.replace(tzinfo=UTC).timestamp() - 86400 + offset
    first = table.after(begin)
    assert first is not None
    assert first > begin
    for between in (begin + (first - begin) * part for part in (0.25, 0.5, 0.999)):
        assert table.after(between) == first
    second = table.after(first)
    assert second is not None
    assert second > first
    assert list(table.between(begin, second)) == [first, second]


# --- H and R -------------------------------------------------------------------------------------


def minutes_of(when: str, name: str) -> list[int]:
    table = Timetable(when, name)
    return [datetime.fromtimestamp(m, UTC).minute for m in table.between(DAY - 1, DAY + 3599)]


def test_no_name_loses_a_run_to_its_hash() -> None:
    """A hash into 0 to 15 for H/15 would give some of them three runs an hour."""
    for n in range(300):
        found = minutes_of("H/15 * * * *", f"job{n}")
        assert len(found) == 4
        assert {b - a for a, b in pairwise(found)} == {15}


@given(st.text(min_size=1, max_size=20))
def test_h_is_the_same_for_the_same_name_and_in_its_range(name: str) -> None:
    table = Timetable("H(10-20) H(1-5) H * *", name)
    assert table.after(0) == Timetable("H(10-20) H(1-5) H * *", name).after(0)
    found = datetime.fromtimestamp(table.after(0) or 0, UTC)
    assert 10 <= found.minute <= 20
    assert 1 <= found.hour <= 5
    assert found.day <= 28  # a day that every month has


def test_names_are_spread() -> None:
    hours = {Timetable("@daily", f"job{n}").after(0) for n in range(200)}
    assert len(hours) > 120
    assert len({tuple(minutes_of("R * * * *", f"job{n}")) for n in range(200)}) > 40


def test_r_is_another_draw_but_one_that_all_agree_on() -> None:
    assert minutes_of("R * * * *", "a") == minutes_of("R * * * *", "a")
    names = [f"job{n}" for n in range(100)]
    assert [minutes_of("R * * * *", n) for n in names] != [
        minutes_of("H * * * *", n) for n in names
    ]
    assert len(minutes_of("R/20 * * * *", "a")) == 3


def test_a_list_may_hold_h() -> None:
    assert len(minutes_of("H,H(40-45) * * * *", "a")) in (1, 2)


# --- seconds, names, start and end, jitter ------------------------------------------------------


def test_seconds_come_last() -> None:
    table = Timetable("30 12 * * * 15", "x")
    assert datetime.fromtimestamp(table.after(0) or 0, UTC).time().isoformat() == "12:30:15"


def test_names_of_days_and_months() -> None:
    table = Timetable("0 9 * JAN-MAR MON-FRI", "x")
    days = [datetime.fromtimestamp(m, UTC) for m in table.between(0, 366 * 86400)]
    assert {day.month for day in days} == {1, 2, 3}
    assert {day.weekday() for day in days} == {0, 1, 2, 3, 4}


def test_a_rule_takes_what_it_leaves_open_from_dtstart_or_the_name() -> None:
    table = Timetable("DTSTART:20260131T093015 RRULE:FREQ=MONTHLY", "x")
    found = [datetime.fromtimestamp(m, UTC).isoformat() for m in table.between(0, 1_780_000_000)]
    assert found[:2] == ["2026-01-31T09:30:15+00:00", "2026-03-31T09:30:15+00:00"]
    one, other = (Timetable("RRULE:FREQ=WEEKLY", name).after(0) for name in ("a", "b"))
    assert one != other
    assert one == Timetable("RRULE:FREQ=WEEKLY", "a").after(0)


def test_every_second_week_counts_from_dtstart() -> None:
    table = Timetable("DTSTART:20260105T000000 RRULE:FREQ=WEEKLY;INTERVAL=2", "x")
    found = list(table.between(1_767_500_000, 1_780_000_000))
    assert {b - a for a, b in pairwise(found)} == {14 * 86400.0}


_RULE = st.builds(
    lambda *parts: ";".join(filter(None, parts)),
    st.sampled_from(["FREQ=DAILY", "FREQ=HOURLY", "FREQ=WEEKLY", "FREQ=MONTHLY", "FREQ=YEARLY"]),
    st.sampled_from(["", "INTERVAL=2", "INTERVAL=5", "INTERVAL=13"]),
    st.sampled_from(["", "", "BYDAY=MO,TH", "BYDAY=SU"]),
    st.sampled_from(["", "", "BYMONTH=2,11"]),
    st.sampled_from(["", "", "BYMONTHDAY=1", "BYMONTHDAY=-1,15"]),
    st.sampled_from(["", "BYHOUR=3", "BYHOUR=0,23"]),
)


@settings(max_examples=EXAMPLES)
@given(_RULE, st.integers(0, 500_000), st.integers(-1000, 60_000), st.booleans())
def test_a_rule_is_what_the_library_counts_from_its_anchor(
    rule: str, start: int, later: int, inclusive: bool
) -> None:
    """We begin shortly before the moment instead, and go day by day."""
    begin = datetime(2026, 1, 1) + timedelta(minutes=start)
    text = f"DTSTART:{begin:%Y%m%dT%H%M%S} RRULE:{rule}"
    wall = begin + timedelta(minutes=later)
    try:
        ours = Recurrence(text, "x", ZoneInfo("UTC")).next(wall, inclusive=inclusive)
    except InvalidSchedule:
        return  # some of these never come
    if ours is not None:
        assert ours == rrulestr(f"RRULE:{rule}", dtstart=begin).after(wall, inc=inclusive)


def test_until() -> None:
    table = Timetable("RRULE:FREQ=DAILY;BYHOUR=0;BYMINUTE=0;BYSECOND=0;UNTIL=20260103T000000Z", "x")
    begin = datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()
    assert len(list(table.between(begin, begin + 1e9))) == 2


def test_start_and_end_are_within() -> None:
    table = Timetable("0 * * * *", "x", start=7200.0, end=4 * 3600.0)
    assert list(table.between(0, 1e6)) == [7200.0, 10800.0, 14400.0]
    assert table.after(14400) is None


def test_jitter_is_within_and_the_same_for_all() -> None:
    table = Timetable("0 * * * *", "x", jitter=30)
    other = Timetable("0 * * * *", "x", jitter=30)
    spreads = [table.spread(3600.0 * n) for n in range(100)]
    assert spreads == [other.spread(3600.0 * n) for n in range(100)]
    assert all(0 <= spread < 30 for spread in spreads)
    assert len(set(spreads)) == 100


def test_far_away_moments_end_in_peace() -> None:
    for when in ("* * * * *", "RRULE:FREQ=YEARLY", "0 0 29 2 *"):
        table = Timetable(when, "x", timezone="Europe/Berlin")
        assert table.after(1e15) is None
        assert (table.after(-1e15) or -1.0) >= 0


# --- what cannot be used --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "told"),
    [
        ("61 * * * *", "field minute"),
        ("* 24 * * *", "field hour"),
        ("* * 32 * *", "field day of month"),
        ("* * * FOO *", "field month"),
        ("* * * * 9", "field day of week"),
        ("* * * * * 60", "field second"),
        ("*/0 * * * *", "field minute"),
        ("H(50-70) * * * *", "field minute.*0-59"),
        ("H/0 * * * *", "field minute.*step"),
        ("* H(0-3)/9 * * *", "field hour.*step"),
        ("* * *", "has 3 fields"),
        ("* * * * * * *", "has 7 fields"),
        ("0 0 30 2 *", "never comes"),
        ("@often", "known are @hourly"),
        ("", "a schedule is a text"),
        ("0 2 * * \u2460", "characters"),
        ("RRULE:FREQ=DAILY;COUNT=3", "COUNT is not kept"),
        ("RRULE:FREQ=DAYLY", "FREQ must be one of"),
        ("RRULE:FREQ=DAILY;BYMOON=1", "BYMOON=1"),
        ("RRULE:FREQ=DAILY;INTERVAL=0", "INTERVAL"),
        ("RRULE:FREQ=DAILY;UNTIL=tomorrow", "UNTIL"),
        ("DTSTART:20260230T000000 RRULE:FREQ=DAILY", "DTSTART"),
        ("RRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "never comes"),
        ("EXRULE:FREQ=DAILY", "fields"),
        ("RRULE:FREQ=HOURLY;BYSETPOS=5", "BYSETPOS"),
        ("RRULE:FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30", "never comes"),
        ("RRULE:FREQ=DAILY;INTERVAL=7;BYMONTH=2;BYMONTHDAY=30", "never comes"),
    ],
)
def test_what_cannot_be_used_is_told_with_its_place(when: str, told: str) -> None:
    with pytest.raises(InvalidSchedule, match=f"(?s){told}"):
        Timetable(when, "x")


def test_a_zone_that_does_not_exist() -> None:
    for zone in ("Europe/Atlantis", "", "../../etc/passwd", "\0"):
        with pytest.raises(InvalidSchedule, match="time zone"):
            Timetable("* * * * *", "x", timezone=zone)


_CRON = st.text("0123456789*/,-HRLW#()? @MONJAN", max_size=12)
_PART = st.tuples(
    st.sampled_from(["FREQ", "INTERVAL", "UNTIL", "BYDAY", "BYHOUR", "BYSETPOS", "WKST", "BYWEEKNO",
                     "BYMONTHDAY", "BYYEARDAY", "BYMONTH", "X"]),
    st.sampled_from(["DAILY", "YEARLY", "MONTHLY", "WEEKLY", "HOURLY", "SECONDLY", "1", "0", "-1",
                     "MO", "2FR", "400", "", "20260101", "20260101T000000Z", "53", "1,2", "31"]),
)  # fmt: skip


@settings(max_examples=10_000 if FULL else EXAMPLES)
@given(
    st.one_of(
        st.text(max_size=40),
        st.lists(_CRON, min_size=5, max_size=6).map(" ".join),
        st.lists(_PART, max_size=5).map(lambda parts: "RRULE:" + ";".join(map("=".join, parts))),
    )
)
def test_any_text_is_a_timetable_or_an_error_that_names_it(when: str) -> None:
    table = table_or_error(when, "Europe/Berlin")
    if isinstance(table, InvalidSchedule):
        assert str(table)
        return
    first = table.after(1_800_000_000)
    assert first is None or first > 1_800_000_000


@pytest.mark.parametrize("rule", ["HOURLY;INTERVAL=2", "MINUTELY;INTERVAL=120"])
def test_every_second_hour_runs_once_when_an_hour_comes_twice(rule: str) -> None:
    """As `0 */2 * * *` does: 2:00 in Berlin is one time of the day."""
    when = f"DTSTART:20260101T000000 RRULE:FREQ={rule}"
    table = Timetable(when, "x", timezone="Europe/Berlin")
    cron = Timetable("0 */2 * * *", "x", timezone="Europe/Berlin")
    for day in (datetime(2026, 10, 25), datetime(2026, 3, 29)):
        low = day.replace(tzinfo=table.zone).timestamp() - 1
        found = list(table.between(low, low + 1.5 * DAY))
        assert found == list(cron.between(low, low + 1.5 * DAY))
    half = Timetable("RRULE:FREQ=MINUTELY;INTERVAL=30;BYSECOND=0", "x", timezone="Europe/Berlin")
    low = datetime(2026, 10, 25, tzinfo=half.zone).timestamp() - 1
    assert len(list(half.between(low, low + 25 * 3600))) == 50


def test_the_zone_of_dtstart_counts() -> None:
    text = "DTSTART;TZID=America/New_York:20260105T090000 RRULE:FREQ=DAILY"
    table = Timetable(text, "x", timezone="Europe/Berlin")
    found = table.after(datetime(2026, 7, 1, tzinfo=UTC).timestamp())
    assert found is not None
    assert datetime.fromtimestamp(found, UTC) == datetime(2026, 7, 1, 13, tzinfo=UTC)
    day = Timetable("DTSTART;VALUE=DATE:20260105 RRULE:FREQ=DAILY", "x").after(1_800_000_000)
    assert day is not None
    assert day % DAY == 0
    for odd in ("DTSTART;TZID=Mars:20260105T090000", "DTSTART;X=1:20260105T090000", "DTSTART;:1"):
        with pytest.raises(InvalidSchedule):
            Timetable(f"{odd} RRULE:FREQ=DAILY", "x")
