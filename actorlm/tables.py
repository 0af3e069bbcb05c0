"""Tables that commands print."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from actorlm.addresses import bracketed
from actorlm.checkpoint.description import ModelDescription
from actorlm.config import Config
from actorlm.messages.operator import ActorDescribed, TreeDescribed
from actorlm.operator import Door
from actorlm.topology import PlannedProcess, Role, Topology, crossings


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def print_plan(topology: Topology, config: Config, model: ModelDescription, kernels: str) -> None:
    """The planned processes with their ranks in every group, their sockets, and the memory of weights and KV caches."""
    console = Console(markup=False, emoji=False)  # names and paths may have brackets and colons
    hosts = ["host"] if config.hosts else []
    table = _table("process", "role", "dp", "pp", "tp", "rank", "device", "weights + KV, MiB", *hosts)
    table.add_row("supervisor", "supervisor", *[""] * 6, *[topology.lead for _ in hosts])
    sockets = _table("process", "binds", "connects")
    sockets.add_row("supervisor", "supervisor", "")
    for process in topology.processes:
        table.add_row(*_planned_row(process), *[process.host for _ in hosts])
        sockets.add_row(process.name, ", ".join(process.binds), ", ".join(process.connects))
    console.print(table, sockets)
    console.print(
        f"model    {model.name}: {model.architecture}, {model.num_parameters:,} parameters, {model.path or 'built in'}"
    )
    address = f"{bracketed(config.http.host)}:{config.http.port}"
    console.print(f"http     {address}, shared by {config.http.frontends} frontend(s)")
    console.print(f"clients  {', '.join(topology.address(one.name) for one in topology.of_role(Role.FRONTEND))}")
    console.print(f"sockets  {topology.address('NAME')}, in a private directory made at the start")
    _print_hosts(console, topology, config)
    console.print(f"KV cache {topology.kv_cache_tokens:,} tokens a replica; executor {topology.executor}")
    if topology.executor == "external":
        console.print(f"launched {_launched(topology)}")
    console.print(f"kernels  {kernels}")
    console.print(f"memory   {topology.memory_bytes >> 20:,} MiB of weights and KV caches")


def _print_hosts(console: Console, topology: Topology, config: Config) -> None:
    """The addresses that firewalls must let through, and what is wrong with the plan though it works."""
    for name, host in config.hosts.items():
        http = ", HTTP" if config.has_http(name) else ""
        console.print(f"host     {name}: {host.address}, devices {', '.join(map(str, host.devices)) or 'none'}{http}")
    for socket, address in topology.tcp.items():
        console.print(f"tcp      {address}  {socket}")
    for crossing in crossings(topology):
        console.print(f"warning  {crossing}")


def _launched(topology: Topology) -> str:
    """What each of a launcher's processes runs."""
    workers = topology.of_role(Role.WORKER)
    alone = ", ".join(f"rank {worker.launched_rank}: {worker.name}" for worker in workers if worker.launched_rank)
    return f"{len(workers)} processes; rank 0: all but these; {alone or 'there are no others'}"


def _planned_row(process: PlannedProcess) -> tuple[str, ...]:
    place = process.place
    ranks = ("", "", "") if place is None else (place.pipeline_rank, place.tensor_rank, place.rank)
    return (
        process.name,
        process.role,
        str(process.index) if process.role in ("engine", "worker") else "",
        *map(str, ranks),
        process.device or "",
        f"{process.memory_bytes >> 20:,}" if process.memory_bytes else "",
    )


ACTOR_COLUMNS = (
    "actor", "role", "pid", "state", "restarts", "mailbox", "MiB", "up, s", "requests", "ranks", "host",
    "last death",
)  # fmt: skip


def actor_cells(row: ActorDescribed) -> tuple[str, ...]:
    """One row of the table of actors. Requests are those that run and those that wait."""
    requests = {Role.ENGINE: f"{row.running}+{row.waiting}", Role.FRONTEND: str(row.running)}
    return (
        row.name, row.role, str(row.pid or ""), row.state, str(row.restarts), str(row.mailbox_depth),
        str(row.memory_mib), f"{row.uptime_s:.0f}", requests.get(Role(row.role), ""), row.ranks, row.host,
        row.last_death,
    )  # fmt: skip


def _actors(tree: TreeDescribed) -> Table:
    """What fits a narrow terminal: names tell roles, and hosts are named where there are several."""
    apart = {"role", "last death"} | ({"host"} if len({row.host for row in tree.actors}) == 1 else set())
    shown = [index for index, column in enumerate(ACTOR_COLUMNS) if column not in apart]
    table = _table(*(ACTOR_COLUMNS[index] for index in shown))
    for row in tree.actors:
        cells = actor_cells(row)
        table.add_row(*(cells[index] for index in shown))
    return table


def print_trees(trees: Sequence[tuple[Door, TreeDescribed | str]]) -> int:
    """The running trees; returns the exit status, 1 if there is none that answers."""
    console = Console(markup=False, emoji=False)  # names and paths may have brackets and colons
    if not trees:
        console.print("no tree is running")
        return 1
    for door, tree in trees:
        if isinstance(tree, str):
            console.print(f"{door.name}: {tree}")
            continue
        console.print(f"{tree.url}  {tree.model}  {tree.state}  {door.name}")
        frontends = [row.name for row in tree.actors if row.role == Role.FRONTEND]
        if door.directory is not None:
            console.print(f"clients  {', '.join(f'ipc://{door.directory}/{name}' for name in frontends)}")
        console.print(_actors(tree))
        for row in tree.actors:
            if row.last_death:
                console.print(f"{row.name} has died, last: {row.last_death}")
    return int(all(isinstance(tree, str) for _, tree in trees))
