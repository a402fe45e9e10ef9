"""The verdicts on nodes: facts in, pass, warn, fail or skip out."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from muster.doctor import checks
from muster.doctor.check_result import CheckResult

HEALTHY: dict[str, Any] = {
    "system": "Linux",
    "setup_code": 0,
    "directory": {
        "seen": True,
        "canary_s": 0.0,
        "small_file_s": 0.001,
        "claims": {"exclusive": True, "hard_links": True},
        "missed": [],
    },
    "filesystem": "nfs4",
    "workdir": True,
    "python": {
        "version": "3.12.1",
        "executable": "/sw/python",
        "ray": {"version": "2.60.0", "path": "/sw/ray", "import_s": 1.0},
    },
    "ports": {"ephemeral": [32768, 60999], "block": [24000, 24999]},
    "limits": {"nofile": [1024, 524288], "nproc": [None, None]},
    "shm": {"size": 64 * checks.GIB, "free": 60 * checks.GIB},
    "user_namespaces": {"works": True},
    "programs": {"apptainer": "/usr/bin/apptainer", "singularity": None, "ch-run": None, "enroot": None},
}
EVERYBODY = ["here-0", "here-1", "here-2"]


@pytest.fixture
def nodes() -> dict[str, dict[str, Any]]:
    """Three healthy nodes; rank 0 has measured the other two."""
    found = {
        f"n{node_index}": {"host": f"n{node_index}", "rank": node_index, **copy.deepcopy(HEALTHY)}
        for node_index in range(3)
    }
    met = {str(node_index): {"delay_s": 0.02, "clock_s": 0.001, "clock_error_s": 0.02} for node_index in (1, 2)}
    found["n0"]["directory"]["met"] = met
    return found


def all_checks(nodes: dict[str, dict[str, Any]]) -> list[CheckResult]:
    return [
        checks.check_answers(list(nodes), nodes, ""),
        checks.check_shared("/runs", nodes, EVERYBODY),
        checks.check_visibility(nodes),
        checks.check_small_files(nodes),
        checks.check_claims(nodes),
        checks.check_clocks(nodes),
        checks.check_workdir("/work", nodes),
        checks.check_python("python3", nodes),
        checks.check_ray(nodes),
        *(check(nodes) for check in checks.PER_NODE),
        checks.check_containers(False, None, nodes),
    ]


def test_healthy_nodes_pass_everything(nodes: dict[str, dict[str, Any]]) -> None:
    assert [(v.check, v.state) for v in all_checks(nodes) if v.state != "pass"] == []


UNHEALTHY: list[tuple[str, str, str, Any, str]] = [
    ("nodes", "fail", "setup_code", 3, "--setup failed on n1 with code 3"),
    ("shared-directory", "fail", "directory", {"seen": False}, "n1 cannot see /runs (nfs4)"),
    ("shared-directory", "fail", "directory", {"seen": True, "error": "No space left on device"}, "No space left"),
    ("small-files", "warn", "directory.small_file_s", 0.5, "500 ms (n1)"),
    ("leader-claims", "fail", "directory.claims.exclusive", False, "succeeded on n1 (nfs4)"),
    ("working-directory", "fail", "workdir", False, "n1 cannot see /work"),
    ("python", "fail", "python", {"error": "No such file or directory"}, "python3 does not run on n1: No such file"),
    ("python", "fail", "python.version", "3.11.2", "3.12.1 on n[0,2]; 3.11.2 on n1"),
    ("python", "warn", "python.executable", "/opt/python", "/sw/python on n[0,2]; /opt/python on n1"),
    ("ray", "fail", "python.ray", {"error": "ModuleNotFoundError: No module named 'ray'"}, "cannot be imported on n1"),
    ("ray", "fail", "python.ray.version", "2.50.0", "2.60.0 on n[0,2]; 2.50.0 on n1"),
    ("ray", "warn", "python.ray.import_s", 90.0, "imported in 90.0 s on n1"),
    ("ports", "fail", "ports", {"error": "no free ports for Ray"}, "n1: no free ports"),
    ("ports", "warn", "ports.block", [40000, 40999], "ephemeral range on n1"),
    ("ports", "warn", "ports.warning", "its ports 2000-2999 lie in a band", "n1: its ports 2000-2999 lie in a band"),
    ("shared-memory", "fail", "shm.free", 64 * checks.MIB, "64 MiB free in /dev/shm on n1"),
    ("shared-memory", "warn", "shm.free", 500 * checks.MIB, "500 MiB"),
    ("open-files", "warn", "limits.nofile", [1024, 1024], "524288 on n[0,2]; 1024 on n1"),
    ("processes", "warn", "limits.nproc", [1000, None], "any number on n[0,2]; 1000 on n1"),
    ("user-namespaces", "warn", "user_namespaces", {"works": False, "error": "unshare: No"}, "do not work on n1"),
]


@pytest.mark.parametrize(
    ("check", "state", "fact", "value", "told"), UNHEALTHY, ids=[f"{r[0]}-{r[1]}-{r[2]}" for r in UNHEALTHY]
)
def test_one_unhealthy_node_is_named_with_what_to_do(
    nodes: dict[str, dict[str, Any]], check: str, state: str, fact: str, value: Any, told: str
) -> None:
    *path, last = fact.split(".")
    facts = nodes["n1"]
    for key in path:
        facts = facts[key]
    facts[last] = value
    (verdict,) = [verdict for verdict in all_checks(nodes) if verdict.check == check]
    assert (verdict.state, verdict.nodes) == (state, ("n1",))
    assert told in verdict.what
    assert verdict.advice


def test_a_node_that_does_not_answer_fails_by_name_with_the_launchers_word(nodes: dict[str, dict[str, Any]]) -> None:
    del nodes["n2"]
    verdict = checks.check_answers(["n0", "n1", "n2"], nodes, "n2: task 2: Killed")
    assert (verdict.state, verdict.nodes) == ("fail", ("n2",))
    assert verdict.what == "n2 did not answer: n2: task 2: Killed"


def test_a_directory_of_the_same_name_that_each_has_of_its_own_is_not_shared(nodes: dict[str, dict[str, Any]]) -> None:
    """All see what we wrote before they started (a copy, say), but not what they write themselves."""
    nodes["n0"]["directory"]["missed"] = [2]
    assert checks.check_shared("/runs", nodes, EVERYBODY).nodes == ("n2",)
    nodes["n0"]["directory"]["missed"] = []
    unseen_by_us = checks.check_shared("/runs", nodes, ["here-0", "here-2"])
    assert (unseen_by_us.state, unseen_by_us.nodes) == ("fail", ("n1",))


def test_a_filesystem_without_hard_links_is_named(nodes: dict[str, dict[str, Any]]) -> None:
    nodes["n1"]["directory"]["claims"]["hard_links"] = False
    verdict = checks.check_claims(nodes)
    assert (verdict.state, "nfs4 has no hard links" in verdict.what) == ("pass", True)


def test_a_file_that_is_seen_late_is_a_warning(nodes: dict[str, dict[str, Any]]) -> None:
    nodes["n0"]["directory"]["met"]["2"]["delay_s"] = 30.0
    verdict = checks.check_visibility(nodes)
    assert (verdict.state, verdict.nodes) == ("warn", ("n2",))
    assert "30.0 s" in verdict.what


@pytest.mark.parametrize(
    ("ahead", "error", "state", "told"),
    [
        (1.0, 0.1, "pass", "at most 1.0 s apart"),
        (4.0, 0.1, "warn", "n2 is 4.0 s ahead of n0, give or take 100 ms"),
        (-4.0, 0.1, "warn", "n2 is 4.0 s behind n0"),
        (3600.0, 0.1, "fail", "n2 is 3600.0 s ahead of n0"),
        (12.0, 15.0, "pass", "give or take 15.0 s"),  # a slow filesystem measures badly: no accusation
    ],
)
def test_a_clock_is_judged_by_what_exceeds_the_error_of_measuring(
    nodes: dict[str, dict[str, Any]], ahead: float, error: float, state: str, told: str
) -> None:
    nodes["n0"]["directory"]["met"]["2"].update(clock_s=ahead, clock_error_s=error)
    verdict = checks.check_clocks(nodes)
    assert verdict.state == state
    assert told in verdict.what
    assert verdict.nodes == (() if state == "pass" else ("n2",))


def test_what_needs_two_nodes_is_skipped_on_one(nodes: dict[str, dict[str, Any]]) -> None:
    one = {"n0": {**nodes["n0"], "directory": HEALTHY["directory"]}}
    skipped = [verdict.check for verdict in all_checks(one) if verdict.state == "skip"]
    assert skipped == ["file-visibility", "clocks"]


def test_a_ray_without_tokens_is_a_warning_and_one_before_2_46_a_failure(nodes: dict[str, dict[str, Any]]) -> None:
    for version, state in (("2.46.0", "warn"), ("2.45.9", "fail"), ("2.52.0", "pass")):
        for facts in nodes.values():
            facts["python"]["ray"]["version"] = version
        assert checks.check_ray(nodes).state == state


@pytest.mark.parametrize(
    ("pyxis", "image", "programs", "state"),
    [
        (True, "img", {}, "pass"),
        (False, "img", {"apptainer": "/usr/bin/apptainer"}, "pass"),
        (False, "img", {}, "fail"),
        (False, "img", {"enroot": "/usr/bin/enroot"}, "fail"),  # of no use without pyxis
        (False, None, {}, "skip"),
    ],
)
def test_a_container_runtime_is_needed_only_by_a_job_with_an_image(
    nodes: dict[str, dict[str, Any]], pyxis: bool, image: str | None, programs: dict[str, str], state: str
) -> None:
    for facts in nodes.values():
        facts["programs"] = programs
    assert checks.check_containers(pyxis, image, nodes).state == state
