# SPDX-License-Identifier: Apache-2.0
"""The unmodified Python SDK of OpenSandbox against sk-localbox."""
import io
import time
from datetime import timedelta

import pytest
from opensandbox import SandboxSync
from opensandbox.config import ConnectionConfigSync
from opensandbox.exceptions import SandboxException
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.filesystem import (ContentReplaceEntry, DirectoryListEntry, MoveEntry, SearchEntry, SetPermissionEntry,
                                           WriteEntry)
from opensandbox.models.sandboxes import PVC, SandboxFilter, Volume
from opensandbox.sync import SandboxManagerSync

from conftest import KEY


@pytest.fixture
def config(daemon):
    return ConnectionConfigSync(domain=f"127.0.0.1:{daemon.port}", api_key=KEY, use_server_proxy=True,
                                request_timeout=timedelta(seconds=30))


@pytest.fixture
def sandbox(config):
    made = SandboxSync.create("python:3.11", connection_config=config, metadata={"sessionId": "s1"}, env={"GIVEN": "yes"})
    yield made
    try:
        made.kill()
    except SandboxException:
        pass
    made.close()


def test_create_info_and_kill(config, sandbox):
    assert sandbox.is_healthy()
    info = sandbox.get_info()
    assert info.id == sandbox.id
    assert info.status.state == "Running"
    assert info.metadata == {"sessionId": "s1"}
    assert info.expires_at is not None
    sandbox.kill()
    with pytest.raises(SandboxException):
        sandbox.get_info()


def test_run_foreground(sandbox):
    result = sandbox.commands.run("echo out; echo err >&2; echo $GIVEN; exit 3")
    assert [m.text for m in result.logs.stdout] == ["out", "yes"]
    assert [m.text for m in result.logs.stderr] == ["err"]
    assert result.error.value == "3"
    assert result.exit_code == 3
    assert sandbox.commands.run("true").exit_code == 0


def test_run_options(sandbox):
    result = sandbox.commands.run("pwd; echo $A", opts=RunCommandOpts(working_directory="/tmp", envs={"A": "b c"}))
    assert [m.text for m in result.logs.stdout] == ["/tmp", "b c"]
    begun = time.monotonic()
    late = sandbox.commands.run("sleep 60", opts=RunCommandOpts(timeout=timedelta(seconds=1)))
    assert time.monotonic() - begun < 5
    assert late.error.value == "-1"


def test_background_status_logs_interrupt(sandbox):
    started = sandbox.commands.run("for i in 1 2 3; do echo line $i; done; sleep 60", opts=RunCommandOpts(background=True))
    assert started.id
    status = sandbox.commands.get_command_status(started.id)
    assert status.running and status.exit_code is None
    deadline = time.monotonic() + 5
    content, cursor = "", 0
    while content.count("\n") < 3 and time.monotonic() < deadline:
        logs = sandbox.commands.get_background_command_logs(started.id, cursor)
        content, cursor = content + logs.content, logs.cursor
    assert content == "line 1\nline 2\nline 3\n"
    assert sandbox.commands.get_background_command_logs(started.id, cursor).content == ""
    begun = time.monotonic()
    sandbox.commands.interrupt(started.id)
    assert time.monotonic() - begun < 1
    after = sandbox.commands.get_command_status(started.id)
    assert after.running is False and after.exit_code == -1 and after.finished_at is not None


def test_files(sandbox):
    files = sandbox.files
    files.write_files([WriteEntry(path="/workspace/a.txt", data="hello world\n", mode=640),
                       WriteEntry(path="/workspace/deep/er/b.bin", data=bytes(range(256)))])
    assert files.read_file("/workspace/a.txt") == "hello world\n"
    assert files.read_bytes("/workspace/deep/er/b.bin") == bytes(range(256))
    assert files.read_bytes("/workspace/deep/er/b.bin", range_header="bytes=10-19") == bytes(range(10, 20))
    assert files.read_file("/workspace/a.txt", offset=1, limit=1) == "hello world"
    info = files.get_file_info(["/workspace/a.txt"])["/workspace/a.txt"]
    assert (info.size, info.mode, info.entry_type, info.owner) == (12, 640, "file", "sandbox")
    files.set_permissions([SetPermissionEntry(path="/workspace/a.txt", mode=600)])
    assert files.get_file_info(["/workspace/a.txt"])["/workspace/a.txt"].mode == 600
    files.replace_contents([ContentReplaceEntry(path="/workspace/a.txt", old_content="world", new_content="there")])
    assert files.read_file("/workspace/a.txt") == "hello there\n"
    counted = files.replace_contents_detailed([ContentReplaceEntry(path="/workspace/a.txt", old_content="e", new_content="E")])
    assert counted[0].replaced_count == 3
    files.move_files([MoveEntry(src="/workspace/a.txt", dest="/workspace/moved/c.txt")])
    assert files.read_file("/workspace/moved/c.txt") == "hEllo thErE\n"
    found = {entry.path for entry in files.search(SearchEntry(path="/workspace", pattern="*.txt"))}
    assert found == {"/workspace/moved/c.txt"}
    listed = [entry.path for entry in files.list_directory(DirectoryListEntry(path="/workspace", depth=3))]
    assert listed == ["/workspace/deep", "/workspace/deep/er", "/workspace/deep/er/b.bin", "/workspace/moved", "/workspace/moved/c.txt"]
    files.delete_files(["/workspace/moved/c.txt"])
    with pytest.raises(SandboxException):
        files.get_file_info(["/workspace/moved/c.txt"])
    files.create_directories([WriteEntry(path="/workspace/new/folder", mode=750)])
    assert files.get_file_info(["/workspace/new/folder"])["/workspace/new/folder"].entry_type == "directory"
    files.delete_directories(["/workspace/new", "/workspace/deep", "/workspace/absent"])
    assert [entry.path for entry in files.list_directory(DirectoryListEntry(path="/workspace"))] == ["/workspace/moved"]


