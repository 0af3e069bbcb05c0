"""Attempts among links that are made up: who is asked, who waits, and for what."""

from types import SimpleNamespace

import pytest

from actorlm.actors.attempts import Attempts
from actorlm.actors.generation import NOWHERE, Choice, Generation, Phase
from actorlm.actors.spans import NoSpans
from actorlm.api.ports import ANYWHERE, Placement, Submission
from actorlm.messages.balancer import Acquitted, Inventory, RequestRefused
from actorlm.messages.detokenizer import Open
from actorlm.messages.engine import Abort, Generate
from actorlm.messages.frontend import FleetChanged, Opened, RequestsInterrupted
from actorlm.messages.supervisor import PeerStuck
from actorlm.metrics import Metrics
from actorlm.runtime.errors import NotConnected, PeerFull
from actorlm.sampling import SamplingParams
from actorlm.wire import int32, int64, read_int32, read_int64


class FakeLink:
    def __init__(self, peer):
        self.peer, self.is_up, self.is_full, self.sent = peer, True, False, []

    def send(self, message):
        if not self.is_up:
            raise NotConnected(self.peer)
        if self.is_full:
            raise PeerFull(self.peer)
        self.sent.append(message)

    def take(self, kind):
        taken, self.sent = [one for one in self.sent if isinstance(one, kind)], []
        return taken


@pytest.fixture
def world():
    """Two detokenizers, a balancer with one replica, and what has failed."""
    said, failed, table = [], [], {}
    detokenizers = {index: FakeLink(f"detokenizer-{index}") for index in range(2)}
    balancer = FakeLink("balancer")

    def fail(choice, error):
        failed.append((choice.id, error.code))
        del table[choice.id]

    attempts = Attempts(
        "frontend-0", table, balancer=balancer, detokenizers=detokenizers, spans=NoSpans(), fail=fail,
        membership=SimpleNamespace(metrics=Metrics(), say=said.append),
    )  # fmt: skip
    attempts.fleet = FleetChanged((0,), 4096, 8)

    def begin(number, placement=ANYWHERE):
        submission = Submission(prompt_ids=[1, 2], sampling=SamplingParams(max_tokens=8))
        generation = Generation(lambda _: None)
        choice = table[number] = Choice(number, 0, submission, NOWHERE, 0.0, generation, "id", placement)
        attempts.begin(choice)
        return choice

    def sent(number, **options):
        choice = begin(number, **options)
        attempts.opened(Opened(number, choice.attempt))
        return choice

    return SimpleNamespace(
        attempts=attempts, balancer=balancer, detokenizers=detokenizers, said=said, failed=failed, table=table,
        begin=begin, sent=sent,
    )  # fmt: skip


def interrupted(*rows, cause="engine-0", blames=True):
    return RequestsInterrupted(int64(row[0] for row in rows), int32(row[1] for row in rows), cause, blames)


def test_texts_take_turns_and_their_next_attempts_stay_where_they_are(world):
    """So that a detokenizer never keeps the text of an attempt whose successor is elsewhere."""
    choices = [world.sent(number) for number in range(4)]
    assert [choice.detokenizer for choice in choices] == [0, 1, 0, 1]
    world.attempts.interrupted(interrupted(*((number, 0) for number in range(4)), blames=False))
    assert [choice.detokenizer for choice in choices] == [0, 1, 0, 1]
    world.detokenizers[0].is_up = False
    world.attempts.lose_texts("detokenizer-0")
    assert [choice.detokenizer for choice in choices] == [1, 1, 1, 1]
    assert [choice.attempt for choice in choices] == [2, 1, 2, 1]


def test_the_next_attempt_brings_what_was_delivered(world):
    choice = world.sent(1)
    choice.take_text("ab", int32([7, 8]), 0)
    world.attempts.interrupted(interrupted((1, 0)))
    [*_, opened] = world.detokenizers[0].take(Open)
    assert (opened.attempt, opened.delivered_characters, read_int32(opened.generated_ids).tolist()) == (1, 2, [7, 8])
    world.attempts.opened(Opened(1, 0))
    assert choice.phase is Phase.OPENING, "that was the last attempt's"
    world.attempts.opened(Opened(1, 1))
    [_, generate] = world.balancer.take(Generate)
    assert (generate.attempt, read_int32(generate.generated_ids).tolist()) == (1, [7, 8])


