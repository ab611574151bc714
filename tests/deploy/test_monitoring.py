"""Dashboard and alerts: every expression parses, and every metric in it is one that the service gives."""

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from engine.config import ROOT
from tests.conftest import Client
from tests.serving import Server

DASHBOARD = json.loads((ROOT / "deploy/grafana/omnihear.json").read_text())
GROUPS = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
PROMETHEUS_OWN = {"up"}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> dict[str, str]:
    """What is asked of Prometheus, by where it stands."""
    found = {f"alert {name}": rule["expr"] for name, rule in ALERTS.items()}
    for panel in panels():
        for target in panel["targets"]:
            found[f"panel {panel['title']} {target['refId']}"] = target["expr"]
    # Grafana fills these in.
    return {where: text.replace("$__rate_interval", "5m").replace("$instance", ".*") for where, text in found.items()}


def selectors(expression: str) -> Iterator[Any]:
    """Selectors of metrics in a PromQL expression.

    Raises:
        ValueError: it is none.
    """
    waiting: list[Any] = [promql_parser.parse(expression)]
    while waiting:
        node = waiting.pop()
        match node:
            case promql_parser.VectorSelector():
                yield node
            case promql_parser.MatrixSelector():
                waiting.append(node.vector_selector)
            case promql_parser.Call():
                waiting += node.args
            case promql_parser.BinaryExpr():
                waiting += [node.lhs, node.rhs]
            case promql_parser.AggregateExpr() | promql_parser.ParenExpr() | promql_parser.UnaryExpr():
                waiting.append(node.expr)
            case promql_parser.NumberLiteral():
                pass
            case _:
                raise TypeError(node)


def used() -> dict[str, set[str]]:
    """Metrics with the places that use them."""
    names: dict[str, set[str]] = {}
    for where, expression in expressions().items():
        for selector in selectors(expression):
            names.setdefault(selector.name, set()).add(where)
    return names


def given(exposition: str) -> set[str]:
    """Names of all series that a text of `/metrics` announces, those without samples yet included."""
    endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
    return {
        f"{family.name}{ending}"
        for family in text_string_to_metric_families(exposition)
        for ending in endings.get(family.type, ("",))
    }


@pytest.mark.parametrize("where", expressions())
def test_every_expression_parses(where: str) -> None:
    assert list(selectors(expressions()[where]))


def test_a_metric_that_does_not_exist_would_be_found() -> None:
    names = {selector.name for selector in selectors("sum(rate(nothing_total[5m])) / (1 + up) > 0.5")}

    assert names == {"nothing_total", "up"}
    with pytest.raises(ValueError, match="parenthesis"):
        list(selectors("sum(rate(up[5m])"))


async def test_every_metric_of_ours_exists(scripted_client: Client) -> None:
    exist = given((await scripted_client.get("/metrics")).text)
    ours = {name: places for name, places in used().items() if not name.startswith("vllm:")}

    assert len(ours) > 15
    assert {name: places for name, places in ours.items() if name not in exist | PROMETHEUS_OWN} == {}


@pytest.mark.engine
def test_every_metric_of_vllm_exists(server: Server) -> None:
    with server.client() as client:
        exist = given(client.get("/metrics").text)
    of_vllm = {name: places for name, places in used().items() if name.startswith("vllm:")}

    assert len(of_vllm) > 4
    assert {name: places for name, places in of_vllm.items() if name not in exist} == {}
    assert "omnihear_encoder_graph_hits_total" in exist


async def test_labels_that_are_selected_or_grouped_by_exist(scripted_client: Client) -> None:
    await scripted_client.get("/v1/models")
    families = list(text_string_to_metric_families((await scripted_client.get("/metrics")).text))
    labels = {sample.name: set(sample.labels) for family in families for sample in family.samples}
    labels |= {"omnihear_refusals_total": {"reason"}}  # has no sample before the first refusal

    for where, expression in expressions().items():
        for selector in selectors(expression):
            if selector.name.startswith("omnihear_"):
                for matcher in selector.matchers.matchers:
                    assert matcher.name in labels[selector.name] | {"instance", "job"}, where


def test_panels_are_told_apart_and_do_not_overlap() -> None:
    everything = DASHBOARD["panels"]
    places = [panel["gridPos"] for panel in everything]

    assert len({panel["id"] for panel in everything}) == len(everything)
    assert len({panel["title"] for panel in panels()}) == len(panels())
    for index, one in enumerate(places):
        assert one["x"] + one["w"] <= 24
        for other in places[index + 1 :]:
            apart = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
            assert apart or one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_says_how_bad_it_is_and_is_in_the_run_book(name: str) -> None:
    rule = ALERTS[name]
    book = (ROOT / "docs/operations.md").read_text()

    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"]
    assert f"\n### {name}\n" in book


def test_the_run_book_has_no_alert_that_is_gone() -> None:
    book = (ROOT / "docs/operations.md").read_text()

    assert set(re.findall(r"^### (Omnihear\w+)$", book, re.MULTILINE)) == set(ALERTS)


async def test_every_metric_that_the_documents_name_exists(scripted_client: Client) -> None:
    exist = given((await scripted_client.get("/metrics")).text)
    book = (ROOT / "docs/operations.md").read_text()
    named = set(re.findall(r"\bomnihear_[a-z_]+[a-z]\b", book))
    families = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in exist}

    assert len(named) > 10
    assert {name for name in named if name not in exist | families} == set()
