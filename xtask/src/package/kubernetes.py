"""Check rendered manifests: Kubernetes' schemas without unknown fields, references, and Pod Security. Then check that it finds faults.

    kubernetes.py FOLDER VERSION ROUTES KVTIDE RELAY RENDERED...

FOLDER: an empty folder for the configuration files; VERSION: that of kvtide; ROUTES: source of the daemon's paths; RENDERED: files of
manifests. The faults are put into the first one.
"""

import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any, Iterable, Iterator

import kubernetes_validate
import tomli
import yaml
from cloudcoil.models.prometheus_operator.v1 import PodMonitor

#: Versions of Kubernetes: the oldest and the newest that the manifests are for.
VERSIONS = ("1.30", kubernetes_validate.latest_version())
#: Keys of the Secrets that docs/kubernetes.md creates.
SECRETS = {"kvtide-tokens": {"engines.token", "operator.token", "relay.token"}, "kvtide-relay": {"relay.key"}}
UNITS = {"Mi": 1 << 20, "Gi": 1 << 30, "MiB": 1 << 20, "GiB": 1 << 30}

#: Faults, and what is said about each.
FAULTS = (
    ("failureThreshold: 30", "failureTreshold: 30", "failureTreshold"),
    ("targetLabel: job", "targetLable: job", "unknown fields"),
    ("secretName: kvtide-tokens", "secretName: kvtide-token", "kvtide-token has no engines.token"),
    ("key: relay.token", "key: relais.token", "has no relais.token"),
    ("mountPath: /etc/kvtide-tokens", "mountPath: /etc/tokens", "which no volume has"),
    ("OrCreate\n        name: disk", "OrCreate\n        name: disc", "no volume disk"),
    ("path: /readyz", "path: /ready", "no path /ready"),
    ("port: relay", "port: relais", "no port relais"),
    ("containerPort: 9418", "containerPort: 9419", "port 9418"),
    ("kvtide:0.", "kvtide:9.", "is not of version"),
    ("runAsUser: 900", "runAsUser: 0", "may run as root"),
    ("app.kubernetes.io/name: kvtide\n  template", "app.kubernetes.io/name: kvtides\n  template", "does not select"),
    ("capacity =", "capcity =", "unknown key `capcity`"),
    ('capacity = "64GiB"', 'capacity = "72GiB"', "the limit of memory"),
    ("nvme0\"", "nvme1\"", "where nothing is mounted"),
    ("[domains.adapters]", "[domains.adapter]", "adapter"),
    ("KVTIDE_TOKEN_FILE\n          value: /etc", "KVTIDE_TOKEN_FILE\n          value: /tmp", "no volume has /tmp"),
)

folder, version, routes, kvtide, relay = (Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]).read_text(), sys.argv[4], sys.argv[5])
documents: list[dict[str, Any]] = []
problems: list[str] = []


def wrong(where: str, what: str) -> None:
    problems.append(f"{where}: {what}")


def size(text: str) -> int:
    return next(int(text.removesuffix(unit)) * factor for unit, factor in reversed(UNITS.items()) if text.endswith(unit))


