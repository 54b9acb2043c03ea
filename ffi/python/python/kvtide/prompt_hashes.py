"""Print the hashes of a prompt's blocks, one a line, as an engine makes them. `kvtide why --hashes` shows where they are.

    python -m kvtide.prompt_hashes vllm --prompt-tokens FILE --block-tokens 16 | kvtide why --hashes -

The hash function is part of the engine, so this runs in the engine's environment: its Python packages and its PYTHONHASHSEED.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
from collections.abc import Sequence

from .blocks import block_hashes

#: Maximum bytes of a file with tokens. A million tokens take 7 MB.
FILE_BYTES_MAX = 64 << 20
#: Largest token id: engines keep ids in 32 bits.
TOKEN_MAX = 2**32 - 1


def parse_tokens(text: str, name: str) -> list[int]:
    """Return the token ids of a file: numbers separated by white space or commas, a JSON list, or the answer of vLLM's and SGLang's
    /tokenize, a JSON object with the list `tokens`. `name` is that of the file, for messages.

    Raise ValueError if it has anything else, or nothing.
    """
    found: object = text.replace(",", " ").split()
    if re.match(r"\s*[\[{]", text):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{name}: it begins like JSON and is none: {error}") from error
        if isinstance(found, dict):
            found = found.get("tokens")
        if not isinstance(found, list):
            raise ValueError(f'{name}: the JSON object has no list "tokens", as the answer of /tokenize has')
    assert isinstance(found, list)
    if not found:
        raise ValueError(f"{name}: it has no token ids; give numbers separated by white space or commas, or a JSON list")
    return [_token(one, f"{name}: token {at}") for at, one in enumerate(found, start=1)]


def _token(one: object, what: str) -> int:
    number = int(one) if isinstance(one, str) and re.fullmatch(r"[0-9]{1,10}", one) else one
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= TOKEN_MAX:
        raise ValueError(f"{what} is {repr(one)[:40]}; a token id is a whole number from 0 to {TOKEN_MAX}")
    return number


def _read(path: str, name: str) -> str:
    with sys.stdin.buffer if path == "-" else open(path, "rb") as file:
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"{name}: it has more than {FILE_BYTES_MAX >> 20} MiB; give the first tokens of the prompt")
    return content.decode(errors="replace")


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tokens; give a whole number above 0")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kvtide.prompt_hashes", description=(__doc__ or "").partition("\n")[0])
    engines = parser.add_subparsers(dest="engine", required=True, metavar="ENGINE")
    tokens = argparse.ArgumentParser(add_help=False)
    tokens.add_argument(
        "--prompt-tokens", required=True, metavar="FILE", help="token ids as text, a JSON list, or the answer of /tokenize; - for stdin"
    )
    tokens.add_argument("--block-tokens", required=True, type=_count, metavar="N", help="the engine's block size or page size, in tokens")
    tokens.add_argument("--salt", help="cache salt of the request")
    vllm = engines.add_parser("vllm", parents=[tokens], help="KvtideConnector and KvtidePaged; set the PYTHONHASHSEED of the engine")
    vllm.add_argument("--algorithm", default="sha256", help="vLLM's --prefix-caching-hash-algo (default: sha256)")
    vllm.add_argument("--epoch", help="the connector's option `epoch`")
    vllm.add_argument(
        "--page-tokens",
        type=_count,
        metavar="N",
        help="tokens of a block of kvtide, with blocks_per_chunk or cache groups of several block sizes (default: --block-tokens)",
    )
    engines.add_parser("sglang", parents=[tokens], help="KvtideStorage")
    engines.add_parser("blocks", parents=[tokens], help="engines that hash with kvtide.blocks.block_hashes")
    return parser


def _hashes(given: argparse.Namespace, tokens: list[int]) -> list[bytes]:
    if given.engine == "vllm":
        from .vllm import prompt  # noqa: PLC0415

        return prompt.prompt_hashes(
            tokens,
            given.block_tokens,
            page_tokens=given.page_tokens,
            algorithm=given.algorithm,
            salt=given.salt,
            epoch=given.epoch,
        )
    if given.engine == "sglang":
        from .sglang import keys  # noqa: PLC0415

        return keys.prompt_hashes(tokens, given.block_tokens, salt=given.salt)
    return block_hashes(tokens, given.block_tokens, salt=(given.salt or "").encode())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return its exit status."""
    given = _parser().parse_args(arguments)
    name = "stdin" if given.prompt_tokens == "-" else given.prompt_tokens
    try:
        tokens = parse_tokens(_read(given.prompt_tokens, name), name)
        # vLLM logs to stdout, where the hashes go.
        with contextlib.redirect_stdout(sys.stderr):
            found = _hashes(given, tokens)
        if not found:
            raise ValueError(f"{name}: {len(tokens)} tokens are less than a block, and only full blocks are cached")
    except OSError as error:
        why = f"cannot read {name}: {error.strerror}"
    except ImportError as error:
        why = f"cannot import {error.name or error}: run this with the Python of the engine, into which kvtide is installed"
    except ValueError as error:
        why = str(error).removeprefix("kvtide: ")
    else:
        sys.stdout.writelines(f"{one.hex()}\n" for one in found)
        return 0
    print(f"prompt_hashes: {why}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
