"""TLS for the HTTP port: a certificate and its key from files, which are read again when they change.

TLS 1.2 and 1.3, with the ciphers that Python chooses. Connections keep the certificate that they began with.
"""

import ssl
from pathlib import Path
from typing import NoReturn

from actorlm.api.watch import Watched
from actorlm.config import HttpConfig
from actorlm.errors import ConfigError, reason_of
from actorlm.ownership import check_secret, check_trusted

ALPN = ["http/1.1"]
REASONS = {
    "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
    "EE_KEY_TOO_SMALL": "the certificate's key is too short; take RSA of 2048 bits or more, or an elliptic curve",
    "CA_MD_TOO_WEAK": "a certificate is signed with a hash that is broken; have it signed with SHA-256",
}


class Tls:
    """The context of connections that begin now. Raises ConfigError for options or files that cannot be used."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        files = [certificate, key] if client_ca is None else [certificate, key, client_ca]
        self._watched = Watched("tls_certificate", files, lambda: make_context(certificate, key, client_ca))
        self.context = self._watched.read()

    @classmethod
    def of(cls, http: HttpConfig) -> "Tls | None":
        """What the options ask for; None without a certificate."""
        if http.tls_certificate is None or http.tls_key is None:
            for name in ("tls_certificate", "tls_key", "tls_client_ca"):
                if getattr(http, name) is not None:
                    lacking = "tls_key" if http.tls_key is None else "tls_certificate"
                    raise ConfigError(f"{name} is {getattr(http, name)}, and {lacking} is missing; give both, or none")
            return None
        client_ca = None if http.tls_client_ca is None else Path(http.tls_client_ca)
        return cls(Path(http.tls_certificate), Path(http.tls_key), client_ca)

    async def watch(self) -> None:
        """Reads the files again when they change, for ever."""

        def use(context: ssl.SSLContext) -> None:
            self.context = context

        await self._watched.watch(use)


def make_context(certificate: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    """A context for a server; with `client_ca` clients need a certificate of one of its authorities.

    Raises ConfigError naming the file at fault.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(ALPN)
    _check_file(certificate, secret=False)
    _check_file(key, secret=True)

    def no_password() -> NoReturn:  # without it somebody would be asked at the terminal
        raise ConfigError(f"{key}: the key is encrypted; store it decrypted, for its owner alone")

    try:
        context.load_cert_chain(certificate, key, password=no_password)
    except ssl.SSLError as error:
        raise ConfigError(f"{certificate} and {key}: {_reason(error)}") from None
    if client_ca is not None:
        _check_file(client_ca, secret=False)
        try:
            context.load_verify_locations(client_ca)
        except ssl.SSLError as error:
            raise ConfigError(f"{client_ca}: {_reason(error)}") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _check_file(file: Path, *, secret: bool) -> None:
    try:
        (check_secret if secret else check_trusted)(file)
        file.read_bytes()
    except (OSError, ConfigError) as error:
        raise ConfigError(f"{file}: {reason_of(error)}") from None


def _reason(error: ssl.SSLError) -> str:
    return REASONS.get(error.reason or "", f"not what belongs there, PEM with a certificate and its key ({error})")
