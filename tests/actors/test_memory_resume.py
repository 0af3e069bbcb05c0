"""Whatever dies behind the frontend, a request goes on as if nothing had happened; the actors without processes."""

import asyncio

import pytest

from actorlm.api.ports import Envelope, Placement
from actorlm.errors import Poisoned, Unavailable
from actorlm.executors.inline import InlineExecutor
from actorlm.logprobs import joined
from actorlm.messages.actor import TreeState
from actorlm.runtime.events import LinkUp

VICTIMS = ["engine-0", "balancer", "detokenizer-0"]
PENALTIES = {"frequency_penalty": 0.5, "presence_penalty": 0.3, "repetition_penalty": 1.2}


class Answer:
    """All that a request has come to so far; `delta` by `delta`, as a client sees it."""

    def __init__(self, generation, choices):
        self.generation = generation
        self.choices = [{"text": "", "ids": (), "tokens": 0, "finish": None, "cached": [], "scores": None}] * choices

    async def read(self, until=None):
        """Up to the end, or until the first choice has so many tokens."""
        async for deltas in self.generation:
            for delta in deltas:
                one = self.choices[delta.choice]
                assert one["finish"] is None, "a delta behind the end"
                self.choices[delta.choice] = {
                    "text": one["text"] + delta.text,
                    "ids": one["ids"] + delta.token_ids,
                    "tokens": one["tokens"] + delta.tokens,
                    "finish": delta.finish,
                    "cached": [*one["cached"], delta.cached_tokens],
                    "scores": joined(one["scores"], delta.scores),
                }
            if until is not None and self.choices[0]["tokens"] >= until:
                break
        return self

    def same(self, other):
        for mine, others in zip(self.choices, other.choices, strict=True):
            assert {**mine, "scores": 0, "cached": 0} == {**others, "scores": 0, "cached": 0}
            assert _listed(mine["scores"]) == _listed(others["scores"])
            assert len(set(mine["cached"])) == 1, "the same in every delta"


def _listed(scores):
    if scores is None:
        return None
    return [[list(getattr(entries, name)) for name in entries.__slots__] for entries in (scores.prompt, scores.output)]


def ask(tree, *prompts, **sampling):
    return Answer(tree.submit(*prompts, **sampling), len(prompts))


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize(
    "sampling", [{}, {"seed": 7}, PENALTIES, {"logprobs": 2, "prompt_logprobs": 1}, {"min_tokens": 30}]
)
async def test_a_request_goes_on(memory_tree, victim, sampling):
    """Greedy and drawn, with penalties, scores, tokens that may not end it, three choices; cut at three places."""
    sampling = {"temperature": 1.0 if "seed" in sampling else 0.0, "max_tokens": 60} | sampling
    prompts = [list(range(40)), [7], [1, 2, 3]]
    async with memory_tree(step_ms=2) as tree:
        calm = await ask(tree, *prompts, **sampling).read()
        for cut in (0, 1, 25):
            answer = ask(tree, *prompts, **sampling)
            if cut:
                await answer.read(until=cut)
            await tree.restart(victim)
            (await answer.read()).same(calm)
            await tree.until(lambda: tree.frontend.state is TreeState.READY)
        await tree.settled()


@pytest.mark.parametrize("victim", VICTIMS)
async def test_a_stop_string_that_straddles_the_cut(memory_tree, victim):
    """The text that was held back is found again, and the string ends the request where it would have ended."""
    async with memory_tree(step_ms=2) as tree:
        bias, stop = ((65, 100.0),), ("A" * 30,)
        answer = Answer(tree.submit([1], stop=stop, logit_bias=bias, max_tokens=50), 1)
        await tree.until(lambda: next(iter(tree.frontend._open.values())).ids)
        await tree.restart(victim)
        await answer.read()
        assert answer.choices[0] | {"ids": 0, "cached": 0} == {
            "text": "", "ids": 0, "tokens": 30, "finish": "stop", "cached": 0, "scores": None
        }  # fmt: skip
        await tree.settled()


