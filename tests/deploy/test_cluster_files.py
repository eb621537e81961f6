"""The files of Ray clusters in deploy/ are well formed, let nobody else in, and call what is there.

As in `test_manifests.py`, linters look at each file, rules of our own at what no linter knows, and every rule is shown
a file with that fault. The Slurm script runs too, with commands that stand in for those of Slurm and Ray.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.test_manifests import (
    CLUSTER,
    DEPLOY,
    PORT,
    ROOT,
    STYLE,
    USER,
    kubernetes_schema,
    mounted,
    refused,
    text_of,
)
from tests.docs.test_blocks import blocks
from yamllint import linter

from isthmus import __version__

PAGE = "docs/cluster.md"
SCRIPT = "slurm/isthmus.sbatch"
RAY, JOB = "kubernetes/ray/raycluster.yaml", "kubernetes/study/job.yaml"
POLICY, PARTS = "kubernetes/ray/networkpolicy.yaml", "kubernetes/ray/kustomization.yaml"
FILES = sorted(
    path.relative_to(DEPLOY).as_posix() for folder in CLUSTER for path in (DEPLOY / folder).rglob("*") if path.is_file()
)
LABELS = {"app.kubernetes.io/part-of": "isthmus", "app.kubernetes.io/component": "ray"}
IMAGE = f"registry.example.org/isthmus:{__version__}-ray"
HEAD_PORT = 6379
OWN = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
POD = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
POD |= {"seccompProfile": {"type": "RuntimeDefault"}}


def loaded(file: str) -> Any:
    return yaml.safe_load(text_of(file))


def faults(file: str, text: str) -> list[str]:
    """All that is wrong with one file if this is its text."""
    forbidden = ("0.0.0.0", ":latest", "privileged", "ray stop", "include-dashboard=true", "/var/run/docker")
    found = [f"has {each}" for each in forbidden if each in text]
    commands = list(commands_in(text))
    found += [each for words in commands for each in refused(words)]
    if file == SCRIPT:
        return [*found, *faults_of_script(text, commands)]
    found += [f"yamllint: {each}" for each in linter.run(text, STYLE)]
    document = yaml.safe_load(text)
    if document["kind"] == "Kustomization":
        beside = {path.name for path in (DEPLOY / file).parent.iterdir()} - {"kustomization.yaml"}
        return found + ([] if set(document["resources"]) == beside else ["resources are not the files beside it"])
    if document["kind"] == "RayCluster":
        return [*found, *faults_of_cluster(document)]
    found += kubernetes_schema(document)
    rules = {"Job": faults_of_job, "NetworkPolicy": faults_of_policy}
    return [*found, *rules.get(document["kind"], lambda document: ())(document)]


def commands_in(text: str) -> Iterator[list[str]]:
    """The words after `isthmus` of each command in a script, without the options that its caller adds."""
    for line in text.splitlines():
        command = re.search(r"^\s*(?:exec )?isthmus (run .*?)\s*&?$", line)
        if command:
            yield [word for word in shlex.split(command[1]) if word != "$@"]


# ---- rules


def faults_of_script(text: str, commands: list[list[str]]) -> Iterator[str]:
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        yield f"bash: {done.stderr}"
    if not text.startswith("#!/bin/bash\n") or "set -euo pipefail" not in text:
        yield "goes on after errors"
    if [words[:1] for words in commands] != [["run"]] or "--ray" not in commands[0]:
        yield "runs something else"
    if "mktemp" not in text or "RAY_AUTH_MODE=token" not in text or "RAY_AUTH_TOKEN_PATH=" not in text:
        yield "lets anybody in"
    if "--include-dashboard=false" not in text or "RAY_USAGE_STATS_ENABLED=0" not in text:
        yield "opens more than it must"
    if "#SBATCH --exclusive\n" not in text:
        yield "shares machines"


def faults_of_cluster(document: dict[str, Any]) -> Iterator[str]:
    """A RayCluster is not one of Kubernetes' own kinds, so no schema is at hand."""
    spec = document["spec"]
    if document["apiVersion"] != "ray.io/v1":
        yield "is of another version"
    if document["metadata"]["labels"] != LABELS or document["metadata"]["namespace"] != "isthmus":
        yield "is labelled as something else"
    known = {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
    yield from (f"has {key}" for key in spec.keys() - known)
    if spec.get("authOptions") != {"mode": "token"}:
        yield "lets anybody in"
    if not re.fullmatch(r"\d+\.\d+\.\d+", str(spec["rayVersion"])):
        yield "has no full version of Ray"
    head, groups = spec["headGroupSpec"], spec["workerGroupSpecs"]
    yield from (f"the head has {key}" for key in head.keys() - {"rayStartParams", "template"})  # no service, no ingress
    wanted = {"num-cpus": "0", "include-dashboard": "false", "dashboard-host": "127.0.0.1"}
    if head["rayStartParams"] != wanted:
        yield "the head starts with other options"
    if [group["groupName"] for group in groups] != ["parties"]:
        yield "has other groups"
    yield from faults_of_pod("head", head["template"], HEAD_PORT)
    for group in groups:
        name, options = group["groupName"], group["rayStartParams"]
        keys = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
        yield from (f"{name} has {key}" for key in group.keys() - keys)
        if not group["replicas"] == group["minReplicas"] == group["maxReplicas"] >= 1:
            yield f"{name} changes its size"
        if options.keys() != {"num-cpus", "node-manager-port"}:
            yield f"{name} starts with other options"
        yield from faults_of_pod(name, group["template"], int(options["node-manager-port"]))
        resources = group["template"]["spec"]["containers"][0]["resources"]
        if {str(resources[key]["cpu"]) for key in ("requests", "limits")} != {options["num-cpus"]}:
            yield f"{name} has not one worker per core"


def faults_of_pod(name: str, template: dict[str, Any], port: int) -> Iterator[str]:
    spec = template["spec"]
    [container] = spec["containers"]
    if template["metadata"]["labels"] != LABELS:
        yield f"{name} is labelled as something else"
    yield from faults_of_security(name, spec, container)
    probes = [container.get(f"{kind}Probe", {}).get("tcpSocket") for kind in ("startup", "readiness", "liveness")]
    if probes != [{"port": port}] * 3:
        yield f"{name} is probed elsewhere"
    if {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"} not in container.get("env", ()):
        yield f"{name} reports how it is used"
    if mounted(container) != {("tmp", "/tmp", False)} or [each["name"] for each in spec["volumes"]] != ["tmp"]:
        yield f"{name} mounts something else"
    if "command" in container or "args" in container:
        yield f"{name} calls something else"


def faults_of_security(name: str, spec: dict[str, Any], container: dict[str, Any]) -> Iterator[str]:
    must = {"automountServiceAccountToken": False, "enableServiceLinks": False}
    yield from (f"{name}: {key} is not {value}" for key, value in must.items() if spec.get(key) != value)
    outside = ("hostNetwork", "hostPID", "hostIPC", "hostUsers")
    yield from (f"{name} has {key}" for key in outside if key in spec)
    if spec["securityContext"] != POD or container["securityContext"] != OWN:
        yield f"{name} may do more than it must"
    if container["image"] != IMAGE:
        yield f"{name} runs another image"
    resources = container["resources"]
    if set(resources["requests"]) != {"cpu", "memory"} or resources["requests"] != resources["limits"]:
        yield f"{name} has no limit, or may have less than it"
    for volume in spec["volumes"]:
        if volume.get("emptyDir", {"sizeLimit": ""}).get("sizeLimit") is None:
            yield f"{name}: {volume['name']} has no limit"
        if "hostPath" in volume:
            yield f"{name} mounts a path of the machine"


def faults_of_job(document: dict[str, Any]) -> Iterator[str]:
    template = document["spec"]["template"]
    spec = template["spec"]
    [container] = spec["containers"]
    if document["metadata"]["labels"] != LABELS or template["metadata"]["labels"] != LABELS:
        yield "is labelled as something else"
    if document["metadata"]["namespace"] != "isthmus":
        yield "is elsewhere"
    yield from faults_of_security("study", spec, container)
    if not spec.get("shareProcessNamespace"):
        yield "ignores the signal to stop"
    cluster = loaded(RAY)
    secret = {"name": cluster["metadata"]["name"], "key": "auth_token"}
    token = {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": secret}}
    if token not in container["env"] or {"name": "RAY_AUTH_MODE", "value": "token"} not in container["env"]:
        yield "has no token"
    join = f"ray start --address={cluster['metadata']['name']}-head-svc:{HEAD_PORT} --num-cpus=0\n"
    if container["command"] != ["bash", "-euc"] or not container["args"][0].startswith(join):
        yield "does not join the cluster"
    wanted = {("study", "/study", True), ("data", "/data", True), ("results", "/results", False)}
    if mounted(container) != wanted | {("shared-memory", "/dev/shm", False), ("tmp", "/tmp", False)}:
        yield "mounts something else"
    done = subprocess.run(["bash", "-n"], input=container["args"][0], capture_output=True, text=True, check=False)
    if done.returncode:
        yield f"bash: {done.stderr}"


def faults_of_policy(document: dict[str, Any]) -> Iterator[str]:
    spec = document["spec"]
    if document["metadata"]["labels"] != LABELS or spec["podSelector"] != {"matchLabels": LABELS}:
        yield "is labelled as something else"
    own = [{"podSelector": {"matchLabels": LABELS}}]
    if spec["policyTypes"] != ["Ingress", "Egress"] or spec["ingress"] != [{"from": own}]:
        yield "lets others in"
    system = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}]
    names = {"to": system, "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}
    if spec["egress"] != [{"to": own}, names]:
        yield "lets something else out"


# ---- each file


def test_files_are_those_of_the_cluster() -> None:
    assert {SCRIPT, RAY, JOB, POLICY, PARTS} <= set(FILES)
    assert PORT != HEAD_PORT  # the server of a federation may be in the same namespace


@pytest.mark.parametrize("file", FILES)
def test_file_is_right(file: str) -> None:
    assert faults(file, text_of(file)) == []


WRONG = [
    (SCRIPT, "readarray -t machines", "if readarray -t machines", "bash"),
    (SCRIPT, "set -euo pipefail", "set -u", "goes on after errors"),
    (SCRIPT, "isthmus run \"$study\"", "isthmus run --folder \"$study\"", "No such option: --folder"),
    (SCRIPT, "isthmus run \"$study\"", "isthmus report \"$study\"", "runs something else"),
    (SCRIPT, " RAY_AUTH_TOKEN_PATH=$token", "", "lets anybody in"),
    (SCRIPT, " --include-dashboard=false", "", "opens more"),
    (SCRIPT, "#SBATCH --exclusive\n", "", "shares machines"),
    (SCRIPT, "    rm -f \"$token\"", "    ray stop\n    rm -f \"$token\"", "has ray stop"),
    (RAY, "ray.io/v1", "ray.io/v1alpha1", "another version"),
    (RAY, "mode: token", "mode: disabled", "lets anybody in"),
    (RAY, "rayVersion: 2.60.0", "rayVersion: latest", "no full version"),
    (RAY, "dashboard-host: 127.0.0.1", "dashboard-host: 0.0.0.0", "has 0.0.0.0"),
    (RAY, "include-dashboard: \"false\"", "include-dashboard: \"true\"", "head starts with other options"),
    (RAY, "  headGroupSpec:\n", "  headGroupSpec:\n    serviceType: LoadBalancer\n", "the head has serviceType"),
    (RAY, "  headGroupSpec:\n", "  headGroupSpec:\n    enableIngress: true\n", "the head has enableIngress"),
    (RAY, "  headGroupSpec:\n", "  enableInTreeAutoscaling: true\n  headGroupSpec:\n", "has enableInTreeAutoscaling"),
    (RAY, "num-cpus: \"8\"", "num-cpus: \"16\"", "not one worker per core"),
    (RAY, "requests: {cpu: \"8\", memory: 32Gi}", "requests: {cpu: \"8\"}", "has no limit"),
    (RAY, "minReplicas: 2", "minReplicas: 0", "changes its size"),
    (RAY, "runAsUser: 10001", "runAsUser: 0", "may do more"),
    (RAY, "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "may do more"),
    (RAY, f"isthmus:{__version__}-ray", "isthmus:0.0.9-ray", "another image"),
    (RAY, "port: 6380", "port: 6381", "probed elsewhere"),
    (RAY, "sizeLimit: 8Gi", "medium: Memory", "tmp has no limit"),
    (RAY, "groupName: parties", "groupName: parties\n      groupName: parties", "yamllint"),
    (JOB, "backoffLimit", "backofLimit", "schema of"),
    (JOB, "--ray auto", "--folder auto", "No such option: --folder"),
    (JOB, "value: token", "value: disabled", "has no token"),
    (JOB, "name: ray\n", "name: rays\n", "has no token"),
    (JOB, "ray-head-svc", "head", "does not join"),
    (JOB, "if [ -d", "if if [ -d", "bash"),
    (JOB, "shareProcessNamespace: true", "shareProcessNamespace: false", "ignores the signal"),
    (JOB, "mountPath: /data, readOnly: true", "mountPath: /data", "mounts something else"),
    (JOB, "component: ray", "component: study", "labelled"),
    (POLICY, "    - from:\n", "    - {}\n    - from:\n", "lets others in"),
    (POLICY, "  egress:\n", "  egress:\n    - {}\n", "something else out"),
    (POLICY, "component: ray", "component: server", "labelled"),
    (PARTS, "  - networkpolicy.yaml\n", "", "files beside it"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "right", "wrong", "said"), WRONG, ids=[f"{each[0]}: {each[2]}" for each in WRONG])
def test_fault_is_found(file: str, right: str, wrong: str, said: str) -> None:
    text = text_of(file)
    assert right in text
    found = faults(file, text.replace(right, wrong))
    assert any(said in each for each in found), found


# ---- what the files say about each other


def test_versions_are_those_of_the_image() -> None:
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert f"ray=={loaded(RAY)['spec']['rayVersion']}" in pinned


def test_page_names_what_the_files_expect() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert IMAGE in page
    assert f"--build-arg EXTRAS=ray --tag isthmus:{__version__}-ray .\n" in page
    assert "ARG EXTRAS=" in text_of("Dockerfile")
    assert f"sbatch deploy/{SCRIPT} " in page
    assert f"kubectl apply --kustomize deploy/{Path(RAY).parent}\n" in page
    assert f"kubectl apply --filename deploy/{JOB}\n" in page
    assert f"raycluster/{loaded(RAY)['metadata']['name']}\n" in page
    assert "create configmap study --from-file=study.toml=many.toml\n" in page
    volumes = {each["name"]: each for each in loaded(JOB)["spec"]["template"]["spec"]["volumes"]}
    for each in ("data", "results"):
        assert f"`{volumes[each]['persistentVolumeClaim']['claimName']}`" in page
    for each in ("`/study`", "`/data`", "`/results`", "`/results/study`", f"user {USER}", "`HEAD_ADDRESS`"):
        assert each in page
    assert [block.title for block in blocks(PAGE) if block.language == "toml"] == ["many.toml"]


# ---- the Slurm script, with commands that stand in for others

RECORD = 'printf "%s\\n" "{name} $*" >> "$CALLS"\n'
STAND_INS = {
    "scontrol": "printf 'one\\ntwo\\n'\n",
    "getent": "printf '127.0.1.1 STREAM one\\n192.0.2.7 STREAM one\\n192.0.2.7 DGRAM\\n'\n",
    # runs the command here, as if on another machine
    "srun": 'while [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
    "ray": 'stat --format="token %a %s" "$RAY_AUTH_TOKEN_PATH" >> "$CALLS"\n'
    'env | grep -E "^RAY_(ADDRESS|AUTH_MODE|AUTH_TOKEN)=" >> "$CALLS"\n'
    'case "$1 $2" in start*) trap "exit 1" TERM; while :; do sleep 0.05; done ;; esac\n',
    "mkdir": "exit 0\n",
    "rm": '[[ $1 == -rf ]] || exec /bin/rm "$@"\n',
    # as the script's own wait for cores: both machines have started Ray when it ends
    "python": "[[ ${CORES_MISSING:-0} == 0 ]] || exit 1\n"
    'until (($(grep -c "^ray start " "$CALLS") == 2)); do sleep 0.05; done\n',
    "isthmus": 'exec "$PYTHON" "$STUDY_RUN"\n',
}
STUDY_RUN = """
import os, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
print("started", flush=True)
time.sleep(float(os.environ.get("TAKES", 0)))
sys.exit(int(os.environ.get("CODE", 0)))
"""


def start(folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    """The script as Slurm starts it, in a folder of its own."""
    (folder / "bin").mkdir()
    for name, text in STAND_INS.items():
        path = folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{RECORD.format(name=name)}{text}", encoding="utf-8")
        path.chmod(0o755)
    (folder / "study_run.py").write_text(STUDY_RUN, encoding="utf-8")
    slurm = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "x", "SLURM_CPUS_PER_TASK": "4"}
    own = {"CALLS": str(folder / "calls"), "PYTHON": sys.executable, "STUDY_RUN": str(folder / "study_run.py")}
    own |= {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "RAY_ADDRESS": "wrong:1", "RAY_AUTH_TOKEN": "wrong"}
    return subprocess.Popen(
        ["bash", str(DEPLOY / SCRIPT), *words], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, **slurm, **own, "SLURM_SUBMIT_DIR": str(folder), **environment},
    )  # fmt: skip


def ended(folder: Path, job: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    """Its exit status, the commands it called and its messages; nothing of it may be left."""
    try:
        _, messages = job.communicate(timeout=30)  # a process that is left keeps its end of the pipe open
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        raise
    assert not list(folder.glob(".ray-token*"))
    calls = (folder / "calls").read_text(encoding="utf-8").splitlines()
    return job.returncode, calls, messages


@pytest.mark.parametrize("code", ["0", "3"])
def test_script_runs_the_study_and_ends_ray(code: str, tmp_path: Path) -> None:
    status, calls, _ = ended(tmp_path, start(tmp_path, "many.toml", "runs/many", "--resume", CODE=code))
    assert status == int(code)
    assert "isthmus run many.toml --out runs/many --ray 192.0.2.7:6379 --resume" in calls
    starts = sorted(each for each in calls if each.startswith("ray start "))
    common = "ray start --block --num-cpus=4 --temp-dir=/tmp/isthmus-17/ray"
    assert starts == [
        f"{common} --address=192.0.2.7:6379",
        f"{common} --head --node-ip-address=192.0.2.7 --port=6379 --include-dashboard=false",
    ]
    assert {each for each in calls if each.startswith("token ")} == {"token 600 64"}
    assert {each for each in calls if each.startswith("RAY_")} == {"RAY_AUTH_MODE=token"}
    steps = [each for each in calls if each.startswith("srun ")]
    first = "srun --export=ALL --ntasks-per-node=1 --cpus-per-task=4"
    for step in ("--nodes=1 --ntasks=1 --nodelist=one bash ", "--nodes=1 --ntasks=1 --exclude=one bash "):
        assert [each.startswith(f"{first} {step}") for each in steps].count(True) == 1
    assert steps[2:] == [f"{first} --nodes=2 --ntasks=2 rm -rf /tmp/isthmus-17"]


def test_script_ends_ray_if_machines_do_not_come(tmp_path: Path) -> None:
    status, calls, _ = ended(tmp_path, start(tmp_path, "many.toml", "runs/many", CORES_MISSING="1"))
    assert status == 1
    assert not [each for each in calls if each.startswith("isthmus ")]
    assert any(each.startswith("srun ") and each.endswith(" rm -rf /tmp/isthmus-17") for each in calls)


def test_script_interrupts_the_study_when_time_is_over(tmp_path: Path) -> None:
    job = start(tmp_path, "many.toml", "runs/many", TAKES="60")
    assert job.stdout is not None
    while job.stdout.readline() != "started\n":
        time.sleep(0.01)
    job.send_signal(signal.SIGTERM)
    status, calls, _ = ended(tmp_path, job)
    assert status == 130
    assert any(each.startswith("srun ") and each.endswith(" rm -rf /tmp/isthmus-17") for each in calls)


def test_script_says_what_is_missing(tmp_path: Path) -> None:
    job = start(tmp_path, "many.toml")
    _, messages = job.communicate(timeout=60)
    assert job.returncode != 0
    assert "usage: sbatch isthmus.sbatch STUDY.toml OUT" in messages
