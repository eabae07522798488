"""The store on PostgreSQL: the same as on SQLite, with many writers, killed ones and searches that are killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
from sqlalchemy import create_engine, text

from msc_core import MscError
from msc_gym import search
from msc_gym.engine import Measurement, Store
from tests.postgres import server
from tests.test_search import TRIALS, signature
from tests.test_search import start as start_search
from tests.test_store import MEASURED, OLD, WRITER, row


@pytest.fixture(scope="module")
def running():
    with server() as url:
        yield url


@pytest.fixture
def url(running, request):
    """A database of its own."""
    name = f"t{abs(hash(request.node.name))}"
    engine = create_engine(running, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"create database {name}"))
    engine.dispose()
    return running.removesuffix("postgres") + name


def test_rows_come_back(url):
    with Store(url) as store:
        store.put("k", "{}", Measurement("p", error="broken"))
        assert store.get("k") is None and store.failure("k") is not None
        store.put("k", "{}", MEASURED)
        store.put("k", "{}", Measurement("other"))  # the first one stays
        assert store.get("k") == MEASURED and store.failure("k") is None
        for index in (0, 1, 3):  # 2 is missing
            store.put_trial("run", "amc", row(index))
        assert store.trials("run", "amc") == [row(0), row(1)]
        assert store.counts() == {"measurements": 1, "failures": 0, "trials": 3}
    with Store(url) as store:
        assert store.get("k") == MEASURED


def test_an_older_store_is_brought_up_to_date(url):
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql((OLD[1] % MEASURED.to_json()).replace("%", "%%"))
    engine.dispose()
    with Store(url) as store:
        assert store.trials("run", "amc") == [row(0)]
        store.put_trial("run", "amc", row(1))
        assert len(store.trials("run", "amc")) == 2


def test_many_writers_lose_nothing(url):
    command = [sys.executable, "-c", WRITER, url]
    writers = [subprocess.Popen([*command, f"w{i}", "40"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
               for i in range(6)]  # fmt: skip
    for writer in writers:
        _, errors = writer.communicate(timeout=280)
        assert writer.returncode == 0, errors
    with Store(url) as store:
        assert store.counts() == {"measurements": 7 * 40, "failures": 0, "trials": 6 * 40}


def test_a_killed_search_goes_on(url, tiny_job, tiny_task):
    killed = start_search(tiny_job, url, "random")
    assert killed.stdout is not None
    assert [killed.stdout.readline() for _ in range(3)] == ["0\n", "1\n", "2\n"]
    time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    result = search(tiny_task, "random", TRIALS, url, seed=4)
    assert 3 <= result.resumed < TRIALS
    assert signature(result.trials) == signature(search(tiny_task, "random", TRIALS, seed=4).trials)
    with Store(url) as store:
        assert store.counts()["trials"] == TRIALS


def test_what_cannot_be_reached_is_said(running):
    with pytest.raises(MscError, match="store postgresql"):
        Store(running.replace("127.0.0.1:", "127.0.0.1:1"))