async def test_deaths_of_everything_in_turn(memory_tree):
    async with memory_tree(step_ms=2) as tree:
        calm = await ask(tree, [5], [6], max_tokens=150).read()
        answer = ask(tree, [5], [6], max_tokens=150)
        for number, victim in enumerate(VICTIMS * 3, 1):
            await answer.read(until=10 * number)
            await tree.restart(victim)
        (await answer.read()).same(calm)
        await tree.until(lambda: tree.frontend.state is TreeState.READY)
        await tree.settled()


async def test_all_die_at_once(memory_tree):
    async with memory_tree(step_ms=2) as tree:
        calm = await ask(tree, [5], [6], max_tokens=50).read()
        answer = await ask(tree, [5], [6], max_tokens=50).read(until=10)
        for victim in VICTIMS:
            await tree.kill(victim)
        for victim in VICTIMS:
            tree.begin(victim)
        (await answer.read()).same(calm)


async def test_without_a_balancer_tokens_flow(memory_tree):
    """And a new one learns who works on what: it aborts what is asked of it, and counts what is left."""
    async with memory_tree(step_ms=2) as tree:
        answer = await ask(tree, [5], max_tokens=4000).read(until=5)
        await tree.kill("balancer")
        await answer.read(until=30)
        [choice] = tree.frontend._open.values()
        assert choice.attempt == 0
        tree.begin("balancer")
        await tree.until(lambda: tree.actors["balancer"]._balance.attempt(choice.id) == 0)
        assert choice.attempt == 0, "nothing was interrupted"
        answer.generation.abort()
        await tree.settled()


async def test_what_was_aborted_without_a_balancer_ends_with_the_next_one(memory_tree):
    async with memory_tree(step_ms=2) as tree:
        answer = await ask(tree, [5], max_tokens=4000).read(until=5)
        await tree.kill("balancer")
        answer.generation.abort()
        assert tree.scheduler.has_work
        tree.begin("balancer")
        await tree.until(lambda: tree.frontend.state is TreeState.READY)
        await tree.settled()


async def test_what_never_reached_an_engine_is_sent_again(memory_tree):
    """It was sent to a balancer that died with it in its mailbox."""
    async with memory_tree(step_ms=2) as tree:
        calm = await ask(tree, [5]).read()
        balancer = tree.actors["balancer"]
        balancer.receive = lambda sender, message: None
        answer = ask(tree, [5])
        await tree.until(lambda: [one for one in tree.frontend._open.values() if one.phase.value == "sent"])
        await tree.restart("balancer")
        (await answer.read()).same(calm)
        await tree.settled()


async def test_an_accepted_request_waits_for_its_only_replica(memory_tree):
    """Those who come meanwhile are refused at once."""
    async with memory_tree(step_ms=2) as tree:
        calm = await ask(tree, [5], max_tokens=30).read()
        answer = await ask(tree, [5], max_tokens=30).read(until=3)
        await tree.kill("engine-0")
        await tree.until(lambda: tree.frontend.state is TreeState.UNAVAILABLE)
        with pytest.raises(Unavailable):
            tree.submit([1])
        assert len(tree.frontend._open) == 1
        tree.begin("engine-0")
        (await answer.read()).same(calm)


async def test_a_replica_asked_for_counts_until_it_is_lost(memory_tree):
    async with memory_tree(step_ms=2) as tree:
        calm = await ask(tree, [5], max_tokens=30).read()
        answer = Answer(tree.frontend.submit([_submission(tree)], Envelope(placement=Placement(replica=0))), 1)
        await answer.read(until=3)
        await tree.restart("engine-0")
        (await answer.read()).same(calm)


def _submission(tree):
    from actorlm.api.ports import Submission
    from actorlm.sampling import SamplingParams

    return Submission(prompt_ids=[5], sampling=SamplingParams(max_tokens=30, ignore_eos=True))


