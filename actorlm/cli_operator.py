"""The operator's commands: what runs, and what is to become of it. Imports wait until a command runs."""
# ruff: noqa: PLC0415 - see above

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import rich_click as click

from actorlm.cli_end import FAILED, finish

if TYPE_CHECKING:
    from actorlm.messages.supervisor import Order

LONGEST_DRAIN_S = 86_400
WHICH = (
    "TREE is the HTTP port or the run directory of a running tree, or the deployment file of one on several hosts; one"
    " that runs alone need not be named."
)


def _tree(command: Callable[..., None]) -> Callable[..., None]:
    command.__doc__ = f"{command.__doc__}\n\n{WHICH}"
    argument: Callable[..., Any] = click.argument("tree", required=False)
    decorated: Callable[..., None] = argument(command)
    return decorated


def _seconds(name: str, help_text: str) -> Callable[[Any], Any]:
    return click.option(
        name, "seconds", type=click.FloatRange(min=0), metavar="S", help=f"{help_text} (s) [the tree's]"
    )


@click.command()
@_tree
def ps(tree: str | None) -> None:
    """Show the running trees of this user: actors, processes, states, restarts, requests, memory, last deaths."""

    def show() -> int:
        from actorlm.operator import describe, doors, find_door
        from actorlm.tables import print_trees

        return print_trees(describe(doors() if tree is None else [find_door(tree)]))

    finish(show)


@click.command()
@_tree
def top(tree: str | None) -> None:
    """Show what `ps` shows, again and again, until Q is pressed. Needs a terminal."""

    def show() -> int:
        import sys

        from actorlm.errors import ConfigError
        from actorlm.operator import find_door

        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise ConfigError("`actorlm top` needs a terminal; `actorlm ps` prints the same once")
        door = find_door(tree)
        from actorlm.top import run_top

        return run_top(door)

    finish(show)


@click.command()
@click.argument("actor")
@_tree
@_seconds("--drain", "time for a frontend to finish what it has")
def restart(actor: str, tree: str | None, seconds: float | None) -> None:
    """Restart ACTOR, and with an EngineCore or worker its replica, so that no stream breaks.

    ACTOR is a name that `actorlm ps` shows, a replica (`replica-0`), or `all`, one after another.
    """

    def give() -> int:
        from actorlm.messages.supervisor import RestartActors

        return _order(tree, RestartActors(actor, seconds))

    finish(give)


@click.command()
@_tree
@_seconds("--timeout", "time for what was accepted")
def drain(tree: str | None, seconds: float | None) -> None:
    """Accept nothing new, finish what was accepted, then end the tree; exits with 0 if all finished in time."""

    def give() -> int:
        from actorlm.messages.supervisor import DrainTree

        return _order(tree, DrainTree(seconds), ends=True)

    finish(give)


@click.command()
@_tree
def stop(tree: str | None) -> None:
    """End a tree at once: its streams end with an error."""

    def give() -> int:
        from actorlm.messages.supervisor import StopTree

        return _order(tree, StopTree(), ends=True)

    finish(give)


def _order(tree: str | None, order: "Order", *, ends: bool = False) -> int:
    """Gives an order to the tree that is meant, and says how it goes; one that `ends` it waits until it is gone."""
    import asyncio

    from actorlm.operator import find_door, wait_until_gone
    from actorlm.operator import order as give

    door = find_door(tree)
    status = give(door, order, click.echo)
    if ends and status != FAILED:
        asyncio.run(wait_until_gone(door))
    return status


COMMANDS = (ps, top, restart, drain, stop)
