"""Evaluate the facts about nodes, with all limits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from muster.doctor.check_result import CheckResult, Nodes, State, by_value, outliers
from muster.doctor.node.shared_fs_probe import PRESENT
from muster.views.hosts import folded

MIB, GIB = 1024**2, 1024**3

OLDEST_PYTHON = (3, 9)
OLDEST_RAY, OLDEST_RAY_WITH_TOKENS = (2, 46), (2, 52)
SLOW_IMPORT_S = 30.0
SLOW_FILE_S = 0.1
LATE_FILE_S = 1.0
CLOCK_WARN_S, CLOCK_FAIL_S = 2.0, 240.0  # munge refuses credentials that are 300 s old
SMALL_SHM, TOO_SMALL_SHM = GIB, 80 * MIB  # Ray refuses an object store of less than 75 MB
FEW_FILES, FEW_PROCESSES = 16384, 4096


def check_answers(expected: Sequence[str], nodes: Nodes, launcher_error: str) -> CheckResult:
    """Check that the probe ran on every node."""
    silent = tuple(host for host in expected if host not in nodes)
    setup = {host: code for host, facts in nodes.items() if (code := facts["setup_code"])}
    without_python = tuple(host for host, facts in nodes.items() if "system" not in facts and host not in setup)
    if silent:
        what = f"{folded(silent)} did not answer" + (f": {launcher_error}" if launcher_error else "")
        advice = "check the node with scontrol show node NAME; exclude it with --exclude"
        return CheckResult("nodes", "fail", what, advice, silent)
    if setup:
        what = f"--setup failed on {folded(setup)} with code {', '.join(sorted({str(c) for c in setup.values()}))}"
        return CheckResult("nodes", "fail", what, "run it in a shell on that node, or exclude the node", tuple(setup))
    if without_python:
        version = ".".join(map(str, OLDEST_PYTHON))
        what = f"no Python {version} or newer on {folded(without_python)}; not examined further"
        advice = "give one with --python, or make it available in --setup"
        return CheckResult("nodes", "fail", what, advice, without_python)
    return CheckResult("nodes", "pass", f"{len(nodes)} answered: {folded(nodes)}")


# -- directories and clocks ---------------------------------------------------------------------------------------


def check_shared(path: str, nodes: Nodes, file_names: Sequence[str]) -> CheckResult:
    """Check that all nodes share the runs directory; `file_names` are the files that this host finds afterwards."""
    check = "shared-directory"
    kinds = by_value({host: facts["filesystem"] for host, facts in nodes.items()})
    states = {host: facts["directory"] for host, facts in nodes.items()}
    if broken := {host: state["error"] for host, state in states.items() if state.get("error")}:
        what = f"{path} cannot be used on {folded(broken)}: {next(iter(broken.values()))}"
        return CheckResult(check, "fail", what, "check its permissions and free space there", tuple(broken))
    blind = tuple(host for host, state in states.items() if not state["seen"])
    if not blind:  # every node sees our file, but its own may not be visible here, or on another node
        hosts = {facts["rank"]: host for host, facts in nodes.items()}
        missed = {hosts.get(node_index, "") for state in states.values() for node_index in state.get("missed", [])}
        unseen = {host for host, facts in nodes.items() if f"{PRESENT}{facts['rank']}" not in file_names}
        blind = tuple(host for host in nodes if host in missed | unseen)
    if blind:
        what = f"{folded(blind)} and others do not see each other's files in {path} ({kinds})"
        if not states[blind[0]]["seen"]:
            what = f"{folded(blind)} cannot see {path} ({kinds})"
        advice = "put the runs directory on a filesystem that all nodes share: --runs-dir DIR or MUSTER_RUNS_DIR"
        return CheckResult(check, "fail", what, advice, blind)
    if len(nodes) == 1:
        return CheckResult(check, "pass", f"{path} is writable ({kinds}); check with two nodes whether it is shared")
    return CheckResult(check, "pass", f"{path} is shared by {len(nodes)} nodes ({kinds})")


def check_visibility(nodes: Nodes) -> CheckResult:
    """Check how soon a new file of one node is visible to another."""
    check, delays = "file-visibility", _measured(nodes, "delay_s")
    if not delays:
        return CheckResult(check, "skip", "needs two or more nodes that share the directory")
    slowest = max(delays, key=delays.__getitem__)
    what = f"a new file is visible to another node after at most {_seconds(delays[slowest])}"
    if delays[slowest] <= LATE_FILE_S:
        return CheckResult(check, "pass", what)
    advice = "runs work, but react that late; shorten the mount's caching (NFS: actimeo=1, lookupcache=positive)"
    late = tuple(host for host, delay in delays.items() if delay > LATE_FILE_S)
    return CheckResult(check, "warn", f"{what} ({slowest})", advice, late)


def check_small_files(nodes: Nodes) -> CheckResult:
    """Check the time to write, rename, read and remove a small file."""
    times = {host: facts["directory"]["small_file_s"] for host, facts in nodes.items() if _met(facts)}
    if not times:
        return CheckResult("small-files", "skip", "the directory cannot be used")
    slowest = max(times, key=times.__getitem__)
    what = f"write, rename, read and remove take {_seconds(times[slowest])}"
    if times[slowest] <= SLOW_FILE_S:
        return CheckResult("small-files", "pass", what)
    slow = tuple(host for host, taken in times.items() if taken > SLOW_FILE_S)
    advice = "choose a faster filesystem for --runs-dir; filesystems for large files are often slow with small ones"
    return CheckResult("small-files", "warn", f"{what} ({slowest})", advice, slow)


def check_claims(nodes: Nodes) -> CheckResult:
    """Check that of several claims to a file one succeeds: leaders are elected in this way."""
    claims = {host: facts["directory"]["claims"] for host, facts in nodes.items() if _met(facts)}
    if not claims:
        return CheckResult("leader-claims", "skip", "the directory cannot be used")
    shared = tuple(host for host, claim in claims.items() if not claim["exclusive"])
    kinds = by_value({host: nodes[host]["filesystem"] for host in shared or claims})
    if shared:
        what = f"two claims to one file succeeded on {folded(shared)} ({kinds}): two nodes could lead one run"
        return CheckResult("leader-claims", "fail", what, "choose another filesystem with --runs-dir", shared)
    if not all(claim["hard_links"] for claim in claims.values()):
        what = f"{kinds} has no hard links: leaders are elected with renamed directories instead"
        return CheckResult("leader-claims", "pass", what)
    return CheckResult("leader-claims", "pass", f"exclusive ({kinds})")


def check_clocks(nodes: Nodes) -> CheckResult:
    """Compare the clocks with node 0's; only what exceeds the error of the measurement counts."""
    ahead, errors = _measured(nodes, "clock_s"), _measured(nodes, "clock_error_s")
    if not ahead:
        return CheckResult("clocks", "skip", "needs two or more nodes that share the directory")
    sure = {host: max(0.0, abs(ahead[host]) - errors[host]) for host in ahead}
    furthest = max(sure, key=lambda host: (sure[host], abs(ahead[host])))
    leader = next(host for host, facts in nodes.items() if facts["rank"] == 0)
    error = _seconds(errors[furthest])
    if sure[furthest] <= CLOCK_WARN_S:
        apart = _seconds(max(abs(skew) for skew in ahead.values()))
        return CheckResult("clocks", "pass", f"at most {apart} apart, give or take {error}")
    state: State = "fail" if sure[furthest] > CLOCK_FAIL_S else "warn"
    direction = "ahead of" if ahead[furthest] > 0 else "behind"
    what = f"{furthest} is {_seconds(abs(ahead[furthest]))} {direction} {leader}, give or take {error}"
    advice = "synchronise the clocks (chrony, ntpd); munge, and so Slurm, refuses a node that is minutes off"
    return CheckResult("clocks", state, what, advice, tuple(host for host in sure if sure[host] > CLOCK_WARN_S))


