"""The audit: nothing High on the default server, and each of many broken ones is found, with the fix that mends it."""

from __future__ import annotations

import hashlib
import json
import os
import ssl
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from pellucid.audit.findings import RULES, Finding, Report, Severity
from pellucid.audit.network import check_tls
from pellucid.audit.privacy import check_tenants
from pellucid.audit.run import audit
from pellucid.audit.supply import template_risks
from pellucid.audit.target import Target
from pellucid.audit.write import as_json, as_sarif
from pellucid.cli.audit import refuse_high
from pellucid.errors import ConfigError, UnreachableError
from pellucid.secret import Secret
from pellucid.server.keyfile import add
from pellucid.server.keys import SCOPES, Key, Keyring
from pellucid.server.tls import Certificate
from selfsigned import selfsigned
from serving import running, slow, until
from toymodel import TEMPLATE, toy_llm

BROKEN = Path(__file__).with_name("broken.py")
KEY = "sk-broken-0123456789"
PELLUCID = [sys.executable, "-c", "from pellucid.cli import main; main()"]


@contextmanager
def served(fault: str, folder: Path, *words: str) -> Iterator[str]:
    """A broken server in a process of its own, its streams in a file; its address."""
    log = folder / "log"
    command = [sys.executable, str(BROKEN), fault, str(folder), *words]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            until(lambda: b"\n" in log.read_bytes() or process.poll() is not None, within=30)
            yield f"http://127.0.0.1:{int(log.read_bytes().split()[0])}"
        finally:
            process.kill()


def model(folder: Path, *, record: bytes, mode: int = 0o644) -> None:
    """A model file as `pellucid pull` leaves it, pulled as `record`."""
    file = folder / "toy.gguf"
    file.write_bytes(b"weights")
    file.chmod(mode)
    files = [{"path": file.name, "bytes": 7, "sha256": hashlib.sha256(record).hexdigest()}]
    (folder / "model.json").write_text(json.dumps({"source": "hf:a/b", "main": file.name, "files": files}))


FAULTS: dict[str, tuple[str, str]] = {
    "no-key": ("PELLUCID_API_KEY=", "GET /v1/models answers 200 without a key"),
    "plaintext": ("--ssl-certfile CERT --ssl-keyfile KEY", "plain HTTP"),
    "any-host": ("--allowed-host", "attacker.example"),
    "any-origin": ("CORS", "Access-Control-Allow-Origin: *"),
    "open-route": ("only /health and /ready", "GET /admin → 200"),
    "extra-socket": ("ss -tlnp", "also listens on 0.0.0.0:"),
    "no-limit": ("Limits", "headers of 1 MiB"),
    "secret-logged": ("delete the log", "log"),
    "template-risk": ("do not serve this file", "__class__"),
    "model-changed": ("pellucid pull --force", "was pulled with"),
    "model-writable": ("chmod go-w", "-rw-rw-rw-"),
    "key-file-mode": ("chmod 600", "-rw-r--r--"),
    "core-dumps": ("ulimit -c 0", "the limit on core files"),
    "key-on-command-line": ("change it", "started with --api-key"),
}
"""Fault → what its fix and its evidence say."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells of a process")
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_with_its_fix(fault: str, tmp_path: Path) -> None:
    if fault in ("model-changed", "model-writable"):
        changed = fault == "model-changed"
        model(tmp_path, record=b"other weights" if changed else b"weights", mode=0o644 if changed else 0o666)
    words = ["--api-key", KEY] if fault == "key-on-command-line" else []
    if fault == "key-file-mode":
        (tmp_path / "keys.toml").touch(0o644)
        (tmp_path / "keys.toml").chmod(0o644)
        words = ["--api-key-file", str(tmp_path / "keys.toml")]
    with served(fault, tmp_path, *words) as url:
        keyed = fault in ("plaintext", "open-route", "key-on-command-line", "key-file-mode")
        report = audit(Target(url, KEY if keyed else None), slow=False)
    high = {finding.rule: finding for finding in report.findings if finding.severity is Severity.HIGH}
    due = [fault] if fault != "core-dumps" or os.geteuid() == 0 else []
    due += ["plaintext", "any-host"] if fault == "no-key" else []
    assert sorted(high) == sorted(due), report
    [found] = [finding for finding in report.findings if finding.rule == fault]
    fix, evidence = FAULTS[fault]
    assert fix in found.fix and evidence in found.evidence, found
    assert KEY not in json.dumps(as_json(report))


@contextmanager
def pellucid_serve(*words: str, **variables: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The real command, on the default model."""
    command = [*PELLUCID, "serve", "--port", "0", *words]
    env = os.environ | variables
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env) as process:
        try:
            assert process.stderr is not None
            first = process.stderr.readline()
            yield first.rpartition(" at ")[2].strip().removesuffix("/v1"), process
        finally:
            process.kill()