async def test_an_engine_that_may_not_reach_a_detokenizer_gives_up_what_it_said(memory_tree):
    """A new session between the two: what was pushed in the old one may be lost, also of requests that have ended."""
    async with memory_tree(step_ms=2) as tree:
        calm = await ask(tree, [5], [6], max_tokens=60).read()
        answer = await ask(tree, [5], [6], max_tokens=60).read(until=5)
        engine = tree.actors["engine-0"]
        port = engine._ports[0]
        push, lost = port.push, []
        port.push = lost.append  # never arrives
        await tree.until(lambda: len(lost) > 4)
        port.push = push
        engine.receive("detokenizer-0", LinkUp("detokenizer-0"))
        (await answer.read()).same(calm)
        last = await ask(tree, [9], max_tokens=3).read(until=1)
        port.push = lost.append
        await tree.until(lambda: not tree.scheduler.has_work)
        port.push = push
        engine.receive("detokenizer-0", LinkUp("detokenizer-0"))
        await last.read()
        assert last.choices[0]["tokens"] == 3
        await tree.settled()


async def test_a_connection_that_is_made_again_loses_nothing(memory_tree):
    """Of either peer to a balancer that lives on: who works on what is compared."""
    async with memory_tree(step_ms=2) as tree:
        calm = await ask(tree, [5], [6], max_tokens=80).read()
        answer = await ask(tree, [5], [6], max_tokens=80).read(until=5)
        balancer = tree.actors["balancer"]
        for peer in ("engine-0", "frontend-0"):
            sent, received = len(answer.choices[0]["ids"]), balancer.processed
            balancer._server.forget(peer)
            await tree.until(lambda received=received: balancer.processed > received)
            await answer.read(until=sent + 15)
        (await answer.read()).same(calm)
        await tree.settled()


class Dying(InlineExecutor):
    """A worker that dies whenever a step has a token that it cannot bear in its prompts."""

    def execute_model(self, step):
        assert not any(99 in one.token_ids[: 4 * one.prompt_length] for one in step.added), "poison"
        return super().execute_model(step)


async def test_poison_is_contained(memory_tree):
    """Two deaths make all suspect that had no token since; they run one at a time, and the one that kills is failed."""
    async with memory_tree(step_ms=2, wrap=Dying) as tree:
        calm = [await ask(tree, [n], max_tokens=40).read() for n in range(3)]
        innocent = [ask(tree, [n], max_tokens=40) for n in range(3)]
        poison = ask(tree, [99], max_tokens=5)
        keeper = asyncio.create_task(_keep_alive(tree))
        with pytest.raises(Poisoned, match="3 times in a row"):
            await poison.read()
        for one, before in zip(innocent, calm, strict=True):
            (await one.read()).same(before)
        keeper.cancel()
        assert len(tree.deaths) == 3
        await tree.settled()


async def test_deaths_that_were_ordered_make_nobody_suspect(memory_tree):
    async with memory_tree(step_ms=50) as tree:
        calm = await ask(tree, [5], max_tokens=3).read()
        answer = ask(tree, [5], max_tokens=3)
        for _ in range(4):
            await tree.until(lambda: tree.scheduler.has_work)
            await tree.restart("engine-0", ordered=True)
        [choice] = tree.frontend._open.values()
        assert (choice.deaths, choice.is_suspect) == (0, False)
        (await answer.read()).same(calm)


async def test_a_token_of_its_own_acquits(memory_tree):
    async with memory_tree(step_ms=5) as tree:
        answer = ask(tree, [5], max_tokens=200)
        for cut in range(5, 60, 5):
            await answer.read(until=cut)
            await tree.restart("engine-0")
        await answer.read()
        assert answer.choices[0]["tokens"] == 200


async def _keep_alive(tree):
    """As the supervisor does: an engine that ends is announced and started again."""
    tree.deaths = []
    while True:
        task, _ = tree.tasks["engine-0"]
        if task.done():
            tree.deaths.append(task.exception())
            await tree.restart("engine-0")
        await asyncio.sleep(0.002)
