"""What an EngineCore's executor receives from its workers."""

from actorlm.logprobs import Logprobs
from actorlm.wire import Int32, Message


class WorkerReady(Message):
    """Rank `rank` has loaded its weights, and has seen Sync of this epoch on the broadcast."""

    rank: int
    epoch: int


class StepDone(Message):
    """The output rank has finished a step. `tokens[i]` belongs to the i-th entry of the plan's `sampled`.

    `logprobs` has the plan's rows; None if none of them asks for any.
    """

    step: int
    tokens: Int32
    busy_ns: int
    logprobs: Logprobs | None = None


class StepFailed(Message):
    """A rank cannot go on. Sent by any rank; the first one is the cause that everybody sees."""

    rank: int
    host: str
    pid: int
    step: int
    error: str
    message: str
    traceback: str


class CallReturned(Message):
    """The answer to CallMethod from one rank: `result` is msgpack, or `error` says what was raised."""

    call: int
    rank: int
    result: bytes
    error: str | None = None


class WorkerProgress(Message):
    """With a rank's heartbeat, if it has changed: the last step that it finished, and what it is doing now."""

    rank: int
    last_step: int
    doing: str


Inbox = WorkerReady | StepDone | StepFailed | CallReturned | WorkerProgress
