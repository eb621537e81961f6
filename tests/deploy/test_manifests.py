"""The files in deploy/ are well formed, let containers do no more than they must, and call what is there.

Linters look at each file, rules of our own at what no linter knows; every one of them is shown a file with that fault.
`test_cluster_files.py` does the same for the files of Ray clusters.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sysconfig
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import check_jsonschema
import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.docs.test_blocks import blocks, commands
from yamllint import linter
from yamllint.config import YamlLintConfig

from command_line import called
from isthmus import __version__

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CLUSTER = ("slurm", "kubernetes/ray", "kubernetes/study")
"""Folders of files for Ray clusters."""
PAGE = "deploy/README.md"
FILES = sorted(
    path.relative_to(DEPLOY).as_posix()
    for path in DEPLOY.rglob("*")
    if path.is_file() and path.name != "README.md" and "try" not in path.parts
    if not path.relative_to(DEPLOY).as_posix().startswith(CLUSTER)
)
ROLES = ("server", "party")
PORT = 8002
USER = 10001
KUBERNETES = ("1.30", kubernetes_validate.latest_version())
"""The oldest version that the page names, and the newest that is known."""
STYLE = YamlLintConfig(
    "{extends: default, rules: {document-start: disable,"
    " line-length: {max: 120}, comments: {min-spaces-from-content: 1}}}"
)


def text_of(file: str) -> str:
    return (DEPLOY / file).read_text(encoding="utf-8")


def loaded(file: str) -> Any:
    return yaml.safe_load(text_of(file))


def faults(file: str, text: str) -> list[str]:
    """All that is wrong with one file of deploy/ if this is its text."""
    forbidden = ("0.0.0.0", "docker.sock", ":latest", "privileged")
    found = [f"has {each}" for each in forbidden if each in text]
    if file == "Dockerfile":
        return [*found, *hadolint(text), *faults_of_image(text)]
    found += [f"yamllint: {each}" for each in linter.run(text, STYLE)]
    document = yaml.safe_load(text)
    if file == "compose.yaml":
        found += compose_schema(text)
        for name, service in document["services"].items():
            found += [f"{name}: {each}" for each in faults_of_service(name, service, document["networks"])]
    elif document["kind"] == "Kustomization":
        beside = {path.name for path in (DEPLOY / file).parent.iterdir()} - {"kustomization.yaml"}
        found += [] if set(document["resources"]) == beside else ["resources are not the files beside it"]
    else:
        found += kubernetes_schema(document)
        rules = {"StatefulSet": faults_of_set, "Service": faults_of_address, "NetworkPolicy": faults_of_policy}
        found += rules.get(document["kind"], lambda document: ())(document)
    return found


# ---- linters


def hadolint(text: str) -> list[str]:
    command = [str(Path(sysconfig.get_path("scripts")) / "hadolint"), "--no-color", "--failure-threshold", "style", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, cwd=DEPLOY)
    return [f"hadolint: {done.stdout}{done.stderr}"] if done.returncode else []


def compose_schema(text: str) -> list[str]:
    command = ["--builtin-schema", "vendor.compose-spec", "--default-filetype", "yaml", "-"]
    done = CliRunner().invoke(check_jsonschema.main, command, input=text)
    return [f"schema: {done.output}"] if done.exit_code else []


def kubernetes_schema(document: Any) -> Iterator[str]:
    for each in KUBERNETES:
        try:
            kubernetes_validate.validate(document, each, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            yield f"schema of {each}: {error}"


# ---- rules


def faults_of_image(text: str) -> Iterator[str]:
    lines = [line.split(maxsplit=1) for line in re.sub(r"\\\n", " ", text).splitlines() if re.match(r"[A-Z]+ ", line)]
    last = lines[max(at for at, (word, _) in enumerate(lines) if word == "FROM") :]
    if [rest for word, rest in last if word == "USER"] != [f"{USER}:{USER}"]:
        yield "runs as another user"
    if last[-1] != ["ENTRYPOINT", '["isthmus"]']:
        yield "runs something else"
    if [rest.split()[0] for word, rest in lines if word == "FROM"] != ["python:${PYTHON}"] * 2:
        yield "is built on something else"
    python = re.fullmatch(r"PYTHON=(\d+\.\d+)\.\d+-slim-[a-z]+", lines[0][1])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if python is None or f"Programming Language :: Python :: {python[1]}" not in project["classifiers"]:
        yield "has no Python that Isthmus is for, by its full version"
    for install in re.findall(r"install [^&]*", text):
        if "--no-deps" not in install or not re.search(r'--require-hashes|--no-index|"\$torch"', install):
            yield "installs something without a hash"
    copied = {each for word, rest in lines if word == "COPY" and "--from" not in rest for each in rest.split()[:-1]}
    listed = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    if "*" not in listed or {line[1:] for line in listed if line.startswith("!")} != copied:
        yield "copies other files than .dockerignore lets through"


def faults_of_service(name: str, service: dict[str, Any], networks: dict[str, Any]) -> Iterator[str]:
    must = {
        "image": f"isthmus:{__version__}",
        "pull_policy": "never",
        "init": True,
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
    }
    yield from (f"{key} is not {value}" for key, value in must.items() if service.get(key) != value)
    yield from (f"has no {key}" for key in ("mem_limit", "cpus", "pids_limit") if key not in service)
    outside = ("cap_add", "devices", "ipc", "network_mode", "pid", "ports", "userns_mode", "volumes_from")
    yield from (f"has {key}" for key in outside if key in service)
    if not re.fullmatch(r"\$\{ISTHMUS_USER:-[1-9]\d*:[1-9]\d*\}", service.get("user", "")):
        yield "may run as root"
    if not any(each.startswith("/tmp:") for each in service.get("tmpfs", ())):
        yield "has no /tmp"
    if not all(networks[each].get("internal") for each in service["networks"]):
        yield "reaches the outside"
    mounts = [
        (each["source"], each["target"], each.get("read_only", False))
        for each in service["volumes"]
        if each["type"] == "bind" and each["bind"] == {"create_host_path": False}
    ]
    wanted = {
        "server": ("serve /kits/server", [("./try/kits/server", "/kits/server", False)]),
        "admin": ("", [("./try", "/work", False)]),
    }
    join = f"join /kits/{name} --data /data/{name}"
    of_party = [(f"./try/kits/{name}", f"/kits/{name}", False), (f"./try/data/{name}", f"/data/{name}", True)]
    command, folders = wanted.get(name, (join, of_party))
    if mounts != folders or len(mounts) != len(service["volumes"]):
        yield "mounts something else"
    if name != "admin" and service["command"] != ["federation", *command.split()]:
        yield "calls something else"
    if name != "admin":
        yield from refused(service["command"])


def faults_of_set(document: dict[str, Any]) -> Iterator[str]:
    role, spec = document["metadata"]["name"], document["spec"]["template"]["spec"]
    first, container = spec["initContainers"][0], spec["containers"][0]
    if document["spec"]["replicas"] != 1 or [len(spec["initContainers"]), len(spec["containers"])] != [1, 1]:
        yield "has more than one at a kit"
    must = {"automountServiceAccountToken": False, "enableServiceLinks": False, "shareProcessNamespace": True}
    yield from (f"{key} is not {value}" for key, value in must.items() if spec.get(key) != value)
    yield from (f"has {key}" for key in ("hostNetwork", "hostPID", "hostIPC", "hostUsers") if key in spec)
    pod = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    pod |= {"fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"}}
    if spec["securityContext"] != pod:
        yield "the pod may do more than it must"
    own = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    for each in (first, container):
        if each["securityContext"] != own:
            yield f"{each['name']} may do more than it must"
        if each["image"] != f"registry.example.org/isthmus:{__version__}":
            yield f"{each['name']} runs another image"
        if any(set(each["resources"].get(key, ())) != {"cpu", "memory"} for key in ("requests", "limits")):
            yield f"{each['name']} has no limit"
    volumes = {each["name"]: {key: value for key, value in each.items() if key != "name"} for each in spec["volumes"]}
    wanted = {"secret": {"secret": {"secretName": f"{role}-kit", "defaultMode": 0o440}}}
    wanted["tmp"] = {"emptyDir": {"sizeLimit": "256Mi"}}
    mounts = {("kits", "/kits", False), ("tmp", "/tmp", False)}
    if role == "party":
        wanted["data"] = {"persistentVolumeClaim": {"claimName": "party-data", "readOnly": True}}
        mounts.add(("data", "/data", True))
    claims = [each["metadata"]["name"] for each in document["spec"]["volumeClaimTemplates"]]
    if volumes != wanted or claims != ["kits"]:
        yield "has other volumes"
    if mounted(container) != mounts or mounted(first) != {("kits", "/kits", False), ("secret", "/secret", True)}:
        yield "mounts something else"
    if f"--one-top-level={role}" not in first["command"] or "--directory=/kits" not in first["command"]:
        yield "unpacks the kit elsewhere"
    if role == "party":
        command = f"join /kits/{role} --data /data"
    else:
        command = f"serve /kits/{role} --bind $(POD_IP)"
        own_address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        if own_address not in container["env"]:
            yield "does not know its own address"
        if [each["containerPort"] for each in container["ports"]] != [PORT]:
            yield "listens on another port"
    if container["args"] != ["federation", *command.split()]:
        yield "calls something else"
    yield from refused(container["args"])
    yield from unlabelled(document, role)
    labels = document["spec"]["template"]["metadata"]["labels"]
    if document["spec"]["selector"]["matchLabels"] != labels or labels != document["metadata"]["labels"]:
        yield "selects other pods"


def mounted(container: dict[str, Any]) -> set[tuple[str, str, bool]]:
    return {(each["name"], each["mountPath"], each.get("readOnly", False)) for each in container["volumeMounts"]}


def faults_of_address(document: dict[str, Any]) -> Iterator[str]:
    yield from unlabelled(document, "server")
    if document["spec"]["selector"] != document["metadata"]["labels"]:
        yield "selects other pods"
    if [each["port"] for each in document["spec"]["ports"]] != [PORT]:
        yield "has another port"


def faults_of_policy(document: dict[str, Any]) -> Iterator[str]:
    role, spec = document["metadata"]["name"], document["spec"]
    yield from unlabelled(document, role)
    if spec["podSelector"]["matchLabels"] != document["metadata"]["labels"]:
        yield "selects other pods"
    anything = [{"port": None, "protocol": None}]
    ports = {
        way: {(each["port"], each["protocol"]) for rule in spec[way] for each in rule.get("ports", anything)}
        for way in ("ingress", "egress")
    }
    federation, names = {(PORT, "TCP")}, {(53, "TCP"), (53, "UDP")}
    wanted = (federation, set()) if role == "server" else (set(), federation | names)
    if (ports["ingress"], ports["egress"]) != wanted or spec["policyTypes"] != ["Ingress", "Egress"]:
        yield "lets something else through"


def unlabelled(document: dict[str, Any], role: str) -> Iterator[str]:
    labels = {"app.kubernetes.io/name": "isthmus", "app.kubernetes.io/component": role}
    if document["metadata"]["labels"] != labels or document["metadata"]["namespace"] != "isthmus":
        yield "is labelled as something else"


def refused(words: Sequence[str]) -> Iterator[str]:
    try:
        called(words)
    except Exception as error:
        yield f"isthmus {shlex.join(words)}: {error}"


# ---- each file


@pytest.mark.parametrize("file", FILES)
def test_file_is_right(file: str) -> None:
    assert faults(file, text_of(file)) == []


COMPOSED, SERVER, PARTY = "compose.yaml", "kubernetes/server/statefulset.yaml", "kubernetes/party/statefulset.yaml"
WRONG = [
    ("Dockerfile", "FROM python:${PYTHON}\n", "FROM python\n", "hadolint"),
    ("Dockerfile", "WORKDIR /work", "RUN cd /work", "hadolint"),
    ("Dockerfile", "FROM python:${PYTHON}\n", "FROM python:latest\n", "has :latest"),
    ("Dockerfile", "USER 10001:10001", "USER root", "another user"),
    ("Dockerfile", "COPY src src", "COPY src data ./", ".dockerignore"),
    ("Dockerfile", "PYTHON=3.11.15-slim", "PYTHON=3.9.1-slim", "no Python"),
    ("Dockerfile", " --require-hashes", "", "without a hash"),
    ("Dockerfile", "install --no-deps --no-index", "install", "without a hash"),
    (COMPOSED, "    hostname: server", "    hostnam: server", "schema"),
    (COMPOSED, "  init: true", "  init: true\n  init: true", "yamllint"),
    (COMPOSED, "  read_only: true\n", "", "read_only is not True"),
    (COMPOSED, "  cap_drop: [ALL]", "  cap_add: [ALL]", "has cap_add"),
    (COMPOSED, "  init: true", "  init: true\n  privileged: true", "has privileged"),
    (COMPOSED, "  mem_limit: 2g\n", "", "has no mem_limit"),
    (COMPOSED, f"isthmus:{__version__}", "isthmus", "image is not"),
    (COMPOSED, ":-1000:1000}", ":-0:0}", "as root"),
    (COMPOSED, "internal: true", "internal: false", "reaches the outside"),
    (COMPOSED, "serve, /kits/server]", "serve, /kits/server, --bind, 0.0.0.0]", "has 0.0.0.0"),
    (COMPOSED, "/kits/party-1, --data", "/kits/party-1, --folder", "No such option: --folder"),
    (COMPOSED, "source: ./try/data/party-1", "source: ./try/data/party-2", "party-1: mounts something else"),
    (COMPOSED, "target: /data/party-1, read_only: true", "target: /data/party-1", "party-1: mounts something else"),
    (SERVER, "  replicas: 1", "  replica: 1\n  replicas: 1", "schema of 1.30"),
    (SERVER, "          startupProbe:", "          bootProbe:", "schema of"),
    (SERVER, "kind: StatefulSet", "kind: StatefulSets", "schema of"),
    (SERVER, "runAsUser: 10001", "runAsUser: 0", "the pod may do more"),
    (SERVER, "$(POD_IP)]", "0.0.0.0]", "has 0.0.0.0"),
    (SERVER, "status.podIP", "status.hostIP", "its own address"),
    (SERVER, f"isthmus:{__version__}", "isthmus:0.0.9", "another image"),
    (SERVER, "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "kit may do more"),
    (SERVER, "limits: {cpu: \"2\", memory: 4Gi}", "limits: {cpu: \"2\"}", "no limit"),
    (SERVER, "automountServiceAccountToken: false", "automountServiceAccountToken: true", "automount"),
    (PARTY, "federation, join,", "federation, jion,", "No such command"),
    (PARTY, "mountPath: /data, readOnly: true", "mountPath: /data", "mounts something else"),
    (PARTY, "claimName: party-data", "claimName: data", "other volumes"),
    (PARTY, "--one-top-level=party", "--one-top-level=kit", "unpacks"),
    ("kubernetes/server/networkpolicy.yaml", "egress: []", "egress: [{}]", "something else through"),
    ("kubernetes/party/networkpolicy.yaml", "component: party", "component: server", "labelled"),
    ("kubernetes/server/service.yaml", "port: 8002", "port: 8003", "another port"),
    ("kubernetes/party/kustomization.yaml", "  - networkpolicy.yaml\n", "", "files beside it"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "right", "wrong", "said"), WRONG, ids=[f"{each[0]}: {each[2]}" for each in WRONG])
@pytest.mark.thinned(3)
def test_fault_is_found(file: str, right: str, wrong: str, said: str) -> None:
    text = text_of(file)
    assert right in text
    found = faults(file, text.replace(right, wrong))
    assert any(said in each for each in found), found


# ---- what the files say about each other


def shown() -> list[list[str]]:
    """The page's command lines, as words after `isthmus`."""
    found = []
    for block in blocks(PAGE):
        found += [shlex.split(line)[1:] for line in commands(block, all=True)]
        found += [shlex.split(line)[5:] for line in block.text.splitlines() if line.startswith("docker compose run")]
    return found


