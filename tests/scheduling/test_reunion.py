"""Two sides say who works on what, in any order, and the same comes of it."""

from itertools import permutations

import pytest

from actorlm.scheduling.reunion import Reunion

OTHER = 1 << 48
"""A request of frontend-1; small numbers are those of frontend-0."""


def test_nothing_is_unheld_before_all_have_spoken():
    reunion = Reunion()
    reunion.claim([(1, 0)])
    reunion.frontend_spoke("frontend-0")
    assert reunion.unheld() == [], "nobody has counted the engines yet"
    reunion.expect(["engine-0", "engine-1"])
    reunion.engine_spoke("engine-0")
    assert reunion.unheld() == []
    reunion.engine_spoke("engine-1")
    assert reunion.unheld() == [(1, 0)]
    assert reunion.unheld() == [], "once"


def test_an_engine_may_go_on_with_what_is_claimed_and_with_what_may_yet_be():
    reunion = Reunion()
    reunion.claim([(1, 2), (3, 0)])
    reunion.frontend_spoke("frontend-0")
    assert reunion.holds((1, 2))
    assert not reunion.holds((1, 2)), "it is held already"
    assert not reunion.holds((2, 0)), "its frontend does not have it"
    assert not reunion.holds((3, 1)), "another attempt"
    assert reunion.holds((OTHER, 0)), "its frontend has not spoken"
    reunion.expect([])
    assert reunion.unheld() == [(3, 0)]


def test_what_ends_meanwhile_is_missed_by_nobody():
    reunion = Reunion()
    reunion.claim([(1, 0), (2, 0)])
    reunion.ended(1)
    reunion.ended(77)
    reunion.expect([])
    assert reunion.unheld() == [(2, 0)]


def test_a_frontend_that_is_gone_claims_nothing():
    reunion = Reunion()
    reunion.claim([(1, 0), (OTHER, 0)])
    reunion.frontend_spoke("frontend-0")
    reunion.frontend_left("frontend-0")
    reunion.expect([])
    assert reunion.unheld() == [(OTHER, 0)]
    assert reunion.holds((1, 0)), "its successor has yet to speak"


@pytest.mark.parametrize("order", list(permutations(["claim", "hold", "count"])))
def test_the_order_does_not_matter(order):
    """Frontend 0 has 1 and 2; the engine holds 1 and 3. So 2 was lost, and 3 is to end."""
    reunion, placed, unheld = Reunion(), [], []
    aborted = []
    for step in order:
        if step == "claim":
            aborted += [request for request, _ in placed if request not in (1, 2)]
            reunion.claim([one for one in ((1, 0), (2, 0)) if one not in placed])
            reunion.frontend_spoke("frontend-0")
        elif step == "hold":
            for one in ((1, 0), (3, 0)):
                placed.append(one) if reunion.holds(one) else aborted.append(one[0])
            reunion.engine_spoke("engine-0")
        else:
            reunion.expect({"engine-0"} if "hold" not in order[: order.index("count")] else ())
        unheld += reunion.unheld()
    assert (unheld, aborted) == ([(2, 0)], [3])