def check_schema(document: dict[str, Any], where: str, versions: Iterable[str]) -> None:
    if document["kind"] == "PodMonitor":
        # The model drops fields that it does not know.
        known = PodMonitor.model_validate(document).model_dump(mode="json", by_alias=True, exclude_unset=True)
        if known != document:
            wrong(where, f"unknown fields; known are {known}")
        return
    for kubernetes in versions:
        try:
            kubernetes_validate.validate(document, kubernetes, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            wrong(where, f"Kubernetes {kubernetes}: {'.'.join(map(str, getattr(error, 'path', [])))}: {error.message}")


def restricted(pod: dict[str, Any], container: dict[str, Any], where: str) -> None:
    """The level "restricted" of Pod Security, but for volumes of type hostPath."""
    own, of_pod = container.get("securityContext", {}), pod.get("securityContext", {})
    settings = {**of_pod, **own}
    if settings.get("allowPrivilegeEscalation") is not False:
        wrong(where, "allowPrivilegeEscalation is not false")
    if own.get("capabilities", {}).get("drop") != ["ALL"] or own["capabilities"].get("add"):
        wrong(where, "capabilities are not dropped")
    if settings.get("runAsNonRoot") is not True or settings.get("runAsUser") in (None, 0):
        wrong(where, "may run as root")
    if settings.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        wrong(where, "no seccomp profile")


def files(pod: dict[str, Any], where: str) -> dict[str, dict[str, str | None]]:
    """Return the files in each volume with their texts; None: unknown."""
    maps = {document["metadata"]["name"]: document["data"] for document in documents if document["kind"] == "ConfigMap"}

    def of_secret(secret: dict[str, Any], name: str) -> dict[str, str | None]:
        keys = SECRETS.get(name, set())
        items = secret.get("items", [{"key": key, "path": key} for key in keys])
        for item in items:
            if item["key"] not in keys:
                wrong(where, f"the Secret {name} has no {item['key']}")
        return {item["path"]: None for item in items}

    found: dict[str, dict[str, str | None]] = {}
    for volume in pod["volumes"]:
        name, there = volume["name"], {}
        if "configMap" in volume:
            there = maps.get(volume["configMap"]["name"])
            if there is None:
                wrong(where, f"volume {name}: no ConfigMap {volume['configMap']['name']}")
        elif "secret" in volume:
            there = of_secret(volume["secret"], volume["secret"]["secretName"])
        elif "projected" in volume:
            for source in volume["projected"]["sources"]:
                there |= of_secret(source["secret"], source["secret"]["name"])
        found[name] = there or {}
    return found


def named_files(value: Any) -> Iterator[str]:
    """Yield the paths of tokens and keys in a configuration."""
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, str):
        if value.startswith("/") and value.endswith((".token", ".key")):
            yield value
    elif not isinstance(value, (int, float)):
        for part in value:
            yield from named_files(part)


def check_configuration(container: dict[str, Any], mounted: dict[str, str | None], where: str) -> None:
    path = container["args"][container["args"].index("--config") + 1]
    text = mounted.get(path)
    if text is None:
        return wrong(where, f"no volume has {path}")
    config = tomli.loads(text)
    for name in named_files(config):
        if name not in mounted:
            wrong(where, f"{path} names {name}, which no volume has")
        here = folder / PurePosixPath(name).name
        here.write_text("0123456789abcdef" * 4)
        here.chmod(0o600)
        text = text.replace(name, str(here))
    is_relay = container.get("command") == ["kvtide-relay"]
    port = int(config["http"]["listen"].rpartition(":")[2])
    if port not in [port["containerPort"] for port in container["ports"]]:
        wrong(where, f"port {port} of {path} is not one of the container's")
    file = folder / "config.toml"
    file.write_text(text)
    check = [relay, "--config", file, "--check"] if is_relay else [kvtide, "config", "check", "--any-machine", file]
    checked = subprocess.run(check, capture_output=True, text=True)
    if checked.returncode:
        return wrong(where, f"{path}: {checked.stdout}{checked.stderr}")
    if not is_relay:
        disks = [disk["dir"] for disk in config["tiers"]["nvme"]["disks"]]
        for missing in set(disks) - {mount["mountPath"] for mount in container["volumeMounts"]}:
            wrong(where, f"{path} names the disk {missing}, where nothing is mounted")
        if size(container["resources"]["limits"]["memory"]) < size(config["tiers"]["host"]["capacity"]) + (4 << 30):
            wrong(where, "the limit of memory does not hold tiers.host.capacity and 4 GiB")


