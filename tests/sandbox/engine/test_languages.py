"""The languages: which are installed, the steps of their programs, and a program of each."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from tests.sandbox.conftest import LEVELS

from muster.sandbox.engine.languages import MAX_ARGUMENT_CHARS, Languages, UnknownLanguage

if TYPE_CHECKING:
    from tests.sandbox.serving import Served

PROGRAMS = {
    "c": '#include <stdio.h>\nint main(void) { int n; scanf("%d", &n); printf("%d\\n", n + 1); return 0; }',
    "cpp": "#include <iostream>\nint main() { int n; std::cin >> n; std::cout << n + 1 << std::endl; }",
    "javascript": "const fs = require('fs'); console.log(Number(fs.readFileSync(0)) + 1);",
    "perl": "print <STDIN> + 1, qq(\\n);",
}
NEEDS = {"c": "gcc", "cpp": "g++", "javascript": "node", "perl": "perl"}


@pytest.mark.parametrize("language", PROGRAMS)
def test_a_program_of_each_language_reads_and_prints(box: Served, language: str) -> None:
    if shutil.which(NEEDS[language]) is None:
        pytest.skip(f"no {NEEDS[language]} here")
    assert box.out(PROGRAMS[language], language, std_input="41", timeout=60) == "42\n"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc here")
def test_a_program_that_does_not_compile_is_an_error_with_the_compiler_s_words(strong: Served) -> None:
    answer = strong.execute("int main(void) { return x; }", "c")
    assert answer["process_status"] == "error" and "undeclared" in answer["stderr"]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc here")
def test_compiling_and_running_share_the_timeout(strong: Served) -> None:
    """That the second step has what the first left is shown in test_engine, where no compiler is timed."""
    answer = strong.execute("int main(void) { for (;;); }", "c", timeout=3)
    assert (answer["process_status"], answer["stderr"]) == ("timeout", "Execution timed out after 3 seconds\n")


def test_a_language_that_is_not_installed_is_told_apart_from_an_unknown_one() -> None:
    languages = Languages("/nowhere")
    assert languages.names == ["ipython", "python"]
    with pytest.raises(UnknownLanguage, match="'cpp' is not installed on this node; there are ipython, python"):
        languages.known("c++")
    with pytest.raises(UnknownLanguage, match="unknown language 'cobol'"):
        languages.known("cobol")


# -- steps ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def languages(tmp_path: Path) -> Languages:
    """Bash, gcc and node, and nothing else."""
    for name in ("bash", "gcc", "node"):
        (tmp_path / name).touch(0o755)
    return Languages(str(tmp_path))


def test_the_languages_are_those_whose_programs_are_there(languages: Languages) -> None:
    assert languages.names == ["ipython", "python", "shell", "c", "javascript"]
    aliases = [languages.known(name) for name in ("py", "python3", "sh", "bash", "js", "nodejs", "node", "c")]
    assert aliases == ["python", "python", "shell", "shell", "javascript", "javascript", "javascript", "c"]


def test_a_python_program_is_one_step_in_the_warm_interpreter(languages: Languages) -> None:
    (step,) = languages.steps("python", "print(1)", b"in", (5, 7), {"f": "eA=="}, {"memory_mb": 9})
    assert step.job == {"do": "python", "code": "print(1)", "files": {"f": "eA=="}, "limits": {"memory_mb": 9}}
    assert (step.timeout, step.stdin) == (7, b"in")


def test_a_script_is_an_argument_unless_it_is_too_long_or_has_a_null_byte(languages: Languages, tmp_path: Path) -> None:
    (step,) = languages.steps("shell", "echo 1", b"", (5, 7))
    assert step.job == {"do": "exec", "argv": [f"{tmp_path}/bash", "-c", "echo 1"]}
    for script in ("true\n" * MAX_ARGUMENT_CHARS, "echo a\0b"):
        (step,) = languages.steps("shell", script, b"", (5, 7))
        assert step.job == {
            "do": "exec",
            "argv": [f"{tmp_path}/bash", "script.sh"],
            "texts": {"script.sh": script},
        }


LEAN = """#!/usr/bin/python3
import mmap, sys
private, no_reserve = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 0x4000
held = mmap.mmap(-1, 16 << 30, flags=private | no_reserve)
print("reserved", flush=True)
for page in range(0, 2 << 30 if "fill" in open(sys.argv[1]).read() else 4096, 4096):
    held[page] = 1
"""


@pytest.fixture
def lean() -> Iterator[str]:
    """A directory that every user can read, with a program of this name."""
    with TemporaryDirectory(prefix="muster-test-", dir="/var/tmp") as place:
        program = Path(place, "lean")
        program.write_text(LEAN)
        for path in (program, program.parent):
            path.chmod(0o755)
        yield place


@pytest.mark.parametrize("level", LEVELS)
def test_lean_may_reserve_more_memory_than_it_may_use(own: Callable[..., Served], level: str, lean: str) -> None:
    served = own(level, memory_mb=256, read_only=[lean], env={"PATH": f"{lean}:/usr/bin:/bin"})
    assert served.out("theorem", "lean4") == "reserved\n"
    assert served.out("theorem", "lean4", memory_mb=100) == "reserved\n"
    answer = served.execute("fill", "lean4", report=True, timeout=100)
    assert (answer["process_status"], answer["reason"]) == ("error", "memory"), answer
    assert "MemoryError" in served.execute("x = bytearray(1 << 30)")["stderr"]  # not for other languages


def test_a_compiled_language_has_two_steps_and_only_the_second_reads_the_input(
    languages: Languages, tmp_path: Path
) -> None:
    compiling, running = languages.steps("c", "int main;", b"in", (5, 7), {"f": "eA=="}, {"memory_mb": 9})
    assert compiling.job["argv"][:2] == [f"{tmp_path}/gcc", "-O2"] and "main.c" in compiling.job["argv"]
    assert (compiling.job["texts"], compiling.job["files"]) == ({"main.c": "int main;"}, {"f": "eA=="})
    assert (compiling.timeout, compiling.stdin, running.timeout, running.stdin) == (5, b"", 7, b"in")
    assert running.job == {"do": "exec", "argv": ["./program"], "limits": {"memory_mb": 9}}
