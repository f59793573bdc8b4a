# SPDX-License-Identifier: Apache-2.0
"""Pictures of matplotlib as people draw them: with words. Through the service, where a task has none of the template's
descriptors."""
import base64
import os
import subprocess

import pytest

DRAW = """
import io
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt


def draw():
    figure, axes = plt.subplots(figsize=(5, 3))
    axes.plot([1, 2, 3], [10, 40, 90], label="Umsatz")
    axes.set_title("Sales by month: WXYZ qjk 0123456789")
    axes.set_xlabel("month")
    axes.legend()
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()
"""


def ran(server, code):
    status, body = server.run("python", code)
    assert status == 200 and body["success"], body
    return body["data"]


def reference(code):
    """The same code in the machine's own interpreter, as the template is set up: without anybody's settings."""
    done = subprocess.run(["/usr/bin/python3", "-c", code + "\nimport base64\nprint(base64.b64encode(draw()).decode())"], capture_output=True,
                          text=True, check=False, cwd="/", timeout=120, env={**os.environ, "HOME": "/dev/null/nowhere"})
    if done.returncode != 0:
        pytest.skip(f"no matplotlib to compare with: {done.stderr[-200:]}")
    return base64.b64decode(done.stdout.splitlines()[-1])


def test_a_picture_is_what_the_machine_draws(server):
    data = ran(server, DRAW + "\ndef main():\n    import base64\n    return base64.b64encode(draw()).decode()\n")
    assert data["log"] == ""
    assert base64.b64decode(data["codeReturn"]) == reference(DRAW)


def test_loading_leaves_no_file_open(server):
    """A task has none of the template's descriptors: what was cached with one reads from whatever has its number."""
    assert "left open after loading" not in server.log()


@pytest.mark.parametrize("kind, start", [("svg", "<?xml"), ("pdf", "%PDF-"), ("jpg", "\xff\xd8")])
def test_words_in_every_format(server, kind, start):
    data = ran(server, f"""
import matplotlib.pyplot as plt
def main():
    plt.plot([1, 2])
    plt.title("Sales WXYZ")
    plt.savefig(task_tmpdir + "/picture.{kind}")
    return open(task_tmpdir + "/picture.{kind}", "rb").read().decode("latin-1")
""")
    assert data["log"] == "" and data["codeReturn"].startswith(start) and len(data["codeReturn"]) > 3000
    if kind == "svg":
        assert 'id="DejaVuSans-57"' in data["codeReturn"]  # the W, which nobody drew before


def test_a_picture_leaves_open_files_alone(server):
    data = ran(server, """
import matplotlib.pyplot as plt
import io
def main():
    files = [open(f"{task_tmpdir}/q{i}", "wb+", buffering=0) for i in range(30)]
    for file in files:
        file.write(b"A" * 100)
    plt.plot([1, 2])
    plt.title("Sales WXYZ")
    plt.savefig(io.BytesIO())
    for file in files:
        file.write(b"B")
    return [open(f"{task_tmpdir}/q{i}", "rb").read().decode() for i in range(30)]
""")
    assert data["codeReturn"] == ["A" * 100 + "B"] * 30 and data["log"] == ""


def test_no_fonts_of_strangers(server):
    """The template looks for fonts as root: nowhere that somebody else may write to."""
    data = ran(server, """
import matplotlib.font_manager
def main():
    return [str(folder) for folder in matplotlib.font_manager.X11FontDirectories]
""")
    assert data["codeReturn"]
    for folder in data["codeReturn"]:
        assert folder.startswith(("/usr/", "/dev/null/nowhere/")), folder
