"""A program in every language that is installed: it reads its input, and its failure is one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from muster.sandbox.engine.language_table import LANGUAGES

if TYPE_CHECKING:
    from tests.sandbox.serving import Served

NODE_MODULES = Path(__file__).parents[2] / ".venv" / "languages" / "node_modules"  # of .ci/languages
COMPILE_S = RUN_S = 250.0  # compilers are slow on a busy machine

# Each adds one to the number that it reads and prints it; `{fail}` is replaced by a failing statement.
PROGRAMS = {
    "python": ("print(int(input()) + 1)\n{fail}", "assert 1 == 2"),
    "pypy3": ("print(int(input()) + 1)\n{fail}", "assert 1 == 2"),
    "shell": ("read n; echo $((n + 1)); {fail}", "exit 3"),
    "c": (
        "#include <assert.h>\n#include <stdio.h>\n"
        'int main(void) {{ int n; scanf("%d", &n); printf("%d\\n", n + 1); fflush(stdout); {fail} return 0; }}',
        "assert(1 == 2);",
    ),
    "cpp": (
        "#include <cassert>\n#include <iostream>\n"
        "int main() {{ int n; std::cin >> n; std::cout << n + 1 << std::endl; {fail} }}",
        "assert(1 == 2);",
    ),
    "csharp": (
        "class P {{ static void Main() {{ Console.WriteLine(int.Parse(Console.ReadLine()) + 1); {fail} }} }}",
        "System.Diagnostics.Debug.Assert(1 == 2);",
    ),
    "D_ut": (
        "import std.stdio, std.conv, std.string;\n{fail}\nvoid main() {{ writeln(readln().strip().to!int + 1); }}",
        "unittest {{ assert(1 == 2); }}",
    ),
    "go": (
        'package main\nimport "fmt"\nfunc main() {{ var n int; fmt.Scan(&n); fmt.Println(n + 1); {fail} }}',
        'panic("no")',
    ),
    "java": (
        "import java.util.Scanner;\npublic class Main {{ public static void main(String[] args) {{ "
        "System.out.println(new Scanner(System.in).nextInt() + 1); {fail} }} }}",
        "assert 1 == 2;",
    ),
    "javascript": (
        "console.log(Number(require('fs').readFileSync(0)) + 1); {fail}",
        "require('assert').strictEqual(1, 2)",
    ),
    "typescript": (
        "import fs from 'fs';\nconst n: number = Number(fs.readFileSync(0));\nconsole.log(n + 1); {fail}",
        "throw new Error('no')",
    ),
    "julia": ("println(parse(Int, readline()) + 1); {fail}", 'error("no")'),
    "kotlin_script": ("println(readLine()!!.trim().toInt() + 1); {fail}", 'throw Exception("no")'),
    "lua": ("print(math.tointeger(io.read('n')) + 1) {fail}", "error('no')"),
    "perl": ("print <STDIN> + 1, qq(\\n); {fail}", "die 'no'"),
    "php": ("echo intval(fgets(STDIN)) + 1, PHP_EOL; {fail}", "throw new Exception('no');"),
    "r": ("cat(as.integer(readLines('stdin', 1)) + 1, '\\n', sep=''); {fail}", "stopifnot(1 == 2)"),
    "racket": ("#lang racket\n(displayln (+ 1 (read))) {fail}", '(error "no")'),
    "ruby": ("puts gets.to_i + 1; {fail}", "raise 'no'"),
    "rust": (
        "use std::io;\nfn main() {{ let mut s = String::new(); io::stdin().read_line(&mut s).unwrap();\n"
        'println!("{{}}", s.trim().parse::<i32>().unwrap() + 1); {fail} }}',
        "assert_eq!(1, 2);",
    ),
    "scala": (
        "object Adder {{ def main(args: Array[String]): Unit = {{ "
        "println(scala.io.StdIn.readLine().trim.toInt + 1); {fail} }} }}",
        "assert(1 == 2)",
    ),
    "swift": ("print(Int(readLine()!)! + 1); {fail}", "precondition(1 == 2)"),
}
# They have no input: the first passes, the second fails.
TESTS = {
    "pytest": "def test_it():\n    assert {value} == 1",
    "junit": (
        "import org.junit.jupiter.api.Test;\nimport static org.junit.jupiter.api.Assertions.assertEquals;\n"
        "public class Adder {{}}\nclass AdderTest {{ @Test void adds() {{ assertEquals(1, {value}); }} }}"
    ),
    "jest": "test('it', () => {{ const n: number = {value}; expect(n).toBe(1); }});",
    "go_test": (
        'package main\nimport (\n"testing"\n"github.com/stretchr/testify/assert"\n)\n'
        "func TestIt(t *testing.T) {{ assert.Equal(t, 1, {value}) }}"
    ),
    "sql": "create table t (n int check (n = 1));\ninsert into t values ({value});\nselect n from t;",
    "verilog": 'module tb;\ninitial begin\nif ({value} != 1) $fatal(1, "no");\n$finish;\nend\nendmodule',
    "lean4": "theorem one : 1 = {value} := rfl",
}
QUICK = ("python", "pypy3", "shell", "c", "javascript", "perl", "sql")  # installed in `make test`, and soon compiled


def test_every_language_has_a_program() -> None:
    assert {language.name for language in LANGUAGES} == {"ipython", *PROGRAMS, *TESTS}


@pytest.fixture(scope="module")
def served(serve_for_module: Callable[..., Served]) -> Iterator[Served]:
    settings: dict[str, Any] = {}
    if NODE_MODULES.is_dir():
        path = [str(NODE_MODULES / ".bin"), os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin"]
        env = {"PATH": ":".join(path), "NODE_PATH": str(NODE_MODULES)}
        settings = {"env": env, "read_only": [str(NODE_MODULES)]}
    yield serve_for_module(**settings)


def run(served: Served, language: str, code: str, stdin: str = "") -> dict[str, Any]:
    if language not in served.ask("GET", "/health")["languages"]:
        pytest.skip(f"{language} is not installed")
    times = {"compile_timeout": COMPILE_S, "run_timeout": RUN_S}
    return served.ask(
        "POST",
        "/run_code",
        {"code": code, "language": language, "stdin": stdin, **times},
        patience_s=COMPILE_S + RUN_S + 60,
    )


def by_speed(names: list[str]) -> list[Any]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("language", by_speed(list(PROGRAMS)))
def test_a_program_reads_prints_and_fails(served: Served, language: str) -> None:
    program, failure = PROGRAMS[language]
    answer = run(served, language, program.format(fail=""), "41\n")
    assert (answer["status"], answer["run_result"] and answer["run_result"]["stdout"]) == ("Success", "42\n"), answer
    failed = run(served, language, program.format(fail=failure.format()), "41\n")
    assert (failed["status"], failed["run_result"]["status"]) == ("Failed", "Finished"), failed
    assert failed["run_result"]["return_code"] != 0


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("language", by_speed(list(TESTS)))
def test_a_test_passes_and_fails(served: Served, language: str) -> None:
    program = TESTS[language]
    passed = run(served, language, program.format(value=1))
    assert passed["status"] == "Success", passed
    failed = run(served, language, program.format(value=2))
    assert (failed["status"], failed["run_result"]["status"]) == ("Failed", "Finished"), failed


def test_pypy_s_tracebacks_are_those_of_an_argument(served: Served) -> None:
    if "pypy3" not in served.ask("GET", "/health")["languages"]:
        pytest.skip("pypy3 is not installed")
    answer = served.execute("1 / 0", "pypy3", timeout=RUN_S)
    assert answer == {
        "process_status": "completed",
        "stdout": "",
        "stderr": 'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\n'
        "ZeroDivisionError: division by zero\n",
    }
    answer = served.execute("a = 2\n b = 3", "pypy3", timeout=RUN_S)
    assert answer["stderr"] == '  File "<string>", line 2\n    b = 3\nIndentationError: unexpected indent\n'
