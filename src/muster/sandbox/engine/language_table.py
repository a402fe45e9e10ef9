"""The table of languages: for each its names, its source file, and the commands that compile and run a program in it.

This is the only place where a language is defined. `python -m tests.docs.reference` writes it to
docs/reference/sandbox.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

IPYTHON, PYTHON = "ipython", "python"
CODE, FILE, NAME = "{code}", "{file}", "{name}"  # in commands: the program itself, its file, a name found in it

NODE_ENVIRONMENT = {"NODE_PATH": "/usr/local/lib/node_modules:/usr/lib/node_modules:/usr/share/nodejs"}
# Without a go.mod, imports are found where Debian's packages put libraries.
GO_ENVIRONMENT = {"GO111MODULE": "auto", "GOPATH": "/usr/share/gocode", "GOFLAGS": "-mod=mod", "GOPROXY": "off"}
JAVA_CLASS_PATH = ".:*:/usr/share/java/javatuples.jar"  # the files of a program, and a library that its tests may use
JUNIT_JAR = "/usr/share/java/junit-platform-console-standalone.jar"


@dataclass(frozen=True)
class Toolchain:
    """One way to run programs: the command that runs them, and the compiler's if there is one.

    It is available if the first word of each command, and everything in `needs`, is installed: an executable on the
    PATH of programs, or a path.
    """

    run: tuple[str, ...]
    compile: tuple[str, ...] | None = None
    needs: tuple[str, ...] = ()
    packages: str = ""  # that provide it: Debian's, or npm's and PyPI's with a prefix

    @property
    def requirements(self) -> tuple[str, ...]:
        commands = [command for command in (self.compile, self.run) if command is not None]
        first_words = [command[0] for command in commands if not command[0].startswith("./")]
        return tuple(dict.fromkeys([*first_words, *self.needs]))


@dataclass(frozen=True)
class Language:
    """A language. The first of its toolchains that is available is used; without any, the warm interpreter runs it."""

    name: str
    file: str
    toolchains: tuple[Toolchain, ...] = ()
    aliases: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)  # further files of each program
    name_pattern: str | None = None  # its first group is NAME in file names and commands; "Main" if it is not found
    prepare: Callable[[str], str] = str  # changes the source before it is written
    reserves_memory: bool = False  # much more than it uses: only what the whole tree uses is limited
    note: str = ""  # for the documentation

    def name_in(self, code: str) -> str:
        found = re.search(self.name_pattern, code) if self.name_pattern else None
        return found[1] if found else "Main"


def with_php_tag(code: str) -> str:
    """Return PHP code with its opening tag, and nothing before it that would be printed."""
    code = code.lstrip()
    return code if code.startswith("<?") else f"<?php\n{code}"


def with_implicit_usings(code: str) -> str:
    """Return C# code with the namespaces that .NET projects import by default; line numbers stay."""
    names = ("System", "System.Collections.Generic", "System.IO", "System.Linq", "System.Threading")
    return "".join(f"using {name}; " for name in (*names, "System.Threading.Tasks")) + code


# Mono ignores failed assertions unless a debugger is attached; .NET ends the process.
CSHARP_DEBUG = """namespace System.Diagnostics {
    public static class Debug {
        public static void Assert(bool condition) { if (!condition) Fail(""); }
        public static void Assert(bool condition, string message) { if (!condition) Fail(message); }
        public static void Assert(bool condition, string message, string detail) {
            if (!condition) Fail(message + "\\n" + detail);
        }
        public static void Fail(string message) {
            Console.Error.WriteLine("Process terminated. Assertion failed.\\n" + message + "\\n" + new StackTrace(2));
            Environment.Exit(134);
        }
        public static void Print(string message) {}
        public static void Write(object value) {}
        public static void WriteLine(object value) {}
        public static void WriteLine(string format, params object[] values) {}
    }
}
"""
# `npm install -g` puts babel-jest below jest, a local installation beside it.
JEST_CONFIGURATION = """const places = process.env.NODE_PATH.split(":");
const preset = name => require.resolve(name, { paths: [...places, ...places.map(place => place + "/jest")] });
module.exports = {
  maxWorkers: 2,
  modulePaths: places,
  testMatch: ["**/*.test.[jt]s?(x)"],
  transform: {
    "\\\\.[jt]sx?$": [preset("babel-jest"), {
      presets: [
        [preset("@babel/preset-env"), { targets: { node: "current" } }],
        preset("@babel/preset-typescript"),
      ],
    }],
  },
};
"""

