"""The choice of a replica: by work, by what replicas hold, by session, by number; and never out of bounds."""

import random
from collections import Counter
from itertools import count

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from actorlm.config import BLOCK_SIZE
from actorlm.errors import Unavailable
from actorlm.scheduling.balance import BOUNDLESS, MAX_PASSES, Balance, Room, Wish
from actorlm.scheduling.load import DECODE_COST, HORIZON, Load, work

CAPACITY = 100_000
BOUND = 1000


class Fleet(Balance):
    """Replicas that can be asked in one line; time stands still unless a test moves it."""

    def __init__(self, replicas, max_imbalance=BOUND, room=BOUNDLESS):
        super().__init__(max_imbalance, room)
        self.now = 0.0
        self.numbers = count(1000)
        for replica in range(replicas):
            self.join(replica, CAPACITY)

    def ask(self, prefill=100, decode=0, request=None, **wish):
        wish = Wish(next(self.numbers) if request is None else request, prefill, decode, **wish)
        choice = self.choose(wish, self.now)
        self.place(wish, choice, self.now)
        self.check()
        return choice.replica

    def end(self, *requests):
        for request in requests:
            self.ended(-1 if (replica := self.owner(request)) is None else replica, [request], self.now)


@pytest.fixture
def fleet():
    fleets = []

    def make(*args, **kwargs):
        fleets.append(Fleet(*args, **kwargs))
        return fleets[-1]

    yield make
    for one in fleets:
        one.check()


def blocks(*names):
    """The names of a prompt's blocks, and as many tokens and one more."""
    return {"blocks": names, "prefill": len(names) * BLOCK_SIZE + 1}


def test_a_replica_that_is_full_is_passed_over(fleet):
    """For its requests or for what waits, whatever it has of a prompt or a session; and if all are, all are asked."""
    balance = fleet(2, room=Room(requests=3))
    assert [balance.ask(request=number, session="s") for number in range(5)] == [0, 0, 0, 1, 1]
    assert balance.ask(request=5, session="other") == 1
    assert {balance.ask() for _ in range(2)} == {0, 1}
    balance.end(0, 1, 2)
    assert balance.ask(session="s") == 0
    balance.leave(0)
    assert balance.ask(session="s") == 1
    balance = fleet(2, room=Room(waiting_tokens=250))
    assert [balance.ask(100, session="s") for _ in range(4)] == [0, 0, 1, 1]
    balance.reported(0, 2, Load(waiting=100, prefill=100), balance.now)
    assert balance.ask(100, session="s") == 0
    assert balance.ask(400, session="s") == 0


def test_a33_a_burst_of_equal_requests_is_dealt_equally(fleet):
    balance = fleet(4)
    chosen = [balance.ask(request=request) for request in range(64)]
    assert Counter(chosen) == {0: 16, 1: 16, 2: 16, 3: 16}
    assert chosen[:4] == [0, 1, 2, 3]


@pytest.mark.parametrize(("names", "took"), [((), (0, 3, 9, 99)), ((1,), (3, 9, 30, 99)), (range(12), (5, 9, 30, 99))])
def test_a33_a_burst_is_dealt_equally_however_quick_each_replica_is(fleet, names, took):
    """A request comes each millisecond, and each replica needs so many for one. The quick ones do not get more."""
    balance, started, ends = fleet(4), Counter(), {}
    for request in range(64):
        balance.now += 0.001
        replica = balance.ask(len(names) * BLOCK_SIZE + 4, 16, request, blocks=names)
        started[replica] += 1
        ends[request] = balance.now + took[replica] / 1000
        for ended in [request for request, end in ends.items() if end <= balance.now]:
            del ends[ended]
            number = balance.owner(ended)
            balance.end(ended)
            if number not in map(balance.owner, ends):
                balance.reported(number, started[number], Load(), balance.now)
    assert all(14 <= started[number] <= 18 for number in range(4)), started


def test_a33_a_replica_with_a_long_job_gets_fewer_and_never_none(fleet):
    for job, least in (({"prefill": 10, "decode": HORIZON}, 4), ({"prefill": 4096, "decode": 0}, 1)):
        balance = fleet(4, max_imbalance=8192)
        balance.ask(**job)
        started = Counter(balance.ask(20, 10) for _ in range(64))
        assert least <= started[0] < 14
        assert all(started[number] > 16 for number in (1, 2, 3))


