"""The store: whole rows or none, whatever happens to the writers."""

from __future__ import annotations

import csv
import json
import math
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msc_core import MscError
from msc_core.errors import Unavailable
from msc_gym.cli import run as command
from msc_gym.engine import Measurement, Store, TrialRow

MEASURED = Measurement(
    "p1", 0.9, 100, macs=5, params=6, bytes=24, latency_ratio=0.5, latency_interval=(0.4, 0.6), latency_valid=True,
    target="onnxruntime", device="cpu", versions={"torch": "2"}, seconds=0.1,
)  # fmt: skip


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/runs/store.db"  # the folder is made


def row(index: int, reward: float = -0.1) -> TrialRow:
    return TrialRow(index, reward, {"a": 8}, MEASURED)


finite = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None)
@given(
    st.builds(
        Measurement,
        plan=st.text(),
        accuracy=finite,
        samples=st.integers(0),
        macs=st.integers(0, 2**80),
        latency_ratio=st.none() | finite,
        latency_interval=st.none() | st.tuples(finite, finite),
        latency_valid=st.booleans(),
        versions=st.dictionaries(st.text(), st.text()),
        seconds=finite,
        error=st.text(),
    )
)
def test_a_measurement_survives_json_to_the_last_bit(measurement):
    assert Measurement.from_json(measurement.to_json()) == measurement


@pytest.mark.parametrize(
    "change", [{"accuracy": math.nan}, {"latency_ratio": math.inf}, {"latency_interval": (0, math.nan)}]
)
def test_a_measurement_is_finite(change):
    with pytest.raises(MscError, match="not finite"):
        Measurement("p", **change)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"plan": 3}',
        '{"plan": "p", "what": 1}',
        '{"plan": "p", "accuracy": "high"}',
        '{"plan": "p", "accuracy": NaN}',
        '{"plan": "p", "samples": true}',
        '{"plan": "p", "latency_interval": [1]}',
        "[" * 10**5,
    ],
)
def test_what_is_no_measurement_is_refused(text):
    with pytest.raises(MscError):
        Measurement.from_json(text)


@pytest.mark.parametrize("where", ["file", "memory"])
def test_rows_come_back(url, where):
    with Store(url) if where == "file" else Store.memory() as store:
        assert store.get("k") is None
        store.put("k", "{}", MEASURED)
        store.put("k", "{}", Measurement("other"))  # the first one stays
        assert store.get("k") == MEASURED
        for index in (0, 1, 3):  # 2 is missing
            store.put_trial("run", "amc", row(index))
        store.put_trial("run", "amc", row(1, reward=-5))
        store.put_trial("run", "random", row(0))
        assert store.trials("run", "amc") == [row(0), row(1)]
        assert store.trials("other", "amc") == []
        assert store.counts() == {"measurements": 1, "failures": 0, "trials": 4}


def test_a_file_is_kept(url):
    with Store(url) as store:
        store.put("k", "{}", MEASURED)
    with Store(url.removeprefix("sqlite:///")) as store:  # a path will do
        assert store.get("k") == MEASURED
        store.close()
        store.close()
        assert store.get("k") == MEASURED  # opens again


def test_a_reward_is_finite(url):
    with Store(url) as store, pytest.raises(MscError, match="rewards are finite"):
        store.put_trial("run", "amc", row(0, math.nan))


def test_another_schema_is_refused(url):
    Store(url).close()
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute("update msc_gym_schema set version = 99")
    connection.close()
    with pytest.raises(MscError, match="has schema 99; this version reads up to 3"):
        Store(url)


OLD = {  # the tables as earlier versions made them
    1: """
create table msc_gym_schema (id integer primary key, version integer);
insert into msc_gym_schema values (1, 1);
create table measurements ("key" varchar(64) primary key, plan text not null, measurement text not null);
create table trials (run varchar(64), agent varchar(64), "index" integer, plan text not null, reward float not null,
  applied text not null, measurement text not null, primary key (run, agent, "index"));
insert into trials values ('run', 'amc', 0, '{}', -0.1, '{"a": 8}', '%s');
""",
    2: """
create table msc_gym_schema (id integer primary key, version integer);
insert into msc_gym_schema values (1, 2);
create table measurements ("key" varchar(64) primary key, plan text not null, measurement text not null);
create table trials (run varchar(64), agent varchar(64), "index" integer, reward float not null,
  applied text not null, measurement text not null, primary key (run, agent, "index"));
insert into trials values ('run', 'amc', 0, -0.1, '{"a": 8}', '%s');
""",
}


@pytest.mark.parametrize("version", OLD)
def test_an_older_store_is_brought_up_to_date(tmp_path, version):
    path = tmp_path / "store.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(OLD[version] % MEASURED.to_json())
    connection.close()
    for _ in range(2):
        with Store(path) as store:
            assert store.trials("run", "amc")[:1] == [row(0)]
            store.put_trial("run", "amc", row(1))
            assert store.failure("k") is None
    with sqlite3.connect(path) as connection:
        assert connection.execute("select version from msc_gym_schema").fetchall() == [(3,)]
    connection.close()


def test_two_processes_upgrade_one_store(tmp_path):
    path = tmp_path / "store.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(OLD[1] % MEASURED.to_json())
    connection.close()
    program = f"from msc_gym.engine import Store; print(len(Store({str(path)!r}).trials('run', 'amc')))"
    both = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate(timeout=200)[0] for process in both] == ["1\n"] * 4


def test_another_programs_database_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("create table trials (id integer)")
    connection.close()
    with pytest.raises(MscError, match="belongs to another program: it has the tables trials"):
        Store(tmp_path / "other.db")


