"""The tables of sbatch options: names, refusals and misspellings."""

from __future__ import annotations

import pytest

from muster.spec.sbatch_options import DECIDED, KNOWN, NO_VALUE, SHORT, as_argument, nearest, option_name, refusal


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("partition", "partition"),
        ("p", "partition"),
        ("-p", "partition"),
        ("--mail-type", "mail-type"),
        ("mail_type", "mail-type"),
        (" --mem_per_cpu ", "mem-per-cpu"),
        ("S", "core-spec"),
        ("s", "oversubscribe"),
        ("auks", "auks"),
    ],
)
def test_every_spelling_of_an_option_has_one_long_name(key: str, name: str) -> None:
    assert option_name(key) == name


def test_known_options_and_unfamiliar_ones_of_plugins_are_not_refused() -> None:
    assert [refusal(name) for name in ("mem-per-cpu", "container-image", "auks", "site.x")] == [None] * 4


def test_an_option_that_muster_decides_is_refused_with_its_replacement() -> None:
    assert refusal("chdir") == "cannot be set here: use --workdir"


@pytest.mark.parametrize("name", ["", "mail type", "a=b", "a\nb", "ünter score", "a;b"])
def test_text_that_cannot_be_an_option_is_refused(name: str) -> None:
    assert refusal(name) == f"{name!r} is not the name of an sbatch option"


def test_a_misspelling_is_refused_with_the_nearest_options_best_first() -> None:
    assert refusal("mail-tpye") == "is not an sbatch option; did you mean mail-type?"
    assert nearest("mail-usr") == ["mail-user"]


def test_an_abbreviation_is_refused_with_at_most_three_options_that_begin_with_it() -> None:
    assert nearest("mem-per") == ["mem-per-cpu", "mem-per-gpu"]
    assert nearest("n") == sorted(option for option in KNOWN if option.startswith("n"))[:3]
    assert nearest("xyz") == []


def test_an_option_becomes_one_word_of_the_command_line() -> None:
    assert as_argument("mem", "4G") == "--mem=4G"
    assert as_argument("comment", "two words") == "--comment=two words"
    assert as_argument("requeue", None) == "--requeue"


def test_the_tables_of_sbatch_options_are_consistent() -> None:
    assert set(SHORT.values()) <= KNOWN and NO_VALUE <= KNOWN
    assert set(DECIDED) - KNOWN == {"cpus-per-node"}
    assert all(refusal(option_name(name)) is None for name in KNOWN - set(DECIDED))
