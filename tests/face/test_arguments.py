"""Promise: arguments and results are JSON and come back as the annotated types."""

from __future__ import annotations

import enum
import json
import math
import pathlib
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import App, Context, DeclarationError, InvalidArguments, JobFailed
from headgate.jobs import JobFilter
from headgate.testing import drain, inline, memory_app


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclass
class Point:
    x: int
    label: str | None = None


@dataclass
class Shape:
    points: list[Point]
    made: datetime


NOW = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


def echo_app(annotation: Any) -> tuple[App, Any]:
    app = memory_app()

    def echo(value: Any) -> Any:
        return value

    echo.__annotations__ = {"value": annotation, "return": annotation}
    return app, app.task(echo)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (datetime, NOW),
        (date, date(2030, 1, 2)),
        (timedelta, timedelta(hours=1, microseconds=7)),
        (uuid.UUID, uuid.UUID(int=5)),
        (Decimal, Decimal("1.10")),
        (Colour, Colour.RED),
        (Level, Level.HIGH),
        (Point, Point(1, "a")),
        (Shape, Shape([Point(1), Point(2, "b")], NOW)),
        (bytes, b"\x00\xff"),
        (set[int], {1, 2}),
        (frozenset[str], frozenset("ab")),
        (tuple[int, str], (1, "a")),
        (dict[int, Decimal], {1: Decimal("2.5")}),
        (dict[str, list[uuid.UUID]], {"a": [uuid.UUID(int=1)]}),
        (pathlib.Path, pathlib.Path("a/b")),
        (pathlib.Path | None, None),
        (datetime | None, NOW),
        (str, "né\u0000\n\U0001f600"),
        (int, 2**70),
        (float, 1e300),
        (object, {"plain": [1, None, True]}),
        (Any, [1, "a", None]),
    ],
)
def test_a_value_comes_back_as_annotated(annotation: Any, value: Any) -> None:
    app, echo = echo_app(annotation)
    with app, inline(app):
        result = echo.submit(value).result()
    assert result == value
    assert type(result) is type(value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc\x00é"), inner),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(value=JSON)
def test_plain_json_comes_back_the_same(value: Any) -> None:
    _, echo = echo_app(Any)
    text = echo.call(value).new_job().args
    assert json.loads(text) == {"value": value}
    assert echo.arguments(text) == {"value": value}


def loops() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (math.nan, "nan"),
        ([1, {"a": math.inf}], "inf"),
        (Point(1), None),
        ({1: 2}, "JSON keys are texts"),
        ({None: 2}, "JSON keys are texts"),
        ({(1, 2): 3}, "JSON keys are texts"),
        ("\ud800", "lone surrogate"),
        ({"\udc00": 1}, "lone surrogate"),
        (object(), "object"),
        ([lambda: 1], "function"),
        (open, "builtin"),
        (loops(), "nested too deeply"),
        (1j, "complex"),
    ],
)
def test_what_is_not_json_is_refused_by_name(app: App, value: Any, says: str | None) -> None:
    @app.task
    def take(thing) -> None:  # type: ignore[no-untyped-def]
        pass

    if says is None:
        take.submit(value)
        return
    with pytest.raises(InvalidArguments, match=r"argument 'thing' of task 'take'") as refused:
        take.submit(value)
    assert says in str(refused.value)
    assert app.store.count(JobFilter()) == 0


def test_nan_inside_a_dataclass_is_refused(app: App) -> None:
    @dataclass
    class Reading:
        value: float

    @app.task
    def take(thing) -> None:  # type: ignore[no-untyped-def]
        pass

    class Struct(msgspec.Struct):
        inner: list[Reading]

    with pytest.raises(InvalidArguments, match="nan"):
        take.submit(Reading(math.nan))
    with pytest.raises(InvalidArguments, match="nan"):
        take.submit({"a": Struct([Reading(1.0), Reading(math.nan)])})


def test_a_wrong_type_is_refused_at_submit(app: App) -> None:
    @app.task
    def take(count: int, when: datetime | None = None) -> None:
        pass

    with pytest.raises(InvalidArguments, match=r"argument 'count'.*Expected `int`, got `str`"):
        take.submit("3")  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match="argument 'when'"):
        take.submit(3, when="tomorrow")  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match=r"takes \(count.*missing a required argument"):
        take.submit()  # type: ignore[call-arg]
    with pytest.raises(InvalidArguments, match="unexpected keyword argument 'other'"):
        take.submit(1, other=2)  # type: ignore[call-arg]
    with pytest.raises(InvalidArguments, match="too many positional"):
        take.submit(1, None, 3)  # type: ignore[call-arg]


