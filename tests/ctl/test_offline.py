# SPDX-License-Identifier: Apache-2.0
"""What needs no bus: identities, usage errors, help, completion, the manual page."""
import json
import subprocess

import pytest
from conftest import ROOT, bin_dir

VERBS = ["ensure", "stop", "archive", "restore", "delete", "converge", "recover", "touch", "get", "list", "find", "stats", "watch", "timeline",
         "stuck", "doctor", "id", "exec", "cp", "code"]
FLAGS = {"app": "--app", "skillEdit": "--skill", "workflowBuilder": "--workflow"}


def test_a_reader_that_leaves_is_no_error(environment):
    """As with `skctl help man | head -1`: quiet, and the status that a shell gives death by SIGPIPE."""
    with subprocess.Popen([bin_dir() / "skctl", "help", "man"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait(30)) == (b"", 141)
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run([bin_dir() / "skctl", "help", "man"], env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (1, "skctl: stdout could not be written\n")


def test_help_says_what_a_time_is(offline):
    assert "without a unit it is seconds" in offline("help", "code").out and "without a unit it is seconds" in offline("help", "man").out
    assert "without a unit" not in offline("help", "id").out
    assert "30 is 30s" in offline("code", "js", "-", "--timeout=soon").err


@pytest.mark.parametrize("row", json.loads((ROOT / "tests/golden/identity.json").read_text()))
def test_id_agrees_with_the_golden_vectors(offline, row):
    arguments = ["id", f"{FLAGS[row['sourceType']]}={row['sourceId']}", f"--user={row['userId']}"]
    assert offline(*arguments).out.strip() == row["sandboxId"]
    assert offline(*arguments, "--json").json["sandboxId"] == row["sandboxId"]


def test_id_of_a_skill_needs_no_user_and_ids_may_start_with_a_dash(offline):
    assert offline("id", "--skill", "s").out == offline("id", "--skill=s", "--user=anybody").out
    assert offline("id", "--app=-x", "--user=-y").out.startswith("app-")
    refused = offline("id", "--app", "-x", "--user", "y")
    assert refused.status == 2 and "--app=-x" in refused.err and refused.out == ""


@pytest.mark.parametrize("arguments", [
    [], ["frobnicate"], ["id"], ["id", "--app=a"], ["id", "--user=u"], ["id", "--app=a", "--skill=s", "--user=u"], ["id", "--app=", "--user=u"],
    ["id", "--app=" + "x" * 65, "--user=u"], ["id", "--app=a\x01", "--user=u"], ["get", "not-an-id"], ["get", "app-0123456789abcdeF"],
    ["get", "app-0123456789abcdef", "--app=a", "--user=u"], ["get", "app-0123456789abcdef", "second"], ["list", "--status=sleeping"],
    ["list", "--limit=0"], ["list", "--limit=501"], ["list", "--limit"], ["list", "--older-than=soon"], ["ensure", "--nonsense"],
    ["ensure", "app-0123456789abcdef", "--wait=maybe"], ["ensure", "app-0123456789abcdef", "--deadline=2h"], ["watch", "--since=yesterday"],
    ["recover", "app-0123456789abcdef", "--action=hope"], ["get", "app-0123456789abcdef", "--", "x"], ["completion"], ["completion", "fish"],
    ["--nonsense"], ["stop", "-x"], ["exec", "app-0123456789abcdef"], ["cp", "a"], ["cp", "a", "b"],
])
def test_usage_errors_end_with_2_and_say_what_is_wrong(offline, arguments):
    done = offline(*arguments)
    assert done.status == 2
    assert done.err.strip() and done.out == ""


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(offline, verb):
    by_flag, by_verb = offline(verb, "--help"), offline("help", verb)
    assert by_flag.status == by_verb.status == 0
    assert by_flag.out == by_verb.out and f"skctl {verb}" in by_flag.out


def test_stop_gaps_say_so(offline):
    for verb in ("exec", "cp"):
        assert "stop-gap until the runtime service exists" in " ".join(offline("help", verb).out.split())


def test_the_committed_manual_page_is_current(offline):
    assert (ROOT / "docs/man/skctl.1").read_text() == offline("help", "man").out


def test_the_manual_page_has_no_roff_errors(offline):
    checked = subprocess.run(["sh", "-c", "command -v man >/dev/null || exit 0; exec man --warnings -l - >/dev/null"], input=offline("help", "man").out,
                             capture_output=True, text=True, check=False, env={"MANWIDTH": "100", "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"})
    assert checked.returncode == 0 and checked.stderr == ""


def complete(line):
    """What bash offers at the end of this line."""
    script = (f"source <('{bin_dir()}/skctl' completion bash)\nCOMP_LINE={line!r}\nCOMP_WORDBREAKS='='\n"
              "read -ra COMP_WORDS <<<\"${COMP_LINE//=/ = }\"\n[[ $COMP_LINE == *' ' ]] && COMP_WORDS+=('')\n"
              "COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\ncompopt() { :; }\n_skctl\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n")
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completion():
    assert complete("skctl en") == ["ensure"]
    assert set(VERBS) <= set(complete("skctl "))
    assert complete("skctl list --sta") == ["--status="]
    assert complete("skctl list --status=runn") == ["running"]
    assert complete("skctl recover --action ab") == ["abandon"]
    assert complete("skctl help tim") == ["timeline"]
    assert complete("skctl code ") == ["js", "py", "python"]
    assert complete("skctl code js --vars={} --ti") == ["--timeout="]


def test_zsh_completion_is_a_valid_script(offline):
    script = offline("completion", "zsh").out
    assert script.startswith("#compdef skctl\n")
    for verb in VERBS:
        assert f"'{verb}:" in script and f"        {verb})" in script
    checked = subprocess.run(["sh", "-c", "command -v zsh >/dev/null || exit 0; exec zsh -n /dev/stdin"], input=script, capture_output=True, text=True,
                             check=False)
    assert checked.returncode == 0, checked.stderr


def test_version_and_configuration(offline, environment):
    assert offline("--version").out.startswith("skctl ")
    environment.update(SANDKEEP_LOCALBOX_KEY="top-secret", SANDKEEP_NATS_URL="nats://user:pw@127.0.0.1:4222")
    shown = offline("--print-config", "--json")
    assert shown.status == 0 and "top-secret" not in shown.out and "pw@" not in shown.out
    assert json.loads(shown.out)
    environment["SANDKEEP_NATS_URL"] = "http://wrong"
    assert offline("--check-config").status == 2
    assert "SANDKEEP_NATS_URL" in offline("stats").err


def test_bus_out_of_reach_is_6(offline, environment):
    environment["SANDKEEP_NATS_URL"] = "nats://127.0.0.1:1"
    for arguments in (["stats"], ["ensure", "--app=a", "--user=u"], ["watch"]):
        done = offline(*arguments)
        assert done.status == 6 and done.out == "" and "cannot reach the bus" in done.err
    for secret in ("bob:hunter2", "hunter2token"):
        environment["SANDKEEP_NATS_URL"] = f"nats://{secret}@127.0.0.1:1"
        done = offline("stats")
        assert done.status == 6 and "127.0.0.1:1" in done.err and "hunter2" not in done.err


@pytest.mark.parametrize("prefix", ["", "a.b", "a b", "x>", "*", "$JS", "_INBOX", "-x", "\u00e4", "x" * 64])
def test_a_bad_subject_prefix_is_a_configuration_error(offline, environment, prefix):
    environment["SANDKEEP_SUBJECT_PREFIX"] = prefix
    for arguments in (["--check-config"], ["list"], ["ensure", "app-0123456789abcdef"]):
        done = offline(*arguments)
        assert done.status == 2 and done.out == ""
        assert "SANDKEEP_SUBJECT_PREFIX" in done.err and "letters, digits, '-' and '_'" in done.err
    environment["SANDKEEP_SUBJECT_PREFIX"] = "team-1_b"
    assert offline("--check-config").status == 0
