"""Groups of different nodes run on one machine."""

from __future__ import annotations

import json

import pytest
from tests.running import MusterCommand


def test_groups_on_one_machine_are_led_by_the_first_and_recorded_with_what_they_have(muster: MusterCommand) -> None:
    (muster.cwd / "job.yaml").write_text(
        "groups: [{name: big, nodes: 2, gpus_per_node: 4}, {name: small, nodes: 1}]\ngpus_per_node: 1\n"
    )
    words = ["--backend", "local", "--python", muster.python, "--no-ray", "--", "bash", "-c", "echo $MUSTER_GROUP"]
    done = muster("run", "-f", "job.yaml", *words)
    assert (done.returncode, done.stdout) == (0, "big\n"), done.stderr
    assert len(muster.status()["nodes"]) == 3
    job = json.loads((muster.run_dir() / "job.json").read_text())
    assert [(group["name"], group["gpus_per_node"]) for group in job["groups"]] == [("big", 4), ("small", 1)]


MIXED = """
command:
  - python
  - -c
  - |
    import os, ray, urllib.request
    ray.init(log_to_driver=False)
    urls = os.environ["MUSTER_SERVICE_ENGINE_URLS"].split(",")
    print(len(ray.nodes()), [urllib.request.urlopen(url).read().decode() for url in urls])
groups:
  - {name: trainers, nodes: 1, cpus_per_node: 1}
  - {name: engines, nodes: 2, ray: false}
services:
  engine:
    command: |
      printf '%s %s' $MUSTER_GROUP ${RAY_ADDRESS-none} > {dir}/index.html
      exec python -m http.server {http} --bind {address} --directory {dir}
    group: engines
    ports: {http: auto}
"""


@pytest.mark.ray
def test_a_group_without_ray_runs_its_own_command_beside_the_ray_cluster(muster: MusterCommand) -> None:
    (muster.cwd / "job.yaml").write_text(MIXED)
    done = muster("run", "-f", "job.yaml", "--backend", "local", "--python", muster.python)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "1 ['engines none', 'engines none']"
    assert "Ray is up on 1 node; driver started" in done.stderr


def test_render_prints_what_run_would_submit(muster: MusterCommand) -> None:
    words = ["--backend", "local", "--python", muster.python, "--", "true"]
    rendered, dry = muster("render", *words), muster("run", "--dry-run", *words)
    assert rendered.returncode == 0 and rendered.stdout.startswith("#!/bin/bash\n")
    assert len(rendered.stdout.splitlines()) == len(dry.stdout.splitlines())
    assert muster("render", "--to", "job.sh", *words).stdout == ""
    assert (muster.cwd / "job.sh").read_text().startswith("#!/bin/bash\n")
    assert muster.run_dirs() == []


def test_an_idle_cluster_of_ray_sub_is_pointed_to_muster_up(muster: MusterCommand) -> None:
    done = muster("render", "--from-env", "--backend", "local")
    assert done.returncode == 2 and "`muster up`" in done.stderr
