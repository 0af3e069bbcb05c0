"""An engine's way to a detokenizer: no token goes where earlier ones may not have gone."""

from types import SimpleNamespace

import pytest

from actorlm.actors.text_port import MAX_ENDED, TextPort
from actorlm.runtime.errors import NotConnected, PeerFull


def tokens(requests):
    return SimpleNamespace(requests=requests)


class FakeLink:
    peer = "detokenizer-0"

    def __init__(self):
        self.is_up, self.welcome, self.pushed, self.error = True, SimpleNamespace(session=5), [], None

    def pusher(self, name):
        assert name == "tokens"
        return self

    def send(self, message):
        if self.error:
            raise self.error
        self.pushed.append(message)


def test_a_session_counts_from_when_it_is_opened():
    link = FakeLink()
    port = TextPort(link)
    assert not port.was_opened
    with pytest.raises(NotConnected, match="detokenizer-0"):
        port.push(tokens("early"))
    port.open()
    port.push(tokens("a"))
    link.welcome.session = 6  # the engine has not looked at it yet
    assert not port.is_open
    with pytest.raises(NotConnected):
        port.push(tokens("b"))
    port.open()
    port.push(tokens("c"))
    link.is_up = False
    with pytest.raises(NotConnected):
        port.push(tokens("d"))
    assert [one.requests for one in link.pushed] == ["a", "c"]
    assert port.was_opened


def test_a_full_queue_is_the_callers_to_judge():
    link = FakeLink()
    port = TextPort(link)
    port.open()
    link.error = PeerFull("full")
    with pytest.raises(PeerFull):
        port.push(tokens("a"))


def test_a_message_follows_the_last_tokens_so_that_their_loss_shows():
    link, nothing = FakeLink(), SimpleNamespace(requests=b"")
    port = TextPort(link)
    port.confirm(nothing)
    port.open()
    port.confirm(nothing)
    assert link.pushed == []
    some = tokens(b"12345678")
    port.push(some)
    for _ in range(2):
        port.confirm(nothing)
    assert link.pushed == [some, nothing]
    port.push(some)
    link.is_up = False
    port.confirm(nothing)
    assert link.pushed == [some, nothing, some]


def test_what_ended_is_remembered_for_a_session_within_a_bound():
    port = TextPort(FakeLink())
    port.open()
    port.ended.extend((number, 0) for number in range(MAX_ENDED + 5))
    assert len(port.ended) == MAX_ENDED
    port.open()
    assert not port.ended