LANGUAGES = (
    Language(IPYTHON, "", note="sessions; IPython where the interpreter has it"),
    Language(PYTHON, "main.py", aliases=("python3", "py")),
    Language("pypy3", "main.py", (Toolchain(("pypy3", "-c", CODE), packages="pypy3"),), ("pypy",)),
    Language(
        "pytest",
        "test_main.py",
        (Toolchain(("pytest", "-p", "no:cacheprovider", FILE), packages="PyPI: pytest"),),
        note="of the interpreter (`--python`) if it has it",
    ),
    Language("shell", "script.sh", (Toolchain(("bash", "-c", CODE), packages="bash"),), ("bash", "sh")),
    Language(
        "c",
        "main.c",
        (
            Toolchain(
                ("./program",), ("gcc", "-O2", "-o", "program", FILE, "-lm", "-pthread"), packages="gcc libc6-dev"
            ),
        ),
    ),
    Language(
        "cpp",
        "main.cpp",
        (Toolchain(("./program",), ("g++", "-std=c++17", "-O2", "-o", "program", FILE, "-pthread"), packages="g++"),),
        ("c++",),
    ),
    Language(
        "csharp",
        "main.cs",
        (
            Toolchain(
                ("mono", "program.exe"),
                ("mcs", "-langversion:latest", "-nowarn:105,436", "-out:program.exe", FILE, "debug.cs"),
                packages="mono-mcs mono-runtime",
            ),
        ),
        ("c#", "cs"),
        texts={"debug.cs": CSHARP_DEBUG},
        prepare=with_implicit_usings,
        note="`Debug.Assert` ends the program, as in .NET",
    ),
    Language(
        "D_ut",
        "main.d",
        (
            Toolchain(("./program",), ("ldc2", "-unittest", "-of=program", FILE), packages="ldc"),
            Toolchain(("./program",), ("dmd", "-unittest", "-of=program", FILE)),
        ),
        ("d",),
        note="with unit tests",
    ),
    Language(
        "go",
        "main.go",
        (Toolchain(("./program",), ("go", "build", "-o", "program", FILE), packages="golang-go"),),
        environment=GO_ENVIRONMENT,
    ),
    Language(
        "go_test",
        "main_test.go",
        (Toolchain(("go", "test", FILE), packages="golang-go golang-github-stretchr-testify-dev"),),
        environment=GO_ENVIRONMENT,
    ),
    Language(
        "java",
        "Main.java",
        (
            Toolchain(
                ("java", "-cp", JAVA_CLASS_PATH, "-ea", "Main"),
                ("javac", "-cp", JAVA_CLASS_PATH, FILE),
                packages="default-jdk-headless libjavatuples-java",
            ),
        ),
        note="class `Main`, assertions enabled; `*.jar` of `files` are on the class path",
    ),
    Language(
        "junit",
        f"{NAME}.java",
        (
            Toolchain(
                ("java", "-jar", JUNIT_JAR, "-cp", ".", "--scan-class-path", "-n", ".*", "--fail-if-no-tests"),
                ("bash", "-c", f"javac -cp '.:*:{JUNIT_JAR}' *.java"),
                needs=("javac", JUNIT_JAR),
                packages="default-jdk-headless junit5",
            ),
        ),
        name_pattern=r"public\s+(?:(?:final|abstract)\s+)*(?:class|interface|enum|record)\s+(\w+)",
        note="JUnit 5; without a test the run fails",
    ),
    Language(
        "javascript",
        "main.js",
        (Toolchain(("node", FILE), packages="nodejs"),),
        ("js", "nodejs", "node"),
        NODE_ENVIRONMENT,
    ),
    Language(
        "typescript",
        "main.ts",
        (
            Toolchain(("tsx", FILE), needs=("node",), packages="nodejs, npm: tsx"),
            Toolchain(
                ("node", "main.js"),
                ("tsc", "--target", "es2022", "--module", "commonjs", "--esModuleInterop", "--skipLibCheck", FILE),
                packages="nodejs node-typescript",
            ),
        ),
        ("ts",),
        NODE_ENVIRONMENT,
    ),
    Language(
        "jest",
        "main.test.ts",
        (
            Toolchain(
                ("jest", "--colors=false", "--json", "--outputFile=jest-report.json"),
                needs=("node",),
                packages="nodejs, npm: jest @jest/globals @babel/core @babel/preset-env @babel/preset-typescript",
            ),
        ),
        environment=NODE_ENVIRONMENT,
        texts={"jest.config.js": JEST_CONFIGURATION},
    ),
    Language("julia", "main.jl", (Toolchain(("julia", "--startup-file=no", FILE)),), ("jl",)),
    Language("kotlin_script", "main.kts", (Toolchain(("kotlinc", "-script", FILE), packages="kotlin"),), ("kts",)),
    Language(
        "lean4",
        "main.lean",
        (Toolchain(("lean", FILE)),),
        ("lean",),
        reserves_memory=True,
        note="see [Lean 4](#lean-4)",
    ),
    Language(
        "lua",
        "main.lua",
        tuple(
            Toolchain((name, FILE), packages="lua5.4 lua-unit" * (name == "lua"))
            for name in ("lua", "lua5.4", "lua5.3")
        ),
    ),
    Language("perl", "main.pl", (Toolchain(("perl", FILE), packages="perl libtest-deep-perl libdata-compare-perl"),)),
    Language("php", "main.php", (Toolchain(("php", FILE), packages="php-cli php-readline"),), prepare=with_php_tag),
    Language("r", "main.R", (Toolchain(("Rscript", "--vanilla", FILE), packages="r-base-core"),), ("R",)),
    Language("racket", "main.rkt", (Toolchain(("racket", FILE), packages="racket"),), ("rkt",)),
    Language("ruby", "main.rb", (Toolchain(("ruby", FILE), packages="ruby ruby-test-unit"),), ("rb",)),
    Language(
        "rust",
        "main.rs",
        (Toolchain(("./program",), ("rustc", "-O", "-o", "program", FILE), packages="rustc"),),
        ("rs",),
    ),
    Language(
        "scala",
        "main.scala",
        (Toolchain(("scala", NAME), ("scalac", FILE), packages="scala"),),
        name_pattern=r"(?m)^[ \t]*(?:case[ \t]+)?object[ \t]+(\w+)",
        note="the first `object` is run",
    ),
    Language(
        "sql",
        "main.sql",
        (Toolchain(("sqlite3", "-batch", "-bail", ":memory:", f".read {FILE}"), packages="sqlite3"),),
        ("sqlite",),
        note="an empty SQLite database",
    ),
    Language(
        "swift",
        "main.swift",
        (Toolchain(("./program",), ("swiftc", "-o", "program", FILE), packages="swiftlang (from Debian 13)"),),
    ),
    Language(
        "verilog",
        "main.sv",
        (
            Toolchain(
                ("vvp", "-n", "program.vvp"),
                ("iverilog", "-Wall", "-Winfloop", "-Wno-timescale", "-g2012", "-s", "tb", "-o", "program.vvp", FILE),
                packages="iverilog",
            ),
        ),
        note="the module `tb` is run",
    ),
)
BY_NAME = {language.name: language for language in LANGUAGES}
ALIASES = {alias: language.name for language in LANGUAGES for alias in language.aliases}
