"""What a worker raised, on its way to who called: as a message, and as an exception again."""

import os
import socket
import traceback

from actorlm.errors import ActorlmError, RemoteError
from actorlm.messages.executor import Fault


def fault_of(error: Exception, *, rank: int, doing: str) -> Fault:
    """The message about what this process has raised."""
    expected = isinstance(error, ActorlmError)
    return Fault(
        rank=rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        doing=doing,
        error=type(error).__name__,
        message=str(error),
        traceback="" if expected else "".join(traceback.format_exception(error)),
    )


def remote_error(fault: Fault) -> RemoteError:
    """The exception for it where the call was made."""
    return RemoteError(
        rank=fault.rank,
        host=fault.host,
        pid=fault.pid,
        doing=fault.doing,
        error=fault.error,
        message=fault.message,
        traceback=fault.traceback,
    )
