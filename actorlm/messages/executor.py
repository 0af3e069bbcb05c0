"""What an EngineCore's executor receives from its workers."""

from actorlm.logprobs import Logprobs
from actorlm.wire import Int32, Message


class WorkerReady(Message):
    """Rank `rank`, of this host and pid, has loaded its weights and has seen Sync of this epoch on the broadcast."""

    rank: int
    epoch: int
    host: str
    pid: int


class Fault(Message):
    """What a rank raised, and while doing what. Part of other messages, not sent alone.

    `traceback` is empty if the message says it all.
    """

    rank: int
    host: str
    pid: int
    doing: str
    error: str
    message: str
    traceback: str


class StepDone(Message):
    """The output rank has finished a step. `tokens[i]` belongs to the i-th entry of the plan's `sampled`.

    `logprobs` has the plan's rows; None if none of them asks for any.
    """

    step: int
    tokens: Int32
    busy_ns: int
    logprobs: Logprobs | None = None


class StepFailed(Message):
    """A rank cannot go on. Sent by any rank; the first one is the cause that everybody sees.

    One that `follows` has missed another rank, whose own failure is the cause.
    """

    fault: Fault
    follows: bool = False


class CallReturned(Message):
    """The answer to CallMethod from one rank: `result` is msgpack, or `fault` says what was raised.

    Of the ranks that were not asked to reply, those say so that raised something.
    """

    call: int
    rank: int
    result: bytes
    fault: Fault | None = None


class WorkerProgress(Message):
    """With a rank's heartbeat, if it has changed: the last step that it finished, and what it is doing now."""

    rank: int
    last_step: int
    doing: str


Inbox = WorkerReady | StepDone | StepFailed | CallReturned | WorkerProgress
