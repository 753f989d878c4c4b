"""What an s3:// url says."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from headgate.errors import ConfigError

_TRUE, _FALSE = {"true", "on", "yes", "1"}, {"false", "off", "no", "0"}
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_KNOWN = (
    "endpoint", "region", "profile", "path_style", "verify", "ca_bundle", "cache", "poll",
)  # fmt: skip
_SOURCES = (
    "they come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), from profile=… or"
    " from the role of the machine"
)
POLL = 2.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where the bucket is and how it is reached. It never holds a secret: credentials come from
    the environment, a profile or the machine's role."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    path_style: bool = False
    verify: bool = True
    ca_bundle: str | None = None
    cache: str | None = None
    """The folder for this machine's copy; None: one below the folder for temporary files."""
    poll: float = POLL
    """Seconds between two looks of a machine that has nothing to do, at most."""

    @property
    def shown(self) -> str:
        place = f"s3://{self.bucket}/{quote(self.prefix)}".rstrip("/")
        return place if self.endpoint is None else f"{place}?endpoint={self.endpoint}"

    @property
    def digest(self) -> str:
        """The same for all who mean the same place, whatever their options."""
        where = "\n".join((self.endpoint or "", self.bucket, self.prefix))
        return hashlib.sha256(where.encode()).hexdigest()[:24]


def parse(url: str) -> Address:
    """
    >>> address = parse("s3://jobs/team%20a?endpoint=http://127.0.0.1:8333&poll=5")
    >>> address.bucket, address.prefix, address.endpoint, address.path_style, address.poll
    ('jobs', 'team a', 'http://127.0.0.1:8333', True, 5.0)
    >>> address.shown
    's3://jobs/team%20a?endpoint=http://127.0.0.1:8333'
    """
    shown = redacted(url)
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc:
        raise ConfigError(f"{shown}: write s3://bucket/prefix?endpoint=…&region=…")
    if "@" in parts.netloc:
        raise ConfigError(f"{shown}: a url holds no credentials: {_SOURCES}")
    if not _BUCKET.fullmatch(parts.netloc):
        raise ConfigError(
            f"{shown}: {parts.netloc!r} cannot be a bucket: 3 to 63 lower-case letters, digits,"
            " dots and hyphens"
        )
    options: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _KNOWN:
            raise ConfigError(f"{shown}: unknown option {name!r} (known: {', '.join(_KNOWN)})")
        options[name] = value
    prefix = unquote(parts.path).strip("/")
    if "\0" in prefix or len(prefix.encode()) > 512:
        raise ConfigError(f"{shown}: the prefix must have at most 512 bytes, and no NUL")
    endpoint = options.get("endpoint")
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"{shown}: endpoint must begin with http:// or https://")
    if endpoint is not None and "@" in urlsplit(endpoint).netloc:
        raise ConfigError(f"{shown}: an endpoint holds no credentials: {_SOURCES}")
    return Address(
        bucket=parts.netloc,
        prefix=prefix,
        endpoint=None if endpoint is None else endpoint.rstrip("/"),
        region=options.get("region") or None,
        profile=options.get("profile") or None,
        # Servers of one's own rarely have a host name for each bucket.
        path_style=_flag(options, "path_style", shown, default=endpoint is not None),
        verify=_flag(options, "verify", shown, default=True),
        ca_bundle=options.get("ca_bundle") or None,
        cache=options.get("cache") or None,
        poll=_seconds(options, "poll", shown),
    )


def shown(url: str) -> str:
    """Where it is, as messages show it.

    >>> shown("s3://jobs/x?endpoint=http%3A%2F%2Fhost%3A8333&cache=/tmp/x")
    's3://jobs/x?endpoint=http://host:8333'
    """
    try:
        return parse(url).shown
    except ConfigError:
        return redacted(url)


def redacted(url: str) -> str:
    """The url without what somebody may have put into it by mistake.

    >>> redacted("s3://KEY:secret@jobs/x")
    's3://***@jobs/x'
    >>> redacted("s3://jobs/x?region=eu-1&aws_secret=abc")
    's3://jobs/x?region=eu-1&aws_secret=***'
    """
    known = "|".join(_KNOWN)
    url = re.sub(rf"([?&])(?!(?:{known})=)([^=&]*)=[^&]*", r"\1\2=***", url)
    return re.sub(r"(//|%2F%2F)(?:[^/@%&]|%(?!2F|40))*(@|%40)", r"\1***\2", url, flags=re.I)


def settled(url: str) -> str:
    """With paths that mean the same in every directory.

    >>> settled("s3://jobs/x?region=eu-west-1&cache=/var/cache/jobs")
    's3://jobs/x?region=eu-west-1&cache=/var/cache/jobs'
    """
    place, mark, query = url.partition("?")
    options = [
        (name, str(Path(value).absolute()) if value and name in ("cache", "ca_bundle") else value)
        for name, value in parse_qsl(query, keep_blank_values=True)
    ]
    return f"{place}{mark}{urlencode(options, safe='/:')}"


def _flag(options: dict[str, str], name: str, shown: str, *, default: bool) -> bool:
    value = options.get(name)
    if value is None:
        return default
    if value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    raise ConfigError(f"{shown}: {name} must be true or false, not {value!r}")


def _seconds(options: dict[str, str], name: str, shown: str) -> float:
    value = options.get(name)
    if value is None:
        return POLL
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0.02 <= seconds <= 300:
        raise ConfigError(f"{shown}: {name} must be 0.02 to 300 seconds, not {value!r}")
    return seconds
