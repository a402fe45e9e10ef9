"""ray.sub's variables as a job."""

from __future__ import annotations

from muster.spec import load_job
from muster.spec.ray_sub import as_words, job_of

LAUNCH = {
    "COMMAND": 'uv run examples/run_grpo.py --name "it\'s $USER"',
    "CONTAINER": "registry#team/image:1",
    "MOUNTS": "/data:/data,/home/me",
    "GPUS_PER_NODE": "4",
    "CPUS_PER_WORKER": "64",
    "SETUP_COMMAND": "source env.sh && uv sync",
    "BASE_LOG_DIR": "/shared/logs",
}


def test_every_variable_of_a_launch_becomes_a_field() -> None:
    found = job_of(LAUNCH)
    spec = load_job(None, found.fields)
    assert found.notes == []
    assert spec.command == ["bash", "-c", LAUNCH["COMMAND"]]
    assert (spec.container_image, spec.container_mounts) == (LAUNCH["CONTAINER"], LAUNCH["MOUNTS"])
    assert (spec.gpus_per_node, spec.cpus_per_node, spec.exclusive) == (4, 64, True)
    assert (spec.setup, spec.runs_dir) == (LAUNCH["SETUP_COMMAND"], "/shared/logs")


def test_an_empty_variable_counts_as_not_set() -> None:
    assert "command" not in job_of({"COMMAND": "", "GPUS_PER_NODE": "8"}).fields


def test_the_container_has_a_uv_cache_of_its_own() -> None:
    fields = job_of({**LAUNCH, "UV_CACHE_DIR": "/home/me/.uv", "UV_CACHE_DIR_OVERRIDE": "/shared/uv"}).fields
    assert fields["container_mounts"] == "/data:/data,/home/me,/shared/uv:/root/.cache/uv"
    assert fields["setup"] == "unset UV_CACHE_DIR\nsource env.sh && uv sync"


def test_a_variable_without_effect_is_named_with_what_replaces_it() -> None:
    notes = job_of({**LAUNCH, "PORT": "6379", "SANDBOX_COMMAND": "serve", "RAY_LOG_SYNC_FREQUENCY": "60"}).notes
    assert [note.split()[0] for note in notes] == ["PORT", "RAY_LOG_SYNC_FREQUENCY", "SANDBOX_COMMAND"]
    assert "--port-base" in notes[0] and "--ray-logs" in notes[1] and "sandbox" in notes[2]


def test_gpus_that_nobody_asked_for_are_pointed_out() -> None:
    without = {name: value for name, value in LAUNCH.items() if name != "GPUS_PER_NODE"}
    assert "GPUS_PER_NODE" in job_of(without).notes[0]
    assert job_of(without, flags=["gres"]).notes == []


def test_what_a_flag_replaces_is_left_out() -> None:
    fields = job_of(LAUNCH, flags=["gres", "container_runtime", "command"]).fields
    assert not {"gpus_per_node", "container_args", "command"} & set(fields)


def test_the_same_job_can_be_written_with_flags() -> None:
    words = as_words(job_of(LAUNCH).fields)
    assert words[-4:] == ["--", "bash", "-c", LAUNCH["COMMAND"]]
    assert {"--gpus-per-node=4", "--exclusive", "--env=RAY_ENABLE_UV_RUN_RUNTIME_ENV=0"} <= set(words)
