"""The table of languages: names are unique, placeholders are known, sources are prepared."""

from __future__ import annotations

import re

import pytest

from muster.sandbox.engine import language_table
from muster.sandbox.engine.language_table import ALIASES, BY_NAME, CODE, FILE, LANGUAGES, NAME, Toolchain


def test_every_name_and_alias_is_one_language() -> None:
    names = [name for language in LANGUAGES for name in (language.name, *language.aliases)]
    assert len(names) == len(set(names))
    assert set(ALIASES.values()) <= set(BY_NAME)


def test_sandboxfusion_s_languages_are_known() -> None:
    theirs = "python cpp nodejs go go_test java php csharp bash typescript sql rust lua R perl D_ut ruby scala julia"
    more = "pytest junit kotlin_script jest verilog lean swift racket"
    assert {ALIASES.get(name, name) for name in f"{theirs} {more}".split()} <= set(BY_NAME)


def test_commands_have_known_placeholders_only() -> None:
    for language in LANGUAGES:
        for toolchain in language.toolchains:
            words = " ".join((*toolchain.run, *(toolchain.compile or ()), language.file))
            assert set(re.findall(r"\{\w+\}", words)) <= {CODE, FILE, NAME}, language.name
            assert NAME not in words or language.name_pattern, language.name


def test_a_toolchain_requires_the_programs_of_its_commands() -> None:
    made = Toolchain(("./program",), ("cc", "-o", "program"), needs=("/usr/lib/x.jar",))
    assert made.requirements == ("cc", "/usr/lib/x.jar")
    assert Toolchain(("run", FILE), ("run", "-c", FILE)).requirements == ("run",)


@pytest.mark.parametrize(
    ("language", "code", "name"),
    [
        ("junit", "import x;\npublic final class PhoneTest { class Inner {} }", "PhoneTest"),
        ("junit", "class Hidden {}", "Main"),
        ("scala", "// object\nobject  Hello extends App { }\nobject Other", "Hello"),
        ("python", "class A: pass", "Main"),
    ],
)
def test_the_name_of_a_program_is_found_in_it(language: str, code: str, name: str) -> None:
    assert BY_NAME[language].name_in(code) == name


def test_sources_are_prepared() -> None:
    assert language_table.with_php_tag("\n  echo 1;") == "<?php\necho 1;"
    assert language_table.with_php_tag("\n <?php echo 1;") == "<?php echo 1;"
    prepared = language_table.with_implicit_usings("class P {}\n")
    assert prepared.startswith("using System; ") and prepared.count("\n") == 1


def test_java_programs_run_with_assertions() -> None:
    assert all("-ea" in toolchain.run for toolchain in BY_NAME["java"].toolchains)
