"""The dashboard and the alert rules: of metrics that the library exports, and as Prometheus reads them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from krishiv_py.metrics import PREFIX, SHOWN

FOLDER = Path(__file__).parents[1] / "deploy" / "monitoring"
EXPORTED = {f"{PREFIX}{m.name}{'_total' if m.kind == 'counter' else ''}": m.label for m in SHOWN}
LABELS = {"query", "operator"}
OF_ALL = {"query": "q", "operator": "o"}


def rules() -> list[dict[str, Any]]:
    read = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
    return [rule for group in read["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return [
        *shown,
        *(v["definition"] for v in dashboard["templating"]["list"] if "definition" in v),
        *(r["expr"] for r in rules()),
    ]


@pytest.mark.parametrize("expression", expressions())
def test_each_expression_is_of_metrics_and_labels_that_are_exported(expression: str) -> None:
    metrics = re.findall(rf"{PREFIX}\w+", expression)
    assert set(metrics) <= set(EXPORTED) and (metrics or expression.startswith("up{job="))
    known = LABELS | {label for name in metrics if (label := EXPORTED[name]) is not None}
    known |= {"job"} if expression.startswith("up{") else set()
    grouped = {part.strip() for names in re.findall(r"(?:by|on) \(([^)]*)\)", expression) for part in names.split(",")}
    picked = set(re.findall(r"(\w+)=~?\"", expression))
    assert grouped | picked <= known


def test_every_metric_is_on_the_dashboard_or_derived_from_one_that_is() -> None:
    shown = {name for expression in expressions() for name in re.findall(rf"{PREFIX}\w+", expression)}
    rare = {"future_events_total", "limited_results_total", "last_batch_id", "partition_backlog", "held_back_total"}
    assert set(EXPORTED) - shown == {PREFIX + name for name in rare}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with Prometheus")
def test_promtool_takes_the_rules_and_they_fire(tmp_path: Path) -> None:
    state = [{"series": f'{PREFIX}query_state{{query="q",operator="o",state="failed"}}', "values": "0 0 1 1"}]
    stuck = [
        {"series": f'{PREFIX}watermark_seconds{{query="q",operator="o"}}', "values": "1000+0x40"},
        {"series": f'{PREFIX}rows_total{{query="q",operator="o"}}', "values": "0+60x40"},
        {"series": f'{PREFIX}refused_events_total{{query="q",operator="o",reason="late"}}', "values": "0+6x40"},
    ]

    def fires(series: list[dict[str, str]], at: str, alert: str, severity: str, *, now: bool, **more: str) -> dict[str, Any]:
        rule = next(r for r in rules() if r["alert"] == alert)
        labels = {"severity": severity} | {name: value for name, value in {**OF_ALL, **more}.items() if value}
        said = {
            name: re.sub(r"{{ \$labels\.(\w+) }}", lambda match: labels.get(match[1], ""), text)
            for name, text in rule["annotations"].items()
        }
        expected = [{"exp_labels": labels, "exp_annotations": said}] if now else []
        test = {"eval_time": at, "alertname": alert, "exp_alerts": expected}
        return {"interval": "1m", "input_series": series, "alert_rule_test": [test]}

    gone = [{"series": f'{PREFIX}query_state{{query="q",operator="o",state="running"}}', "values": "1 1 1 1 stale"}]
    quiet = [{"series": f'{PREFIX}query_stuck{{query="q",operator="o",reason="batch"}}', "values": "0 0 0 1 1 1 1"}]
    down = [{"series": 'up{job="krishiv-orders",instance="host:9090"}', "values": "1 1 0 0 0 0 1"}]
    waiting = [
        {"series": f'{PREFIX}source_backlog{{query="q",operator="o",source="s"}}', "values": "0+10x90"},
        {"series": f'{PREFIX}backlog_age_seconds{{query="q",operator="o"}}', "values": "0+60x90"},
    ]
    large = [{"series": f'{PREFIX}state_bytes{{query="q",operator="o"}}', "values": "2e9+1e7x600"}]
    steady = [{"series": f'{PREFIX}state_bytes{{query="q",operator="o"}}', "values": "2e9+1e5x600"}]
    job = {"query": "", "operator": "", "job": "krishiv-orders", "instance": "host:9090"}
    tests = [
        fires(down, "3m", "KrishivJobDown", "critical", now=False, **job),
        fires(down, "5m", "KrishivJobDown", "critical", now=True, **job),
        fires(down, "6m", "KrishivJobDown", "critical", now=False, **job),
        fires(gone, "3m", "KrishivQueryGone", "critical", now=False),
        fires(gone, "10m", "KrishivQueryGone", "critical", now=True, operator=""),
        fires(gone, "80m", "KrishivQueryGone", "critical", now=False),
        fires(waiting, "20m", "KrishivBacklogGrows", "warning", now=False),
        fires(waiting, "60m", "KrishivBacklogGrows", "warning", now=True, source="s"),
        fires(large, "540m", "KrishivStateGrows", "warning", now=True),
        fires(steady, "540m", "KrishivStateGrows", "warning", now=False),
        fires(quiet, "3m", "KrishivQueryStuck", "warning", now=False, reason="batch"),
        fires(quiet, "5m", "KrishivQueryStuck", "warning", now=True, reason="batch"),
        fires(state, "1m", "KrishivQueryFailed", "critical", now=False),
        fires(state, "3m", "KrishivQueryFailed", "critical", now=True, state="failed"),
        fires(stuck, "20m", "KrishivWatermarkStuck", "warning", now=True),
        fires(stuck, "35m", "KrishivManyRowsRefused", "warning", now=True),
        fires(stuck[:2], "35m", "KrishivManyRowsRefused", "warning", now=False),
    ]
    shown = {test["alertname"] for each in tests for test in each["alert_rule_test"] if test["exp_alerts"]}
    assert shown == {rule["alert"] for rule in rules()}
    (tmp_path / "test.yaml").write_text(json.dumps({"rule_files": [str(FOLDER / "alerts.yaml")], "tests": tests}))
    for command in (["check", "rules", str(FOLDER / "alerts.yaml")], ["test", "rules", str(tmp_path / "test.yaml")]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
