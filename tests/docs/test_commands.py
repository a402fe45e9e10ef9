"""Every command and file that README, tutorials, how-to guides and examples show is accepted by this version of Muster.

`muster run` is checked with --dry-run, as on a cluster with pyxis; other commands are parsed. test_quick_start.py
executes the quick start.
"""

from __future__ import annotations

import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from tests.docs.fenced import FencedBlock, ShellCommand, fenced_blocks, shell_commands, shell_text
from tests.fake_slurm import FakeSlurm

from muster.cli.main import cli

REPOSITORY = Path(__file__).parents[2]
PAGES = [
    REPOSITORY / "README.md",
    *sorted((REPOSITORY / "docs" / "tutorials").rglob("*.md")),
    *sorted((REPOSITORY / "docs" / "how-to").rglob("*.md")),
    *sorted((REPOSITORY / "examples").rglob("*.md")),
]
JOB_FILES = sorted((REPOSITORY / "examples").rglob("*/*.yaml"))
BLOCKS = [block for page in PAGES for block in fenced_blocks(page)]
SHELL = [block for block in BLOCKS if block.language in ("bash", "console")]
# Programs that the guides call besides muster; what they are asked to do is checked only for its syntax.
OTHER_PROGRAMS = {
    *("cd", "chmod", "curl", "eval", "export", "kill", "ln", "make", "pip", "python", "python3", "."),
    *("man", "salloc", "sbatch", "squeue", "srun", "sudo", "torchrun"),
}
SUBMITTED = ("run", "render")  # commands that are checked by what they would submit
IMAGES = (".sqsh", ".sif")


def identify(block: FencedBlock) -> str:
    return f"{block.page.relative_to(REPOSITORY)}:{block.line}"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, on a login node of a cluster with pyxis."""
    slurm = FakeSlurm(tmp_path / "slurm")
    srun = tmp_path / "slurm" / "bin" / "srun"
    srun.write_text("#!/bin/sh\necho '  --container-image=IMAGE  [pyxis]'\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slurm.path}:/usr/bin:/bin")
    for name in ("SLURM_JOB_ID", "VIRTUAL_ENV", "CONDA_PREFIX", "MUSTER_RUNS_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("USER", "ann")
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def copy_example(directory: Path, place: Path) -> None:
    """Copy the files of an example, with a file of this machine in place of each image of the cluster."""
    shutil.copytree(directory, place, dirs_exist_ok=True)
    for path in place.glob("*.yaml"):
        content = yaml.safe_load(path.read_text())
        if "container_image" in content:
            content["container_image"] = with_existing_image(content["container_image"], place)
            path.write_text(yaml.safe_dump(content))


def write_files(block: FencedBlock, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the files that the block's page shows, or has beside it; config.yaml is the site's settings."""
    if block.page.is_relative_to(REPOSITORY / "examples"):
        copy_example(block.page.parent, place)
    for shown in fenced_blocks(block.page):
        if shown.file_name is not None:
            path = place / shown.file_name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(shown.text)
            if shown.file_name == "config.yaml":
                monkeypatch.setenv("MUSTER_SITE_CONFIG", str(path))


def with_existing_image(word: str, place: Path) -> str:
    """Return the word, or a file of this machine in place of an image of the cluster."""
    if not word.endswith(IMAGES):
        return word
    image = place / Path(word).name
    image.touch()
    return str(image)


def invoke(words: list[str]) -> str:
    """Run a command of Muster in this process and return its output."""
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, f"{words}: {done.output}"
    return done.output


def parse(words: list[str]) -> click.Context:
    """Parse a command without running it; raise click's error for a word that it does not accept."""
    command: click.Command = cli
    context = click.Context(cli, info_name="muster")
    while isinstance(command, click.Group):
        name, words = words[0], words[1:]
        chosen = command.get_command(context, name)
        assert chosen is not None, f"there is no command {name}"
        command, context = chosen, click.Context(command, parent=context, info_name=name)
    return command.make_context(context.info_name, words, parent=context.parent)


