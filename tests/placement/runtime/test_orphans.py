"""Programs that outlive a connection: found again, or stopped by their names. On real Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.placement.conftest import connect
from tests.placement.families import family

if TYPE_CHECKING:
    from tests.placement.conftest import Marked


ray = pytest.importorskip("ray")

from muster.placement.runtime import orphans
from muster.placement.runtime.managed import ManagedSubprocess

pytestmark = pytest.mark.ray


def test_a_detached_program_survives_its_driver_and_is_found_again(
    ray_cluster: Any, group: Any, marked: Marked
) -> None:

    live = family(group, marked, label="kept", actor_name_prefix="ours")
    gone = ManagedSubprocess("never_there", live.actor)
    ray.shutdown()
    assert len(marked.alive()) >= 4
    connect(ray_cluster)
    found = orphans.reacquire_detached_actor_handles([live, gone], actor_name_prefix="ours")
    assert found == [live] and live.is_alive()
    live.stop(timeout_s=0.2)
    assert marked.gone()


def test_a_sweep_by_prefix_stops_what_matches_and_nothing_else(group: Any, marked: Marked) -> None:
    _, other = (
        ManagedSubprocess.spawn("it", group, 0, num_gpus=0, command=["sleep", "1000"], actor_name_prefix=prefix)
        for prefix in ("mine", "other")
    )
    assert orphans.sweep_orphan_actors_by_prefix(prefix="mine_") == 1
    assert orphans.sweep_orphan_actors_by_prefix(prefix="mine_") == 0
    assert other.is_alive()
    other.stop()
    with pytest.raises(ValueError, match="empty prefix"):
        orphans.sweep_orphan_actors_by_prefix(prefix="")
