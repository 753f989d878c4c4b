"""The pages of a scene that somebody may open, by the address in the router."""

from __future__ import annotations

from tests.web.scene import Scene


def addresses(scene: Scene) -> dict[str, str]:
    """A name, and where it is."""
    return {
        "overview": "/",
        "groups": "/groups",
        "keys": "/groups/keys?limit=tenant",
        "group": "/groups/show?group=gpu-memory",
        "group-key": "/groups/show?group=tenant/acme",
        "group-keyed": "/groups/show?group=tenant",
        "jobs": "/jobs",
        "jobs-filtered": "/jobs?state=failed&task=charge",
        "bulk-preview": "/jobs/bulk?state=ready&action=cancel",
        **{f"job-{kind}": f"/jobs/{id}" for kind, id in scene.jobs.items()},
        "queues": "/queues",
        "workers": "/workers",
        "worker": f"/workers/show?id={scene.worker}",
        "schedules": "/schedules",
        "schedule": "/schedules/show?name=nightly",
        "events": "/events",
        "fairness": "/fairness",
        "api": "/api",
        "not-found": "/nowhere",
    }
