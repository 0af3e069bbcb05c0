"""What a start looks at before any socket is bound: whether the tree's TCP sockets have the keys that they need."""

from actorlm.config import SecurityConfig
from actorlm.runtime.curve import Security
from actorlm.topology import Role, Topology


def check_security(config: SecurityConfig, topology: Topology, on: str = "") -> str:
    """Checks that every TCP socket of the tree may be as it is, and that all keys that the host `on` needs are there.

    Returns a warning, or nothing. Raises ConfigError naming the address, or the file, and the way out.
    """
    first = Role.SUPERVISOR if on == topology.lead else Role.HOST
    for role in (first, *dict.fromkeys(process.role for process in topology.on_host(on))):
        security = Security.of(config.keys, role, insecure=config.insecure)
        for address in topology.tcp.values():
            security.keys_for(address)
    if not config.insecure:
        return ""
    among = next(iter(topology.tcp.values()), "TCP sockets")
    return (
        f"warning: --insecure (security.insecure): {among} and others need no keys; who reaches them controls the tree"
    )
