"""examples/cluster: what can be checked without a cluster."""

import re
import subprocess
from pathlib import Path

import pytest

from byteps_like.config import Config, environment_names

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "cluster"
SCRIPTS = sorted(FOLDER.glob("*.sh"))
OF_SCRIPTS = {"BYTEPS_LIKE_SHARED_DIR"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
@pytest.mark.processes
def test_scripts_parse(script):
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, timeout=10)
    assert done.returncode == 0, done.stderr
    assert script.stat().st_mode & 0o100


def known_variables():
    return {name for setting in Config.__dataclass_fields__ for name in environment_names(setting)}


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_only_settings_that_exist_are_named(path):
    text = "\n".join(line for line in path.read_text().splitlines() if not line.strip().startswith("#"))
    assert set(re.findall(r"BYTEPS_LIKE_[A-Z_]+", text)) <= known_variables() | OF_SCRIPTS


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_the_secret_is_on_no_command_line(path):
    assert not re.search(r"(?m)^(?!#).*BYTEPS_LIKE_SECRET=", path.read_text())


def test_kubernetes_manifest_fits_together():
    yaml = pytest.importorskip("yaml")
    documents = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
    named = {(document["kind"], document["metadata"]["name"]): document for document in documents}
    settings = named["ConfigMap", "byteps-like-job"]["data"]
    assert all(isinstance(value, str) for value in settings.values())
    config = Config.from_env(settings)
    assert named["Job", "byteps-like-worker"]["spec"]["completions"] == config.world_size
    assert named["Job", "byteps-like-server"]["spec"]["completions"] == config.num_servers
    for (kind, _), document in named.items():
        if kind == "Job":
            check_pod(document["spec"]["template"]["spec"], settings)
    service = named["Service", "byteps-like"]["spec"]
    pod = named["Job", "byteps-like-scheduler"]["spec"]["template"]
    assert service["clusterIP"] == "None"
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    assert config.scheduler == f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}:{service['ports'][0]['port']}"


def check_pod(pod, settings):
    assert pod["enableServiceLinks"] is False  # else BYTEPS_LIKE_..._PORT comes in and is refused
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["secret"]["secret"]["defaultMode"] == 0o400
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    (folder,) = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "secret"]
    assert settings["BYTEPS_LIKE_SECRET_FILE"] == f"{folder}/secret"
