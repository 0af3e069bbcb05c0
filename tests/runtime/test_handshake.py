"""The two state machines of the handshake, without any transport."""

from collections.abc import Iterator
from typing import Any

import pytest
from runtime_world import PROTOCOL, Ping, identity

from actorlm.runtime.errors import SequenceGap, UnknownSession
from actorlm.runtime.fingerprint import Fingerprint, fingerprint
from actorlm.runtime.handshake import (
    MAX_PEERS,
    Admitted,
    ClientHandshake,
    Hello,
    Phase,
    Refused,
    ServerHandshake,
    Welcome,
)
from actorlm.runtime.identity import Identity


def sessions() -> Iterator[int]:
    return iter(range(100, 100 + 2 * MAX_PEERS))


def server(**changes: Any) -> ServerHandshake:
    options = {"admits": {"client"}, "draw_session": sessions().__next__} | changes
    return ServerHandshake(identity("server-0", role="server"), PROTOCOL, **options)


def client(who: Identity | None = None, protocol: Fingerprint = PROTOCOL) -> ClientHandshake:
    return ClientHandshake(who or identity(), protocol, "server-0")


def hello(**changes: Any) -> Hello:
    return client(identity(**changes)).hello


def greet(serving: ServerHandshake, message: Hello, attempt: int = 1) -> Admitted | Refused:
    return serving.greet(message.identity.route, attempt, message)


def admitted(answer: Admitted | Refused) -> Admitted:
    assert isinstance(answer, Admitted), answer
    return answer


def refused(answer: Admitted | Refused) -> Refused:
    assert isinstance(answer, Refused)
    assert "server-0" in answer.server
    assert "client-0" in answer.client
    return answer


def test_a_hello_is_welcomed_with_a_session_and_the_addresses() -> None:
    serving = server(one_way={"steps": "ipc://x"}, topic=b"secret")
    answer = admitted(greet(serving, hello()))
    assert answer.is_new
    assert answer.welcome == Welcome(100, {"steps": "ipc://x"}, b"secret")
    assert serving.find(100) is answer.peer is serving.peer("client-0")


def test_a_repeated_hello_gets_the_same_session() -> None:
    serving = server()
    first = admitted(greet(serving, hello()))
    again = admitted(greet(serving, hello()))
    assert again.welcome == first.welcome
    assert not again.is_new


def test_a_new_attempt_gets_a_new_session_and_ends_the_old_one() -> None:
    serving = server()
    greet(serving, hello(), attempt=1)
    answer = admitted(greet(serving, hello(), attempt=2))
    assert answer.is_new
    assert answer.welcome.session == 101
    with pytest.raises(UnknownSession):
        serving.find(100)


def test_a_session_that_is_taken_is_drawn_again() -> None:
    serving = server(draw_session=iter([5, 5, 6]).__next__)
    greet(serving, hello())
    assert admitted(greet(serving, hello(name="client-1"))).welcome.session == 6


def test_a_newer_incarnation_replaces_and_an_older_one_is_refused() -> None:
    serving = server()
    greet(serving, hello(incarnation=5))
    assert admitted(greet(serving, hello(incarnation=6))).is_new
    assert "newer incarnation" in refused(greet(serving, hello(incarnation=5))).reason


def test_a_life_that_was_given_up_gets_no_session_any_more_and_the_next_one_does() -> None:
    serving = server()
    greet(serving, hello(incarnation=5))
    serving.bury("client-0", 5)
    assert serving.peers == {}
    assert "this one was given up" in refused(greet(serving, hello(incarnation=5))).reason
    assert admitted(greet(serving, hello(incarnation=6))).is_new


def test_giving_up_a_life_leaves_its_successor_alone() -> None:
    serving = server()
    greet(serving, hello(incarnation=6))
    serving.bury("client-0", 5)
    assert set(serving.peers) == {"client-0"}
    assert not admitted(greet(serving, hello(incarnation=6))).is_new
    assert serving.peer("client-0").incarnation == 6


def test_an_older_incarnation_is_refused_even_after_the_newer_one_was_forgotten() -> None:
    serving = server()
    greet(serving, hello(incarnation=6))
    serving.forget("client-0")
    refused(greet(serving, hello(incarnation=5)))


def test_roles_that_are_not_admitted_are_refused() -> None:
    assert "worker" in refused(greet(server(), hello(role="worker"))).reason


def test_a_route_of_another_name_is_refused() -> None:
    answer = server().greet(b"client-1/1", 1, hello())
    assert "routing id" in refused(answer).reason


def test_another_protocol_version_is_refused() -> None:
    other = fingerprint({"server": Ping}, version=2)
    assert "protocol version 2 meets 1" in refused(greet(server(), client(protocol=other).hello)).reason


def test_another_fingerprint_is_refused_by_the_first_struct_that_differs() -> None:
    other = fingerprint({"server": Ping}, version=1)
    answer = refused(greet(server(), client(protocol=other).hello))
    assert answer.difference == "Row"
    assert "Row" in answer.reason


