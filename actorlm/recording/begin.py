"""Begins the recording of one EngineCore: where its file lies, and what its header says."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from actorlm import __version__
from actorlm.config import BLOCK_SIZE, Config
from actorlm.errors import ConfigError, reason_of
from actorlm.recording.recorder import Recorder
from actorlm.recording.records import Header, digest
from actorlm.recording.redaction import IDS, Redaction

KEY_BYTES = 32


def check_directory(directory: str) -> None:
    """Makes the directory of recordings. Raises ConfigError if nothing can be written there."""
    with _told(directory):
        probe = _made(directory) / f".actorlm-{secrets.token_hex(8)}"
        probe.touch(exist_ok=False)
        probe.unlink()


def _made(directory: str) -> Path:
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


@contextmanager
def _told(directory: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"--record-dir {directory}: {reason_of(error)}; choose another directory") from None


def begin(
    config: Config,
    *,
    actor: str,
    pid: int,
    kv_cache_tokens: int,
    max_model_len: int,
    vocab_size: int,
    eos_token_ids: tuple[int, ...],
) -> Recorder | None:
    """The recorder of this process, if recordings are asked for. Its scheduler must be new.

    Raises ConfigError if nothing can be written.
    """
    options = config.observability
    if options.record_dir is None:
        return None
    now, redacted = datetime.now(UTC), options.record_redacted
    redaction = Redaction(secrets.token_bytes(KEY_BYTES), vocab_size, eos_token_ids) if redacted else None
    header = Header(
        version=__version__,
        digest=digest(),
        recorded=now.isoformat(timespec="seconds"),
        actor=actor,
        redacted=redacted,
        scheduler=config.scheduler,
        num_blocks=kv_cache_tokens // BLOCK_SIZE,
        max_model_len=max_model_len,
        eos_token_ids=eos_token_ids,
        vocab_size=IDS if redacted else vocab_size,
        prefix_caching=config.cache.prefix_caching,
        lanes=config.parallel.pipeline,
    )
    name, size = f"{actor}-{now:%Y%m%dT%H%M%S}-{pid}.rec", options.record_max_mib << 20
    with _told(options.record_dir):
        return Recorder(_made(options.record_dir) / name, header, redaction=redaction, max_bytes=size)
