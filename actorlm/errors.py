"""The one tree of errors. Each class knows the HTTP status and the OpenAI error type and code it becomes.

Messages are written for the person who reads them: they name the field, the value and the way out.
"""

from typing import ClassVar


def reason_of(error: Exception) -> str:
    """What went wrong. The number and the path that an OSError says too are left out."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


class ActorlmError(Exception):
    """Anything this package raises on purpose."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None
    retry_after: int | None = None
    """Seconds after which it makes sense to try again, if it does."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code  # type: ignore[misc]
        if retry_after is not None:
            self.retry_after = retry_after


class ConfigError(ActorlmError):
    """An option, its environment variable or its TOML key has a value that cannot work."""

    exit_status: ClassVar[int] = 2


class ModelError(ActorlmError):
    """The model cannot be found, read or served."""


class BadRequest(ActorlmError):
    """The request cannot be served as it is written; `param` names the field."""

    status = 400
    type = "invalid_request_error"


class ContextLengthExceeded(BadRequest):
    """The prompt leaves no room for one generated token."""

    code = "context_length_exceeded"


class Unauthorized(ActorlmError):
    """No API key, or a wrong one."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class NotFound(ActorlmError):
    """No such route or model."""

    status = 404
    type = "invalid_request_error"


class Overloaded(ActorlmError):
    """A bounded queue is full. The client should try again after `retry_after` seconds."""

    status = 429
    type = "rate_limit_error"
    code = "overloaded"
    retry_after = 1


class RateLimited(Overloaded):
    """The caller has used up one of the limits of its key, which the message names."""

    code = "rate_limit_exceeded"


class Unavailable(ActorlmError):
    """The service is starting, draining, or has lost a part that is being restarted."""

    status = 503
    type = "service_unavailable_error"
    code = "unavailable"
    retry_after = 2


class QueueTimeout(ActorlmError):
    """The request has waited as long as requests may wait (`--queue-timeout-s`). Nothing of it was computed."""

    status = 504
    type = "timeout_error"
    code = "queue_timeout"
    retry_after = 2


class DeadlineExceeded(ActorlmError):
    """The request has not ended in its time, which it asked for itself or which is `--request-timeout-s`."""

    status = 504
    type = "timeout_error"
    code = "deadline_exceeded"


class Interrupted(ActorlmError):
    """The request ended before its answer did, because the process that owned it, or the way to it, was lost."""

    status = 500
    type = "server_error"
    code = "interrupted"


class Poisoned(ActorlmError):
    """Replicas died of this request again and again; it is not tried any more."""

    code = "poisoned"


class ProtocolError(ActorlmError):
    """A peer sent what it must not send; or two sides speak different versions."""


class RemoteError(ActorlmError):
    """What a worker raised: which rank, where, what it was doing, the type of its error and the lines of it there."""

    def __init__(
        self, *, rank: int, host: str, pid: int, doing: str, error: str, message: str, traceback: str = ""
    ) -> None:
        super().__init__(f"rank {rank} on {host} (pid {pid}), {doing}: {error}: {message}")
        self.rank = rank
        self.host = host
        self.pid = pid
        self.doing = doing
        self.error = error
        self.traceback = traceback


class CallTimedOut(ActorlmError):
    """A call of the workers was not answered in time by all of them; the message says by whom not."""


class ExecutorFailed(ActorlmError):
    """A worker failed; every later call on its executor raises this with the first cause.

    Its `__cause__` is a RemoteError where a worker raised something.
    """


class PeerMissing(ActorlmError):
    """A rank waited in vain for another one of its group, whose own failure is the cause."""


class Closed(ActorlmError):
    """What was closed is used again."""


class InsufficientMemory(ModelError):
    """Weights and KV cache do not fit; the message says what would."""


STATUS: dict[int, type[ActorlmError]] = {
    c.status: c for c in (BadRequest, Unauthorized, NotFound, Overloaded, Unavailable)
}
"""The error class for a status that came over a wire; anything else is `Interrupted`."""

CODE: dict[str | None, type[ActorlmError]] = {
    c.code: c for c in (ContextLengthExceeded, RateLimited, QueueTimeout, DeadlineExceeded, Poisoned)
}
"""The error class for a code that says more than its status."""


def from_wire(
    status: int, code: str | None, message: str, param: str | None = None, retry_after: int | None = None
) -> ActorlmError:
    """The error that another process described."""
    kind = CODE.get(code) or STATUS.get(status, Interrupted)
    return kind(message, param=param, code=code, retry_after=retry_after)
