"""Every expression of the dashboard parses, and names metrics and labels that a scrape has."""

import json
import re
from functools import partial
from pathlib import Path

import promql_parser as promql
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tree import in_parallel, until

pytestmark = [pytest.mark.serving]

DASHBOARD = json.loads((Path(__file__).parents[2] / "examples/grafana/actorlm.json").read_text())
INTERVAL = "$__rate_interval"


def targets():
    return [(panel["title"], target) for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


@pytest.fixture(scope="module")
def scraped(tree_of):
    """{sample name: label names} of a tree in which all has happened that is counted: refusals and a death, too."""
    tree = tree_of(
        "--model-impl", "null", "--null-step-ms", 20, "--dp", 2, "--max-num-seqs", 1, "--max-waiting", 1,
        "--executor", "broadcast",
    )  # fmt: skip
    body = {"model": tree.model, "prompt": "a", "max_tokens": 150, "ignore_eos": True}
    jobs = [partial(tree.post, "/v1/completions", body) for _ in range(12)]
    jobs.append(partial(kill_once_it_runs, tree))
    statuses = {answer.status_code for answer in in_parallel(jobs) if answer is not None}
    assert statuses == {200, 429}
    until(lambda: tree.client.get("/ready").status_code == 200, 20)
    until(lambda: tree.total("num_requests_waiting") == 0, 20)
    labels = {}
    for family in text_string_to_metric_families(tree.client.get("/metrics").text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def kill_once_it_runs(tree):
    until(lambda: tree.total("num_requests_running") == 2, 10)
    tree.kill("engine-0")


class Expression:
    """The labels that an expression's result has. Raises AssertionError for what no scrape has."""

    def __init__(self, scraped):
        self.scraped = scraped

    def labels(self, node):
        return {
            "VectorSelector": self.selected,
            "MatrixSelector": lambda node: self.selected(node.vector_selector),
            "AggregateExpr": self.aggregated,
            "Call": self.called,
            "BinaryExpr": self.combined,
            "ParenExpr": lambda node: self.labels(node.expr),
            "NumberLiteral": lambda _: set(),
        }[type(node).__name__](node)

    def combined(self, node):
        left, right = self.labels(node.lhs), self.labels(node.rhs)
        assert left == right, f"{left} does not match {right}"
        return left

    def selected(self, node):
        assert node.name in self.scraped, f"no scrape has {node.name}"
        labels = self.scraped[node.name]
        for matcher in node.matchers.matchers:
            assert matcher.name in labels, f"{node.name} has no label {matcher.name}"
        return labels

    def aggregated(self, node):
        inner = self.labels(node.expr)
        kept = set(node.modifier.labels) if node.modifier else set()
        assert kept <= inner, f"{kept - inner} is no label of {node.expr}"
        return kept

    def called(self, node):
        arguments = [self.labels(argument) for argument in node.args]
        if node.func.name == "histogram_quantile":
            assert "le" in arguments[1]
            return arguments[1] - {"le"}
        assert node.func.name == "rate"
        (selector,) = node.args
        assert selector.vector_selector.name.endswith(("_total", "_bucket", "_sum", "_count")), "rates are of counters"
        return arguments[0]


@pytest.mark.parametrize(("title", "target"), targets(), ids=[f"{t}-{x['refId']}" for t, x in targets()])
def test_expressions_name_what_is_scraped(scraped, title, target):
    node = promql.parse(target["expr"].replace(INTERVAL, "5m"))
    labels = Expression(scraped).labels(node)
    shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
    assert shown <= labels, f"{shown - labels} is in the legend and not in the result"


def test_variables_name_what_is_scraped(scraped):
    queries = [one["definition"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    assert len(queries) == 2
    for query in queries:
        selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", query).groups()
        assert label in Expression(scraped).labels(promql.parse(selector))


def test_every_metric_that_an_operator_needs_is_shown():
    shown = {name for _, target in targets() for name in re.findall(r"actorlm:(\w+)", target["expr"])}
    needed = {
        "time_to_first_token_seconds_bucket",
        "inter_token_latency_seconds_bucket",
        "e2e_request_latency_seconds_bucket",
        "generation_tokens_total",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "actor_restarts_total",
        "bad_frames_total",
    }
    assert needed <= shown


def test_panels_have_ids_and_places_of_their_own():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