def test_commands_on_the_page_are_accepted() -> None:
    assert len(shown()) == 11
    assert not [each for words in shown() for each in refused(words)]
    for block in blocks(PAGE):
        assert block.language == "console"
        for line in block.text.splitlines():
            assert line.startswith(("isthmus ", "docker ", "kubectl ", "tar ", "cd deploy")), line
            if line.startswith("docker compose run"):
                assert line.startswith("docker compose run --rm admin ")


def test_what_is_made_is_what_is_mounted() -> None:
    services = loaded("compose.yaml")["services"]
    exported, new, *_ = [called(words) for words in shown()]
    parties = [name for name in services if name not in ("server", "admin")]
    assert new["parties"].split(",") == parties
    assert exported["parties"] == len(parties)
    assert (new["out"], exported["folder"]) == (Path("kits"), Path("data"))
    assert new["server"] == f"{services['server']['hostname']}:{PORT}"
    assert f"('server', {PORT})" in services["server"]["healthcheck"]["test"][-1]
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    for name in (*parties[:1], "server", "admin"):
        for volume in services[name]["volumes"]:
            assert f"`{volume['source'].removeprefix('./')}`" in page
            assert f"`{volume['target']}`" in page


def test_page_names_what_the_manifests_expect() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    made = [called(words) for words in shown() if words[1] == "new"][1]
    assert made["server"].endswith(f":{PORT}")
    for role in ROLES:
        assert f"kubectl apply --kustomize deploy/kubernetes/{role}\n" in page
        assert f"kubectl --namespace isthmus create secret generic {role}-kit --from-file=kit.tgz" in page
    for each in ("`party-data`", "`/kits`", "`/data`", "`/secret`", f"user {USER}", f"Kubernetes {KUBERNETES[0]}"):
        assert each in page
    assert f"registry.example.org/isthmus:{__version__}" in page
    assert f"docker build --file deploy/Dockerfile --tag isthmus:{__version__} .\n" in page


