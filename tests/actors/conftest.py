"""A whole tree in one process: real actors over the in-memory network, the null model on the inline executor."""

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest

from actorlm.actors.balancer import Balancer
from actorlm.actors.detokenizer import Detokenizer
from actorlm.actors.engine import EngineCore
from actorlm.actors.frontend import Frontend
from actorlm.actors.membership import Membership
from actorlm.api.callers import ANYBODY
from actorlm.api.ports import Envelope, Submission
from actorlm.checkpoint.describe import describe
from actorlm.checkpoint.resolve import resolve
from actorlm.config import BLOCK_SIZE, Config
from actorlm.execution.worker import build_worker
from actorlm.executors.inline import InlineExecutor
from actorlm.executors.ranks import Ranks
from actorlm.messages.actor import Census, PeerLost, TreeChanged, TreeState
from actorlm.messages.balancer import ReplicaAnnounced
from actorlm.messages.catalog import INBOXES, protocol
from actorlm.metrics import Metrics
from actorlm.runtime.events import PeerJoined
from actorlm.runtime.identity import this_process
from actorlm.runtime.mailbox import Mailbox, Overflow
from actorlm.runtime.memory import Exchange, MemoryNetwork
from actorlm.runtime.pulse import Pulse
from actorlm.sampling import SamplingParams
from actorlm.scheduling.balance import BOUNDLESS
from actorlm.scheduling.scheduler import Scheduler
from actorlm.text.tokenizer import load_tokenizer


