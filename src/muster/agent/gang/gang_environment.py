"""The environment of a gang's processes: ranks and rendezvous address. Pure.

The variables are those of torchrun, so that its programs run unchanged, and those of JAX. GPUs are not divided:
as under torchrun, every process sees all GPUs of its node and uses the one with its LOCAL_RANK.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.agent.gang_part import GangPart
from muster.agent.ray.settings import join_address

ROLE = "default"  # torchrun's default; gangs have one role


def rank_environment(
    base: Mapping[str, str], part: GangPart, local: int, run_id: str, max_restarts: int
) -> dict[str, str]:
    """Return the environment of one process; `base` is common to all processes of the node."""
    rank, size = str(part.rank(local)), str(part.world_size)
    return {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",  # as under torchrun, the user's value wins
        **base,
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(part.procs),
        "GROUP_RANK": str(part.node),
        "GROUP_WORLD_SIZE": str(part.nodes),
        "ROLE_NAME": ROLE,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
        "MASTER_ADDR": part.address,
        "MASTER_PORT": str(part.port),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": str(part.cycle),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 opens the store itself
        "JAX_COORDINATOR_ADDRESS": join_address(part.address, part.port),
        "JAX_NUM_PROCESSES": size,
        "JAX_PROCESS_ID": rank,
    }
