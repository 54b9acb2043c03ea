"""Hashes of prompts on the command line: token ids in every form, and messages for everything else."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvtide import prompt_hashes
from kvtide.blocks import block_hashes

TOKENS = [7, 0, 128_000, *range(40)]


def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
    """Run the command as users do. Return its exit status, stdout and stderr."""
    ended = subprocess.run([sys.executable, "-m", "kvtide.prompt_hashes", *arguments], input=stdin, capture_output=True, timeout=120)
    return ended.returncode, ended.stdout.decode(), ended.stderr.decode()


@pytest.mark.parametrize(
    "text",
    [
        " ".join(map(str, TOKENS)),
        "\n".join(map(str, TOKENS)) + "\n",
        ", ".join(map(str, TOKENS)),
        json.dumps(TOKENS),
        json.dumps({"count": len(TOKENS), "max_model_len": 4096, "tokens": TOKENS, "token_strs": None}, indent=1),
    ],
)
def test_token_ids_are_read_in_every_form(text: str) -> None:
    assert prompt_hashes.parse_tokens(text, "f") == TOKENS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "f: it has no token ids; give numbers separated by white space or commas, or a JSON list"),
        (" \n", "f: it has no token ids"),
        ("[]", "f: it has no token ids"),
        ("1 2 tree 4", "f: token 3 is 'tree'; a token id is a whole number from 0 to 4294967295"),
        ("1 -2", "f: token 2 is '-2'"),
        ("4294967296", "f: token 1 is '4294967296'"),
        ("[1, 2.5]", "f: token 2 is 2.5"),
        ("[true]", "f: token 1 is True"),
        ("[[1, 2], [3]]", "f: token 1 is [1, 2]"),
        ('{"token_ids": [1]}', 'f: the JSON object has no list "tokens"'),
        ("[1, 2", "f: it begins like JSON and is none: "),
        ("x" * 1000, "f: token 1 is 'xxxxxxxxxx"),
    ],
)
def test_what_is_no_token_id_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError) as raised:
        prompt_hashes.parse_tokens(text, "f")
    assert str(raised.value).startswith(said) and len(str(raised.value)) < 200


def test_the_hashes_are_those_of_the_engine(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps(TOKENS))
    expected = [one.hex() for one in block_hashes(TOKENS, 16)]
    assert run("blocks", "--prompt-tokens", str(file), "--block-tokens", "16") == (0, "\n".join(expected) + "\n", "")
    salted = [one.hex() for one in block_hashes(TOKENS, 16, salt=b"user 1")]
    status, out, _ = run("blocks", "--prompt-tokens", "-", "--block-tokens", "16", "--salt", "user 1", stdin=file.read_bytes())
    assert (status, out.split()) == (0, salted)


def test_mistakes_are_told_without_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: str) -> str:
        assert prompt_hashes.main(arguments) == 1
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("prompt_hashes: ") and err.count("\n") == 1
        return err

    missing, file = tmp_path / "missing", tmp_path / "tokens"
    assert f"cannot read {missing}: No such file" in said("blocks", "--prompt-tokens", str(missing), "--block-tokens", "16")
    file.write_text("1 2 3")
    few = said("blocks", "--prompt-tokens", str(file), "--block-tokens", "16")
    assert f"{file}: 3 tokens are less than a block, and only full blocks are cached" in few
    file.write_bytes(b"\xff\xfe1")
    assert f"{file}: token 1 is '" in said("blocks", "--prompt-tokens", str(file), "--block-tokens", "16")
    monkeypatch.setattr(prompt_hashes, "FILE_BYTES_MAX", 2)
    assert "give the first tokens" in said("blocks", "--prompt-tokens", str(file), "--block-tokens", "16")
    for wrong in ("0", "-1", "x", "1e3"):
        with pytest.raises(SystemExit) as ended:
            prompt_hashes.main(("blocks", "--prompt-tokens", str(file), f"--block-tokens={wrong}"))
        assert ended.value.code == 2
        assert f"{wrong!r} is no number of tokens; give a whole number above 0" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_engine_that_is_not_installed_is_named(engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec(engine) is not None:
        pytest.skip(f"{engine} is installed")
    file = tmp_path / "tokens"
    file.write_text(" ".join(map(str, range(32))))
    assert prompt_hashes.main((engine, "--prompt-tokens", str(file), "--block-tokens", "16")) == 1
    assert f"cannot import {engine}: run this with the Python of the engine" in capsys.readouterr().err
