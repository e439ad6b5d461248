"""What every object store does; `make test-s3 S3_ENDPOINT=…` asks a server of yours."""

import errno
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import SecretStr

from pumphouse.errors import ConfigError, ObjectExists, ObjectNotFound, StoreError, StoreUnavailable, UnsafeStore
from pumphouse.objectstore.file import FileStore
from pumphouse.objectstore.open import open_store
from pumphouse.objectstore.prefix import PrefixStore
from pumphouse.objectstore.probe import probe_conditional_puts, put_again, refuse_losing
from pumphouse.settings import ArchiveSettings
from tests.support.faultys3 import Fault, FaultyS3, impatient
from tests.support.memorystore import CarelessStore, MemoryStore
from tests.support.motoserver import s3_server
from tests.support.oddstore import OddStore

__all__ = ["impatient"]


@pytest.fixture(scope="module")
def s3():
    with s3_server() as server:
        yield server


@pytest.fixture(params=["file", "memory", "s3"])
def store(request, tmp_path):
    if request.param == "file":
        return FileStore(tmp_path / "archive")
    if request.param == "memory":
        return MemoryStore()
    return open_store(request.getfixturevalue("s3").archive_settings())


@pytest.mark.row("A1")
def test_what_a_directory_holds_is_for_its_user_alone(tmp_path):
    """Whatever the umask: nothing else keeps rows of a database from other users of the machine."""
    before = os.umask(0)
    try:
        store = FileStore(tmp_path / "deep" / "archive")
        (tmp_path / "out").write_bytes(b"rows")
        store.put("a/put", b"rows")
        store.put_if_absent("a/b/first", b"rows")
        store.put_file("c/file", tmp_path / "out")
    finally:
        os.umask(before)
    found = {path.stat().st_mode & 0o777 for path in (tmp_path / "deep").rglob("*") if path.is_file()}
    folders = {
        path.stat().st_mode & 0o777 for path in (tmp_path / "deep", *(tmp_path / "deep").rglob("*")) if path.is_dir()
    }
    assert (found, folders) == ({0o600}, {0o700})


@pytest.mark.row("A1")
@pytest.mark.parametrize("root", ["a file", "a link to a disk that is not there"])
def test_a_root_that_is_no_folder_is_named_by_who_writes_there(tmp_path, root):
    if root == "a file":
        (tmp_path / "root").write_bytes(b"a file")
    else:
        (tmp_path / "root").symlink_to(tmp_path / "nowhere")
    (tmp_path / "out").write_bytes(b"rows")
    store = FileStore(tmp_path / "root")
    for write in (
        lambda: store.put("a/b", b""),
        lambda: store.put_if_absent("a/b", b""),
        lambda: store.put_file("a/b", tmp_path / "out"),
    ):
        with pytest.raises(StoreError, match=r"root/a/b: Not a directory \(.*archive\.root, is a folder"):
            write()


