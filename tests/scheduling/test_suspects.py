"""A suspect is computed alone until it has a token; who comes back goes before all who come."""


def test_a_suspect_is_alone_until_its_first_token(new_replica):
    replica = new_replica(num_blocks=32, budget=32)
    replica.add(1, range(10), max_tokens=30, ignore_eos=True)
    for _ in range(3):
        replica.step()
    replica.add(2, range(50, 90), attempt=2, suspect=True, max_tokens=5, ignore_eos=True)
    assert [sorted(one.id for one in replica.step().requests) for _ in range(4)] == [[2], [2], [1, 2], [1, 2]]
    replica.run()
    replica.check_idle()


def test_a_suspect_waits_for_the_steps_in_flight(new_replica):
    replica = new_replica(num_blocks=32)
    replica.add(1, range(10), max_tokens=30, ignore_eos=True)
    replica.step()
    replica.start_step()
    replica.add(2, [5], attempt=2, suspect=True)
    assert replica.scheduler.may_plan
    assert replica.start_step() is None
    replica.end_step()
    assert [one.id for one in replica.start_step().requests] == [2]
    assert replica.start_step() is None, "nothing is planned beside it"
    replica.end_step()
    replica.run()
    replica.check_idle()


def test_a_suspect_that_finds_no_slot_stops_nobody(new_replica):
    replica = new_replica(max_num_seqs=1)
    replica.add(1, range(10), max_tokens=4, ignore_eos=True)
    replica.step()
    replica.add(2, [5], attempt=2, suspect=True)
    assert [[one.id for one in replica.step().requests] for _ in range(4)] == [[1], [1], [1], [2]]
    replica.run()
    replica.check_idle()


def test_an_aborted_suspect_stops_nobody(new_replica):
    replica = new_replica()
    replica.add(1, range(10), max_tokens=4, ignore_eos=True)
    replica.add(2, [5], attempt=2, suspect=True)
    replica.start_step()
    replica.abort(2)
    replica.end_step()
    replica.run()
    replica.check_idle()


def test_suspects_take_turns(new_replica):
    replica = new_replica()
    for number in (1, 2, 3):
        replica.add(number, [number], attempt=1, suspect=True, max_tokens=2, ignore_eos=True)
    assert [[one.id for one in replica.step().requests] for _ in range(4)] == [[1], [2], [3], [1, 2, 3]]


def test_who_comes_back_goes_first(new_replica):
    replica = new_replica(max_num_seqs=1)
    for number in (1, 2, 3):
        replica.add(number, [number], max_tokens=1)
    replica.add(4, [4], attempt=1, generated=[7], max_tokens=9)
    assert [one.id for one in replica.step().requests] == [4]
