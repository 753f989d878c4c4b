from tests.worker.site import site

__all__ = ["site"]