def test_peers_are_bounded() -> None:
    serving = server()
    for number in range(MAX_PEERS):
        admitted(greet(serving, hello(name=f"client-{number}")))
    answer = greet(serving, hello(name="client-0000"))
    assert isinstance(answer, Refused)
    admitted(greet(serving, hello(name="client-1"), attempt=2))


def test_sequence_numbers_count_per_channel_and_a_gap_ends_the_session() -> None:
    serving = server()
    peer = admitted(greet(serving, hello())).peer
    for channel, sequence in (("", 1), ("steps", 1), ("", 2), ("steps", 2)):
        serving.advance(peer, channel, sequence)
    with pytest.raises(SequenceGap) as gap:
        serving.advance(peer, "", 4)
    assert (gap.value.expected, gap.value.got) == (3, 4)
    with pytest.raises(UnknownSession):
        serving.find(peer.session)


def test_a_repeated_message_ends_the_session_too() -> None:
    serving = server()
    peer = admitted(greet(serving, hello())).peer
    serving.advance(peer, "", 1)
    with pytest.raises(SequenceGap):
        serving.advance(peer, "", 1)


def test_a_session_belongs_to_its_route() -> None:
    serving = server()
    peer = admitted(greet(serving, hello())).peer
    assert serving.find(peer.session, peer.route) is peer
    with pytest.raises(UnknownSession):
        serving.find(peer.session, b"thief/1")


def up(session: int = 7) -> ClientHandshake:
    link = client()
    assert link.welcomed(1, Welcome(session, {}, b""))
    return link


def test_a_welcome_brings_the_link_up_once() -> None:
    link = up()
    assert (link.phase, link.session) == (Phase.UP, 7)
    assert not link.welcomed(1, Welcome(7, {}, b""))
    assert (link.phase, link.session, link.attempt) == (Phase.UP, 7, 1)


def test_another_session_for_the_same_attempt_shows_that_the_server_has_forgotten_us() -> None:
    link = up(7)
    assert not link.welcomed(1, Welcome(8, {}, b""))
    assert (link.phase, link.attempt) == (Phase.GREETING, 2)


def test_a_welcome_of_another_attempt_is_ignored() -> None:
    link = client()
    assert not link.welcomed(2, Welcome(7, {}, b""))
    assert link.phase is Phase.GREETING


def test_a_refusal_is_final_until_a_new_connection() -> None:
    link = client()
    assert not link.refused(2)
    assert link.refused(1)
    assert link.phase is Phase.REFUSED
    assert not link.refused(1)
    assert not link.required(0)
    assert not link.connection(made=False)
    assert link.phase is Phase.REFUSED
    assert link.connection(made=True)
    assert (link.phase, link.attempt) == (Phase.GREETING, 2)


def test_a_handshake_that_is_required_begins_the_next_attempt_once() -> None:
    link = up(7)
    assert link.required(7)
    assert (link.phase, link.attempt) == (Phase.GREETING, 2)
    assert not link.required(7)
    assert link.attempt == 2


def test_a_lost_connection_ends_the_session_and_the_next_one_is_greeted() -> None:
    link = up(7)
    assert link.connection(made=False)
    assert (link.phase, link.attempt) == (Phase.GREETING, 2)
    assert link.connection(made=True)
    assert (link.phase, link.attempt) == (Phase.GREETING, 2)


def test_late_news_of_a_connection_does_not_end_its_session() -> None:
    link = up(7)
    assert not link.connection(made=True)
    assert link.phase is Phase.UP


def test_a_complaint_about_an_earlier_session_is_ignored() -> None:
    link = up(7)
    assert not link.required(6)
    assert link.phase is Phase.UP


def test_a_client_counts_what_it_receives() -> None:
    link = up(7)
    link.advance(7, 1)
    with pytest.raises(SequenceGap):
        link.advance(7, 3)
    assert (link.phase, link.attempt) == (Phase.GREETING, 2)
    assert link.welcomed(2, Welcome(8, {}, b""))
    link.advance(8, 1)


def test_a_message_of_another_session_ends_the_session_of_a_link_that_is_up() -> None:
    link = up(7)
    with pytest.raises(UnknownSession):
        link.advance(6, 1)
    assert (link.phase, link.attempt) == (Phase.GREETING, 2)
    with pytest.raises(UnknownSession):
        link.advance(6, 2)
    assert link.attempt == 2


def test_both_machines_agree_through_losses() -> None:
    """A conversation in which a Welcome is late, a message is lost, and a stale complaint arrives."""
    serving, link = server(), client()
    first = admitted(greet(serving, link.hello, link.attempt))
    repeated = admitted(greet(serving, link.hello, link.attempt))
    assert link.welcomed(1, first.welcome)
    assert not link.welcomed(1, repeated.welcome)
    peer = serving.find(link.session)
    serving.advance(peer, "", 1)
    with pytest.raises(SequenceGap):
        serving.advance(peer, "", 3)
    complaint = link.session
    assert link.required(complaint)
    assert link.welcomed(2, admitted(greet(serving, link.hello, link.attempt)).welcome)
    assert not link.required(complaint)
    serving.advance(serving.find(link.session), "", 1)