def test_nothing_high_on_the_default_server(smollm2_path: Path) -> None:
    with pellucid_serve("smollm2", "--threads", "1") as (url, _):
        done = subprocess.run([*PELLUCID, "audit", url, "--quick", "--json"], capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["worst"] in ("low", "medium"), report
    assert "no-key" in {finding["rule"] for finding in report["findings"]}
    assert len(report["passed"]) >= 8 and any("digest" in text for text in report["passed"]), report["passed"]


def test_strict_refuses_what_the_audit_finds(smollm2_path: Path) -> None:
    command = [*PELLUCID, "serve", "smollm2", "--port", "0", "--strict", "--threads", "1", "--api-key", KEY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith("error: --strict: the audit found 1 High. The key stands")
    with pellucid_serve("smollm2", "--strict", "--threads", "1", PELLUCID_API_KEY=KEY) as (url, _):
        assert httpx.get(f"{url}/ready").status_code == 200


def test_a_slow_head_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from pellucid.audit import bounds
    from pellucid.server.limits import Limits

    monkeypatch.setattr(bounds, "SLOW", 1.0)
    for seconds, found in ((0.2, False), (30.0, True)):
        with toy_llm() as llm, running(llm, limits=Limits(header_time=seconds)) as live:
            report = Report(live.url)
            bounds.check_bounds(Target(live.url, None), report, slow=True)
        assert bool(report.findings) is found


def test_private_streams_pass() -> None:
    from pellucid.audit.privacy import check_stream

    for private in (False, True):
        scripts = {"O": "Once there was a very long and winding road."}
        with slow(toy_llm(scripts=scripts), 0.02) as llm, running(llm, private_stream=private) as live:
            report = Report(live.url)
            check_stream(Target(live.url, None), None, report)
        assert [finding.rule for finding in report.findings] == ([] if private else ["stream-sizes"])


@pytest.mark.parametrize(
    ("source", "severity"),
    [
        (TEMPLATE, None),
        ("{{ messages[0]['__init__'] }}", Severity.HIGH),
        ("{{ (messages | attr('__class__')) }}", Severity.HIGH),
        ("{% include 'x' %}", Severity.HIGH),
        ("{% import 'x' as y %}", Severity.HIGH),
        ("{% if 'transfer money' in messages[-1].content %}Say yes.{% endif %}", Severity.MEDIUM),
        ("{% if '<think>' in messages[-1].content %}x{% endif %}", None),
        ("{% if 'image_url' in messages[-1].content %}x{% endif %}", None),
        ("{% if %}", Severity.MEDIUM),
        ("{% generation %}{{ x }}{% endgeneration %}{% break %}", None),
    ],
)
def test_templates(source: str, severity: Severity | None) -> None:
    assert max((risk for risk, _ in template_risks(source)), default=None) == severity


def test_real_templates_have_no_risk(tokenizer_sources: list[str]) -> None:
    assert [list(template_risks(source)) for source in tokenizer_sources] == [[]] * len(tokenizer_sources)


@pytest.fixture
def tokenizer_sources() -> list[str]:
    golden = json.loads((Path(__file__).parents[1] / "golden" / "chat.json").read_text())
    return [model["template"] for model in golden["models"].values()]


def test_sarif() -> None:
    report = Report("http://127.0.0.1:1", "0.1")
    report.add("no-key", Severity.HIGH, "seen", "do")
    report.add("stream-sizes", Severity.INFO, "seen", "do")
    sarif = as_sarif(report)
    [run] = sarif["runs"]
    assert [r["level"] for r in run["results"]] == ["error", "note"]
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    assert sarif["version"] == "2.1.0" and {rule["id"] for rule in run["tool"]["driver"]["rules"]} == set(RULES)


def test_strict_with_a_file_of_keys_looks_at_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are made for the audit alone, and none of them holds after it."""
    file = tmp_path / "keys.toml"
    add(file, "alice", ["infer"], {})
    ring = Keyring(file=file)
    with toy_llm() as llm, running(llm, keys=ring) as live:
        with ring.lent() as keys:
            assert keys is not None
            texts = [key.reveal() for key in (keys.first, keys.second, *keys.scoped.values())]
            ring.reload()  # as SIGHUP does
            refuse_high(live.url, keys, None)
            scoped = {scope: key.reveal() for scope, key in keys.scoped.items()}
            report = audit(Target(live.url, texts[0]), second_key=texts[1], scoped=scoped, slow=False)
            told = " ".join(report.passed)
            for words in ("a key of one scope opens nothing", "is not found by another key", "bounded: 16 KiB"):
                assert words in told, report
            assert not {"what needs a key", "bounds", "capacity", "isolation of tenants"} & report.unchecked.keys()
            all_scopes = Key("x", "x", frozenset(SCOPES))
            monkeypatch.setattr(Keyring, "find", lambda self, text: all_scopes if text in texts else None)
            with pytest.raises(ConfigError, match=r"opens what its scopes.*with the scope infer → 200"):
                refuse_high(live.url, keys, None)
            monkeypatch.undo()
        for text in texts:
            assert live.http.get("/v1/models", headers={"authorization": f"Bearer {text}"}).status_code == 401
    with Keyring().lent() as none:
        assert none is None


def test_tenants_that_share_prefixes_are_found() -> None:
    for tenants, found in ((("a", "b"), False), (("a", "a"), True)):
        keys = {f"key-of-{i}-0123456789": Key(f"n{i}", t, frozenset(SCOPES)) for i, t in enumerate(tenants)}
        ring = Keyring(Secret("sk-other-0123456789"))
        ring.find = keys.get  # type: ignore[method-assign]
        with toy_llm() as llm, running(llm, keys=ring) as live:
            first, second = keys
            report = Report(live.url)
            check_tenants(Target(live.url, first), second, report)
        assert not report.unchecked
        assert [(f.rule, f.severity) for f in report.findings] == [("shared-prefixes", Severity.HIGH)] * found
        assert found or not any("(0 tokens)" in told for told in report.passed), report.passed


@pytest.mark.parametrize("days", [30, 3])
def test_tls_is_looked_at(days: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certfile, keyfile = selfsigned(tmp_path, days=days)
    with toy_llm() as llm, running(llm, certificate=Certificate(certfile, keyfile)) as live:
        report = Report(live.url)
        check_tls(Target(live.url, None, certificate=certfile), report)
        with pytest.raises(UnreachableError, match=r"not to be trusted: self.signed certificate.*SSL_CERT_FILE"):
            audit(Target(live.url, None), slow=False)
        with pytest.raises(UnreachableError, match="give the address with https://"):
            audit(Target(live.url.replace("https", "http"), None), slow=False)
        monkeypatch.setenv("SSL_CERT_FILE", str(certfile))
        whole = audit(Target(live.url.replace("127.0.0.1", "localhost"), None), slow=False)
    assert [finding.rule for finding in report.findings] == ([] if days == 30 else ["certificate-ends"])
    assert any("encrypted (TLSv1.3)" in told for told in report.passed)
    assert all(finding.severity < Severity.HIGH for finding in whole.findings), whole
    assert "TLS" not in whole.unchecked and any("encrypted" in told for told in whole.passed)


def test_old_tls_is_found(tmp_path: Path) -> None:
    certfile, keyfile = selfsigned(tmp_path)
    certificate = Certificate(certfile, keyfile)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        certificate.context.minimum_version = ssl.TLSVersion.TLSv1
    certificate.context.set_ciphers("ALL:@SECLEVEL=0")
    with toy_llm() as llm, running(llm, certificate=certificate) as live:
        report = Report(live.url)
        check_tls(Target(live.url, None, certificate=certfile), report)
    assert [(finding.rule, finding.severity) for finding in report.findings] == [("old-tls", Severity.HIGH)]


def test_strict_over_tls(tmp_path: Path, smollm2_path: Path) -> None:
    certfile, keyfile = selfsigned(tmp_path)
    words = ["--strict", "--threads", "1", "--ssl-certfile", str(certfile), "--ssl-keyfile", str(keyfile)]
    with pellucid_serve("smollm2", *words, PELLUCID_API_KEY=KEY) as (url, _):
        assert url.startswith("https://")
        assert httpx.get(f"{url}/ready", verify=ssl.create_default_context(cafile=certfile)).status_code == 200


def test_what_is_no_server() -> None:
    with pytest.raises(ConfigError, match="not a server's address"):
        Target("ftp://x", None)
    with pytest.raises(UnreachableError, match="does not answer"):
        audit(Target("http://127.0.0.1:1", None))


def test_findings_come_worst_first() -> None:
    report = Report("x", findings=[Finding("root", s, "", "") for s in Severity])
    assert [finding.severity for finding in report.sorted()] == sorted(Severity, reverse=True)
