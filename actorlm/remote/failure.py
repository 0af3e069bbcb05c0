"""What can go wrong with a server that is asked over HTTP, named so that failures can be counted."""

from actorlm.errors import ActorlmError


class Failure(ActorlmError):
    """A request got no answer, or not the one it was promised. `kind` is the same for all that failed alike."""

    def __init__(self, kind: str, message: str | None = None) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind
