"""Detection and redaction of secrets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.rundir.redaction import looks_secret, redact_words, redacted, scrubbed, secret_values

NAMES = """
WANDB_API_KEY HF_TOKEN GITHUB_TOKEN AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID PGPASSWORD MYSQL_PASSWD DB_PWD
openai_api_key api-key apiKey trainer.apiKey --password client_secret GOOGLE_APPLICATION_CREDENTIALS SSH_PRIVATE_KEY
REGISTRY_AUTH AUTH_TOKEN VAULT_PASSPHRASE azure-storage-account-key SECRETS
"""
INNOCENTS = """
MONKEY KEYBOARD TOKENIZERS_PARALLELISM MAX_TOKENS max-new-tokens eos_token pad_token_id TOKEN_LIMIT PWD OLDPWD
SSH_AUTH_SOCK RAY_AUTH_MODE RAY_AUTH_TOKEN_PATH require-auth PATH HOME AUTHOR PRIMARY_KEY sort-key COMPASS bypass
num_tokens_per_batch XAUTHORITY SECRETARY HF_HOME PASSENGERS SLURM_JOB_ID
"""


@pytest.mark.parametrize("name", NAMES.split())
def test_names_of_secrets_are_known(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", INNOCENTS.split())
def test_harmless_names_are_not_redacted(name: str) -> None:
    assert not looks_secret(name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("python x.py --api-key=xyz --lr 3", "python x.py --api-key=*** --lr 3"),
        ("login --password 'a b' now", "login --password *** now"),
        ('{"api_key": "xyz", "n": 1}', '{"api_key": ***, "n": 1}'),
        ("export HF_TOKEN=abc; run", "export HF_TOKEN=*** run"),
        ("export=ALL,HF_TOKEN=abc", "export=ALL,HF_TOKEN=***"),
        ("git clone https://ann:pw1@host/x.git", "git clone https://***@host/x.git"),
        ("https://ann:p@ss@host:443/x", "https://***@host:443/x"),
        ("export PASSWORD='$x' DB_PASSWORD=1234", "export PASSWORD=*** DB_PASSWORD=***"),
        ("key is sk-proj-abcdefghijk1234567890", "key is ***"),
        ("hf_abcdefghijklmnopqrstuv and ghp_0123456789abcdefghij", "*** and ***"),
        ("AKIAIOSFODNN7EXAMPLE", "***"),
        ("Authorization: Bearer abcdefgh12345678.x", "Authorization: Bearer ***"),
    ],
)
def test_a_secret_in_a_text_is_hidden_and_the_rest_is_not(text: str, shown: str) -> None:
    assert redacted(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "python train.py --max-tokens 4096 --eos-token </s>",
        'export HF_TOKEN=$(cat ~/.hf) WANDB_API_KEY="$KEY" USE_AUTH=true',
        "http://host:8265/x ssh://git@host 10:30 a@b.c",
        "sk-learn-is-a-library unexpected token: foo; task-abcdefghij1234567890",
        "RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=/runs/r/token",
        "",
    ],
)
def test_a_text_without_secrets_stays_as_it_is(text: str) -> None:
    assert redacted(text) == text
    assert redact_words(["bash", "-c", text]) == ["bash", "-c", text]


@pytest.mark.parametrize(
    "text",
    [
        "--metrics-token FILE  File with the token that a scraper sends.",
        "set --metrics-token or open the page with its own token",
        "`--api-key KEY` and --password is required",
    ],
)
def test_help_about_a_secret_flag_is_not_redacted(text: str) -> None:
    assert redacted(text) == text


def test_arguments_of_a_command_may_hold_secrets_with_blanks_and_quotes() -> None:
    words = ["run", "--env", "PASSWORD=my 'pass' phrase", "--env=API_KEY=$a b", "--token", "$x y", "--quiet", "--token"]
    hidden = ["run", "--env", "PASSWORD=***", "--env=API_KEY=***", "--token", "***", "--quiet", "--token"]
    assert redact_words(words) == hidden
    assert redact_words(["bash", "-c", "HF=1; curl --password pw x"]) == ["bash", "-c", "HF=1; curl --password *** x"]


def test_the_value_of_a_secret_variable_is_hidden_wherever_it_turns_up() -> None:
    known = secret_values(
        {"WANDB_API_KEY": "0123abcd", "HF_TOKEN": "0123abcd-long", "DB_PASSWORD": "x", "HOME": "/root/h"}
    )
    assert known == ("0123abcd-long", "0123abcd")
    assert scrubbed({"a": ["/root/h 0123abcd-long", 7], "b": "x 0123abcd"}, known) == {
        "a": ["/root/h ***", 7],
        "b": "x ***",
    }


@settings(max_examples=30, deadline=None)
@given(text=st.text(), secret=st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=8))
def test_a_known_value_never_survives_and_hiding_twice_changes_nothing(text: str, secret: str) -> None:
    once = redacted(f"{text}{secret}{text}", [secret])
    assert secret not in once
    assert redacted(once, [secret]) == once