def test_the_last_failure_is_kept_until_it_is_mended(url):
    with Store(url) as store:
        for reason in ("first", "second"):
            store.put("k", "{}", Measurement("p", error=reason))
        assert store.get("k") is None and store.failure("k") == Measurement("p", error="second")
        store.put("k", "{}", MEASURED)
        assert store.get("k") == MEASURED and store.failure("k") is None


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_trials_come_out_as_a_table(url, tmp_path, suffix, capsys):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow", reason="the package pyarrow is missing")
    with Store(url) as store:
        for index in range(2):
            store.put_trial("run", "amc", row(index))
    out = tmp_path / f"trials{suffix}"
    assert command(["store", "export", url, "--out", str(out)]) == 0 and "2 trials" in capsys.readouterr().out
    if suffix == ".csv":
        found = list(csv.DictReader(out.read_text().splitlines()))
    else:
        from pyarrow import parquet

        found = parquet.read_table(out).to_pylist()
    assert [(int(r["index"]), r["agent"], float(r["accuracy"]), json.loads(r["choices"])) for r in found] == [
        (0, "amc", 0.9, {"a": 8}), (1, "amc", 0.9, {"a": 8}),
    ]  # fmt: skip
    assert float(found[0]["latency_low"]) == 0.4 and json.loads(found[0]["versions"]) == {"torch": "2"}


def test_what_the_store_commands_refuse(url, tmp_path, capsys):
    Store(url).close()
    for arguments, message in (
        (["info", str(tmp_path / "none.db")], "no such store"),
        (["export", url, "--out", "trials.xls"], "expected a name that ends in .csv or .parquet"),
        (["export", url, "--out", "trials.csv"], "has no trials"),
    ):
        assert command(["store", *arguments]) == 2 and message in capsys.readouterr().err
    assert command(["store", "info", url]) == 0 and "failures     0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nonsense://x", "is not a database URL"),
        ("://", "is not a database URL"),
        ("sqlite:////proc/none/store.db", "/proc/none"),
        ("sqlite:////proc/version", "file is not a database|unable to open"),
    ],
)
def test_what_is_no_store_is_refused(name, message):
    with pytest.raises(MscError, match=message) as error:
        Store(name)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "text.db").write_text("this is no database, however long it may be " * 100)
    with pytest.raises(MscError, match="not a database"):
        Store(tmp_path / "text.db")


def test_a_missing_driver_is_named():
    with pytest.raises(Unavailable, match=r"install its driver: pip install \w+$"):
        Store("mssql+pymssql://user:secret@localhost/db")


def test_a_password_is_not_shown():
    store = Store.__new__(Store)
    store.url = "postgresql://user:secret@host/db"
    assert "secret" not in store.safe_url


def test_a_tampered_row_is_refused(url):
    with Store(url) as store:
        store.put("k", "{}", MEASURED)
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            connection.execute("update measurements set measurement = '{\"plan\": 1}'")
        connection.close()
        with pytest.raises(MscError, match="not a measurement"):
            store.get("k")


# Several processes

WRITER = """
import sys
from msc_gym.engine import Measurement, Store, TrialRow
url, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = Store(url)
for i in range(count):
    store.put(f"shared-{i}", "{}", Measurement("p", samples=i))
    store.put(f"{name}-{i}", "{}", Measurement("p", samples=i))
    store.put_trial("run", name, TrialRow(i, -0.5, {"a": i}, Measurement("p", samples=i)))
    print(i, flush=True)
"""


def start(url: str, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, url, name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_many_writers_lose_nothing(url):
    writers = [start(url, f"w{i}", 40) for i in range(12)]  # they also race to make the file
    for writer in writers:
        _, errors = writer.communicate(timeout=280)
        assert writer.returncode == 0, errors
    with Store(url) as store:
        assert store.counts() == {"measurements": 13 * 40, "failures": 0, "trials": 12 * 40}
        assert all(len(store.trials("run", f"w{i}")) == 40 for i in range(12))


def test_a_killed_writer_leaves_whole_rows(url):
    Store(url).close()
    writer = start(url, "w", 10**6)
    assert writer.stdout is not None
    told = [int(writer.stdout.readline()) for _ in range(20)]
    time.sleep(0.05)
    writer.send_signal(signal.SIGKILL)
    told += [int(line) for line in writer.communicate()[0].split()]
    with Store(url) as store:
        trials = store.trials("run", "w")
        assert len(trials) >= len(told)  # what was acknowledged is there
        assert [t.measurement.samples for t in trials] == list(range(len(trials)))
        store.put("after", "{}", MEASURED)  # and nobody holds a lock
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
    connection.close()


def _use_in_fork(store: Store, name: str) -> None:
    store.put(name, "{}", MEASURED)
    os._exit(0 if store.get("parent") == MEASURED else 1)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_store_may_cross_into_another_process(url, method):
    with Store(url) as store:
        store.put("parent", "{}", MEASURED)
        child = multiprocessing.get_context(method).Process(target=_use_in_fork, args=(store, method))
        child.start()
        child.join(120)
        assert child.exitcode == 0
        assert store.get(method) == MEASURED


def test_a_writer_waits_for_a_lock(url):
    with Store(url) as store:
        path = url.removeprefix("sqlite:///")
        hold = (
            f"import sqlite3, time; c = sqlite3.connect({path!r}, isolation_level=None); c.execute('begin immediate')"
        )
        holder = subprocess.Popen(
            [sys.executable, "-c", f"{hold}; print(1, flush=True); time.sleep(1); c.execute('commit')"],
            stdout=subprocess.PIPE,
        )
        assert holder.stdout is not None
        holder.stdout.readline()
        store.put("k", "{}", MEASURED)
        assert store.get("k") == MEASURED
        holder.communicate()
