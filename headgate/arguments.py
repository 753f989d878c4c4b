"""The arguments of a task: from a call to JSON text, and from the text to a call.

They are stored as one JSON object by parameter name, holding only what was passed, so that
defaults are those of the code that runs. Values for `*args` stand under `"*args"`. With
`payload=True` the JSON is the payload itself, whatever it is.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from headgate.codec import Decode, decoder, encode
from headgate.context import Context
from headgate.errors import DeclarationError, InvalidArguments

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Arguments:
    """How one function is called: its parameters, their types, and where a context goes."""

    def __init__(self, fn: Callable[..., Any], task: str, *, payload: bool) -> None:
        self.fn = fn
        self.task = task
        self.payload = payload
        try:
            signature = inspect.signature(fn)
        except (TypeError, ValueError) as error:
            raise DeclarationError(f"task {task!r}: {fn!r} has no signature: {error}") from None
        self._parameters = dict(signature.parameters)
        self._contexts = self._find_contexts()
        plain = [p for name, p in self._parameters.items() if name not in self._contexts]
        if payload:
            self._payload = self._find_payload(plain)
        self.public = signature.replace(parameters=plain)
        """The signature as `submit` takes it: without the context."""
        self._var_positional = _first(plain, inspect.Parameter.VAR_POSITIONAL)
        self._var_keyword = _first(plain, inspect.Parameter.VAR_KEYWORD)
        by_place = not self._contexts and all(p.kind in _POSITIONAL for p in plain)
        self._by_place = dict.fromkeys(self._parameters) if by_place else None
        """The names of all parameters, where each is passed by its place."""

    # --- what the function looks like ----------------------------------------------------

    def _find_contexts(self) -> frozenset[str]:
        found = {name for name, p in self._parameters.items() if is_context(self.fn, p)}
        if self.payload and not found:
            # handler(payload, ctx): by position, since such handlers are often not annotated.
            positional = [p for p in self._parameters.values() if p.kind in _POSITIONAL]
            if len(positional) > 1 and positional[1].default is inspect.Parameter.empty:
                found = {positional[1].name}
        return frozenset(found)

    def _find_payload(self, plain: list[inspect.Parameter]) -> inspect.Parameter:
        required = [p for p in plain if p.default is inspect.Parameter.empty]
        if not plain or len(required) > 1 or plain[0].kind not in _POSITIONAL:
            raise DeclarationError(
                f"task {self.task!r}: with payload=True the handler takes (payload) or"
                f" (payload, ctx), but it is {self.fn.__qualname__}{inspect.signature(self.fn)}"
            )
        return plain[0]

    def accepts(self, name: str) -> bool:
        """Could an argument of this name be there? (checked for keys at declaration)"""
        if self.payload or self._var_keyword is not None:
            return True
        parameter = self.public.parameters.get(name)
        return parameter is not None and parameter is not self._var_positional

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        """The annotations as types; resolved late, so that they may name later classes."""
        try:
            hints = typing.get_type_hints(_unwrapped(self.fn), include_extras=True)
        # Annotations are anybody's code: reading them may raise whatever it likes.
        except Exception as error:
            raise DeclarationError(
                f"task {self.task!r}: its annotations cannot be read ({error}). Types of"
                " arguments and results must be importable where the task is defined, not only"
                " under TYPE_CHECKING and not local to a function"
            ) from None
        return hints

    @functools.cached_property
    def _decoders(self) -> dict[str, Decode]:
        return {
            name: decoder(self._type_of(name), f"argument {name!r} of task {self.task!r}")
            for name in self.public.parameters
        }

    def _type_of(self, name: str) -> Any:
        hint = self.hints.get(name, Any)
        if self._var_positional is not None and name == self._var_positional.name:
            return list[hint]
        return hint

    @functools.cached_property
    def decode_result(self) -> Decode:
        return decoder(self.hints.get("return", Any), f"the result of task {self.task!r}")

    # --- from a call to text -------------------------------------------------------------

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by parameter name, as they are stored (payload: under "")."""
        try:
            bound = self.public.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArguments(f"task {self.task!r} takes {self.public}: {error}") from None
        if self.payload:
            return {"": bound.arguments[self._payload.name]}
        found = dict(bound.arguments)
        if self._var_positional is not None and self._var_positional.name in found:
            name = self._var_positional.name
            found[f"*{name}"] = list(found.pop(name))
        if self._var_keyword is not None and self._var_keyword.name in found:
            extra = found.pop(self._var_keyword.name)
            if clash := next((name for name in extra if name in found), None):
                raise InvalidArguments(f"task {self.task!r} got {clash!r} twice")
            found.update(extra)
        return found

    def from_payload(self, payload: object) -> dict[str, Any]:
        """The arguments as somebody passed them by name, checked against the parameters."""
        if self.payload:
            return {"": payload}
        if not isinstance(payload, Mapping):
            raise InvalidArguments(
                f"task {self.task!r} takes {self.public}: the payload must be a mapping of its"
                f" arguments, got {type(payload).__qualname__}"
            )
        given = cast("Mapping[str, Any]", payload)
        positional = self._var_positional
        spread = given.get(f"*{positional.name}", ()) if positional is not None else ()
        named = {k: v for k, v in given.items() if positional is None or k != f"*{positional.name}"}
        return self.bind((*self._lead(named, spread=bool(spread)), *spread), named)

    def _lead(self, named: dict[str, Any], *, spread: bool) -> list[Any]:
        """Take out of `named` what must be passed by position: all that stands before values
        for `*args`, left out or not, and whatever is positional only."""
        lead: list[Any] = []
        for p in self.public.parameters.values():
            by_position = p.kind is inspect.Parameter.POSITIONAL_ONLY or (
                spread and p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
            )
            if not by_position:
                break
            if p.name in named:
                lead.append(named.pop(p.name))
            elif spread and p.default is not inspect.Parameter.empty:
                lead.append(p.default)
            else:
                break
        return lead

    def encode(self, bound: Mapping[str, Any]) -> str:
        """The JSON text of bound arguments; each is tried against its annotation here,
        so that a wrong type is an error where it is made, not later in a worker."""
        if self.payload:
            return self._encode_one(self._payload.name, bound[""]).decode()
        parts = {
            name: msgspec.Raw(self._encode_one(name.removeprefix("*"), value))
            for name, value in bound.items()
        }
        try:
            return msgspec.json.encode(parts).decode()
        except UnicodeEncodeError:
            raise InvalidArguments(
                f"task {self.task!r}: the name of an argument is not valid unicode"
            ) from None

    def _encode_one(self, name: str, value: object) -> bytes:
        read, annotation = self._reader(name)
        text = encode(value, f"argument {name!r} of task {self.task!r}", annotation)
        if annotation is not Any:
            read(text)
        return text

    def _reader(self, name: str) -> tuple[Decode, Any]:
        if name not in self._decoders and self._var_keyword is not None:
            name = self._var_keyword.name
        return self._decoders[name], self._type_of(name)

    # --- from text to a call ---------------------------------------------------------------

    def decode(self, text: str) -> dict[str, Any]:
        """Stored arguments, each as annotated."""
        if self.payload:
            return {"": self._decoders[self._payload.name](text)}
        if text == "{}":
            return {}
        try:
            parts = _object.decode(text)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise InvalidArguments(
                f"task {self.task!r} takes {self.public}: its arguments must be a JSON object:"
                f" {error}"
            ) from None
        found: dict[str, Any] = {}
        for name, raw in parts.items():
            plain = name.removeprefix("*")
            if plain not in self._decoders and self._var_keyword is None:
                raise InvalidArguments(
                    f"task {self.task!r} takes {self.public}: it has no argument {plain!r}"
                )
            found[name] = self._reader(plain)[0](raw)
        return found

    def for_keys(self, bound: Mapping[str, Any]) -> Mapping[str, Any]:
        """What key functions and argument-name keys see: every argument, defaults applied."""
        if self.payload:
            payload = bound[""]
            if isinstance(payload, Mapping):
                return cast("Mapping[str, Any]", payload)
            return {self._payload.name: payload}
        found = {
            name: p.default
            for name, p in self.public.parameters.items()
            if p.default is not inspect.Parameter.empty
        }
        return found | {name.removeprefix("*"): value for name, value in bound.items()}

    def call_form(
        self, bound: Mapping[str, Any], ctx: Context
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments for the function itself, the context in place."""
        if self.payload:
            return self._payload_form(bound[""], ctx)
        if self._by_place is not None and bound.keys() == self._by_place.keys():
            return tuple([bound[name] for name in self._by_place]), {}
        left = dict(bound)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        by_position = True
        for name, p in self._parameters.items():
            if p.kind is inspect.Parameter.VAR_POSITIONAL:
                args.extend(left.pop(f"*{name}", ()))
            elif p.kind is inspect.Parameter.VAR_KEYWORD:
                kwargs.update(left)
                left.clear()
            elif name not in self._contexts and name not in left:
                if p.default is inspect.Parameter.empty:
                    raise InvalidArguments(
                        f"task {self.task!r} takes {self.public}: argument {name!r} is missing"
                    )
                # A gap: from here on by name, unless values for *args follow, which need
                # every place before them filled.
                if f"*{self._var_name}" in left:
                    args.append(p.default)
                else:
                    by_position = False
            else:
                value = ctx if name in self._contexts else left.pop(name)
                if by_position and p.kind in _POSITIONAL:
                    args.append(value)
                else:
                    kwargs[name] = value
        return tuple(args), kwargs

    @property
    def _var_name(self) -> str:
        return self._var_positional.name if self._var_positional is not None else ""

    def _payload_form(self, payload: Any, ctx: Context) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, p in self._parameters.items():
            if name != self._payload.name and name not in self._contexts:
                continue
            value = ctx if name in self._contexts else payload
            if p.kind in _POSITIONAL and len(args) == len(kwargs) + len(args):
                args.append(value)
            else:
                kwargs[name] = value
        return tuple(args), kwargs


_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _first(parameters: list[inspect.Parameter], kind: object) -> inspect.Parameter | None:
    return next((p for p in parameters if p.kind is kind), None)


def _unwrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(fn, functools.partial):
        fn = fn.func
    if not inspect.isroutine(fn):
        return type(fn).__call__
    return fn


def is_context(fn: Callable[..., Any], parameter: inspect.Parameter) -> bool:
    """Is this parameter annotated with `Context`? Asked at decoration, one annotation at a
    time: others may name classes that are defined further down."""
    annotation = parameter.annotation
    if isinstance(annotation, str):
        namespace = getattr(inspect.unwrap(_unwrapped(fn)), "__globals__", {})
        try:
            annotation = eval(annotation, namespace)  # noqa: S307 - the task's own annotation
        except Exception:
            # Not there at run time (say, imported under TYPE_CHECKING): the name decides.
            bare = str(parameter.annotation).replace("| None", "").strip()
            return bare.rpartition(".")[2] == "Context"
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return Context in typing.get_args(annotation)
    return annotation is Context
