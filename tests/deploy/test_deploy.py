"""What `deploy/` ships is sound: each file by its own tool, and every metric it names is one that a server states.

Law: a tool that comes as a package is required; one that belongs to the system (systemd, promtool) is used where it is.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from pellucid.cli.readings import parse
from serving import running
from toymodel import toy_llm

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = list(yaml.safe_load_all((DEPLOY / "kubernetes/pellucid.yaml").read_text()))


def tool(name: str) -> str:
    """A system's tool, or the test is skipped."""
    found = shutil.which(name)
    return found or pytest.skip(f"{name} is not on this machine")


def run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def stated() -> set[str]:
    """Names of all samples that a server states, after it has answered."""
    with toy_llm() as llm, running(llm) as server:
        assert server.post("/v1/completions", {"prompt": "a>", "max_tokens": 4}).status_code == 200
        # A rejection's counter has no sample before the first.
        return {*parse(server.http.get("/metrics").text, "here"), "pellucid:admission_rejections_total"}


def metrics_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:pellucid:|process_)[a-z0-9_]+", expression))


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_alerts_ask_for_what_a_server_states_and_say_what_to_do(rule: dict[str, Any], stated: set[str]):
    assert metrics_in(rule["expr"]) <= stated
    assert rule["labels"]["severity"] in ("page", "warn")
    assert rule["annotations"]["summary"] and rule["annotations"]["description"].endswith(".")


def test_the_dashboard_asks_for_what_a_server_states(stated: set[str]):
    dashboard = json.loads((DEPLOY / "grafana/dashboard.json").read_text())
    expressions = [t["expr"] for panel in dashboard["panels"] for t in panel["targets"]]
    expressions += [v["query"] for v in dashboard["templating"]["list"]]
    assert len(expressions) > 20
    for expression in expressions:
        assert metrics_in(expression), expression
        assert metrics_in(expression) <= stated, expression
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]


def test_prometheus_reads_its_files(tmp_path: Path):
    promtool = tool("promtool")
    for file in ("prometheus.yml", "alerts.yml"):
        shutil.copy(DEPLOY / "prometheus" / file, tmp_path)
    (tmp_path / "api_key").write_text("key")
    assert "SUCCESS" in run(promtool, "check", "config", "prometheus.yml", cwd=tmp_path)


def test_the_containerfile_is_sound():
    run(str(Path(sys.executable).with_name("hadolint")), str(DEPLOY / "Containerfile"))
    text = (DEPLOY / "Containerfile").read_text()
    last = text[text.rindex("\nFROM ") :]
    assert "g++" not in last and re.search(r"^USER [1-9]", last, re.MULTILINE)


def test_compose_gives_nothing_away():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        assert service["cap_drop"] == ["ALL"] and "no-new-privileges:true" in service["security_opt"], name
    assert services["pellucid"]["read_only"]
    assert ":?" in services["pellucid"]["environment"]["PELLUCID_API_KEY"]  # none is made up


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda m: m["kind"])
def test_manifests_are_of_kubernetes(manifest: dict[str, Any]):
    kubernetes_validate.validate(manifest, "1.32", strict=True)


def test_the_pod_is_restricted_and_probed():
    spec = next(m for m in MANIFESTS if m["kind"] == "Deployment")["spec"]["template"]["spec"]
    container = spec["containers"][0]
    assert spec["securityContext"]["runAsNonRoot"] and not spec["automountServiceAccountToken"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)


def test_the_unit_is_sound_and_hardened(tmp_path: Path):
    analyze = tool("systemd-analyze")
    text = (DEPLOY / "systemd/pellucid.service").read_text()
    unit = tmp_path / "pellucid.service"
    unit.write_text(text.replace("/opt/pellucid/bin/pellucid", sys.executable))
    assert run(analyze, "verify", str(unit)) == ""
    # Exposure from 0 (none) to 100; above 20 systemd no longer calls it OK.
    run(analyze, "security", "--offline=true", "--threshold=20", str(unit))
