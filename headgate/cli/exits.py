"""Which exit code an error has. The codes are told in `headgate --help`."""

from __future__ import annotations

from headgate import errors

OK, TROUBLE, BAD_INPUT, NOT_FOUND, UNAVAILABLE, REFUSED = range(6)

# The first that fits: a class stands before its base.
_CODES: tuple[tuple[type[errors.HeadgateError], int], ...] = (
    (errors.ConcurrencyLimitReached, REFUSED),
    (errors.CapNeedsCode, BAD_INPUT),
    (errors.JobNotFound, NOT_FOUND),
    (errors.UnknownTask, NOT_FOUND),
    (errors.ScheduleNotFound, NOT_FOUND),
    (errors.UnknownLimit, NOT_FOUND),
    (errors.StoreBusy, UNAVAILABLE),
    (errors.StoreUnavailable, UNAVAILABLE),
    (errors.StoreVersion, UNAVAILABLE),
    (errors.ConfigError, BAD_INPUT),
    (errors.DeclarationError, BAD_INPUT),
    (errors.InvalidArguments, BAD_INPUT),
    (errors.InvalidKey, BAD_INPUT),
    (errors.TooWide, BAD_INPUT),
    (errors.IdempotencyConflict, BAD_INPUT),
    (errors.StoreError, BAD_INPUT),
)


def exit_code(error: errors.HeadgateError) -> int:
    return next((code for kind, code in _CODES if isinstance(error, kind)), TROUBLE)