class MemoryTree:
    """One frontend, balancer, detokenizer and engine. The test is their supervisor: `told` is what they say to it.

    `wrap` gets the function that builds the worker, and the ranks, and gives the executor.
    """

    def __init__(self, *, step_ms=0.0, kv_tokens=4096, wrap=InlineExecutor, lanes=1, **sections):
        self.wrap, self.lanes = wrap, lanes
        self.config = msgspec.convert({"model": {"model_impl": "null", "null_step_ms": step_ms}} | sections, Config)
        resolved = resolve(None, null=True, progress=lambda *_: None)
        self.model = describe(resolved, served_model_name=None, max_model_len=None)
        self.kv_tokens = kv_tokens
        self.exchange = Exchange()
        self.told = []
        self.tasks = {}
        self.actors = {}

    async def start(self):
        self.network = MemoryNetwork(protocol(), self.exchange)
        self.mailbox = Mailbox("supervisor", 1024, Overflow.PAUSE)
        self.server = self._serve(
            self.network, self.mailbox, "supervisor", ("frontend", "balancer", "detokenizer", "engine")
        )
        self.listening = asyncio.get_running_loop().create_task(self._listen())
        for name in ("balancer", "detokenizer-0", "engine-0", "frontend-0"):
            self.begin(name)
        self.frontend = self.actors["frontend-0"]
        self.frontend.serve(self._stop_http)
        await self.until(lambda: len(self.ready()) == 4)
        self.say("frontend-0", TreeChanged(TreeState.READY))
        await self.until(lambda: self.frontend.state is TreeState.READY)

    async def _stop_http(self, grace_s, linger_s):
        self.told.append(("frontend-0", "http stopped"))

    def ready(self):
        return {sender for sender, message in self.told if type(message).__name__ == "ActorReady"}

    def _serve(self, network, mailbox, name, admits, **options):
        identity = this_process(name.split("-")[0], name)
        inbox = INBOXES[identity.role]
        return network.serve(
            f"memory://{name}", identity=identity, mailbox=mailbox, inbox=inbox, admits=admits, **options
        )

    def begin(self, name):
        """Builds and runs one actor."""
        role = name.split("-")[0]
        network, mailbox, identity = (
            MemoryNetwork(protocol(), self.exchange),
            Mailbox(name, 1024, Overflow.PAUSE),
            this_process(role, name),
        )

        def link(peer):
            return network.connect(
                f"memory://{peer}", peer=peer, identity=identity, mailbox=mailbox, inbox=INBOXES[role]
            )

        membership = Membership(link("supervisor"), Metrics(), network, Pulse(10.0))
        actor = getattr(self, f"_{role}")(name, mailbox, network, link, membership)
        self.actors[name] = actor
        self.tasks[name] = (asyncio.get_running_loop().create_task(actor.run()), network)
        return actor

    def _balancer(self, name, mailbox, network, link, membership):
        server, balancing = self._serve(network, mailbox, name, ("frontend", "engine")), self.config.balancing
        return Balancer(
            name, mailbox, server, membership,
            max_imbalance=balancing.max_imbalance, prefix_affinity=balancing.prefix_affinity,
            room=BOUNDLESS,
        )  # fmt: skip

    def _detokenizer(self, name, mailbox, network, link, membership):
        one_way = {"tokens": f"memory://{name}-tokens"}
        server = self._serve(network, mailbox, name, ("frontend", "engine"), one_way=one_way)
        return Detokenizer(name, mailbox, server, membership, load_tokenizer(self.model))

    def _engine(self, name, mailbox, network, link, membership):
        blocks = self.kv_tokens // BLOCK_SIZE
        self.scheduler = Scheduler(
            self.config.scheduler, num_blocks=blocks, max_model_len=self.model.max_model_len,
            eos_token_ids=self.model.eos_token_ids, prefix_caching=True, lanes=self.lanes,
        )  # fmt: skip
        return EngineCore(
            name, mailbox, replica=0, scheduler=self.scheduler, vocab_size=self.model.vocab_size,
            executor=self.wrap(
                lambda: build_worker(self.config, self.model, num_blocks=blocks, threads=1),
                Ranks(["engine-0"], step_timeout_s=300, tick_s=2),
            ),
            balancer=link("balancer"), detokenizers={0: link("detokenizer-0")}, membership=membership,
            announcement=ReplicaAnnounced(0, self.kv_tokens, self.config.scheduler.max_num_seqs),
            queue_timeout_s=self.config.timeouts.queue_timeout_s,
        )  # fmt: skip

    def _frontend(self, name, mailbox, network, link, membership):
        return Frontend(
            name, mailbox, index=0, incarnation=1, served_name="null",
            balancer=link("balancer"), detokenizers={0: link("detokenizer-0")}, membership=membership,
            request_timeout_s=self.config.timeouts.request_timeout_s,
        )  # fmt: skip

    async def _listen(self):
        """As the supervisor: a balancer that joins is told which engines are ready."""
        while True:
            news = await self.mailbox.drain()
            self.told += news
            for _, message in news:
                if isinstance(message, PeerJoined) and message.role == "balancer":
                    ready = self.ready()
                    self.say(
                        message.name, Census(tuple(one for one in ("engine-0",) if one in ready & set(self.tasks)))
                    )

    def say(self, name, message):
        self.server.send(name, message)

    async def kill(self, name, ordered=False):
        """Ends an actor without a word, as SIGKILL does, and announces it as the supervisor does."""
        lives = [m.incarnation for s, m in self.told if isinstance(m, PeerJoined) and m.name == name]
        task, network = self.tasks.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await network.close()
        for other in self.tasks:
            self.say(other, PeerLost(name, name.split("-")[0], lives[-1], ordered))
        self.told = [(sender, message) for sender, message in self.told if sender != name]

    async def restart(self, name, **how):
        """A death, and the successor that a supervisor starts."""
        await self.kill(name, **how)
        self.begin(name)

    def submit(self, *prompts, trace_id="", stop=(), timeout_s=None, caller=ANYBODY, cache_salt="", **sampling):
        params = SamplingParams(**({"max_tokens": 8, "ignore_eos": True} | sampling))
        return self.frontend.submit(
            [Submission(prompt_ids=list(ids), sampling=params, stop=stop, cache_salt=cache_salt) for ids in prompts],
            Envelope(trace_id, timeout_s=timeout_s, caller=caller),
        )

    async def settled(self):
        """Nothing is left of any request anywhere."""
        await self.until(lambda: not self.scheduler.has_work and not self.scheduler.steps_in_flight)
        self.scheduler.check()
        assert self.scheduler.kv_used_tokens == 0
        await self.until(lambda: not self.actors["detokenizer-0"]._open)
        assert not self.frontend._open
        if "balancer" in self.tasks:
            await self.until(lambda: not self.actors["balancer"]._balance.requests)

    async def until(self, condition, seconds=10):
        async with asyncio.timeout(seconds):
            while not condition():
                for task, _ in self.tasks.values():
                    if task.done():
                        task.result()
                await asyncio.sleep(0.002)

    async def close(self):
        for task, _ in self.tasks.values():
            task.cancel()
        self.listening.cancel()
        await asyncio.gather(self.listening, *(task for task, _ in self.tasks.values()), return_exceptions=True)
        for _, network in self.tasks.values():
            await network.close()
        await self.network.close()


@pytest.fixture
def memory_tree():
    @asynccontextmanager
    async def start(**options):
        tree = MemoryTree(**options)
        await tree.start()
        try:
            yield tree
        finally:
            await tree.close()

    return start