def test_who_finds_a_part_away_waits_for_it(world):
    world.balancer.is_up = False
    choice = world.sent(1)
    assert choice.phase is Phase.OPEN
    world.balancer.is_up = True
    world.attempts.fleet = FleetChanged((), 0, 0)
    world.attempts.go_on()
    assert choice.phase is Phase.OPEN
    world.attempts.fleet = FleetChanged((0,), 4096, 8)
    world.attempts.go_on()
    assert choice.phase is Phase.SENT
    assert len(world.balancer.take(Generate)) == 1
    world.attempts.go_on()
    assert world.balancer.sent == [], "once"


def test_who_ends_while_it_waits_is_not_sent(world):
    for link in world.detokenizers.values():
        link.is_up = False
    world.begin(1)
    del world.table[1]
    for link in world.detokenizers.values():
        link.is_up = True
    world.attempts.go_on()
    assert not any(link.sent for link in world.detokenizers.values())


def test_a_peer_whose_queue_is_full_is_stuck(world):
    world.detokenizers[0].is_full = True
    assert world.begin(1).detokenizer == 1
    assert world.said == [PeerStuck("detokenizer-0")]


def test_a_refusal_waits_only_for_a_replica_that_is_away(world):
    choice = world.sent(1)
    assert world.attempts.refused(RequestRefused(1, 0, 503, "unavailable", "later"))
    assert choice.phase is Phase.OPEN
    world.attempts.go_on()
    assert choice.phase is Phase.SENT
    assert not world.attempts.refused(RequestRefused(1, 0, 429, "overloaded", "full"))
    assert world.attempts.refused(RequestRefused(1, 7, 429, "overloaded", "full")), "of another attempt"
    world.sent(2, placement=Placement(replica=1))
    assert not world.attempts.refused(RequestRefused(2, 0, 503, "unavailable", "replica 1")), "it wants that one"


def test_engines_are_told_of_texts_that_are_lost_before_their_next_attempts(world):
    for number in range(3):
        world.sent(number)
    world.begin(3)
    world.balancer.sent.clear()
    world.attempts.lose_texts("detokenizer-1")
    [abort] = world.balancer.take(Abort)
    assert read_int64(abort.requests).tolist() == [1], "3 was not sent yet"
    assert [choice.attempt for choice in world.table.values()] == [0, 1, 0, 1]


def test_a_balancer_is_told_what_is_with_engines(world):
    world.sent(1)
    world.begin(2)
    world.balancer.sent.clear()
    world.attempts.take_stock()
    [inventory] = world.balancer.take(Inventory)
    assert (read_int64(inventory.requests).tolist(), read_int32(inventory.attempts).tolist()) == ([1], [0])


def test_two_deaths_make_a_suspect_a_token_acquits_and_a_third_death_condemns(world):
    good, bad = world.sent(1), world.sent(2)
    for attempt in range(2):
        world.attempts.interrupted(interrupted((1, attempt), (2, attempt)))
        for number in (1, 2):
            world.attempts.opened(Opened(number, attempt + 1))
    assert [message.suspect for message in world.balancer.take(Generate)[-2:]] == [True, True]
    world.attempts.gained(good)
    assert world.balancer.take(Acquitted) == [Acquitted(1)]
    world.attempts.interrupted(interrupted((1, 2), (2, 2), blames=False))
    assert world.failed == [], "this one was ordered"
    assert (good.is_suspect, bad.is_suspect) == (False, True)
    world.attempts.opened(Opened(2, 3))
    world.attempts.interrupted(interrupted((2, 3)))
    assert world.failed == [(2, "poisoned")]


def test_what_is_said_of_older_attempts_changes_nothing(world):
    choice = world.sent(1)
    choice.attempt = 4
    world.attempts.interrupted(interrupted((1, 3), (99, 0)))
    assert (choice.attempt, choice.deaths) == (4, 0)