def test_study_to_try_is_that_of_the_docs() -> None:
    study = next(block for block in blocks("docs/federation.md") if block.title == "fraud.toml")
    assert text_of("try/fraud.toml") == study.text


def test_tools_that_build_the_image_are_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert {Requirement(each).name for each in build} <= {line.split("==")[0] for line in lines}


@pytest.mark.parametrize(("extra", "package"), [("federation", "nvflare"), ("ray", "ray")])
def test_everything_in_the_image_is_in_its_lock(extra: str, package: str) -> None:
    """The image installs what its script leaves of the lock, without looking for dependencies."""
    script = re.search(r"awk '(.*gpu.*)' ", text_of("Dockerfile"))
    assert script is not None
    lock = ROOT / "requirements" / f"{extra}.lock"
    left = subprocess.run(["awk", script[1], lock], capture_output=True, text=True, check=True).stdout
    names = {canonicalize_name(line.partition("==")[0]) for line in left.splitlines() if not line.startswith(" ")}
    assert needed("isthmus", extra) - {"isthmus", "torch"} <= names
    assert package in names
    assert not [name for name in names if name.startswith(("nvidia", "cuda", "triton"))]
    assert "torch" not in names
    assert "torch-geometric" in names


def needed(name: str, extra: str = "") -> set[str]:
    """Names of all distributions that this one needs."""
    found: set[str] = set()
    left = [Requirement(f"{name}[{extra}]" if extra else name)]
    while left:
        each = left.pop()
        for wanted in map(Requirement, requires(each.name) or ()):
            here = any(not wanted.marker or wanted.marker.evaluate({"extra": of}) for of in each.extras or ("",))
            if here and (canonicalize_name(wanted.name) not in found or wanted.extras):
                left.append(wanted)
                found.add(canonicalize_name(wanted.name))
    return found


def test_page_is_among_the_docs() -> None:
    assert (ROOT / "docs" / "containers.md").read_text(encoding="utf-8") == f'--8<-- "{PAGE}"\n'
    assert "(containers.md)" in (ROOT / "docs" / "federation.md").read_text(encoding="utf-8")
