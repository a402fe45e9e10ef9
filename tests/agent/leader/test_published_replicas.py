"""Lists of replicas that programs publish, as the leader reads them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from muster.agent.leader.published_replicas import PublishedReplicas, ReplicaList
from muster.rundir import RunPaths


def publish(path: str, **record: Any) -> None:
    Path(path).parent.mkdir(exist_ok=True, parents=True)
    Path(path + ".new").write_text(json.dumps(record))
    os.replace(path + ".new", path)


def test_a_list_is_returned_once_for_each_change_and_not_one_of_another_cycle(tmp_path: Path) -> None:
    attempt = RunPaths(str(tmp_path)).attempt(0)
    published = PublishedReplicas(attempt, ["chat", "judge"])
    assert published.poll(0) == {}
    publish(attempt.endpoint_replicas("chat"), version=7, cycle=0, urls=["http://a:1"])
    assert published.poll(1) == {}
    assert published.poll(0) == {"chat": ReplicaList(7, frozenset({"http://a:1"}))}
    assert published.poll(0) == {}
    publish(attempt.endpoint_replicas("chat"), version=8, cycle=0, urls=[])
    assert published.poll(0) == {"chat": ReplicaList(8)}


def test_a_file_that_is_not_a_list_is_ignored(tmp_path: Path) -> None:
    attempt = RunPaths(str(tmp_path)).attempt(0)
    os.makedirs(attempt.services_dir)
    Path(attempt.endpoint_replicas("chat")).write_text("{")
    assert PublishedReplicas(attempt, ["chat"]).poll(0) == {}
