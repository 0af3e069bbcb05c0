"""Replicas are packed host by host."""

import pytest

from actorlm.errors import ConfigError
from actorlm.placement import place_replicas


def _hosts(*arguments):
    return ["".join(slot.host for slot in replica) for replica in place_replicas(*arguments)]


def test_hosts_fill_in_their_order():
    assert _hosts(4, 1, 1, {"a": [0, 1], "b": [0, 1, 2]}) == ["a", "a", "b", "b"]
    assert _hosts(2, 2, 1, {"a": [0], "b": [0, 1, 2, 3]}) == ["bb", "bb"]


def test_devices_are_given_in_the_order_of_the_file_and_once():
    placed = place_replicas(2, 2, 1, {"a": [3, 1], "b": [0, 2]})
    assert placed == [[("a", 3), ("a", 1)], [("b", 0), ("b", 2)]]


def test_a_replica_spans_hosts_only_when_it_fits_none():
    assert _hosts(3, 2, 1, {"a": [0, 1, 2], "b": [0, 1, 2]}) == ["aa", "bb", "ab"]


def test_stages_stay_whole_where_they_can():
    assert _hosts(1, 2, 2, {"a": [0, 1, 2], "b": [0, 1, 2]}) == ["aabb"]
    assert _hosts(1, 2, 2, {"a": [0], "b": [0, 1], "c": [0]}) == ["bbac"]


def test_a45_too_few_devices_are_counted():
    with pytest.raises(ConfigError, match=r"--dp 2 --tp 2 --pp 1 need 4 devices, the hosts have 3 \(a 2, b 1\)"):
        place_replicas(2, 2, 1, {"a": [0, 1], "b": [0]})
