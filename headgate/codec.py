"""Arguments and results as JSON text, read back as the annotated types.

Datetimes, UUIDs, decimals, enums, dataclasses, bytes, sets and paths come back as they are
annotated; what has no annotation comes back as plain JSON. Nothing is ever pickled.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, cast

import msgspec

from headgate.errors import DeclarationError, InvalidArguments

Decode = Callable[[bytes | str | msgspec.Raw], Any]

_ATOMS = frozenset((str, int, bool, type(None), bytes))
_SCALAR_KEYS = (int, float, enum.Enum)


def plain(text: str) -> str:
    """Text that any store and any terminal can take: no lone surrogates, no NUL."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def visible(text: str) -> str:
    """Text for a terminal or a log: a control character of somebody's argument must not move
    the cursor there.

    >>> visible("two\\nlines, \\x1b[31mred")
    'two\\nlines, \\\\x1b[31mred'
    """
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)


def encode(value: object, what: str, annotation: object = Any) -> bytes:
    """`value` as JSON, or `InvalidArguments` that names `what` and the type that was refused.

    >>> encode({"n": 1}, "argument 'x'")
    b'{"n":1}'
    """
    try:
        _check(value, what, annotation is Any)
        return _encoder.encode(value)
    except UnicodeEncodeError:
        raise InvalidArguments(
            f"{what} holds text that is not valid unicode (a lone surrogate): decode it with"
            " the right encoding first, or pass bytes"
        ) from None
    except RecursionError:
        raise InvalidArguments(f"{what} is nested too deeply, or holds itself") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArguments(
            f"{what} ({type(value).__qualname__}) cannot be stored as JSON: {error}. Pass plain"
            " values, dataclasses, datetimes, UUIDs, decimals or enums"
        ) from None


def decoder(annotation: object, what: str) -> Decode:
    """A function that reads JSON as `annotation`, which must be a type JSON can give back.

    >>> decoder(set[int], "argument 'x'")(b"[2,1,2]")
    {1, 2}
    """
    if annotation is object:
        annotation = Any
    try:
        reader = msgspec.json.Decoder(cast(Any, annotation), dec_hook=_read_custom)
    except (TypeError, RecursionError) as error:
        raise DeclarationError(
            f"{what} is annotated {annotation!r}, which cannot be read back from JSON: {error}"
        ) from None

    def decode(text: bytes | str | msgspec.Raw) -> Any:
        try:
            return reader.decode(text)
        except (msgspec.ValidationError, msgspec.DecodeError, ValueError) as error:
            raise InvalidArguments(f"{what} does not fit its annotation: {error}") from None

    return decode


def _custom(value: object) -> object:
    """What msgspec does not know itself."""
    if isinstance(value, PurePath | str):
        return str(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)
    raise TypeError(f"values of type {type(value).__qualname__} are not supported")


def _read_custom(kind: type, value: object) -> object:
    if isinstance(value, str) and issubclass(kind, PurePath | str):
        return kind(value)
    if isinstance(value, int | float) and issubclass(kind, int | float):
        return kind(value)
    raise ValueError(f"{kind.__qualname__} cannot be made from JSON {type(value).__name__}")


_encoder = msgspec.json.Encoder(enc_hook=_custom)


def _check(value: object, what: str, plain: bool) -> None:
    """Refuse what JSON would change in silence: NaN, infinities, keys that are not texts.

    Under an annotation numbers and enums may be keys: they are read back as such.
    """
    kind = type(value)
    if kind in _ATOMS:
        return
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise InvalidArguments(
                f"{what} holds {float(value)}, which JSON has no number for: pass None or a text"
            )
    elif isinstance(value, Mapping):
        for key, item in cast("Mapping[object, object]", value).items():
            if not isinstance(key, str) and (plain or not isinstance(key, _SCALAR_KEYS)):
                raise InvalidArguments(
                    f"{what} holds a mapping with the key {key!r} ({type(key).__qualname__}):"
                    " JSON keys are texts"
                )
            _check(item, what, plain)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in cast("list[object]", value):
            _check(item, what, plain)
    else:
        for name in _fields(kind):
            _check(getattr(value, name, None), what, plain=False)


@functools.cache
def _fields(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass, a msgspec struct or an attrs class."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    attributes: tuple[Any, ...] = getattr(cast("object", kind), "__attrs_attrs__", ())
    return tuple(attribute.name for attribute in attributes)