def test_ten_megabytes_work_and_more_than_the_maximum_is_refused() -> None:
    with memory_app() as app, inline(app):

        @app.task
        def length(text: str) -> int:
            return len(text)

        @app.task
        def make(n: int) -> str:
            return "x" * n

        assert length.submit("é" * 5_000_000).result() == 5_000_000
        assert len(make.submit(10_000_000).result()) == 10_000_000
        with pytest.raises(InvalidArguments, match="16,777,216"):
            length.submit("x" * (16 * 1024 * 1024))
        app.max_args_bytes = 10
        with pytest.raises(InvalidArguments, match="max_args_bytes"):
            length.submit("more than ten")


def test_a_result_that_cannot_be_stored_fails_the_job(app: App) -> None:
    @app.task
    def bad() -> object:
        return object()

    handle = bad.submit()
    assert drain(app).failed == 1
    record = handle.record()
    assert record.state == "failed"
    assert record.error is not None
    assert "the result of task 'bad'" in record.error.message


def test_only_what_was_passed_is_stored(app: App) -> None:
    @app.task
    def take(a: int, b: int = 2, *rest: int, c: int = 3, **more: int) -> list[Any]:
        return [a, b, rest, c, more]

    assert json.loads(take.call(1).new_job().args) == {"a": 1}
    with inline(app):
        assert take.submit(1).result() == [1, 2, [], 3, {}]
        assert take.submit(1, 5, 6, 7, c=8, d=9).result() == [1, 5, [6, 7], 8, {"d": 9}]
        assert take.submit(1, c=8).result() == [1, 2, [], 8, {}]
        assert app.submit("take", {"a": 1, "*rest": [4], "z": 3}).result() == [
            1,
            2,
            [4],
            3,
            {"z": 3},
        ]


def test_positional_only_parameters(app: App) -> None:
    @app.task
    def take(a: int, b: int = 2, /, c: int = 3) -> list[int]:
        return [a, b, c]

    with inline(app):
        assert take.submit(1, c=9).result() == [1, 2, 9]
        assert app.submit("take", {"a": 1, "b": 5}).result() == [1, 5, 3]


def test_the_context_is_injected_wherever_it_stands(app: App) -> None:
    @app.task
    def first(ctx: Context, n: int) -> list[Any]:
        return [ctx.task, n]

    @app.task
    def last(n: int, ctx: Context) -> list[Any]:
        return [ctx.task, n]

    @app.task
    def keyword(n: int, *, ctx: Context, m: int = 1) -> list[Any]:
        return [ctx.task, n, m]

    @app.task
    def optional(n: int = 4, ctx: Context | None = None) -> list[Any]:
        assert ctx is not None
        return [ctx.task, n]

    with inline(app):
        assert first.submit(1).result() == ["first", 1]
        assert last.submit(2).result() == ["last", 2]  # type: ignore[call-arg]
        assert keyword.submit(3, m=5).result() == ["keyword", 3, 5]  # type: ignore[call-arg]
        assert optional.submit().result() == ["optional", 4]
    assert first(1) == ["first", 1]


def test_payload_handlers(app: App) -> None:
    @app.task("both", payload=True)
    async def both(data, ctx):  # type: ignore[no-untyped-def]
        return [data, ctx.task]

    @app.task("one", payload=True)
    def one(data):  # type: ignore[no-untyped-def]
        return data

    @app.task("typed", payload=True)
    def typed(data: Point, ctx: Context) -> int:
        return data.x

    with inline(app):
        assert both.submit({"a": 1}).result() == [{"a": 1}, "both"]
        assert both.submit([1, 2]).result() == [[1, 2], "both"]
        assert app.submit("one", {"n": 1}).result() == {"n": 1}
        assert app.submit("one").result() == {}
        assert typed.submit(Point(7)).result() == 7
    with pytest.raises(DeclarationError, match="payload=True"):
        app.task("three", payload=True)(lambda a, b, c: None)
    with pytest.raises(DeclarationError, match="payload=True"):
        app.task("none", payload=True)(lambda: None)


def test_annotations_that_cannot_be_read_are_named(app: App) -> None:
    @app.task
    def take(thing: str | datetime) -> None:
        pass

    with pytest.raises(DeclarationError, match=r"argument 'thing'.*cannot be read back"):
        take.submit("x")

    @app.task
    def later(thing: NotThere) -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    with pytest.raises(DeclarationError, match="NotThere"):
        later.submit(1)


def test_a_stored_argument_that_no_longer_fits_fails_the_job(app: App) -> None:
    handle = app.submit("renamed", {"old": 1})

    @app.task
    def renamed(new: int) -> None:
        pass

    assert drain(app).attempts == 0
    with pytest.raises(JobFailed, match="no argument 'old'") as failed:
        handle.result(timeout=0)
    assert failed.value.reason == "unroutable"
