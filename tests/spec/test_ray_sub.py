"""The variables of ray.sub become a job."""

from __future__ import annotations

import pytest

from muster.spec import JobSpec, load_job
from muster.spec.ray_sub import RaySubJob, as_arguments, ray_sub_job

LAUNCH = {
    "COMMAND": 'uv run examples/run_grpo.py --name "it\'s $USER"',
    "CONTAINER": "registry#team/image:1",
    "MOUNTS": "/data:/data,/home/me",
    "GPUS_PER_NODE": "4",
    "CPUS_PER_WORKER": "64",
    "SETUP_COMMAND": "source env.sh && uv sync",
    "BASE_LOG_DIR": "/shared/logs",
}
SANDBOX = {"SANDBOX_CONTAINER": "registry#sandbox:1", "SANDBOX_COMMAND": "/start-with-nginx.sh"}


def load(found: RaySubJob) -> JobSpec:
    return load_job(None, found.fields, found.defaults)


def test_every_variable_of_a_launch_becomes_a_field() -> None:
    found = ray_sub_job(LAUNCH)
    spec = load(found)
    assert found.notes == []
    assert spec.command == ["bash", "-c", LAUNCH["COMMAND"]]
    assert (spec.container_image, spec.container_mounts) == (LAUNCH["CONTAINER"], LAUNCH["MOUNTS"])
    assert (spec.gpus_per_node, spec.cpus_per_node, spec.exclusive) == (4, 64, True)
    assert (spec.setup, spec.runs_dir) == (LAUNCH["SETUP_COMMAND"], "/shared/logs")


def test_an_empty_variable_counts_as_not_set() -> None:
    assert "command" not in ray_sub_job({"COMMAND": "", "GPUS_PER_NODE": "8"}).fields


def test_the_container_has_a_separate_uv_cache() -> None:
    fields = ray_sub_job({**LAUNCH, "UV_CACHE_DIR": "/home/me/.uv", "UV_CACHE_DIR_OVERRIDE": "/shared/uv"}).fields
    assert fields["container_mounts"] == "/data:/data,/home/me,/shared/uv:/root/.cache/uv"
    assert fields["setup"] == "unset UV_CACHE_DIR\nsource env.sh && uv sync"


def test_a_variable_without_effect_is_reported_with_its_replacement() -> None:
    notes = ray_sub_job({**LAUNCH, "PORT": "6379", "SANDBOX_COMMAND": "serve", "RAY_LOG_SYNC_FREQUENCY": "60"}).notes
    assert [note.split()[0] for note in notes] == ["PORT", "RAY_LOG_SYNC_FREQUENCY", "SANDBOX_COMMAND"]
    assert "--port-base" in notes[0] and "--ray-logs" in notes[1] and "SANDBOX_CONTAINER" in notes[2]


@pytest.mark.parametrize(("given", "port"), [({}, 6000), ({"NEMO_SKILLS_SANDBOX_PORT": "6500"}, 6500)])
def test_a_sandbox_becomes_a_service_at_its_clients_port(given: dict[str, str], port: int) -> None:
    found = ray_sub_job({**LAUNCH, **SANDBOX, **given})
    spec = load(found)
    assert spec.services["sandbox"].kind == "sandbox" and spec.services["sandbox"].ports == {"http": port}
    assert found.fields["env"]["NEMO_SKILLS_SANDBOX_PORT"] == str(port)
    notes = "\n".join(found.notes)
    assert (
        "become Muster's sandbox" in notes
        and f"services: {{sandbox: {{kind: sandbox, ports: {{http: {port}}}}}}}" in notes
    )
    assert "do not exist" not in notes and "does not start sandboxes" not in notes
    assert not [word for word in as_arguments(found) if "services" in word]  # there is no such flag