def check(command: ShellCommand, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = command.from_program("muster")
    if words is None:
        assert not command.words or command.words[0] in OTHER_PROGRAMS, command
        for operator, file in pairwise(command.words):
            if operator == ">":
                (place / file).touch()
        return
    for name, value in command.assignments.items():
        monkeypatch.setenv(name, with_existing_image(value, place))
    arguments = [with_existing_image(word, place) for word in words[1:]]
    if arguments[0] in SUBMITTED and "--in" not in arguments:
        dry = ["--dry-run"] if arguments[0] == "run" else []
        script = "#!/bin/bash\\n" if "--json" in arguments else "#!/bin/bash\n"  # in JSON, a newline is escaped
        assert script in invoke([arguments[0], *dry, *arguments[1:]])
    elif arguments[0].startswith("-"):
        assert arguments[0] in ("--help", "--version")
    else:
        parse(arguments)


@pytest.mark.parametrize("block", SHELL, ids=identify)
def test_commands_are_accepted(block: FencedBlock, cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(block, cluster, monkeypatch)
    for command in shell_commands(block):
        check(command, cluster, monkeypatch)


def test_shell_code_has_no_syntax_error() -> None:
    code = "\n".join(f"({shell_text(block)}\n)" for block in SHELL if shell_text(block).strip().strip("#"))
    subprocess.run(["bash", "-n"], input=code, text=True, check=True)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "python"], ids=identify)
def test_python_code_compiles(block: FencedBlock) -> None:
    compile(block.text, block.place, "exec")


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "yaml"], ids=identify)
def test_files_are_valid(block: FencedBlock, cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(block, cluster, monkeypatch)
    assert block.file_name is not None, "its first line must be a comment with the name of the file"
    content: Any = yaml.safe_load(block.text)
    if block.file_name == "config.yaml":
        for profile in content.get("profiles", {}):
            invoke(["config", "show", "--profile", profile])
    else:
        invoke(["run", "--dry-run", "-f", block.file_name])


@pytest.mark.parametrize("path", JOB_FILES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_job_files_of_examples_are_valid(path: Path, cluster: Path) -> None:
    copy_example(path.parent, cluster)
    assert "#!/bin/bash\n" in invoke(["run", "--dry-run", "-f", path.name])


def test_every_example_has_a_page_that_the_list_of_examples_names() -> None:
    listed = (REPOSITORY / "examples" / "README.md").read_text()
    directories = [path for path in (REPOSITORY / "examples").iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert len(directories) > 5 and all((path / "README.md").is_file() for path in directories)
    files = [path.name for path in (REPOSITORY / "examples").iterdir() if path.suffix in (".py", ".yaml")]
    missing = [name for name in files if f"({name})" not in listed]
    assert missing + [path.name for path in directories if f"({path.name}/README.md)" not in listed] == []


def test_every_block_has_a_language_that_a_test_checks() -> None:
    unchecked = [block.place for block in BLOCKS if block.language not in ("bash", "console", "python", "yaml", "text")]
    assert unchecked == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_code_is_fenced(page: Path) -> None:
    """Indented blocks have no language, so that no test would check them."""
    text = page.read_text()
    for block in fenced_blocks(page):
        text = text.replace(block.text, "")
    before, indented = "", []
    for line in text.splitlines():
        if line.startswith("    ") and before == "":
            indented.append(line)
        before = line.strip()
    assert indented == []


@pytest.mark.parametrize(
    "words", [["run", "--nodez", "3", "--", "true"], ["status", "--colour"], ["no-such-command"], ["sandbox", "server"]]
)
def test_a_command_that_does_not_exist_is_found(
    words: list[str], cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((AssertionError, click.ClickException)):
        check(ShellCommand({}, ("muster", *words)), cluster, monkeypatch)