def _met(facts: Mapping[str, Any]) -> bool:
    return bool(facts["directory"]) and "small_file_s" in facts["directory"]


def _measured(nodes: Nodes, key: str) -> dict[str, float]:
    """Return node 0's measurements of the other nodes, by host."""
    hosts = {str(facts["rank"]): host for host, facts in nodes.items()}
    leader = next((facts["directory"] for facts in nodes.values() if facts["rank"] == 0), None)
    met: Mapping[str, Mapping[str, float]] = (leader or {}).get("met", {})
    return {hosts[node_index]: values[key] for node_index, values in met.items() if node_index in hosts}


def check_workdir(path: str, nodes: Nodes) -> CheckResult:
    without = tuple(host for host, facts in nodes.items() if not facts["workdir"])
    if not without:
        return CheckResult("working-directory", "pass", f"{path} exists")
    advice = "submit from a directory that all nodes share, or set one with --workdir"
    return CheckResult("working-directory", "fail", f"{folded(without)} cannot see {path}", advice, without)


# -- Python and Ray -----------------------------------------------------------------------------------------------


def check_python(interpreter: str, nodes: Nodes) -> CheckResult:
    """Check that the job's interpreter exists, is new enough and is the same on all nodes."""
    found = {host: facts["python"] for host, facts in nodes.items()}
    versions = {host: python.get("version") or "none" for host, python in found.items()}
    if bad := {host: python["error"] for host, python in found.items() if "error" in python}:
        what = f"{interpreter} does not run on {folded(bad)}: {next(iter(bad.values()))}"
        advice = "set an interpreter that every node has with --python, or load one in --setup"
        return CheckResult("python", "fail", what, advice, tuple(bad))
    if old := tuple(host for host, version in versions.items() if _numbers(version) < OLDEST_PYTHON):
        what = f"too old: {by_value(versions)}"
        return CheckResult("python", "fail", what, "use Python 3.9 or newer: --python PATH", old)
    if odd := outliers(versions):
        advice = "use one interpreter on all nodes (--python PATH on a shared filesystem): Ray refuses mixed versions"
        return CheckResult("python", "fail", f"different versions: {by_value(versions)}", advice, odd)
    paths = {host: python["executable"] for host, python in found.items()}
    what = f"{by_value(versions)} at {by_value(paths)}"
    if odd := outliers(paths):
        return CheckResult("python", "warn", what, "paths differ: check that the packages are the same, too", odd)
    return CheckResult("python", "pass", what)