def test_stream_upload_and_download(sandbox):
    block = bytes(range(256)) * 4096
    sandbox.files.write_file("/workspace/big", io.BytesIO(block * 16))
    total = 0
    for piece in sandbox.files.read_bytes_stream("/workspace/big"):
        total += len(piece)
    assert total == len(block) * 16


def test_metrics(sandbox):
    metrics = sandbox.get_metrics()
    assert metrics.cpu_count >= 1
    assert metrics.memory_total_in_mib > 0


def test_sessions(sandbox):
    session = sandbox.commands.create_session(working_directory="/workspace/s")
    sandbox.commands.run_in_session(session, "export X=1; cd /tmp")
    result = sandbox.commands.run_in_session(session, "echo $X; pwd; echo err >&2")
    assert [m.text for m in result.logs.stdout] == ["1", "/tmp", "err"]
    assert sandbox.commands.run_in_session(session, "exit 4").error.value == "4"
    assert [m.text for m in sandbox.commands.run_in_session(session, "echo $X").logs.stdout] == ["1"]
    sandbox.commands.delete_session(session)
    with pytest.raises(SandboxException):
        sandbox.commands.run_in_session(session, "true")


def test_renew_metadata_endpoint(sandbox):
    before = sandbox.get_info().expires_at
    renewed = sandbox.renew(timedelta(minutes=30))
    assert renewed.expires_at > before
    changed = sandbox.patch_metadata({"epoch": "7", "sessionId": None})
    assert changed.metadata == {"epoch": "7"}
    endpoint = sandbox.get_endpoint(8080)
    assert endpoint.endpoint.endswith(f"/v1/sandboxes/{sandbox.id}/proxy/8080")


def size_of(sandbox, path):
    return sandbox.files.get_file_info([path])[path].size


def wait_growth(sandbox, path, above):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if size_of(sandbox, path) > above:
                return
        except SandboxException:
            pass
    raise AssertionError(f"{path} does not grow")


def test_pause_resume(config, sandbox):
    sandbox.files.write_file("/workspace/kept", "x")
    sandbox.commands.run("while :; do echo x >> /workspace/tick; sleep 0.01; done", opts=RunCommandOpts(background=True))
    wait_growth(sandbox, "/workspace/tick", 0)
    sandbox.pause()
    assert sandbox.get_info().status.state == "Paused"
    before = size_of(sandbox, "/workspace/tick")  # reads are served while it is paused
    time.sleep(0.3)  # thirty writes, if anybody still ran
    assert size_of(sandbox, "/workspace/tick") == before
    resumed = SandboxSync.resume(sandbox.id, connection_config=config)
    assert resumed.get_info().status.state == "Running"
    wait_growth(resumed, "/workspace/tick", before)
    assert resumed.commands.run("cat /workspace/kept").logs.stdout[0].text == "x"
    resumed.close()


def test_list_and_filters(config, sandbox):
    with SandboxManagerSync.create(config) as manager:
        page = manager.list_sandbox_infos(SandboxFilter(metadata={"sessionId": "s1"}, states=["Running"], page_size=50))
        assert sandbox.id in {item.id for item in page.sandbox_infos}
        assert page.pagination.page == 1
        none = manager.list_sandbox_infos(SandboxFilter(metadata={"sessionId": "other"}))
        assert none.sandbox_infos == [] and none.pagination.total_pages == 0


def test_volume_outlives_sandbox(config):
    volume = Volume(name="workspace", pvc=PVC(claimName="sdk-volume"), mountPath="/workspace")
    first = SandboxSync.create("x", connection_config=config, volumes=[volume])
    first.files.write_file("/workspace/kept.txt", "kept")
    first.kill()
    first.close()
    second = SandboxSync.create("x", connection_config=config, volumes=[volume])
    assert second.files.read_file("/workspace/kept.txt") == "kept"
    second.kill()
    second.close()