def test_a_long_request_weighs_more(fleet):
    balance = fleet(2)
    assert [balance.ask(500), balance.ask(100), balance.ask(100), balance.ask(100)] == [0, 1, 1, 1]


def test_tokens_to_generate_weigh_more_than_those_to_prefill(fleet):
    balance = fleet(2)
    assert [balance.ask(10, 100), balance.ask(200), balance.ask(100)] == [0, 1, 1]


def test_idle_replicas_take_turns(fleet):
    balance, chosen = fleet(3), []
    for request in range(6):
        chosen.append(balance.ask(request=request))
        balance.end(request)
        balance.now += 10
    assert chosen == [0, 1, 2, 0, 1, 2]


def test_a_full_cache_weighs(fleet):
    balance = fleet(2)
    balance.reported(0, 0, Load(decode=10, kv_used=CAPACITY), balance.now)
    balance.reported(1, 0, Load(decode=50, kv_used=0), balance.now)
    assert balance.ask(50) == 0, "nothing waits for room yet"
    assert balance.ask(50) == 1


def test_reports_take_the_place_of_estimates(fleet):
    balance = fleet(2)
    assert [balance.ask(1000), balance.ask(900)] == [0, 1]
    balance.reported(0, 1, Load(prefill=10), balance.now)
    assert balance.expected_work == {0: 10, 1: 900}
    balance.now += 1
    assert balance.ask(10) == 0
    balance.reported(7, 1, Load(prefill=10), balance.now)


def test_without_replicas_nothing_is_chosen(fleet):
    balance = fleet(0)
    for wish in (Wish(1, 100, 0), Wish(1, 100, 0, session="s"), Wish(1, 100, 0, replica=0)):
        with pytest.raises(Unavailable):
            balance.choose(wish, 0.0)
    assert not balance.requests


def test_a_choice_changes_nothing_before_it_is_carried_out(fleet):
    balance, wish = fleet(2), Wish(1, 100, 0)
    assert balance.choose(wish, 0.0) == balance.choose(wish, 0.0)
    assert (balance.owner(1), balance.expected_work) == (None, {0: 0, 1: 0})


def test_a_replica_that_leaves_loses_its_requests(fleet):
    balance = fleet(2)
    for request in range(4):
        balance.ask(request=request)
    assert balance.leave(0) == [(0, 0), (2, 0)]
    assert (balance.owner(0), balance.owner(1)) == (None, 1)
    assert balance.ask(request=0) == 1
    assert balance.leave(0) == []
    balance.end(2)


def test_a29_a_replica_that_comes_back_knows_nothing_and_does_nothing(fleet):
    balance = fleet(2)
    balance.ask(**blocks(1, 2, 3), session="s")
    balance.ask(100)
    balance.reported(0, 1, Load(prefill=500), balance.now)
    balance.leave(0)
    balance.join(0, CAPACITY)
    assert balance.expected_work == {0: 0, 1: 100}
    assert balance.choose(Wish(9, 49, 0, (1, 2, 3)), 0.0).held == 0
    balance.ask(200)
    assert balance.ask(50, session="s") == 1, "its session is not tied to the replica any more"
    balance.reported(0, 1, Load(prefill=20), balance.now)
    assert balance.expected_work[0] == 20, "what it receives is counted anew"


def test_a_replica_that_announces_itself_again_keeps_its_requests(fleet):
    balance = fleet(1)
    balance.ask(request=1)
    balance.join(0, CAPACITY)
    assert (balance.owner(1), balance.expected_work) == (0, {0: 100})


def test_a_replica_that_does_not_reach_a_detokenizer_gets_no_requests_of_it(fleet):
    """Not even for a session's sake; unless no other reaches it either."""
    replicas = fleet(2)
    assert replicas.ask(session="s", detokenizer=1) == replicas.ask(session="s", detokenizer=1) == 0
    replicas.cut_off(0, [1])
    assert {replicas.ask(session="s", detokenizer=1) for _ in range(9)} == {1}
    assert {replicas.ask(detokenizer=0) for _ in range(9)} == {0, 1}
    replicas.cut_off(1, [0, 1])
    assert {replicas.ask(detokenizer=1) for _ in range(9)} == {0, 1}
    assert {replicas.ask(detokenizer=0) for _ in range(9)} == {0}
    replicas.cut_off(0, [])
    assert {replicas.ask(detokenizer=1) for _ in range(9)} == {0}
    replicas.cut_off(7, [0])


