"""Output of Slurm's commands on a small cluster."""

from __future__ import annotations

ANSWERS = {
    "sinfo --version": "slurm 23.11.4\n",
    "srun --help": "Usage: srun ...\n      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n",
    "scontrol show config": "Configuration data\nSLURM_CONF   = /etc/slurm.conf\nSLURM_VERSION           = 23.11.4\n",
    "scontrol --oneliner show partition": (
        "PartitionName=gpu AllowGroups=ALL Default=YES DefaultTime=01:00:00 MaxNodes=16 MaxTime=1-00:00:00 MinNodes=2"
        " State=UP TotalNodes=20\n"
        "PartitionName=old Default=NO DefaultTime=NONE MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 State=DRAIN"
        " TotalNodes=4\n"
    ),
    "sinfo --noheader --format=%R|%T|%D": "gpu|idle|10\ngpu|allocated|2\ngpu|drained|7\ngpu|idle*|1\nold|idle|4\n",
}


def answer(argv: list[str]) -> str:
    return ANSWERS[" ".join(argv)]
