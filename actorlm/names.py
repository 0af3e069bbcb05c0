"""Names of actors that carry a number."""

from actorlm.errors import ProtocolError

ENGINE = "engine-"


def engine_of(replica: int) -> str:
    """The name of a replica's engine."""
    return f"{ENGINE}{replica}"


def replica_of(engine: str) -> int:
    """The number in an engine's name. Raises ProtocolError for any other."""
    number = engine.removeprefix(ENGINE)
    if number == engine or not number.isdecimal():
        raise ProtocolError(f"{engine} speaks as an engine")
    return int(number)
