"""The API: JSON under `/api`, described by `/api/openapi.json`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headgate.codec import visible
from headgate.errors import HeadgateError
from headgate.stores.glances import glancing
from headgate.threads import in_thread
from headgate.web import models
from headgate.web.operations import OPERATIONS, Malformed, Operation
from headgate.web.sampler import FRESH
from headgate.web.site import site_of, status_of


def api_routes() -> list[Route]:
    return [
        Route("/api", index, methods=["GET"]),
        Route("/api/openapi.json", openapi, methods=["GET"]),
        *(
            Route(one.path, _endpoint(one), methods=[one.method.upper()], name=one.name)
            for one in OPERATIONS
        ),
    ]


def _endpoint(operation: Operation) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            body = None if operation.body is None else await _body(request, operation.body)
            run = _change(operation) if operation.method == "post" else _glance(operation)
            found = await in_thread(run, request, body)
        except HeadgateError as error:
            status, _ = status_of(error)
            return JSONResponse({"error": visible(str(error))}, status)
        return Response(msgspec.json.encode(found), media_type="application/json")

    return answer


def _glance(operation: Operation) -> Callable[[Request, Any], msgspec.Struct]:
    def run(request: Request, body: Any) -> msgspec.Struct:
        with glancing(FRESH):
            return operation.run(request, body)

    return run


def _change(operation: Operation) -> Callable[[Request, Any], msgspec.Struct]:
    def run(request: Request, body: Any) -> msgspec.Struct:
        try:
            return operation.run(request, body)
        finally:
            site_of(request).forget()

    return run


async def _body(request: Request, kind: type[msgspec.Struct]) -> Any:
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"the body is not as described: {error}") from None


def index(request: Request) -> Response:
    return site_of(request).page(request, "api.html", operations=OPERATIONS)


def openapi(request: Request) -> Response:
    return JSONResponse(describe(request.scope.get("root_path", "") or "/"))


def describe(server: str) -> dict[str, Any]:
    """The OpenAPI description, made from the list of operations."""
    kinds = [models.Error]
    for one in OPERATIONS:
        kinds += [kind for kind in (one.answer, one.body) if kind is not None]
    _, schemas = msgspec.json.schema_components(
        list(dict.fromkeys(kinds)), ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        paths.setdefault(one.path, {})[one.method] = _describe(one)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headgate",
            "version": version("headgate"),
            "description": "Jobs, limits and who holds them. See docs/api.md.",
        },
        "servers": [{"url": server}],
        "security": [{"token": []}, {"user": []}, {}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "user": {"type": "http", "scheme": "basic"},
            },
        },
    }


def _describe(one: Operation) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = []
    if "{id}" in one.path:
        parameters.append(
            {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
        )
    for field in one.fields:
        schema: dict[str, Any] = {"type": field.kind}
        if field.choices:
            schema["enum"] = list(field.choices)
        parameters.append(
            {
                "name": field.name,
                "in": "query",
                "required": field.required,
                "description": field.about,
                "schema": schema,
            }
        )
    refused = {"description": "Refused.", "content": _content(models.Error)}
    codes = ["400", "401", "403", "404", "429", "503"]
    codes += ["413", "415"] if one.method == "post" else []
    told: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.about,
        "parameters": parameters,
        "responses": {
            "200": {"description": "Done.", "content": _content(one.answer)},
            **dict.fromkeys(codes, refused),
        },
    }
    if one.body is not None:
        told["requestBody"] = {"required": True, "content": _content(one.body)}
    return told


def _content(kind: type[msgspec.Struct]) -> dict[str, Any]:
    ref = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"application/json": {"schema": ref}}
