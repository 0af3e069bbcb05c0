"""Ranks that meet, exchange, and miss each other. They are threads here; whole trees have processes."""

import socket
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import torch

from actorlm.errors import PeerMissing
from actorlm.kernels.exchange import Exchange
from actorlm.kernels.native import Native, choose_level
from actorlm.parallel import meeting
from actorlm.parallel.group import Alone, DistributedGroup
from actorlm.parallel.meeting import Meeting, own_address
from actorlm.topology import Place, places

needs_kernels = pytest.mark.skipif(choose_level("auto") is None, reason="there are no compiled kernels")


def on_all(ranks, act):
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(act, ranks))


def meet(path, place, patience_s=20.0):
    return Meeting(str(path / "meeting"), place, patience_s=patience_s, meet_s=20.0)


def free_address():
    """An address of the loopback, and its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return f"tcp://127.0.0.1:{port}", port


def use(group):
    """What a group's operations give on this rank."""
    total, ids = torch.ones(2, 3), torch.arange(4, dtype=torch.int32) + 10 * group.rank
    group.add_reduced(total, torch.full((2, 3), 1.0 + group.rank))
    gathered = group.gather(ids.clone())
    group.spread(ids)
    group.check()
    return total, gathered, ids


def check_use(results):
    size = len(results)
    for total, _, ids in results:
        assert torch.equal(total, torch.full((2, 3), 1.0 + sum(range(1, size + 1))))
        assert ids.tolist() == [0, 1, 2, 3]
    assert results[0][1].tolist() == [[10 * rank + i for i in range(4)] for rank in range(size)]
    assert all(gathered is None for _, gathered, _ in results[1:])


@needs_kernels
@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (3, 1), (2, 2)])
def test_tensor_ranks_of_one_machine_share_memory(tmp_path, tensor, pipeline):
    def act(place):
        group = meet(tmp_path, place).tensor_group(Native(choose_level("auto"), 1))
        assert isinstance(group, Exchange)
        return use(group)

    results = on_all(places(tensor, pipeline), act)
    for stage in range(pipeline):
        check_use(results[stage * tensor : (stage + 1) * tensor])


@pytest.mark.parametrize("elsewhere", [False, True])
def test_ranks_without_kernels_or_on_other_machines_use_gloo(tmp_path, monkeypatch, elsewhere):
    if elsewhere:
        names = iter(range(10))
        monkeypatch.setattr(meeting, "machine", lambda: f"machine {next(names)}")
        monkeypatch.setattr(meeting, "own_address", lambda address: "127.0.0.1")

    def act(place):
        native = Native(choose_level("auto"), 1) if elsewhere and choose_level("auto") else None
        group = meet(tmp_path, place).tensor_group(native)
        assert isinstance(group, DistributedGroup)
        return use(group)

    check_use(on_all(places(2, 1), act))


def test_one_rank_is_alone_and_has_no_pipeline(tmp_path):
    met = meet(tmp_path, Place())
    assert isinstance(met.tensor_group(None), Alone)
    assert met.pipeline() is None
    check_use([use(Alone())])


def test_activations_and_ids_pass_between_stages_in_order(tmp_path):
    links = []  # they live until all have received

    def act(place):
        link = meet(tmp_path, place).pipeline()
        links.append(link)
        for step in range(3):
            if place.is_first_stage:
                link.send(torch.full((2, 4), float(10 * step + place.tensor_rank)))
            else:
                arrived = link.expect(2, 4, torch.float32).wait()
                assert torch.equal(arrived, torch.full((2, 4), float(10 * step + place.tensor_rank)))
            if place.is_output:
                link.send_ids(torch.tensor([step, -step], dtype=torch.int32))
        if place.is_first_stage:
            return [link.receive_ids(2).tolist() for _ in range(3)]
        return None

    expected = [[step, -step] for step in range(3)]
    assert on_all(places(2, 2), act) == [expected, expected, None, None]


def test_a_stage_that_says_nothing_ends_the_wait(tmp_path):
    def act(place):
        link = meet(tmp_path, place, patience_s=3.0).pipeline()
        if place.is_first_stage:
            with pytest.raises(PeerMissing, match="ids from rank 1"):
                link.receive_ids(1)
        return link

    on_all(places(1, 2), act)


def test_a_rank_that_does_not_come_is_missed(tmp_path):
    alone = Meeting(str(tmp_path / "meeting"), places(1, 2)[0], patience_s=1.0, meet_s=0.3)
    with pytest.raises(PeerMissing, match="machine-1"):
        alone.pipeline()


def test_ranks_meet_at_an_address():
    address, _ = free_address()

    def act(place):
        return use(Meeting(address, place, patience_s=20.0, meet_s=20.0).tensor_group(None))

    check_use(on_all(places(2, 1), act))
    assert own_address(address) == "127.0.0.1"


def test_e02_the_first_rank_listens_at_the_address_alone_and_once():
    address, port = free_address()
    [place] = places(1, 1)
    first = Meeting(address, place, patience_s=20.0, meet_s=20.0, occasion="first")
    second = Meeting(address, place, patience_s=20.0, meet_s=20.0, occasion="second")
    listening = [one.laddr for one in psutil.Process().net_connections() if one.status == psutil.CONN_LISTEN]
    assert [one for one in listening if one.port == port] == [("127.0.0.1", port)]
    assert (first.first("number", 1), second.first("number", 2)) == (1, 2)


def test_an_address_that_is_not_this_machines_is_named():
    with pytest.raises(PeerMissing, match=r"cannot listen at 192\.0\.2\.7:7000: Cannot assign"):
        Meeting("tcp://192.0.2.7:7000", places(1, 1)[0], patience_s=20.0, meet_s=1.0)
