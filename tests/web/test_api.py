"""The API is as it describes itself, whatever is sent to it."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from headgate.jobs import Finish, NewJob
from headgate.limits import Need, Needs
from headgate.stores.protocol import Exchange
from headgate.web import create_app
from headgate.web.api import describe
from headgate.web.operations import OPERATIONS, Operation
from tests.web.scene import HOSTILE, Scene
from tests.web.visit import Visit, visiting

DESCRIPTION = describe("/")


def check(value: Any, schema: dict[str, Any], where: str = "") -> None:
    """Is it as described? Of JSON schema what the description uses."""
    if "$ref" in schema:
        return check(
            value, DESCRIPTION["components"]["schemas"][schema["$ref"].split("/")[-1]], where
        )
    if "anyOf" in schema:
        for one in schema["anyOf"]:
            try:
                return check(value, one, where)
            except AssertionError:
                continue
        raise AssertionError(f"{where}: {value!r} is none of {schema['anyOf']}")
    if "enum" in schema:
        assert value in schema["enum"], where
        return None
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool,
             "number": (int, float), "null": type(None)}  # fmt: skip
    if "type" in schema:
        assert isinstance(value, kinds[schema["type"]]), f"{where}: {value!r}"
    if schema.get("type") == "object" and "properties" in schema:
        assert set(schema.get("required", ())) <= set(value), where
        assert set(value) <= set(schema["properties"]), where
        for name, inner in value.items():
            check(inner, schema["properties"][name], f"{where}.{name}")
    if schema.get("type") == "array" and "items" in schema:
        for n, inner in enumerate(value):
            check(inner, schema["items"], f"{where}[{n}]")
    return None


def answered(operation: Operation, answer: Any) -> None:
    responses = DESCRIPTION["paths"][operation.path][operation.method]["responses"]
    code = str(answer.status_code)
    assert code in responses, f"{operation.name}: {code} is not described: {answer.text}"
    check(answer.json(), responses[code]["content"]["application/json"]["schema"])


def test_every_operation_answers_as_described(visit: Visit, scene: Scene) -> None:
    gpu = next(slot for slot in scene.store.group("gpu-memory")[1] if not slot.job)
    fields = {"keys": {"limit": "tenant"}, "group": {"group": "gpu-memory"}}
    bodies: dict[str, dict[str, Any]] = {
        "changeLimit": {"group": "gpu-memory", "action": "set", "value": 9, "reason": "why"},
        "releaseSlot": {"group": "gpu-memory", "slot_id": gpu.slot, "token": gpu.token},
        "pauseQueue": {"queue": "mail", "paused": False},
        "pauseSchedule": {"name": "nightly", "paused": True, "reason": HOSTILE},
        "runSchedule": {"name": "hourly-report"},
        "moveJob": {"queue": "slow", "priority": 3},
    }
    ids = {"retryJob": "failed", "moveJob": "ready", "why": "ready", "output": "running"}
    for operation in OPERATIONS:
        id = scene.jobs[ids.get(operation.name, "running")]
        path = operation.path.replace("{id}", id)
        if operation.method == "get":
            answer = visit.get(path, params=fields.get(operation.name, {}))
        else:
            answer = visit.post(path, json=bodies.get(operation.name, {}))
        assert answer.status_code == 200, (operation.name, answer.text)
        answered(operation, answer)
    assert scene.store.group("gpu-memory")[0].value == 9
    job = scene.store.job(scene.jobs["ready"])
    assert job is not None
    assert job.queue == "slow"


def test_pages_of_jobs_are_whole(visit: Visit, scene: Scene) -> None:
    found: list[str] = []
    after = ""
    while True:
        page = visit.get("/api/jobs", params={"rows": "4", "after": after}).json()
        found += [job["id"] for job in page["jobs"]]
        if page["after"] is None:
            break
        after = page["after"]
    assert len(found) == len(set(found))
    assert set(scene.jobs.values()) <= set(found)


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=30), st.floats(allow_nan=False),
    st.sampled_from(["tenant/acme", "gpu-memory", "mail", "nightly", HOSTILE, "\0", "a/b/c", "%"]),
    st.lists(st.integers(), max_size=2),
)  # fmt: skip


def test_nothing_that_is_sent_breaks_it(visit_small: Visit, small: Scene) -> None:
    """Any field may hold anything: the answer is one that is described, never a failure."""
    names = sorted({field.name for one in OPERATIONS for field in one.fields})
    words = sorted(
        name
        for one in OPERATIONS
        if one.body is not None
        for name in DESCRIPTION["components"]["schemas"][one.body.__name__]["properties"]
    )

    @settings(
        max_examples=3000 if os.environ.get("HEADGATE_PROOF") else 60,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        operation=st.sampled_from(OPERATIONS),
        id=st.one_of(
            st.sampled_from(sorted(small.jobs.values())),
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=40),
        ),
        query=st.dictionaries(
            st.sampled_from(names),
            st.one_of(
                st.text(max_size=20), st.integers().map(str), st.sampled_from(["failed", "2h"])
            ),
            max_size=4,
        ),
        body=st.one_of(st.dictionaries(st.sampled_from(words), ANYTHING, max_size=5), ANYTHING),
    )
    def send(operation: Operation, id: str, query: dict[str, str], body: Any) -> None:
        path = operation.path.replace("{id}", quote(id, safe=""))
        if operation.method == "get":
            answer = visit_small.get(path, params=query)
        else:
            content = json.dumps(body).encode("utf-8", "surrogatepass")
            headers = {"content-type": "application/json"}
            answer = visit_small.post(path, content=content, headers=headers)
        if answer.status_code != 405:
            answered(operation, answer)

    send()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b'{"queue": "q"}', b"{}" * 3])
def test_bodies_that_are_none_are_refused(visit_still: Visit, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = visit_still.post("/api/queues/pause", content=body, headers=headers)
    assert answer.status_code == 400
    assert "error" in answer.json()


# --- metrics --------------------------------------------------------------------------------------


def metrics(visit: Visit) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(visit.get("/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_metrics_tell_what_is_held_and_waits(visit: Visit, scene: Scene) -> None:
    found = metrics(visit)
    assert found["headgate_concurrency_slots_active"][("payments-api",)] == 3
    assert found["headgate_concurrency_slots_limit"][("payments-api",)] == 3
    assert found["headgate_concurrency_slots_active"][("tenant",)] == 3
    assert ("tenant/acme",) not in found["headgate_concurrency_slots_limit"]
    assert found["headgate_queue_paused"][("mail",)] == 1
    assert found["headgate_workers"][("alive",)] == 1
    assert found["headgate_queue_jobs"][("default", "running")] == 4
    assert ("nightly",) in found["headgate_schedule_lag_seconds"]


def test_metrics_count_what_ends_and_is_refused(scene: Scene) -> None:
    with visiting(create_app(scene.app)) as visit:
        metrics(visit)
        done = next(c for c in scene.running if c.task == "charge")
        scene.store.exchange(Exchange(scene.worker, [Finish(done.token, "succeeded")]))
        visit.post("/api/queues/pause", json={"queue": "mail", "paused": False})
        found = metrics(visit)
        assert found["headgate_jobs_ended_total"][("succeeded", "charge")] == 1
        acquired = found["headgate_concurrency_acquisition_total"]
        assert acquired[("payments-api", "acquired")] == 1
        assert acquired[("tenant", "acquired")] == 1
        assert found["headgate_concurrency_wait_seconds_count"][("payments-api",)] == 1
        assert found["headgate_events_total"][("queue_resumed",)] == 1


def test_keys_are_labels_only_where_that_is_asked_for(scene: Scene) -> None:
    with visiting(create_app(scene.app, key_metrics=["tenant"])) as visit:
        active = metrics(visit)["headgate_concurrency_slots_active"]
        assert active[("tenant/umbrella",)] == 1


def test_labels_are_bounded(small: Scene) -> None:
    for start in range(0, 2000, 500):
        small.store.submit(
            [
                NewJob(f"task-{n}", needs=Needs((Need("tenant", f"key-{n}"),)), turn=f"key-{n}")
                for n in range(start, start + 500)
            ]
        )
    with visiting(create_app(small.app)) as visit:
        text = visit.get("/metrics").text
    assert len(text) < 100_000
    assert "key-1" not in text