def check_ray(nodes: Nodes) -> CheckResult:
    """Check that Ray can be imported by that interpreter, is new enough and is the same on all nodes."""
    found = {host: facts["python"].get("ray", {}) for host, facts in nodes.items()}
    versions = {host: ray.get("version") or "none" for host, ray in found.items()}
    if bad := {host: ray.get("error", "no such interpreter") for host, ray in found.items() if "version" not in ray}:
        what = f"cannot be imported on {folded(bad)}: {next(iter(bad.values()))}"
        advice = "install Ray there (pip install ray), set an interpreter that has it with --python, or use --no-ray"
        return CheckResult("ray", "fail", what, advice, tuple(bad))
    if odd := outliers(versions):
        what = f"different versions: {by_value(versions)}"
        return CheckResult("ray", "fail", what, "install the same Ray on all nodes", odd)
    if old := tuple(host for host, version in versions.items() if _numbers(version) < OLDEST_RAY):
        return CheckResult("ray", "fail", f"too old: {by_value(versions)}", "install Ray 2.46 or newer", old)
    slowest = max(found, key=lambda host: float(found[host]["import_s"]))
    what = f"{by_value(versions)}, imported in {_seconds(found[slowest]['import_s'])}"
    if _numbers(next(iter(versions.values()))) < OLDEST_RAY_WITH_TOKENS:
        advice = "install Ray 2.52 or newer, which authenticates connections with tokens"
        return CheckResult("ray", "warn", what, advice, tuple(versions))
    if found[slowest]["import_s"] > SLOW_IMPORT_S:
        advice = "put the environment on a faster or local filesystem, or into an image"
        return CheckResult("ray", "warn", f"{what} on {slowest}", advice, (slowest,))
    return CheckResult("ray", "pass", what)


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else (0,)


# -- resources and limits of processes ----------------------------------------------------------------------------


def check_ports(nodes: Nodes) -> CheckResult:
    ports = {host: facts["ports"] for host, facts in nodes.items()}
    if taken := {host: found["error"] for host, found in ports.items() if "error" in found}:
        what = f"{folded(taken)}: {next(iter(taken.values()))}"
        advice = "stop the programs that listen there, or move the block with --port-base"
        return CheckResult("ports", "fail", what, advice, tuple(taken))
    inside = tuple(
        host
        for host, found in ports.items()
        if found["block"][0] <= found["ephemeral"][1] and found["block"][1] >= found["ephemeral"][0]
    )
    if inside:
        what = f"only inside the kernel's ephemeral range on {folded(inside)}"
        advice = "narrow net.ipv4.ip_local_port_range, or set --port-base: an outgoing connection may use a port"
        return CheckResult("ports", "warn", what, advice, inside)
    blocks = by_value({host: "{}-{}".format(*found["block"]) for host, found in ports.items()})
    if crowded := {host: found["warning"] for host, found in ports.items() if found.get("warning")}:
        what = f"{folded(crowded)}: {next(iter(crowded.values()))}"
        advice = "stop the programs on better ports, or set --port-base: NeMo-RL on the same node may use a port"
        return CheckResult("ports", "warn", what, advice, tuple(crowded))
    return CheckResult("ports", "pass", f"a free block outside the ephemeral range: {blocks}")


