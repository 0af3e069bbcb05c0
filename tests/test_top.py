"""The live table, on a terminal that only the test sees."""

import pytest
from textual.widgets import DataTable, Static

from actorlm import top
from actorlm.instance import Reach
from actorlm.messages.actor import TreeState
from actorlm.messages.operator import ActorDescribed, TreeDescribed
from actorlm.operator import Door

NOWHERE = Reach("ipc:///nowhere/supervisor")
DOOR = Door("here", NOWHERE)


def _tree(*, running):
    engine = ActorDescribed(
        "engine-0", "engine", "host", "dp0 pp0 tp0", 42, "ready", 1, 0, running, 3, 100, 12.0, "killed by SIGKILL"
    )
    return TreeDescribed(TreeState.READY, "null", "http://127.0.0.1:8000", (engine,))


async def _until(pilot, condition):
    for _ in range(200):
        await pilot.pause(0.02)
        if condition():
            return
    raise AssertionError(condition)


async def test_it_shows_what_ps_shows_and_goes_on(monkeypatch):
    answers = [_tree(running=2), "no answer within 3 s", _tree(running=5)]

    async def describe(door):
        assert door == DOOR
        return answers.pop(0) if len(answers) > 1 else answers[0]

    monkeypatch.setattr(top, "describe_tree", describe)
    monkeypatch.setattr(top, "PERIOD_S", 0.1)
    app = top.Top(DOOR)
    async with app.run_test(size=(200, 20)) as pilot:
        line, table = app.query_one("#tree", Static), app.query_one(DataTable)
        await _until(pilot, lambda: "5 running, 3 waiting, 100 MiB" in str(line.render()))
        assert "http://127.0.0.1:8000  null  ready" in str(line.render())
        cells = list(map(str, table.get_row_at(0)))
        assert cells[0] == "engine-0"
        assert cells[8:] == ["5+3", "dp0 pp0 tp0", "host", "killed by SIGKILL"]
        assert table.row_count == 1
        await pilot.press("q")
    assert app.return_code == 0


async def test_it_says_so_when_the_tree_does_not_answer(monkeypatch):
    async def describe(_):
        return "no answer within 3 s"

    monkeypatch.setattr(top, "describe_tree", describe)
    app = top.Top(DOOR)
    async with app.run_test() as pilot:
        await _until(pilot, lambda: "here: no answer" in str(app.query_one("#tree", Static).render()))


async def test_it_ends_with_the_tree(monkeypatch, tmp_path):
    async def describe(_):
        return "no answer within 3 s"

    monkeypatch.setattr(top, "describe_tree", describe)
    app = top.Top(Door("here", NOWHERE, tmp_path / "gone"))
    async with app.run_test() as pilot:
        await _until(pilot, lambda: app.return_code is not None)
    assert app.return_code == top.GONE_STATUS


@pytest.mark.parametrize("value", ["", "x[bold]y[/bold]", "[/", "a:b:c"])
async def test_what_it_shows_is_text_and_no_markup(monkeypatch, value):
    async def describe(_):
        engine = ActorDescribed("engine-0", "engine", "h", "", 1, "dead", 0, 0, 0, 0, 0, 0.0, value)
        return TreeDescribed(TreeState.DEGRADED, value, "http://x:1", (engine,))

    monkeypatch.setattr(top, "describe_tree", describe)
    app = top.Top(DOOR)
    async with app.run_test(size=(250, 20)) as pilot:
        await _until(pilot, lambda: app.query_one(DataTable).row_count == 1)
        assert f"http://x:1  {value}  degraded" in str(app.query_one("#tree", Static).render())
        shown = app.query_one(DataTable)._get_row_renderables(0).cells[-1]
        assert shown.plain == value
