"""Where a server is: a base URL, taken apart once."""

from urllib.parse import urlsplit

import msgspec

from actorlm.errors import ConfigError

_PORTS = {"http": 80, "https": 443}


class Address(msgspec.Struct, frozen=True):
    """A server's base URL; `prefix` is the path before `/v1`, mostly nothing."""

    secure: bool
    host: str
    port: int
    prefix: str

    @property
    def netloc(self) -> str:
        """For the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.secure else "http"] else f"{host}:{self.port}"


def parse(url: str) -> Address:
    """The address of `http://host:8000`, with or without `/v1` at the end. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"--url is {url!r}: {error}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ConfigError(f"--url is {url!r}; it must be like http://127.0.0.1:8000")
    if parts.query or parts.fragment or parts.username or not url.isascii() or any(c <= " " for c in url):
        raise ConfigError(f"--url is {url!r}; it must be a base URL, without query, user and spaces")
    return Address(
        secure=parts.scheme == "https",
        host=parts.hostname,
        port=port if port is not None else _PORTS[parts.scheme],
        prefix=parts.path.rstrip("/").removesuffix("/v1"),
    )