def check_shm(nodes: Nodes) -> CheckResult:
    """Check /dev/shm, which holds Ray's object store."""
    free = {host: int(facts["shm"].get("free", 0)) for host, facts in nodes.items()}
    least = min(free, key=free.__getitem__)
    what = f"{_size(free[least])} free in /dev/shm" + (f" on {least}" if len(free) > 1 else "")
    if free[least] >= SMALL_SHM:
        return CheckResult("shared-memory", "pass", what)
    advice = "mount a larger one (containers: --shm-size), or limit the store with --object-store-memory"
    state: State = "fail" if free[least] < TOO_SMALL_SHM else "warn"
    return CheckResult("shared-memory", state, what, advice, tuple(h for h, size in free.items() if size < SMALL_SHM))


def check_open_files(nodes: Nodes) -> CheckResult:
    """Check the hard limit, to which a process may raise its soft limit."""
    advice = "raise LimitNOFILE of slurmd, or nofile in /etc/security/limits.conf (or ulimit -n before you start)"
    return _check_limit("open-files", "nofile", 1, FEW_FILES, advice, nodes)


def check_processes(nodes: Nodes) -> CheckResult:
    """Check the soft limit, which also counts threads; exceeding it logs `pthread_create failed`."""
    advice = "raise nproc (ulimit -u) where you submit, or in /etc/security/limits.conf; it also counts threads"
    return _check_limit("processes", "nproc", 0, FEW_PROCESSES, advice, nodes)


def _check_limit(check: str, name: str, which: int, few: int, advice: str, nodes: Nodes) -> CheckResult:
    limits = {host: facts["limits"][name][which] for host, facts in nodes.items()}
    low = tuple(host for host, limit in limits.items() if limit is not None and limit < few)
    what = f"at most {by_value({host: 'any number' if n is None else str(n) for host, n in limits.items()})}"
    if low:
        return CheckResult(check, "warn", f"{what}; {few} or more is recommended", advice, low)
    return CheckResult(check, "pass", what)


def check_user_namespaces(nodes: Nodes) -> CheckResult:
    without = {h: f["user_namespaces"]["error"] for h, f in nodes.items() if not f["user_namespaces"]["works"]}
    if not without:
        return CheckResult("user-namespaces", "pass", "work")
    what = f"do not work on {folded(without)}: {next(iter(without.values()))}"
    advice = "only rootless containers and sandboxes need them; sysctl user.max_user_namespaces (Debian, Ubuntu: also"
    advice += " kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
    return CheckResult("user-namespaces", "warn", what, advice, tuple(without))


def check_containers(pyxis: bool, wanted: str | None, nodes: Nodes) -> CheckResult:
    """Check the container runtimes; `wanted` is the job's image, if it has one."""
    everywhere = [
        name
        for name in ("apptainer", "singularity", "ch-run", "enroot")
        if nodes and all(facts["programs"].get(name) for facts in nodes.values())
    ]
    usable = [*(["pyxis"] if pyxis else []), *(name for name in everywhere if name != "enroot")]
    if usable:
        return CheckResult("containers", "pass", ", ".join(usable))
    somewhere = tuple(host for host, facts in nodes.items() if any(facts["programs"].values()))
    what = f"only on {folded(somewhere)}" if somewhere else "neither pyxis nor Apptainer nor Charliecloud"
    if wanted is None:
        return CheckResult("containers", "skip", f"{what}; needed for --container-image only")
    advice = "request pyxis on this cluster, or install Apptainer on the nodes (or load it in --setup)"
    return CheckResult("containers", "fail", f"{what}, but --container-image is {wanted}", advice)


PER_NODE: tuple[Callable[[Nodes], CheckResult], ...] = (
    check_ports,
    check_shm,
    check_open_files,
    check_processes,
    check_user_namespaces,
)


def _seconds(value: float) -> str:
    if abs(value) >= 1:
        return f"{value:.1f} s"
    return f"{value * 1000:.0f} ms" if abs(value) >= 0.01 else f"{value * 1000:.1f} ms"


def _size(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size // MIB} MiB"
