"""Several ranks give the tokens of one: greedy, drawn, in chunks and batches, with scores, with steps in flight."""

import driving
import pytest
from driving import Driver, make_runner, random_prompts
from test_runner_sampling import COUNT, some_params

from actorlm.kernels.native import choose_level
from actorlm.logprobs import unpack
from actorlm.sampling import SamplingParams
from actorlm.wire import read_int32

SHAPES = [(2, 1), (4, 1), (1, 2), (1, 3), (2, 2)]


@pytest.fixture(params=["native", "torch"])
def kernels(request, monkeypatch):
    if request.param == "native" and choose_level("auto") is None:
        pytest.skip("there are no compiled kernels")
    monkeypatch.setattr(driving, "KERNELS", request.param)
    return request.param


@pytest.mark.parametrize(("tensor", "pipeline"), SHAPES)
def test_greedy_ids_are_those_of_one_rank(tiny, kernels, ranks, tensor, pipeline):
    _, description = tiny
    prompts = random_prompts(3, 1, 17, 40, 5)
    expected = Driver(make_runner(description, kernels=kernels), 128).generate(prompts, 12, chunk=16)
    runner = ranks(description, tensor, pipeline)
    assert Driver(runner, 128, shuffle=1).generate(prompts, 12, chunk=9) == expected


def run_all(runner, requests):
    """What each request gets, and what is known of it."""
    driver, scores = Driver(runner, 128), {}
    for slot, (prompt, params) in enumerate(requests):
        driver.add(slot, prompt, params)
    while busy := [slot for slot, (prompt, _) in enumerate(requests) if len(driver.ids[slot]) < len(prompt) + COUNT]:
        rows = [(slot, min(11, driver.left(slot))) for slot in busy]
        plan = driver.plan(rows)
        done = runner.execute(plan)
        for row, token in zip(read_int32(plan.sampled), read_int32(done.tokens), strict=True):
            driver.ids[rows[row][0]].append(token)
        if done.logprobs is not None:
            for (slot, _), gained in zip(rows, unpack(done.logprobs), strict=True):
                if gained is not None:
                    known = scores.setdefault(slot, [])
                    known += [*gained.prompt, *gained.output]
    return driver.ids, scores


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (4, 1), (2, 2)])
def test_drawn_and_scored_tokens_are_those_of_one_rank(tiny_grouped, kernels, ranks, tensor, pipeline):
    _, description = tiny_grouped
    prompts = random_prompts(5, *range(3, 15))
    params = [some_params(seed) for seed in range(8)]
    params += [SamplingParams(max_tokens=COUNT, temperature=0.0, logprobs=2, prompt_logprobs=1)]
    params += [SamplingParams(max_tokens=COUNT, temperature=0.0, logit_bias=((7, 3.0),))]
    params += [SamplingParams(max_tokens=COUNT, temperature=0.0), SamplingParams(max_tokens=COUNT, seed=3, logprobs=0)]
    requests = list(zip(prompts, params, strict=True))
    ids, scores = run_all(make_runner(description, kernels=kernels), requests)
    other_ids, other_scores = run_all(ranks(description, tensor, pipeline), requests)
    assert other_ids == ids
    assert other_scores.keys() == scores.keys() == {8, 11}
    for slot, known in scores.items():
        for ours, theirs in zip(known, other_scores[slot], strict=True):
            assert (ours.token, ours.rank) == (theirs.token, theirs.rank)
            assert [token for token, _ in ours.others] == [token for token, _ in theirs.others]
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)


def test_two_batches_in_flight_on_two_stages(tiny_grouped, kernels, ranks):
    """The plans of one batch leave while the other's are on their way, and slots change hands meanwhile."""
    _, description = tiny_grouped
    prompts = random_prompts(9, 20, 3, 8, 30)
    expected = [Driver(make_runner(description, kernels=kernels), 128).generate([one], 10)[0] for one in prompts]
    runner = ranks(description, 1, 2)
    driver, flights, results = Driver(runner, 128), {}, {}
    waiting = [[3], [2]]
    batches = [[0], [1]]
    for slot in (0, 1):
        driver.add(slot, prompts[slot])
    owners = {0: 0, 1: 1}

    def launch(lane):
        rows = [(slot, driver.left(slot)) for slot in batches[lane]]
        flights[lane] = rows, runner.submit(driver.plan(rows))

    def land(lane):
        rows, futures = flights.pop(lane)
        done = futures[1].result(30)
        for (slot, _), token in zip(rows, read_int32(done.tokens), strict=True):
            driver.ids[slot].append(token)
            owner = owners[slot]
            if len(driver.ids[slot]) == len(prompts[owner]) + 10:
                results[owner] = driver.release(slot)[len(prompts[owner]) :]
                batches[lane].remove(slot)
        if not batches[lane] and waiting[lane]:
            owner, slot = waiting[lane].pop(), lane
            driver.add(slot, prompts[owner])
            owners[slot] = owner
            batches[lane].append(slot)

    launch(0)
    launch(1)
    while flights:
        for lane in (0, 1):
            if lane in flights:
                land(lane)
            if batches[lane]:
                launch(lane)
    assert [results[owner] for owner in range(4)] == expected


def test_a_step_leaves_before_the_tokens_of_the_last_one_are_known(tiny_grouped, kernels, ranks):
    """Tensor ranks know them, so nobody has to tell."""
    _, description = tiny_grouped
    prompts = random_prompts(9, 20, 3)
    expected = Driver(make_runner(description, kernels=kernels), 128).generate(prompts, 6)
    runner = ranks(description, 2, 1)
    driver = Driver(runner, 128)
    for slot, prompt in enumerate(prompts):
        driver.add(slot, prompt)
    answers = []
    for _ in range(6):
        plan = driver.plan([(slot, driver.left(slot)) for slot in (0, 1)])
        answers.append(runner.submit(plan)[0])
        for slot in (0, 1):
            driver.ids[slot].append(-1)
    tokens = [read_int32(answer.result(30).tokens) for answer in answers]
    assert [[pair[slot] for pair in tokens] for slot in (0, 1)] == expected


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (4, 1), (1, 2), (2, 2)])
def test_each_rank_reads_its_own_slices_alone(tmp_path, tiny_grouped, kernels, ranks, tensor, pipeline):
    _, description = tiny_grouped
    whole = make_runner(description, kernels=kernels).bytes_read
    read = [runner.bytes_read for runner in ranks(description, tensor, pipeline).runners]
    matrix, norms = 4 * 300 * 64, 4 * 64 * (2 * 3 + 1)
    copies = matrix if pipeline > 1 else 0  # the tied matrix is on the first stage and on the last
    copies += (tensor - 1) * norms
    kv_heads = 2
    if tensor > kv_heads:  # ranks beyond the heads copy one
        copies += 3 * 2 * 4 * 64 * 8 * (tensor - kv_heads)
    assert sum(read) == whole + copies
    assert max(read) < 0.75 * whole