def check_container(pod: dict[str, Any], container: dict[str, Any], there: dict[str, dict[str, str | None]], where: str) -> None:
    mounted: dict[str, str | None] = {}
    for mount in container["volumeMounts"]:
        if mount["name"] not in there:
            wrong(where, f"no volume {mount['name']}")
        mounted |= {f"{mount['mountPath']}/{name}": text for name, text in there.get(mount["name"], {}).items()}
    ports = [port["name"] for port in container.get("ports", [])]
    is_ours = container["image"].startswith("registry.example/kvtide:")
    if is_ours and container["image"] != f"registry.example/kvtide:{version}":
        wrong(where, f"the image {container['image']} is not of version {version}")
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        if probe := container.get(kind, {}).get("httpGet"):
            if probe["port"] not in ports:
                wrong(where, f"{kind}: no port {probe['port']}")
            if is_ours and f'.route("{probe["path"]}",' not in routes:
                wrong(where, f"{kind}: the daemon has no path {probe['path']}")
    for variable in container.get("env", []):
        if variable["name"].endswith("_FILE") and variable["value"] not in mounted:
            wrong(where, f"no volume has {variable['value']}")
    if "--config" in container.get("args", []):
        check_configuration(container, mounted, where)
    if where.endswith("/prepare"):
        if mounted.get("/profile/seccomp.json") is None:
            wrong(where, "the seccomp profile is not mounted")
    else:
        restricted(pod, container, where)


def check_pod(document: dict[str, Any], where: str) -> None:
    template = document["spec"]["template"]
    pod, labels = template["spec"], template["metadata"]["labels"]
    if not document["spec"]["selector"]["matchLabels"].items() <= labels.items():
        wrong(where, "the selector does not select the pods")
    there = files(pod, where)
    containers = pod["containers"] + pod.get("initContainers", [])
    for container in containers:
        check_container(pod, container, there, f"{where}/{container['name']}")
    for unused in set(there) - {mount["name"] for container in containers for mount in container["volumeMounts"]}:
        wrong(where, f"volume {unused} is not mounted")


def check_selector(document: dict[str, Any], where: str) -> None:
    selector = document["spec"]["selector"]["matchLabels"]
    pods = [other["spec"]["template"] for other in documents if "template" in other.get("spec", {})]
    selected = [pod for pod in pods if selector.items() <= pod["metadata"]["labels"].items()]
    if not selected:
        return wrong(where, "the selector selects no pods")
    ports = {port["name"] for pod in selected for container in pod["spec"]["containers"] for port in container["ports"]}
    for endpoint in document["spec"].get("podMetricsEndpoints", []):
        # Clusters without relays have no such port.
        if endpoint["port"] not in ports | {"relay"}:
            wrong(where, f"the pods have no port {endpoint['port']}")
        if f'.route("{endpoint["path"]}",' not in routes:
            wrong(where, f"the daemon has no path {endpoint['path']}")


def check(text: str, versions: Iterable[str]) -> list[str]:
    """Return the problems of manifests with versions of Kubernetes."""
    documents[:] = [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]
    problems.clear()
    for document in documents:
        where = f"{document['kind']} {document['metadata']['name']}"
        check_schema(document, where, versions)
        if document["kind"] in ("DaemonSet", "Deployment"):
            check_pod(document, where)
        if document["kind"] in ("PodMonitor", "PodDisruptionBudget"):
            check_selector(document, where)
    return problems.copy()


rendered = [Path(path).read_text() for path in sys.argv[6:]]
found = [problem for text in rendered for problem in check(text, VERSIONS)]
for right, fault, what in () if found else FAULTS:
    if right not in rendered[0]:
        found.append(f"the manifests have no {right!r} to put a fault into")
    elif not any(what in problem for problem in check(rendered[0].replace(right, fault), VERSIONS[1:])):
        found.append(f"the fault {fault!r} is not found: {problems}")
print("\n".join(found) or f"the manifests are right for Kubernetes {VERSIONS[0]} to {VERSIONS[1]}; {len(FAULTS)} faults are found")
sys.exit(bool(found))