def test_the_next_attempt_follows_the_last_one(fleet):
    """The end of the aborted attempt must not be taken for the end of the next."""
    balance = fleet(2)
    assert balance.ask(request=1) == 0
    balance.aborted(1, balance.now)
    assert balance.expected_work == {0: 0, 1: 0}
    assert balance.ask(request=1) == 0
    balance.end(1)
    assert balance.owner(1) == 0
    assert balance.expected_work == {0: 100, 1: 0}
    balance.end(1, 77)
    assert balance.owner(1) is None


def test_what_was_aborted_or_is_elsewhere_is_nobodys_loss(fleet):
    balance = fleet(2)
    for request in range(4):
        balance.ask(request=request, attempt=request)
    balance.aborted(0, balance.now)
    balance.ended(1, [2], balance.now)  # it is at replica 0: the end is one of an attempt that was elsewhere
    assert [balance.attempt(request) for request in range(4)] == [None, 1, 2, 3]
    assert balance.leave(0) == [(2, 2)]


def test_what_a_replica_had_before_counts_in_its_reports_alone(fleet):
    balance = fleet(2)
    balance.restore(7, 3, 0)
    assert (balance.owner(7), balance.attempt(7), balance.expected_work) == (0, 3, {0: 0, 1: 0})
    balance.reported(0, 0, Load(prefill=50), balance.now)
    assert balance.expected_work == {0: 50, 1: 0}
    balance.end(7)
    assert balance.owner(7) is None
    balance.check()


def test_a34_a_prompt_goes_where_its_beginning_is(fleet):
    balance, turns = fleet(2), []
    for turn in range(1, 7):
        turns.append(balance.ask(**blocks(*range(turn)), decode=10, request=turn))
        balance.end(turn)
        balance.now += 0.01
    assert turns == [0] * 6
    assert balance.ask(**blocks(70, 71)) == 1, "another conversation goes elsewhere"


def test_the_longest_match_wins_while_its_work_is_saved(fleet):
    balance = fleet(3)
    balance.ask(**blocks(1, 2), replica=1)
    balance.ask(**blocks(*range(1, 33)), replica=2)
    for replica in range(3):
        balance.reported(replica, 1, Load(), balance.now)
    long = blocks(*range(1, 41))
    balance.now += 1
    assert balance.ask(**long) == 2
    balance.reported(2, 2, Load(prefill=32 * BLOCK_SIZE - 100), balance.now)
    assert balance.choose(Wish(1, long["prefill"], 0, long["blocks"]), balance.now).replica == 2
    balance.reported(2, 2, Load(prefill=40 * BLOCK_SIZE), balance.now)
    assert balance.choose(Wish(1, long["prefill"], 0, long["blocks"]), balance.now).replica == 1


@pytest.mark.parametrize("way", ["affinity", "session"])
def test_an_overloaded_replica_is_left(fleet, way):
    balance = fleet(2, max_imbalance=300)
    prompt = blocks(*range(100)) if way == "affinity" else {"session": "s"}
    assert balance.ask(**prompt) == 0
    balance.reported(0, 1, Load(prefill=300), balance.now)
    assert balance.choose(Wish(**{"request": 1, "prefill": 100, "decode": 0} | prompt), 0.0).replica == 0
    balance.reported(0, 1, Load(prefill=301), balance.now)
    assert balance.ask(**prompt) == 1
    balance.reported(0, 1, Load(), balance.now)
    balance.reported(1, 1, Load(), balance.now)
    if way == "session":
        assert balance.ask(**prompt) == 1, "the session has moved"


def test_what_many_begin_with_ties_them_to_nobody(fleet):
    """Conversations that share a beginning stay where each of them is, and new ones go everywhere."""
    balance, common, places = fleet(4), tuple(range(50)), {}
    for turn in range(5):
        for talk in range(8):
            own = tuple((talk, index) for index in range(3 * turn + 1))
            places.setdefault(talk, []).append(balance.ask(**blocks(*common, *own), decode=10, request=talk))
            balance.now += 0.01
        for talk in range(8):
            balance.end(talk)
        for replica in range(4):
            balance.reported(replica, 100, Load(), balance.now)
    assert all(len(set(where)) == 1 for where in places.values()), places
    assert sorted(Counter(where[0] for where in places.values()).values()) == [2, 2, 2, 2]


