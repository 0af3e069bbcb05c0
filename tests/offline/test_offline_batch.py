"""Which choices are in the engine, and when a prompt is complete."""

from itertools import count

from actorlm.offline.batch import Batch, Job
from actorlm.offline.engine import EndedChoice


def job(index, choices):
    named = [f"{index}.{choice}" for choice in range(choices)]
    return Job(index=index, request_id=str(index), prompt=None, prompt_ids=[index], choices=named)


def ended(number, text=""):
    return EndedChoice(number, text, [], "stop", None, number)


def test_no_more_than_the_window_is_taken():
    taken = []

    def jobs():
        for index in range(4):
            taken.append(index)
            yield job(index, 2)

    batch = Batch(jobs(), count(10), 3)
    assert batch.refill() == [(10, "0.0"), (11, "0.1"), (12, "1.0")]
    assert taken == [0, 1]
    assert batch.refill() == []
    batch.take([ended(12)])
    assert batch.refill() == [(13, "1.1")]


def test_a_prompt_is_complete_with_its_last_choice():
    batch = Batch([job(0, 2), job(1, 1)], count(), 9)
    batch.refill()
    assert batch.take([ended(1, "second")]) == []
    ((first, output),) = batch.take([ended(2)])
    assert (first.index, output.prompt_token_ids) == (1, [1])
    ((_, output),) = batch.take([ended(0, "first")])
    assert [choice.text for choice in output.outputs] == ["first", "second"]
    assert [choice.index for choice in output.outputs] == [0, 1]
    assert output.num_cached_tokens == 0, "as its first choice found it"
    assert not batch.is_open
    assert batch.refill() == []