def test_unused_variables_of_a_sandbox_are_reported_with_a_remedy() -> None:
    given = {
        "SANDBOX_EXTRA_MOUNTS": "/a:/a",
        "SANDBOX_ENV_VARS": "A=1",
        "SANDBOX_BASE_PORT": "6001",
        "SANDBOX_NEW": "x",
    }
    notes = ray_sub_job({**LAUNCH, **SANDBOX, **given}).notes
    for name in given:
        assert [note for note in notes if note.startswith(f"{name} has no effect: ")], name


def test_an_incomplete_sandbox_is_not_started_and_reported() -> None:
    for name in SANDBOX:
        found = ray_sub_job({**LAUNCH, name: "x", "NEMO_SKILLS_SANDBOX_PORT": "6100"})
        assert "services" not in found.fields
        assert [note.split()[0] for note in found.notes] == [name, "NEMO_SKILLS_SANDBOX_PORT"]


@pytest.mark.parametrize(("value", "dedicated", "said"), [("1", True, ""), ("0", False, ""), ("yes", False, "only 1")])
def test_a_dedicated_head_keeps_its_cpus_and_another_value_is_reported(value: str, dedicated: bool, said: str) -> None:
    found = ray_sub_job({**LAUNCH, "DEDICATED_RAY_HEAD": value})
    assert load(found).dedicated_head_cpus == dedicated
    assert ("--dedicated-head-cpus" in as_arguments(found)) == dedicated
    assert len(found.notes) == bool(said) and said in "".join(found.notes)


def test_the_legacy_debugger_is_an_argument_of_ray_start() -> None:
    found = ray_sub_job({**LAUNCH, "RAY_DEBUG": "legacy"})
    assert load(found).ray_start_arg == ["--ray-debugger-external"]
    assert "--ray-start-arg=--ray-debugger-external" in as_arguments(found)
    assert load(ray_sub_job({**LAUNCH, "RAY_DEBUG": "1"})).ray_start_arg == []


def test_ray_sub_s_defaults_apply_where_nothing_else_is_given() -> None:
    spec = load(ray_sub_job(LAUNCH))
    assert (spec.gather_timeout, spec.start_timeout) == (1800.0, 1800.0)
    assert spec.ray_unset == ["MPI_*", "OMPI_*", "PMI_*", "PMIX_*", "SLURM_*"]
    assert spec.gpu_affinity_file == "/tmp/nrl_gpu_cpu_affinity"
    assert spec.env == {"OMP_NUM_THREADS": "16", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    found = ray_sub_job({**LAUNCH, "OMP_NUM_THREADS": "4", "NRL_GPU_CPU_AFFINITY_FILE": "/tmp/mine"})
    spec = load_job(None, {**found.fields, "gather_timeout": "5m"}, found.defaults)
    assert (spec.gather_timeout, spec.gpu_affinity_file) == (300.0, "/tmp/mine")
    assert "OMP_NUM_THREADS" not in spec.env  # the nodes get it from the environment of the submission


def test_the_home_directory_is_not_mounted_with_any_runtime() -> None:
    assert ray_sub_job(LAUNCH, flags=["container_runtime"]).fields["container_args"] == "--no-container-mount-home"
    assert "container_args" not in ray_sub_job(LAUNCH, flags=["container_args"]).fields


def test_missing_gpus_are_reported() -> None:
    without = {name: value for name, value in LAUNCH.items() if name != "GPUS_PER_NODE"}
    assert "GPUS_PER_NODE" in ray_sub_job(without).notes[0]
    assert ray_sub_job(without, flags=["gres"]).notes == []


def test_a_field_that_a_flag_replaces_is_omitted() -> None:
    fields = ray_sub_job(LAUNCH, flags=["gres", "container_args", "command"]).fields
    assert not {"gpus_per_node", "container_args", "command"} & set(fields)


def test_the_same_job_can_be_written_with_flags() -> None:
    words = as_arguments(ray_sub_job(LAUNCH))
    assert words[-4:] == ["--", "bash", "-c", LAUNCH["COMMAND"]]
    assert {"--gpus-per-node=4", "--exclusive", "--env=RAY_ENABLE_UV_RUN_RUNTIME_ENV=0"} <= set(words)
