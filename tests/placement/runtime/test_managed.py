"""Managed programs on real Ray: what they see, how they end, and that nothing of them is left."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.placement.conftest import eventually
from tests.placement.families import family

if TYPE_CHECKING:
    from tests.placement.conftest import Marked

ray = pytest.importorskip("ray")

from muster.placement.errors import SubprocessError
from muster.placement.runtime.managed import NOSET_CUDA_RUNTIME_ENV, ManagedSubprocess, merged_runtime_env

pytestmark = pytest.mark.ray

MANY, GRACE_S = 32, 2.0


def test_a_program_sees_its_gpus_the_nodes_environment_and_what_it_was_given(
    group: Any, marked: Marked, tmp_path: Path
) -> None:
    show = "echo gpus=$CUDA_VISIBLE_DEVICES; echo path=$PATH; echo given=$GIVEN; echo port={port}; exit 3"
    process = ManagedSubprocess.spawn(
        "show",
        group,
        1,
        num_gpus=2,
        command=["sh", "-c", show],
        runtime_dir=str(tmp_path),
        subprocess_env={"GIVEN": "yes {not} ours", **marked.env},
    )
    try:
        assert process.wait(timeout=180) == 3
        log = process.read_log_tail()
        assert re.search(r"gpus=\d,\d\n", log) and "path=/" in log and "given=yes {not} ours\n" in log
        assert f"port={process.facts['port']}\n" in log
        assert (tmp_path / "show.log").read_text() == log
        status = process.status()
        assert status["alive"] is False and status["exit"] == "exited with 3" and status["log_tail"] == log
        assert str(process.error("is gone")).startswith("show: is gone (host ") and "  | gpus=" in str(
            process.error("is gone")
        )
    finally:
        process.stop()


def test_python_args_are_for_the_actors_interpreter_and_a_second_start_appends_to_the_log(
    group: Any, tmp_path: Path
) -> None:
    for _ in range(2):
        process = ManagedSubprocess.spawn(
            "which",
            group,
            0,
            num_gpus=0,
            python_args=["-c", "import sys; print(sys.executable)"],
            runtime_dir=str(tmp_path),
        )
        assert process.wait(timeout=180) == 0
        process.stop()
    assert (tmp_path / "which.log").read_text() == f"{sys.executable}\n" * 2


def test_stop_leaves_nothing_of_the_program_its_group_its_daemons(group: Any, marked: Marked) -> None:
    process = family(group, marked)
    process.stop(timeout_s=0.5)
    assert marked.gone()


def test_a_killed_actor_makes_the_wait_resolve_and_takes_the_program_along(group: Any, marked: Marked) -> None:
    process = family(group, marked, lost_owner_grace=0.2)
    reference = process.run_ref
    ray.kill(process.actor)
    with pytest.raises(ray.exceptions.RayActorError):
        process.wait(timeout=180)
    assert "family: is gone (host " in str(process.error("is gone"))
    assert process.error("is gone").debug_context["log_tail"] == "family complete\n"
    assert ray.wait([reference], timeout=180)[0] == [reference]
    eventually("all to be gone", marked.gone)


def test_processes_that_a_program_leaves_behind_are_killed(group: Any, marked: Marked) -> None:
    away = f"{marked.value}.away"  # made by the process that is left behind, in a session of its own by then
    leave = f"touch {away}; exec sleep 1000"
    process = ManagedSubprocess.spawn(
        "leaves",
        group,
        0,
        num_gpus=0,
        subprocess_env=marked.env,
        command=["sh", "-c", f"setsid sh -c '{leave}' & until [ -e {away} ]; do sleep 0.01; done; exit 0"],
    )
    assert process.wait(timeout=180) == 0
    assert marked.alive() == []
    process.stop()


def test_a_bad_binary_is_an_error_with_its_place_and_leaves_the_name_free(group: Any) -> None:
    for _ in range(2):  # the second time, because the first left nothing
        with pytest.raises(
            SubprocessError, match=r"bad: /no/such/program could not be started: .*No such file"
        ) as caught:
            ManagedSubprocess.spawn("bad", group, 0, num_gpus=0, command=["/no/such/program"])
        assert caught.value.debug_context["host"]


def test_a_name_that_is_taken_is_refused(group: Any) -> None:
    process = ManagedSubprocess.spawn("named", group, 0, num_gpus=0, command=["sleep", "1000"])
    with pytest.raises(SubprocessError, match="already taken"):
        ManagedSubprocess.spawn("named", group, 0, num_gpus=0, command=["sleep", "1000"])
    process.stop()


def test_exactly_one_of_command_and_python_args_is_wanted(group: Any) -> None:
    for arguments in ({}, {"command": ["a"], "python_args": ["b"]}):
        with pytest.raises(ValueError, match="exactly one"):
            ManagedSubprocess.spawn("x", group, 0, num_gpus=0, **arguments)


def test_more_gpus_than_the_bundle_has_are_refused(group: Any) -> None:
    with pytest.raises(ValueError, match="bundle 1 has 2 GPUs, not 3"):
        ManagedSubprocess.spawn("x", group, 1, num_gpus=3, command=["true"])


def test_the_runtime_env_is_merged_into_a_copy() -> None:
    given = {"env_vars": {"A": "1"}, "working_dir": "."}
    merged = merged_runtime_env(given)
    assert merged["env_vars"] == {"A": "1", **NOSET_CUDA_RUNTIME_ENV["env_vars"]} and merged["working_dir"] == "."
    merged_runtime_env(None)["env_vars"]["B"] = "2"
    assert given["env_vars"] == {"A": "1"} and len(NOSET_CUDA_RUNTIME_ENV["env_vars"]) == 1


def test_the_log_of_a_program_whose_node_is_unknown_or_gone_is_empty(ray_cluster: Any) -> None:
    for facts in ({}, {"node_id": "a" * 56}, {"log_file": "/x"}, {"node_id": "a" * 56, "log_file": "/x"}):
        assert ManagedSubprocess("x", None, facts=facts).read_log_tail_on_node() == ""
