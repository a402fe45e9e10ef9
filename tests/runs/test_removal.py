"""Removable runs: ended and old enough, after one query to Slurm; results stay by default."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.fake_slurm import FakeSlurm
from tests.runs.conftest import FakeRun

from muster.runs.index import all_runs, register_run
from muster.runs.removal import KeptRun, RemovableRun, plan_removals, remove
from muster.runs.status import read_status

MakeRun = Callable[..., FakeRun]
DAY = 86400.0


@pytest.fixture(autouse=True)
def queue(fake_slurm: FakeSlurm) -> FakeSlurm:
    """Slurm, with job 1 in its queue."""
    fake_slurm.knows("1", "PENDING", "/some/script")
    return fake_slurm


def aged(run: FakeRun, days: float) -> FakeRun:
    """As if nothing had been written to it for this long."""
    when = time.time() - days * DAY
    for root, _, names in os.walk(run.root):
        for name in names:
            os.utime(os.path.join(root, name), (when, when))
    return run


def ended(run: FakeRun, days: float = 40, code: int = 0) -> FakeRun:
    return aged(run.submitted(kind="local", pid=1, host="h").begins().publishes("x").ends(code, "over"), days)


def decide(runs: Sequence[FakeRun], days: float = 30, keep: int = 0, with_output: bool = False) -> dict[str, str]:
    """By run: goes, or why it stays."""
    decided = plan_removals(runs, time.time() - days * DAY, keep, with_output)
    return {each.run.run_id: each.reason if isinstance(each, KeptRun) else "goes" for each in decided}


def clean(run: FakeRun, with_output: bool = False) -> RemovableRun:
    (only,) = plan_removals([run], time.time() - 30 * DAY, 0, with_output)
    assert isinstance(only, RemovableRun)
    remove(only)
    return only


def test_runs_that_ended_long_ago_go_and_younger_ones_stay(make_run: MakeRun) -> None:
    assert decide([ended(make_run("old"), 31), ended(make_run("young"), 29)]) == {"old": "goes"}


def test_the_newest_stay_whatever_their_age(make_run: MakeRun) -> None:
    runs = [ended(make_run(name)) for name in ("a", "b", "c")]
    assert decide(runs, keep=2) == {"a": "goes"}
    assert decide(runs, keep=5) == {}


def test_slurm_is_asked_once_for_all_and_a_job_in_its_queue_stays(make_run: MakeRun, queue: FakeSlurm) -> None:
    silent = [aged(make_run(f"job-{n}").submitted(job_id=str(n)).begins(), 40) for n in range(4)]
    requeued = aged(make_run("requeued").submitted(job_id="1").begins().ends(143, "preempted"), 40)
    live = "is in Slurm's queue as job 1"
    expected = {"job-0": "goes", "job-1": live, "job-2": "goes", "job-3": "goes", "requeued": live}
    assert decide([*silent, requeued]) == expected
    assert len(queue.calls) == 1


def test_a_run_stays_while_a_later_job_of_its_chain_waits(make_run: MakeRun) -> None:
    chain = make_run("chain").submitted(job_id="0", job_ids=["0", "1"]).begins().ends(1, "the driver exited with 1")
    assert decide([aged(chain, 40)]) == {"chain": "is in Slurm's queue as job 1"}


def test_slurm_is_not_asked_for_the_sake_of_young_or_local_runs(make_run: MakeRun, queue: FakeSlurm) -> None:
    decide([ended(make_run("local")), aged(make_run("young").submitted(job_id="7").begins(), 1)])
    assert queue.calls == []


def test_a_further_job_of_the_same_script_keeps_the_run(make_run: MakeRun, queue: FakeSlurm) -> None:
    run = aged(make_run("chain").submitted(job_id="5").begins().ends(1, "x"), 40)
    queue.knows("6", "PENDING", run.script)
    assert decide([run]) == {"chain": "is in Slurm's queue as job 5"}


def test_where_slurm_cannot_be_asked_its_runs_stay(make_run: MakeRun, queue: FakeSlurm) -> None:
    queue.refuses("squeue: error: Unable to contact slurm controller")
    run = aged(make_run("a").submitted(job_id="5").begins().ends(0, "x"), 40)
    assert decide([run]) == {"a": "is a Slurm job, and Slurm does not answer whether it has ended"}


def test_a_run_on_another_cluster_is_searched_there(make_run: MakeRun, queue: FakeSlurm) -> None:
    away = [
        aged(make_run(f"away-{n}").submitted(job_id=str(n), cluster="away").begins().ends(0, "x"), 40) for n in (1, 2)
    ]
    queue.knows("2", "RUNNING", away[1].script, cluster="away")
    assert decide(away) == {"away-1": "goes", "away-2": "is in Slurm's queue as job 2"}
    assert len(queue.calls) == 1 and "--clusters=away" in queue.calls[0]


def test_a_local_run_whose_process_is_there_or_elsewhere_stays(make_run: MakeRun) -> None:
    here = os.uname().nodename
    live = make_run("live").submitted(kind="local", pid=os.getpid(), host=here).begins()
    killed = make_run("killed").submitted(kind="local", pid=2**22 + 1, host=here).begins()
    elsewhere = make_run("elsewhere").submitted(kind="local", pid=2**22 + 1, host="other").begins()
    decided = decide([aged(run, 40) for run in (live, killed, elsewhere)])
    assert decided == {"live": f"may still run on {here}", "killed": "goes", "elsewhere": "may still run on other"}


def test_what_is_no_run_of_ours_stays(make_run: MakeRun) -> None:
    no_run = aged(make_run("only-a-job-file"), 40)
    assert decide([no_run]) == {"only-a-job-file": "is not a Muster run directory"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_run_stays(make_run: MakeRun) -> None:
    run = ended(make_run("theirs"))
    os.chown(run.root, 12345, 12345)
    assert decide([run]) == {"theirs": "belongs to another user"}


def test_a_removed_run_is_gone_and_forgotten_but_nothing_beyond_its_links(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "precious").write_text("x")
    run = make_run("a")
    register_run(ended(run))
    for name in ("data", "output", "attempt-0/logs/data"):
        os.symlink(tmp_path / "data", os.path.join(run.root, name))
    assert clean(run).keeps_output  # wherever it leads
    clean(run, with_output=True)
    assert not os.path.lexists(run.root) and not list((tmp_path / "state" / "muster" / "runs").iterdir())
    assert (tmp_path / "data" / "precious").exists()


def test_results_stay_with_the_record_of_the_run_and_are_not_listed_again(make_run: MakeRun) -> None:
    run = make_run("a")
    os.makedirs(run.output_dir)
    Path(run.output_dir, "model.pt").write_text("weights")
    ended(run.begins(1).publishes("failed", attempt=1).ends(3, "the driver exited with 3", attempt=1))
    done = clean(run)
    assert done.keeps_output and done.frees.files > 0
    assert Path(run.output_dir, "model.pt").read_text() == "weights"
    assert sorted(os.listdir(run.root)) == ["attempt-0", "attempt-1", "job.json", "output", "submission.json"]
    assert sorted(os.listdir(run.attempt(1).root)) == ["outcome", "status-0.json"]
    assert read_status(run)["exit_code"] == 3
    assert decide([run]) == {}
    clean(run, with_output=True)
    assert not os.path.exists(run.root)


def test_an_interrupted_removal_is_done_again(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ended(make_run("a"))
    real = os.unlink

    def interrupted(path: str, *more: object, **options: object) -> None:
        if os.path.basename(path) == "outcome":
            raise KeyboardInterrupt
        real(path, *more, **options)

    monkeypatch.setattr(os, "unlink", interrupted)
    with pytest.raises(KeyboardInterrupt):
        clean(run)
    monkeypatch.setattr(os, "unlink", real)
    (found,) = all_runs(Path(run.root).parent)
    assert found.root == run.root and decide([run]) == {"a": "goes"}
