"""Jobs with a secret that others could read are refused."""

from __future__ import annotations

from typing import Any

import pytest

from muster.errors import Mistake
from muster.launch.secret_check import refuse_exposed
from muster.spec import JobSpec

SECRET = "hf_abcdefghijklmnop1234"


def job(**fields: Any) -> JobSpec:
    return JobSpec(**{"command": ["true"], **fields})


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"setup": f"export X={SECRET}"}, "--setup"),
        ({"comment": "key-of-the-run", "env": {"API_KEY": "key-of-the-run"}}, "--comment"),
        ({"setup": "PASSWORD=abcdef true", "health_check": SECRET}, "--setup, --health-check"),
        ({"sbatch": {"export": "ALL,HF_TOKEN=abcdef"}}, "--sbatch export"),
    ],
)
def test_the_options_are_named_and_the_secret_is_not(fields: dict[str, Any], options: str) -> None:
    with pytest.raises(Mistake) as raised:
        refuse_exposed(job(**fields))
    text = str(raised.value)
    assert set(text.partition(":")[0].split(", ")) == set(options.split(", "))
    assert not any(secret in text for secret in (SECRET, "abcdef", "key-of-the-run"))


@pytest.mark.parametrize(
    "fields",
    [
        {"command": ["x", "--password", "verysecret1", SECRET]},  # job.json is then readable by the user only
        {"env": {"HF_TOKEN": SECRET}},
        {"services": {"web": {"command": ["x"], "env": {"HF_TOKEN": SECRET}}}},
        {"setup": "export HF_TOKEN=$(cat ~/.hf)"},
        {"setup": "export MAX_TOKENS=4096"},
        {"sbatch": {"exclusive": None, "comment": "tokens"}},
    ],
)
def test_secrets_in_private_files_and_references_to_secrets_are_accepted(fields: dict[str, Any]) -> None:
    refuse_exposed(job(**fields))
