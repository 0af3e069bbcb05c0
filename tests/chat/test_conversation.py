"""What the model is sent with each question."""

import pytest

from actorlm.chat.conversation import Conversation


def said(role, content):
    return {"role": role, "content": content}


@pytest.mark.parametrize("system", [None, "", "Be brief."])
def test_turns_follow_the_system_prompt(system):
    first = [] if system is None else [said("system", system)]
    conversation = Conversation(system)
    assert conversation.with_question("a") == [*first, said("user", "a")]
    conversation.answered("a", "b")
    assert conversation.with_question("c") == [*first, said("user", "a"), said("assistant", "b"), said("user", "c")]
    conversation.reset()
    assert conversation.with_question("d") == [*first, said("user", "d")]


def test_a_question_is_no_part_of_it_before_it_was_answered():
    conversation = Conversation()
    conversation.with_question("a")
    assert conversation.with_question("b") == [said("user", "b")]