@pytest.mark.row("A1", "O5")
def test_an_object_comes_back_whole_by_range_and_as_a_file(store, tmp_path):
    store.put("a/b.bin", b"0123456789")
    assert store.get("a/b.bin") == b"0123456789"
    assert store.size("a/b.bin") == 10
    assert store.get_range("a/b.bin", 3, 4) == b"3456"
    assert store.get_range("a/b.bin", 8, 10) == b"89"
    assert store.get_range("a/b.bin", 10, 4) == b""
    store.get_file("a/b.bin", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"0123456789"
    store.put_file("c d%/ü.bin", tmp_path / "out")
    assert store.get("c d%/ü.bin") == b"0123456789"
    store.put("a/b.bin", b"new")
    assert store.get("a/b.bin") == b"new"


def test_folders_are_named_without_what_lies_in_them(store):
    assert list(store.folders()) == []
    for key in ("top", "2/a", "10/a", "10/b/c", "10/d/e", "x/HEAD"):
        store.put(f"folders/{key}", b"x")
    assert list(store.folders("folders/")) == ["10", "2", "x"]
    assert list(PrefixStore(store, "folders/").folders("10/")) == ["b", "d"]
    assert "folders" in set(store.folders())


def test_a_missing_object_is_named(store, tmp_path):
    for call in (
        lambda: store.get("no/such"),
        lambda: store.get_range("no/such", 0, 1),
        lambda: store.size("no/such"),
        lambda: store.get_file("no/such", tmp_path / "x"),
    ):
        with pytest.raises(ObjectNotFound, match="no/such"):
            call()
    store.delete("no/such")


def test_a_list_is_sorted_and_knows_prefixes_that_end_inside_a_name(store):
    for key in ("w/2.json", "w/10.json", "w/1.json", "x/1", "w/sub/3"):
        store.put(key, b"." * len(key))
    assert [each.key for each in store.list("w/")] == ["w/1.json", "w/10.json", "w/2.json", "w/sub/3"]
    assert [each.key for each in store.list("w/1")] == ["w/1.json", "w/10.json"]
    assert [each.size for each in store.list("x/")] == [3]
    assert list(store.list("nothing/")) == []
    assert [each.key for each in store.list("w/", after="w/10.json")] == ["w/2.json", "w/sub/3"]
    assert [each.key for each in PrefixStore(store, "w/").list("", after="2")] == ["2.json", "sub/3"]
    store.delete("w/1.json")
    assert [each.key for each in store.list("w/1")] == ["w/10.json"]


UNREADABLE = [
    (errno.EMFILE, StoreUnavailable, "Too many open files"),
    (errno.EIO, StoreUnavailable, "Input/output error"),
    (errno.ESTALE, StoreUnavailable, "Stale file handle"),
    (errno.EACCES, StoreError, "as that user"),
]


def broken(real, at, number):
    """A call of the system that fails for one path."""

    def call(path, *more, **named):
        if str(path) == str(at):
            raise OSError(number, os.strerror(number), path)
        return real(path, *more, **named)

    return call


@pytest.mark.row("A1", "O5")
@pytest.mark.parametrize(("number", "kind", "says"), UNREADABLE)
def test_a_folder_that_cannot_be_read_ends_the_listing_and_is_named(tmp_path, monkeypatch, number, kind, says):
    store, scandir, stat = FileStore(tmp_path), os.scandir, os.stat
    for key in ("a/1", "b/1", "b/x/1", "c/1"):
        store.put(key, b"rows")
    monkeypatch.setattr(os, "scandir", broken(scandir, tmp_path / "b", number))
    for prefix in ("", "b/"):
        with pytest.raises(kind, match=f"/b: .*{says}") as told:
            list(store.list(prefix))
        assert told.value.retryable == (kind is StoreUnavailable)
    with pytest.raises(kind, match="/b/"):
        list(store.folders("b/"))
    assert [each.key for each in store.list("a/")] == ["a/1"]
    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(os, "stat", broken(stat, tmp_path / "b/1", number))
    with pytest.raises(kind, match=f"/b/1: .*{says}"):
        list(store.list("b/"))


@pytest.mark.row("A1", "A6")
def test_a_folder_beside_what_is_asked_for_may_be_unreadable(tmp_path, monkeypatch):
    """The root of a file system has a `lost+found` that root alone reads."""
    store = FileStore(tmp_path)
    for key in ("binlog-1", "binlogs/1", "7/x/1", "7/y/1", "lost+found/1"):
        store.put(key, b"rows")
    monkeypatch.setattr(os, "scandir", broken(os.scandir, tmp_path / "lost+found", errno.EACCES))
    for prefix, keys in (("binlog", ["binlog-1", "binlogs/1"]), ("genesis.json", []), ("7/", ["7/x/1", "7/y/1"])):
        assert [each.key for each in store.list(prefix)] == keys
    assert list(store.folders()) == ["7", "binlogs", "lost+found"]
    for prefix in ("", "lost"):
        with pytest.raises(StoreError, match=r"lost\+found: .*a folder of its own"):
            list(store.list(prefix))


@pytest.mark.row("A1")
def test_what_is_deleted_while_it_is_listed_is_passed_over(tmp_path, monkeypatch):
    store, scandir = FileStore(tmp_path), os.scandir
    for key in ("a/1", "b/1", "c/1"):
        store.put(key, b"rows")

    def late(path):
        if str(path).endswith("/b"):
            shutil.rmtree(tmp_path / "b")
            (tmp_path / "c" / "1").unlink()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", late)
    assert [each.key for each in store.list("")] == ["a/1"]


@pytest.mark.row("A1", "O5")
def test_of_eight_conditional_writers_exactly_one_wins(store):
    start = threading.Barrier(8)

    def put(number):
        start.wait()
        try:
            store.put_if_absent("one", str(number).encode())
        except (ObjectExists, StoreUnavailable):
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        won = [number for number in pool.map(put, range(8)) if number is not None]
    assert len(won) == 1
    assert store.get("one") == str(won[0]).encode()


def test_keys_cannot_leave_the_root(store):
    for key in ("../x", "a/../b", "/abs", "a//b", ""):
        with pytest.raises(StoreError):
            store.put(key, b"")


@pytest.mark.row("A1", "O5")
def test_a_store_that_honours_conditional_puts_passes_the_probe_and_keeps_nothing_of_it(store):
    probe_conditional_puts(store, "7/")
    assert list(store.list("7/")) == []


@pytest.mark.row("A1")
def test_a_store_that_ignores_conditional_puts_is_refused():
    store = CarelessStore()
    with pytest.raises(UnsafeStore, match="ignores conditional puts"):
        probe_conditional_puts(store, "7/")
    store.put("key", b"x")
    with pytest.raises(UnsafeStore, match="could both win"):
        put_again(store, "key", b"x")


def answer(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>said by the store</Message></Error>".encode()


HTML = b"<html><body>the proxy's own page</body></html>"
ANSWERS = [
    (501, answer("NotImplemented"), UnsafeStore, "NotImplemented"),
    (501, HTML, UnsafeStore, "HTTP 501"),
    (400, answer("InvalidArgument"), UnsafeStore, "InvalidArgument"),
    (400, HTML, UnsafeStore, "HTTP 400"),
    (403, answer("AccessDenied"), UnsafeStore, "AccessDenied"),
    (412, answer("PreconditionFailed"), UnsafeStore, "exists"),
    (503, answer("SlowDown"), StoreUnavailable, "SlowDown"),
    (507, answer("InsufficientStorage"), StoreUnavailable, "InsufficientStorage"),
    (503, HTML, StoreUnavailable, "HTTP 503"),
    (200, HTML, UnsafeStore, "ignores conditional puts"),
]


@pytest.mark.row("A1", "O5")
@pytest.mark.parametrize(("status", "body", "kind", "says"), ANSWERS, ids=lambda each: str(each)[:24])
def test_an_answer_to_a_conditional_put_that_is_no_answer_is_said_as_it_was_given(
    status, body, kind, says, monkeypatch
):
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    with OddStore(status, body) as server:
        with pytest.raises(kind, match=says) as told:
            probe_conditional_puts(open_store(server.settings), "7/")
        assert "there is no" not in str(told.value)
        assert told.value.retryable == (kind is StoreUnavailable)


@pytest.mark.row("A1")
def test_keys_that_may_write_nothing_are_not_taken_for_a_store_without_conditional_puts():
    with (
        OddStore(403, answer("AccessDenied"), also=True) as server,
        pytest.raises(StoreError, match="may these keys") as told,
    ):
        probe_conditional_puts(open_store(server.settings), "7/")
    assert type(told.value) is StoreError


REFUSALS = [
    (403, "AccessDenied", False, "may these keys"),
    (404, "NoSuchBucket", False, "does the bucket exist"),
    (400, "ExpiredToken", False, "s3_session_token"),
    (403, "RequestTimeTooSkewed", False, "clock"),
    (400, "KMS.NotFoundException", False, ""),
    (400, "RequestTimeout", True, ""),
    (400, "BadDigest", True, ""),
    (503, "SlowDown", True, ""),
    (408, "408", True, ""),
    (425, "425", True, ""),
]


@pytest.mark.row("A1", "A4")
@pytest.mark.parametrize(("status", "code", "again", "hint"), REFUSALS)
def test_a_refusal_is_said_as_it_was_given_however_the_object_is_put(status, code, again, hint, tmp_path, monkeypatch):
    """A file goes up by another part of the SDK, which makes text of the answer."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    (tmp_path / "rows").write_bytes(b"rows")
    with OddStore(status, answer(code), also=True) as server:
        store = open_store(server.settings)
        for put in (
            lambda: store.put("a", b"rows"),
            lambda: store.put_if_absent("a", b"rows"),
            lambda: store.put_file("a", tmp_path / "rows"),
        ):
            with pytest.raises(StoreError, match=rf"bucket/archive/a: HTTP {status} {code}") as told:
                put()
            assert (type(told.value) is StoreUnavailable, told.value.retryable) == (again, again)
            assert hint in told.value.hint


@pytest.mark.row("A1", "A4")
@pytest.mark.usefixtures("impatient")
def test_a_download_that_ends_amid_its_body_each_time_may_be_tried_again(s3, tmp_path):
    with FaultyS3(s3.endpoint) as proxy:
        settings = s3.archive_settings()
        direct, store = open_store(settings), open_store(proxy.before(settings))
        direct.put("rows", bytes(100_000))
        with proxy.doing(lambda method, _path: Fault.CUT if method == "GET" else None):
            for get in (lambda: store.get("rows"), lambda: store.get_file("rows", tmp_path / "rows")):
                with pytest.raises(StoreUnavailable, match="archive/rows: "):
                    get()
        store.get_file("rows", tmp_path / "rows")
    assert (tmp_path / "rows").read_bytes() == bytes(100_000)


@pytest.mark.row("A1")
def test_a_local_file_that_is_gone_is_named_and_the_store_is_not_blamed(store, tmp_path):
    for move in (False, True):
        with pytest.raises(StoreError, match=r"gone\.parquet, which was to go to .*a/b, is not there") as told:
            store.put_file("a/b", tmp_path / "gone.parquet", move=move)
        assert not told.value.retryable
    assert list(store.list("")) == []


def rule(**more):
    return {"ID": "tidy", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 30}} | more


RULES = [
    (rule(), "'tidy' deletes objects after 30 days"),
    (rule(Filter={"Prefix": "archive/7/windows/"}), "deletes"),
    (rule(Filter={"Prefix": "arch"}), "deletes"),
    (rule(Filter={"And": {"Prefix": "archive/", "ObjectSizeGreaterThan": 1000}}), "deletes"),
    (rule(Transitions=[{"Days": 9, "StorageClass": "GLACIER"}], Expiration={}), "after 9 days to GLACIER"),
    (rule(Filter={"Prefix": "logs/"}), ""),
    (rule(Status="Disabled"), ""),
    (rule(Filter={"Tag": {"Key": "a", "Value": "b"}}), ""),
    (rule(Expiration={"ExpiredObjectDeleteMarker": True}), ""),
    (rule(Transitions=[{"Days": 30, "StorageClass": "STANDARD_IA"}], Expiration={}), ""),
]


@pytest.mark.row("A1")
def test_a_rule_of_the_bucket_that_takes_objects_away_is_named_and_refused(s3):
    settings, client = s3.archive_settings(), s3.client()
    store = PrefixStore(open_store(settings), "7/")
    refuse_losing(store)
    bucket = settings.root.removeprefix("s3://").removesuffix("/archive")
    for rules, says in RULES:
        client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [rules]})
        if says:
            with pytest.raises(UnsafeStore, match=says):
                refuse_losing(store)
        else:
            refuse_losing(store)


def test_a_store_that_does_not_answer_is_unavailable_and_may_be_tried_again():
    store = open_store(
        ArchiveSettings(
            root="s3://b/p",
            s3_endpoint="http://127.0.0.1:9",
            s3_access_key="k",
            s3_secret_key=SecretStr("s"),
        )
    )
    with pytest.raises(StoreUnavailable) as caught:
        store.get("x")
    assert caught.value.retryable


def test_a_missing_bucket_is_said_so(s3):
    store = open_store(s3.archive_settings(root="s3://not-there/p"))
    with pytest.raises(StoreError, match="does the bucket exist"):
        store.put("x", b"")


@pytest.mark.parametrize(
    "root",
    [
        "gopher://b/p",
        "s3://",
        "s3://key:secret@bucket/p",
        "s3://key:secret@b/p#q",
        "file://",
        "file:///a?b",
        "file:///a#b",
    ],
)
def test_an_unknown_root_is_a_configuration_error_without_secrets(root):
    with pytest.raises(ConfigError) as caught:
        open_store(ArchiveSettings(root=root))
    assert "secret@" not in str(caught.value)


def test_a_place_whose_name_has_marks_of_urls_is_named_by_their_codes(tmp_path):
    open_store(ArchiveSettings(root=f"file://{tmp_path}/a%23b%3Fc")).put("x", b"")
    assert (tmp_path / "a#b?c" / "x").exists()


def test_a_large_file_goes_up_in_parts_and_comes_back_equal(s3, tmp_path, monkeypatch):
    monkeypatch.setattr("pumphouse.objectstore.s3._MULTIPART_BYTES", 5 << 20)
    data = bytes(range(256)) * (12 << 12)
    (tmp_path / "big").write_bytes(data)
    store = open_store(s3.archive_settings())
    store.put_file("big", tmp_path / "big")
    store.get_file("big", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data
