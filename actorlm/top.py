"""`actorlm top`: the table of `actorlm ps`, live on a terminal. It asks once a second and orders nothing."""

import asyncio
import time
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.widgets import DataTable, Footer, Static

from actorlm.messages.operator import TreeDescribed
from actorlm.operator import Door, describe_tree
from actorlm.tables import ACTOR_COLUMNS, actor_cells

PERIOD_S = 1.0
GONE_STATUS = 1


def run_top(door: Door) -> int:
    """Shows the tree until a key ends it; returns the exit status, 1 if the tree ended before."""
    app = Top(door)
    app.run()
    return app.return_code or 0


class Top(App[None]):
    """One line about the tree, and a row for each actor. A tree that does not answer keeps its last rows."""

    TITLE = "actorlm top"
    BINDINGS: ClassVar[list[BindingType]] = [("q", "quit", "Quit")]
    CSS = "#tree { height: auto; padding: 0 1; }"

    def __init__(self, door: Door) -> None:
        super().__init__()
        self._door = door

    def compose(self) -> ComposeResult:
        """The parts of the screen."""
        yield Static("...", id="tree", markup=False)
        yield DataTable(id="actors", cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        """Begins to ask."""
        self.query_one(DataTable).add_columns(*ACTOR_COLUMNS)
        self.run_worker(self._watch())

    async def _watch(self) -> None:
        while True:
            await self._ask()
            await asyncio.sleep(PERIOD_S)

    async def _ask(self) -> None:
        answer = await describe_tree(self._door)
        if not self._door.is_open:
            self.exit(return_code=GONE_STATUS, message=f"{self._door.name}: the tree has ended")
        elif isinstance(answer, str):
            self.query_one("#tree", Static).update(f"{self._door.name}: {answer}")
        else:
            self._show(answer)

    def _show(self, tree: TreeDescribed) -> None:
        running = sum(row.running for row in tree.actors if row.role == "engine")
        waiting = sum(row.waiting for row in tree.actors if row.role == "engine")
        memory_mib = sum(row.memory_mib for row in tree.actors)
        self.query_one("#tree", Static).update(
            f"{tree.url}  {tree.model}  {tree.state}  {running} running, {waiting} waiting, {memory_mib:,} MiB"
            f"  {time.strftime('%H:%M:%S')}"
        )
        table = self.query_one(DataTable)
        row = table.cursor_row
        table.clear()
        for actor in tree.actors:
            table.add_row(*map(Text, actor_cells(actor)))  # plain strings would be read as markup
        table.move_cursor(row=row)
