"""Write tokenizer.json and tokenizer_config.json: one token for each byte, and 256 for the begin of a text.

    python3 tokenizer.py
"""

import json
from pathlib import Path

HERE = Path(__file__).parent
#: Token that begins each text.
BEGIN = "<s>"


def names() -> list[str]:
    """Return a printable character for each byte, as the pre-tokenizer `ByteLevel` names them."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


begin = {"id": 256, "content": BEGIN, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
first = {"SpecialToken": {"id": BEGIN, "type_id": 0}}
level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
tokenizer = {
    "version": "1.0",
    "added_tokens": [begin],
    "pre_tokenizer": level,
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [first, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {BEGIN: {"id": BEGIN, "ids": [256], "tokens": [BEGIN]}},
    },
    "decoder": level,
    "model": {"type": "BPE", "vocab": {name: byte for byte, name in enumerate(names())} | {BEGIN: 256}, "merges": []},
}
settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BEGIN, "model_max_length": 8192, "clean_up_tokenization_spaces": False}
(HERE / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=True, indent=1) + "\n")
(HERE / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