def test_choices_of_one_prompt_spread_over_idle_replicas(fleet):
    balance = fleet(4)
    chosen = Counter(balance.ask(**blocks(*range(20)), decode=50) for _ in range(64))
    assert all(14 <= chosen[number] <= 18 for number in range(4)), chosen


def test_a_session_returns_while_its_replica_lives(fleet):
    balance = fleet(3)
    first = balance.ask(session="s")
    for _ in range(5):
        balance.ask()
        assert balance.ask(session="s") == first
    balance.leave(first)
    moved = balance.ask(session="s")
    assert moved != first
    balance.join(first, CAPACITY)
    assert balance.ask(session="s") == moved


def test_an_explicit_replica_is_taken_at_any_load_or_refused(fleet):
    balance = fleet(2)
    balance.ask(session="s")
    assert [balance.ask(10_000, replica=1, session="s") for _ in range(3)] == [1, 1, 1]
    assert balance.ask(session="s") == 0, "the session follows only within the bound"
    balance.leave(1)
    with pytest.raises(Unavailable, match="replica 1"):
        balance.ask(replica=1)


def test_nobody_is_passed_over_for_ever(fleet):
    balance = fleet(2)
    balance.reported(1, 0, Load(prefill=10**6), balance.now)
    chosen = [balance.ask(1) for _ in range(MAX_PASSES * 4)]
    assert 1 <= chosen.count(1) <= 3


wishes = st.tuples(
    st.integers(1, 3000),
    st.integers(0, HORIZON),
    st.integers(0, 3),
    st.integers(0, 12),
    st.sampled_from(["", "a", "b"]),
)
moves = st.one_of(
    st.tuples(st.just("ask"), wishes),
    st.tuples(st.just("ask"), wishes),
    st.tuples(st.just("report"), st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 5000))),
    st.tuples(st.sampled_from(["join", "leave"]), st.integers(0, 3)),
    st.tuples(st.sampled_from(["end", "abort"]), st.integers(0, 200)),
    st.tuples(st.just("wait"), st.floats(0, 1)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(moves, max_size=80), st.sampled_from([0, 500, 8192]))
def test_accounts_and_bounds_hold_after_any_moves(history, bound):
    """Whoever is chosen has at most `bound` more to do than the least, unless it has been passed over too often."""
    balance, asked, sent, live = Fleet(0, bound), 0, Counter(), set()
    for move, what in history:
        if move == "join":
            balance.join(what, CAPACITY)
            live.add(what)
        elif move == "leave":
            assert all(balance.owner(request) is None for request, _ in balance.leave(what))
            live.discard(what)
            sent[what] = 0
        elif move == "end":
            balance.end(what)
        elif move == "abort" and balance.owner(what) is not None:
            balance.aborted(what, balance.now)
        elif move == "report":
            replica, behind, tokens = what
            balance.reported(replica, max(0, sent[replica] - behind), Load(prefill=tokens), balance.now)
        elif move == "wait":
            balance.now += what
        elif move == "ask" and live:
            prefill, decode, family, length, session = what
            names = [(family, index) for index in range(min(length, prefill // BLOCK_SIZE))]
            before = balance.expected_work
            passed = {number: balance._turns - replica.turn for number, replica in balance._replicas.items()}
            chosen = balance.ask(prefill, decode, asked, blocks=names, session=session)
            assert chosen in live
            within = before[chosen] <= min(before.values()) + bound
            assert within or passed[chosen] >= MAX_PASSES * len(live)
            assert balance.owner(asked) == chosen
            sent[chosen] += 1
            asked += 1
        balance.check()
        assert all(tokens >= 0 for tokens in balance.expected_work.values())


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 6))
def test_uneven_requests_are_spread_by_their_work(seed, replicas):
    rng, balance, given_work = random.Random(seed), Fleet(replicas), Counter()
    sizes = [(rng.randint(1, 2000), rng.randint(1, HORIZON)) for _ in range(60)]
    for prefill, decode in sizes:
        given_work[balance.ask(prefill, decode)] += work(prefill, decode)
    largest = 2000 + HORIZON * DECODE_COST
    assert max(given_work.values()) - min(given_work[number] for number in range(replicas)) <= largest
